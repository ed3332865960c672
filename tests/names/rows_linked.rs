//! Guarded names that are reached through links, moves and further names of files:
//! cargo, npm, and programs that read a name of their own.

use crate::oracle::Tool::{Cargo, GitHome, Npm, Reader, There};
use crate::row::{ROW, Row, Then};

const CARGO: Row = Row { ask: &[Cargo, Reader], ..ROW };
const NPM: Row = Row { ask: &[Npm, Reader], ..ROW };
const READ: Row = Row { ask: &[Reader], ..ROW };
const HOME: Row = Row { ask: &[GitHome, Reader], ..ROW };

/// All of them.
pub const ROWS: &[Row] = &[
    // The parent is a link that the run makes.
    Row { id: "cargo-link-last", attack: "mkdir b; cargocfg >b/config.toml; ln -s b .cargo", ..CARGO },
    Row { id: "cargo-link-first", attack: "ln -s b .cargo; mkdir b; cargocfg >b/config.toml", ..CARGO },
    Row { id: "cargo-link-used", attack: "mkdir b; ln -s b .cargo; cargocfg >.cargo/config.toml", ..CARGO },
    Row { id: "cargo-link-entered", attack: "mkdir b; ln -s b .cargo; cd .cargo; cargocfg >config.toml", ..CARGO },
    Row { id: "cargo-link-absolute", attack: "mkdir b; cargocfg >b/config.toml; ln -s $W/b .cargo", ..CARGO },
    Row { id: "cargo-link-dots", attack: "mkdir b s; cargocfg >b/config.toml; ln -s s/../b .cargo", ..CARGO },
    Row { id: "cargo-link-moved", attack: "mkdir b; cargocfg >b/config.toml; ln -s b x; mv x .cargo", ..CARGO },
    Row { id: "cargo-link-linked", attack: "mkdir b; cargocfg >b/config.toml; ln -s b x; ln -P x .cargo", ..CARGO },
    Row {
        id: "cargo-link-exchanged",
        attack: "mkdir b .cargo; cargocfg >b/config.toml; ln -s b x; $ACTS exchange x .cargo",
        ..CARGO
    },
    Row { id: "cargo-link-config", attack: "mkdir b; cargocfg >b/config; ln -s b .cargo", ..CARGO },
    Row { id: "cargo-link-sub", attack: "mkdir -p s b; cargocfg >b/config.toml; ln -s ../b s/.cargo", ..CARGO },
    Row { id: "cargo-link-leaf", attack: "mkdir b; cargocfg >x; ln -s ../x b/config.toml; ln -s b .cargo", ..CARGO },
    // The parent is a link that the repository ships.
    Row { id: "cargo-shipped", prepare: "mkdir b; ln -s b .cargo", attack: "cargocfg >b/config.toml", ..CARGO },
    Row {
        id: "cargo-shipped-absolute",
        prepare: "mkdir b; ln -s $W/b .cargo",
        attack: "cargocfg >b/config.toml",
        ..CARGO
    },
    Row {
        id: "cargo-shipped-dangling",
        prepare: "ln -s b .cargo",
        attack: "mkdir b; cargocfg >b/config.toml",
        ..CARGO
    },
    Row {
        id: "cargo-shipped-sub",
        prepare: "mkdir sub b; ln -s ../b sub/.cargo",
        attack: "cargocfg >b/config.toml",
        ..CARGO
    },
    Row {
        id: "cargo-shipped-sub-dangling",
        prepare: "mkdir sub; ln -s ../b sub/.cargo",
        attack: "mkdir c; cargocfg >c/config.toml; mv c b",
        ..CARGO
    },
    Row {
        id: "cargo-shipped-chain",
        prepare: "ln -s l1 .cargo; ln -s l2 l1",
        attack: "mkdir l2; cargocfg >l2/config.toml",
        ..CARGO
    },
    Row {
        id: "cargo-shipped-chain-longer",
        prepare: "ln -s l1 .cargo; ln -s l2 l1",
        attack: "mkdir b; cargocfg >b/config.toml; ln -s b l2",
        ..CARGO
    },
    Row {
        id: "cargo-shipped-chain-cut",
        prepare: "mkdir l2; ln -s l1 .cargo; ln -s l2 l1",
        attack: "mkdir b; cargocfg >b/config.toml; ln -sfn b l1",
        ..CARGO
    },
    Row {
        id: "cargo-shipped-moved",
        prepare: "mkdir sub q b; ln -s ../b sub/.cargo",
        attack: "mkdir q/b; cargocfg >q/b/config.toml; mv sub q/sub",
        ..CARGO
    },
    Row {
        id: "cargo-shipped-moved-first",
        prepare: "mkdir sub q b; ln -s ../b sub/.cargo",
        attack: "mv sub q/sub; mkdir q/b; cargocfg >q/b/config.toml",
        ..CARGO
    },
    Row {
        id: "cargo-shipped-way-swapped",
        prepare: "mkdir -p p/b; ln -s p/b .cargo",
        attack: "mkdir -p o/b; cargocfg >o/b/config.toml; mv p old; mv o p",
        ..CARGO
    },
    Row {
        id: "cargo-shipped-way-linked",
        prepare: "mkdir -p p/b; ln -s p/b .cargo",
        attack: "mkdir -p o/b; cargocfg >o/b/config.toml; mv p old; ln -s o p",
        ..CARGO
    },
    Row {
        id: "cargo-shipped-way-exchanged",
        prepare: "mkdir -p p/b; ln -s p/b .cargo",
        attack: "mkdir -p o/b; cargocfg >o/b/config.toml; $ACTS exchange o p",
        ..CARGO
    },
    Row {
        id: "cargo-shipped-target-exchanged",
        prepare: "mkdir b; ln -s b .cargo",
        attack: "mkdir c; cargocfg >c/config.toml; $ACTS exchange b c",
        ..CARGO
    },
    Row {
        id: "cargo-shipped-leaf",
        prepare: "mkdir .cargo; ln -s ../x.toml .cargo/config.toml",
        attack: "cargocfg >x.toml",
        ..CARGO
    },
    Row {
        id: "cargo-shipped-leaf-sub",
        prepare: "mkdir -p sub/.cargo; ln -s ../../x.toml sub/.cargo/config.toml",
        attack: "cargocfg >y; mv y x.toml",
        ..CARGO
    },
    // The workspace lies beneath what ships the link.
    Row {
        id: "cargo-shipped-above",
        prepare: "mkdir -p sub/b; ln -s sub/b .cargo",
        workspace: "sub",
        attack: "cargocfg >b/config.toml",
        ..CARGO
    },
    // A directory that already carries the file takes the parent's name.
    Row { id: "cargo-directory-moved", attack: "mkdir b; cargocfg >b/config.toml; mv b .cargo", ..CARGO },
    Row { id: "cargo-directory-moved-deep", attack: "mkdir -p s/b; cargocfg >s/b/config; mv s/b s/.cargo", ..CARGO },
    Row {
        id: "cargo-directory-exchanged",
        attack: "mkdir b .cargo; cargocfg >b/config.toml; $ACTS exchange b .cargo",
        ..CARGO
    },
    Row {
        id: "cargo-directory-exchanged-back",
        attack: "mkdir b .cargo; cargocfg >b/config.toml; $ACTS exchange .cargo b",
        ..CARGO
    },
    Row { id: "cargo-directory-open", attack: "mkdir b; cargocfg | $ACTS late b .cargo config.toml", ..CARGO },
    Row { id: "cargo-directory-stood-in", attack: "mkdir b; cd b; mv ../b ../.cargo; cargocfg >config.toml", ..CARGO },
    // The file itself.
    Row { id: "cargo-file-written", attack: "mkdir .cargo; cargocfg >.cargo/config.toml", ..CARGO },
    Row { id: "cargo-file-moved", attack: "cargocfg >x; mkdir .cargo; mv x .cargo/config.toml", ..CARGO },
    Row { id: "cargo-file-linked", attack: "cargocfg >x; mkdir .cargo; ln -s ../x .cargo/config.toml", ..CARGO },
    Row { id: "cargo-file-hard-linked", attack: "cargocfg >x; mkdir .cargo; ln x .cargo/config.toml", ..CARGO },
    Row { id: "cargo-file-unnamed", attack: "mkdir .cargo; cargocfg | $ACTS tmplink . .cargo/config.toml", ..CARGO },
    Row {
        id: "cargo-file-unnamed-there",
        attack: "mkdir .cargo; cargocfg | $ACTS tmplink .cargo .cargo/config.toml",
        ..CARGO
    },
    Row {
        id: "cargo-file-by-descriptor",
        attack: "cargocfg >x; mkdir .cargo; $ACTS fdlink x .cargo/config.toml; $ACTS emptylink x .cargo/config.toml",
        ..CARGO
    },
    Row { id: "cargo-file-by-cwd-link", attack: "mkdir .cargo; cargocfg >/proc/self/cwd/.cargo/config.toml", ..CARGO },
    Row {
        id: "cargo-file-by-fd-link",
        attack: "mkdir .cargo; exec 9<.cargo; cargocfg >/proc/self/fd/9/config.toml",
        ..CARGO
    },
    Row {
        id: "cargo-file-by-root-link",
        attack: "mkdir .cargo; cargocfg >/proc/self/root$W/.cargo/config.toml",
        ..CARGO
    },
    Row {
        id: "cargo-archive",
        prepare: "mkdir t; cd t; mkdir .cargo; cargocfg >x; ln x .cargo/config.toml; tar -cf ../a.tar x .cargo; cd ..; rm -r t",
        attack: "tar -xf a.tar",
        ..CARGO
    },
    Row {
        id: "cargo-archive-linked",
        prepare: "mkdir t; cd t; mkdir b; cargocfg >b/config.toml; ln -s b .cargo; tar -cf ../a.tar b .cargo; cd ..; rm -r t",
        attack: "tar -xf a.tar",
        ..CARGO
    },
    Row { id: "cargo-copied", attack: "mkdir -p t/b; cargocfg >t/b/config.toml; ln -s b t/.cargo; cp -a t u", ..CARGO },
    // In two runs.
    Row {
        id: "cargo-two-runs",
        attack: "mkdir b; cargocfg >b/config.toml",
        then: Then::Later("ln -s b .cargo"),
        ..CARGO
    },
    Row {
        id: "cargo-two-runs-link-first",
        attack: "mkdir s; ln -s ../b s/.cargo",
        then: Then::Later("mkdir b; cargocfg >b/config.toml"),
        ..CARGO
    },
    // A stage.
    Row {
        id: "cargo-stage",
        attack: "mkdir b; cargocfg >b/config.toml; ln -s b .cargo",
        then: Then::Commit(&[]),
        ..CARGO
    },
    Row {
        id: "cargo-stage-shipped",
        prepare: "mkdir sub b; ln -s ../b sub/.cargo",
        attack: "cargocfg >b/config.toml",
        then: Then::Commit(&[]),
        ..CARGO
    },
    Row {
        id: "cargo-stage-two",
        attack: "mkdir b; cargocfg >b/config.toml",
        then: Then::Commit(&["ln -s b .cargo"]),
        ..CARGO
    },
    Row {
        id: "cargo-stage-two-link-first",
        attack: "mkdir s; ln -s ../b s/.cargo",
        then: Then::Commit(&["mkdir b; cargocfg >b/config.toml"]),
        ..CARGO
    },
    Row {
        id: "cargo-stage-way",
        prepare: "mkdir -p p/b; ln -s p/b .cargo",
        attack: "mkdir -p o/b; cargocfg >o/b/config.toml; mv p old || cp -a p old && rm -rf p; ln -s o p",
        then: Then::Commit(&[]),
        ..CARGO
    },
    Row {
        id: "npm-stage-shipped",
        prepare: "mkdir sub; ln -s ../b.txt sub/.npmrc",
        attack: "npmcfg >b.txt",
        then: Then::Commit(&[]),
        ..NPM
    },
    // npm, whose file is guarded itself.
    Row { id: "npm-written", attack: "npmcfg >.npmrc", ..NPM },
    Row { id: "npm-shipped", prepare: "ln -s b.txt .npmrc", attack: "npmcfg >b.txt", ..NPM },
    Row { id: "npm-shipped-sub", prepare: "mkdir sub; ln -s ../b.txt sub/.npmrc", attack: "npmcfg >b.txt", ..NPM },
    Row {
        id: "npm-shipped-sub-there",
        prepare: "mkdir sub; echo >b.txt; ln -s ../b.txt sub/.npmrc",
        attack: "npmcfg >>b.txt",
        ..NPM
    },
    Row {
        id: "npm-shipped-replaced",
        prepare: "mkdir sub; echo >b.txt; ln -s ../b.txt sub/.npmrc",
        attack: "npmcfg >x; mv x b.txt",
        ..NPM
    },
    Row {
        id: "npm-shipped-moved",
        prepare: "mkdir sub q; ln -s ../b.txt sub/.npmrc",
        attack: "npmcfg >q/b.txt; mv sub q/sub",
        ..NPM
    },
    Row {
        id: "npm-shipped-way",
        prepare: "mkdir -p sub p; ln -s ../p/b.txt sub/.npmrc",
        attack: "mkdir o; npmcfg >o/b.txt; mv p old; ln -s o p",
        ..NPM
    },
    Row { id: "npm-shipped-hard-link", prepare: "echo >.npmrc; ln .npmrc b.txt", attack: "npmcfg >>b.txt", ..NPM },
    Row {
        id: "npm-shipped-hard-link-sub",
        prepare: "mkdir sub; echo >sub/.npmrc; ln sub/.npmrc b.txt",
        attack: "npmcfg >>b.txt",
        ..NPM
    },
    Row {
        id: "npm-shipped-hard-link-moved",
        prepare: "mkdir sub; echo >sub/.npmrc; ln sub/.npmrc b.txt",
        attack: "mv b.txt c; npmcfg >>c; ln c d; npmcfg >>d",
        ..NPM
    },
    Row {
        id: "npm-shipped-archive",
        prepare: "mkdir t; cd t; npmcfg >b.txt; ln b.txt .npmrc; tar -cf ../a.tar b.txt .npmrc; cd ..; rm -r t",
        attack: "tar -xf a.tar",
        ..NPM
    },
    Row {
        id: "npm-shipped-above",
        prepare: "mkdir sub; ln -s sub/b.txt .npmrc",
        workspace: "sub",
        attack: "npmcfg >b.txt",
        ..NPM
    },
    // Names that other programs read.
    Row { id: "envrc-shipped-sub", prepare: "mkdir sub; ln -s ../b.txt sub/.envrc", attack: "rc >b.txt", ..READ },
    Row { id: "envrc-linked", attack: "rc >b.txt; ln -s b.txt .envrc", ..READ },
    Row { id: "envrc-unnamed", attack: "rc | $ACTS tmplink . .envrc", ..READ },
    Row { id: "envrc-by-fd-link", attack: "exec 9<.; rc >/proc/self/fd/9/.envrc", ..READ },
    Row { id: "vscode-moved", attack: "mkdir v; rc >v/tasks.json; mv v .vscode", ..READ },
    Row { id: "vscode-shipped", prepare: "mkdir v; ln -s v .vscode", attack: "rc >v/tasks.json", ..READ },
    Row { id: "vscode-shipped-dangling", prepare: "ln -s v .vscode", attack: "mkdir v; rc >v/tasks.json", ..READ },
    Row {
        id: "vscode-shipped-sub",
        prepare: "mkdir sub; ln -s ../v sub/.vscode",
        attack: "mkdir v; rc >v/tasks.json",
        ..READ
    },
    Row {
        id: "vscode-shipped-file",
        prepare: "mkdir .vscode; ln -s ../t.json .vscode/tasks.json",
        attack: "rc >t.json",
        ..READ
    },
    Row { id: "idea-shipped-sub", prepare: "mkdir -p sub h; ln -s ../h sub/.idea", attack: "rc >h/x", ..READ },
    Row { id: "gitmodules-shipped", prepare: "mkdir sub; ln -s ../m sub/.gitmodules", attack: "rc >m", ..READ },
    Row { id: "socket-bound", attack: "$ACTS bind .envrc", ask: &[There(".envrc")], ..ROW },
    Row { id: "socket-moved", attack: "$ACTS bind x; mv x .envrc", ask: &[There(".envrc")], ..ROW },
    Row { id: "socket-linked", attack: "$ACTS bind x; ln x .envrc", ask: &[There(".envrc")], ..ROW },
    Row { id: "pipe-made", attack: "mkfifo .envrc", ask: &[There(".envrc")], ..ROW },
    Row { id: "pipe-moved", attack: "mkfifo x; mv x .envrc", ask: &[There(".envrc")], ..ROW },
    Row {
        id: "pipe-through-link",
        attack: "mkdir b; mkfifo b/config.toml; ln -s b .cargo",
        ask: &[There(".cargo/config.toml")],
        ..ROW
    },
    Row {
        id: "socket-through-link",
        attack: "mkdir b; ln -s b .cargo; $ACTS bind b/config.toml",
        ask: &[There(".cargo/config.toml")],
        ..ROW
    },
    Row { id: "directory-made", attack: "mkdir .envrc", ask: &[There(".envrc")], ..ROW },
    Row { id: "directory-moved", attack: "mkdir x; mv x .vscode", ask: &[There(".vscode")], ..ROW },
    Row {
        id: "directory-through-link",
        attack: "mkdir -p b/config.toml; ln -s b .cargo",
        ask: &[There(".cargo/config.toml")],
        ..ROW
    },
    // `.config/git`, whose parent is not guarded.
    Row { id: "home-link-last", attack: "mkdir -p c/git; gitcfg >c/git/config; ln -s c .config", ..HOME },
    Row { id: "home-link-first", attack: "ln -s c .config; mkdir -p c/git; gitcfg >c/git/config", ..HOME },
    Row { id: "home-moved", attack: "mkdir -p c/git; gitcfg >c/git/config; mv c .config", ..HOME },
    Row {
        id: "home-exchanged",
        attack: "mkdir -p .config c/git; gitcfg >c/git/config; $ACTS exchange c .config",
        ..HOME
    },
    Row { id: "home-leaf-linked", attack: "mkdir -p .config g; gitcfg >g/config; ln -s ../g .config/git", ..HOME },
    Row { id: "home-leaf-moved", attack: "mkdir -p .config g; gitcfg >g/config; mv g .config/git", ..HOME },
    Row {
        id: "home-shipped",
        prepare: "mkdir c; ln -s c .config",
        attack: "mkdir c/git; gitcfg >c/git/config",
        ..HOME
    },
    Row {
        id: "home-shipped-sub",
        prepare: "mkdir -p sub c; ln -s ../c sub/.config",
        attack: "mkdir g; gitcfg >g/config; mv g c/git",
        ..HOME
    },
    Row {
        id: "home-shipped-linked-git",
        prepare: "mkdir -p c; ln -s c .config",
        attack: "mkdir g; gitcfg >g/config; ln -s ../g c/git",
        ..HOME
    },
    Row { id: "home-fish", attack: "mkdir -p c/fish; rc >c/fish/config.fish; ln -s c .config", ..READ },
    Row {
        id: "home-systemd",
        attack: "mkdir -p c/systemd/user; rc >c/systemd/user/x.service; ln -s c .config",
        ..READ
    },
    Row {
        id: "home-gitconfig",
        prepare: "ln -s dot/gitconfig .gitconfig; mkdir dot",
        attack: "gitcfg >dot/gitconfig",
        ..HOME
    },
    // What is open for writing becomes what is read there.
    Row { id: "cargo-link-open", attack: "mkdir b; exec 9>b/config.toml; ln -s b .cargo; cargocfg >&9", ..CARGO },
    Row {
        id: "cargo-shipped-moved-open",
        prepare: "mkdir sub q b; ln -s ../b sub/.cargo",
        attack: "mkdir q/b; exec 9>q/b/config.toml; mv sub q/sub; cargocfg >&9",
        ..CARGO
    },
    Row {
        id: "cargo-directory-open-file",
        attack: "mkdir b; exec 9>b/x; mv b .cargo; mv .cargo/x .cargo/config.toml; cargocfg >&9",
        ..CARGO
    },
    Row {
        id: "npm-shipped-second-name",
        prepare: "mkdir sub; echo >b.txt; ln -s ../b.txt sub/.npmrc",
        attack: "ln b.txt c; npmcfg >>c",
        ..NPM
    },
    Row {
        id: "npm-shipped-moved-away",
        prepare: "mkdir sub; echo >b.txt; ln -s ../b.txt sub/.npmrc",
        attack: "mv b.txt c; npmcfg >>c; mv c b.txt",
        ..NPM
    },
    // Beyond what is easily looked through or followed.
    Row {
        id: "cargo-link-chain",
        attack: "mkdir b; cargocfg >b/config.toml; ln -s b l1; for n in $(seq 36); do ln -s l$n l$((n+1)); done; ln -s l37 .cargo",
        ..CARGO
    },
    Row {
        id: "cargo-shipped-chain-long",
        prepare: "mkdir b; ln -s b l1; for n in $(seq 36); do ln -s l$n l$((n+1)); done; ln -s l37 .cargo",
        attack: "cargocfg >b/config.toml",
        ..CARGO
    },
    Row {
        id: "npm-shipped-far",
        prepare: "mkdir -p $(seq -f m/%g/a/b 3000); d=m/2999/a/b/1/2/3/4/5/6/7/8/9/10/11/12; mkdir -p $d; ln -s $W/b.txt $d/.npmrc",
        attack: "npmcfg >b.txt",
        ..NPM
    },
    Row {
        id: "cargo-deep-moved",
        attack: r#"cargocfg >x; python3 -c '
import os
top = at = os.open(".", os.O_RDONLY)
for _ in range(20):
    os.mkdir("d" * 250, dir_fd=at)
    at = os.open("d" * 250, os.O_RDONLY, dir_fd=at)
os.mkdir("s", dir_fd=at)
os.mkdir("s/.cargo", dir_fd=at)
with open("x", "rb") as text:
    os.write(os.open("s/.cargo/config.toml", os.O_CREAT | os.O_WRONLY, dir_fd=at), text.read())
os.rename("s", "s", src_dir_fd=at, dst_dir_fd=top)'"#,
        ..CARGO
    },
];
