//! A yes for one run is none for a later one: what took a guarded place is not
//! reached any more through a name, a descriptor or a mapping that a run kept.

use crate::oracle::Tool::{Cargo, Git, Npm, Reader};
use crate::row::{ROW, Row, Then};

const GIT: Row = Row {
    prepare: "git init -q",
    options: &["--grant", "write .git", "--grant", "write .git/config", "--grant", "write .git/hooks"],
    ask: &[Git, Reader],
    ..ROW
};
const NPM: Row = Row { options: &["--grant", "write .npmrc"], ask: &[Npm, Reader], ..ROW };
const CARGO: Row = Row { options: &["--grant", "write .cargo/config.toml"], ask: &[Cargo, Reader], ..ROW };

/// All of them.
pub const ROWS: &[Row] = &[
    Row {
        id: "held-lock-linked",
        attack: "cp .git/config .git/config.lock; ln .git/config.lock x; mv .git/config.lock .git/config",
        then: Then::Later("gitcfg >>x"),
        ..GIT
    },
    Row {
        id: "held-lock-linked-outside",
        attack: "cp .git/config y; ln y x; mv y .git/config",
        then: Then::Later("gitcfg >>x"),
        ..GIT
    },
    Row { id: "held-config-linked", attack: "ln .git/config x", then: Then::Later("gitcfg >>x"), ..GIT },
    Row {
        id: "held-config-linked-in",
        attack: "cp .git/config x; rm .git/config; ln x .git/config",
        then: Then::Later("gitcfg >>x"),
        ..GIT
    },
    Row {
        id: "held-config-exchanged",
        attack: "cp .git/config y; ln y x; $ACTS exchange y .git/config",
        then: Then::Later("gitcfg >>x"),
        ..GIT
    },
    Row {
        id: "held-config-symlinked",
        attack: "cp .git/config x; rm .git/config; ln -s ../x .git/config",
        then: Then::Later("gitcfg >>x"),
        ..GIT
    },
    Row {
        id: "held-config-symlinked-late",
        attack: "cp .git/config x; rm .git/config; ln -s ../x .git/config",
        then: Then::Later("cp x y; gitcfg >>y; mv y x"),
        ..GIT
    },
    Row {
        id: "held-hook-linked",
        attack: "printf '#!/bin/sh\\n' >h; chmod 755 h; ln h x; mv h .git/hooks/pre-commit",
        then: Then::Later("hook >>x"),
        ..GIT
    },
    Row {
        id: "held-hooks-directory",
        attack: "mkdir h; printf '#!/bin/sh\\n' >h/pre-commit; chmod 755 h/pre-commit; ln h/pre-commit x; rm -r .git/hooks; mv h .git/hooks",
        then: Then::Later("hook >>x"),
        ..GIT
    },
    Row {
        id: "held-open",
        attack: "mv w .git/config",
        then: Then::Beside("cp .git/config w; gitcfg | $ACTS hold w go"),
        ..GIT
    },
    Row {
        id: "held-open-linked",
        attack: "rm .git/config; ln w .git/config",
        then: Then::Beside("cp .git/config w; gitcfg | $ACTS hold w go"),
        ..GIT
    },
    Row {
        id: "held-open-exchanged",
        attack: "$ACTS exchange w .git/config",
        then: Then::Beside("cp .git/config w; gitcfg | $ACTS hold w go"),
        ..GIT
    },
    Row { id: "held-mapped", attack: "mv w .git/config", then: Then::Beside("gitcfg | $ACTS map w go"), ..GIT },
    Row {
        id: "held-open-hook",
        attack: "mv w .git/hooks/pre-commit",
        then: Then::Beside("hook | $ACTS hold w go"),
        ..GIT
    },
    Row {
        id: "held-directory-open",
        attack: "rm -r .git/hooks; mv h .git/hooks",
        then: Then::Beside("mkdir h; cd h; wait_for_go; hook >pre-commit; chmod 755 pre-commit"),
        ..GIT
    },
    Row { id: "held-npm-linked", attack: "echo >t; ln t x; mv t .npmrc", then: Then::Later("npmcfg >>x"), ..NPM },
    Row { id: "held-npm-symlinked", attack: "echo >b; ln -s b .npmrc", then: Then::Later("npmcfg >>b"), ..NPM },
    Row { id: "held-npm-open", attack: "mv w .npmrc", then: Then::Beside("npmcfg | $ACTS hold w go"), ..NPM },
    Row { id: "held-npm-written", attack: "echo >.npmrc; ln .npmrc x", then: Then::Later("npmcfg >>x"), ..NPM },
    Row {
        id: "held-npm-sub",
        prepare: "mkdir sub",
        options: &["--grant", "write sub/.npmrc"],
        attack: "echo >b; ln -s ../b sub/.npmrc",
        then: Then::Later("npmcfg >b"),
        ..NPM
    },
    Row {
        id: "held-npm-unnamed",
        attack: "echo | $ACTS tmplink . .npmrc; ln .npmrc x",
        then: Then::Later("npmcfg >>x"),
        ..NPM
    },
    Row {
        id: "held-cargo-linked",
        attack: "mkdir .cargo; echo >t; ln t x; mv t .cargo/config.toml",
        then: Then::Later("cargocfg >>x"),
        ..CARGO
    },
    Row {
        id: "held-cargo-open",
        prepare: "mkdir .cargo",
        attack: "mv w .cargo/config.toml",
        then: Then::Beside("cargocfg | $ACTS hold w go"),
        ..CARGO
    },
    // A descriptor of one run reaches another.
    Row {
        id: "held-passed",
        attack: r#"python3 -c '
import socket, time
with open(".git/config", "a") as held, socket.socket(socket.AF_UNIX) as line:
    line.connect("s")
    socket.send_fds(line, [b"x"], [held.fileno()])
    line.recv(1)'"#,
        then: Then::Beside(
            r#"python3 -c '
import os, socket
line = socket.socket(socket.AF_UNIX)
line.settimeout(15)
line.bind("s")
line.listen()
open("go.ready", "w").close()
other, _ = line.accept()
_, held, _, _ = socket.recv_fds(other, 1, 1)
os.write(held[0], b"[stockade]\n\tplanted = STOCKADE-PLANTED\n")'"#,
        ),
        ..GIT
    },
    Row {
        id: "held-seen-in-proc",
        attack: "exec 9>>.git/config; sleep 2",
        then: Then::Beside(
            r#": >go.ready; for n in $(seq 300); do for held in /proc/[0-9]*/fd/9; do [ "$(readlink $held)" = $W/.git/config ] && gitcfg >>$held; done; [ -e go ] && break; sleep 0.02; done 2>/dev/null"#,
        ),
        ..GIT
    },
];
