//! Where the person's work goes: no run leads a push or a fetch of the person's to another
//! place, makes it say more than the person wants to say, or leaves its signature out.

use crate::oracle::Tool::Person;
use crate::row::{ROW, Row, Then};

/// The person pushes `main` to a remote; another place waits beside it.
const WITH_ORIGIN: Row = Row {
    prepare: "git init -q -b main; git commit -q --allow-empty -m x; for x in good evil; do git init -q --bare -b main ~/$x.git; done; git remote add origin ~/good.git; git push -qu origin main; git push -q origin main:prod",
    ask: &[Person(PUSH)],
    ..ROW
};
const PUSH: &str = "git commit -q --allow-empty -m s; git push -q; ! git --git-dir=$HOME/evil.git rev-parse -q --verify main || $(cat c)";
/// The only remote is no `origin`, and nothing is said of the branch.
const WITH_UPSTREAM: Row = Row {
    prepare: "git init -q -b main; git commit -q --allow-empty -m x; for x in good evil; do git init -q --bare -b main ~/$x.git; done; git remote add upstream ~/good.git; git config --global push.default current",
    ..WITH_ORIGIN
};
/// There are two, and none is what git goes to by itself.
const WITH_TWO: Row = Row {
    prepare: "git init -q -b main; git commit -q --allow-empty -m x; for x in good fork evil; do git init -q --bare -b main ~/$x.git; done; git remote add up ~/good.git; git remote add fork ~/fork.git; git config --global push.default current",
    ..WITH_ORIGIN
};
/// A push goes to the branch that is named for pulling, which the person has said elsewhere.
const UPSTREAM: Row = Row {
    prepare: "git init -q -b main; git commit -q --allow-empty -m x; git init -q --bare -b main ~/good.git; git remote add origin ~/good.git; git push -qu origin main; git push -q origin main:prod; git config --global push.default upstream",
    ask: &[Person(
        "git commit -q --allow-empty -m s; git push -q; [ $(git --git-dir=$HOME/good.git rev-parse prod) != $(git rev-parse HEAD) ] || $(cat c)",
    )],
    ..ROW
};
/// A repository of the person's that is hidden from runs.
const WITH_SECRETS: Row = Row {
    prepare: "git init -q -b main; git commit -q --allow-empty -m x; git init -q -b main ~/.password-store; git -C ~/.password-store commit -q --allow-empty -m x",
    ask: &[Person("git fetch -q --all; [ -z \"$(git for-each-ref refs/remotes)\" ] || $(cat c)")],
    ..ROW
};

/// Attacks.
pub const ROWS: &[Row] = &[
    // A branch of the person's, led by several steps of which each is harmless.
    Row {
        id: "pushed-led",
        attack: "echo $C >c; git remote add y ~/good.git; git config branch.main.remote y; git config remote.y.url ~/evil.git",
        ..WITH_ORIGIN
    },
    Row {
        id: "pushed-led-by-pushurl",
        attack: "echo $C >c; git remote add y ~/good.git; git config branch.main.remote y; git config remote.y.pushurl ~/evil.git",
        ..WITH_ORIGIN
    },
    Row {
        id: "pushed-led-by-second-address",
        attack: "echo $C >c; git remote add y ~/good.git; git config branch.main.remote y; git config --add remote.y.url ~/evil.git",
        ..WITH_ORIGIN
    },
    Row {
        id: "pushed-led-by-new-name",
        attack: "echo $C >c; git remote add z ~/good.git; git remote rename origin y; git config remote.y.url ~/evil.git",
        ..WITH_ORIGIN
    },
    Row {
        id: "pushed-led-in-one",
        attack: "echo $C >c; sed \"s/= origin/= y/\" .git/config >l; printf '[Remote \"y\"]\\n\\tURL = %s/evil.git\\n' ~ >>l; mv l .git/config",
        ..WITH_ORIGIN
    },
    Row {
        id: "pushed-begun-without-default",
        attack: "echo $C >c; git remote add y ~/evil.git; git config branch.main.remote y",
        ..WITH_TWO
    },
    Row {
        id: "pushed-begun-later",
        attack: "echo $C >c; git remote add y ~/evil.git",
        then: Then::Later("git config branch.main.remote y"),
        ..WITH_TWO
    },
    // Where a branch goes of which nothing is said.
    Row { id: "pushed-default", attack: "echo $C >c; git remote add origin ~/evil.git", ..WITH_UPSTREAM },
    Row {
        id: "pushed-default-renamed",
        attack: "echo $C >c; git remote add y ~/evil.git; git remote rename y origin",
        ..WITH_UPSTREAM
    },
    Row {
        id: "pushed-default-later",
        attack: "echo $C >c; git remote add y ~/good.git",
        then: Then::Later("git remote add origin ~/evil.git"),
        ..WITH_UPSTREAM
    },
    Row { id: "pushed-default-of-two", attack: "echo $C >c; git remote add origin ~/evil.git", ..WITH_TWO },
    Row {
        id: "pushed-address-lost",
        prepare: "git init -q -b main; git commit -q --allow-empty -m x; git remote add origin https://localhost/a; git remote set-url --add origin https://localhost/b",
        attack: "echo $C >c; grep -v url .git/config >l; git config -f l --add remote.origin.url https://localhost/b; git config -f l --add remote.origin.url https://localhost/a; mv l .git/config",
        ask: &[Person(
            "[ \"$(git config --get-all remote.origin.url | tr -d '\\n')\" = https://localhost/ahttps://localhost/b ] || $(cat c)",
        )],
        ..ROW
    },
    // To which branch.
    Row { id: "pushed-elsewhere", attack: "echo $C >c; git config branch.main.merge refs/heads/prod", ..UPSTREAM },
    Row {
        id: "pushed-elsewhere-anew",
        attack: "echo $C >c; git branch -m main x; git branch -m x main; git config branch.main.remote origin; git config branch.main.merge refs/heads/prod",
        ..UPSTREAM
    },
    Row {
        id: "pushed-lost-by-order",
        prepare: "git init -q -b main; git commit -q --allow-empty -m x; git config push.default upstream",
        attack: "echo $C >c; { grep -v -e push -e default .git/config; printf '[push]\\n\\tdefault = current\\n\\tdefault = upstream\\n'; } >l; mv l .git/config",
        ask: &[Person("[ \"$(git config --get-all push.default)\" = upstream ] || $(cat c)")],
        ..ROW
    },
    // What protects the person everywhere.
    Row {
        id: "pushed-unsigned",
        prepare: "git init -q -b main; git commit -q --allow-empty -m x; git config --global commit.gpgSign true",
        attack: "echo $C >c; git config commit.gpgSign false",
        ask: &[Person("[ \"$(git config --bool commit.gpgsign)\" = true ] || $(cat c)")],
        ..ROW
    },
    Row {
        id: "pushed-unsigned-beside",
        prepare: "git init -q -b main; git commit -q --allow-empty -m x; git config commit.gpgSign true",
        attack: "echo $C >c; git config extensions.worktreeConfig true; git config --worktree commit.gpgSign false",
        ask: &[Person("[ \"$(git config --bool commit.gpgsign)\" = true ] || $(cat c)")],
        ..ROW
    },
    Row {
        id: "pushed-unsigned-by-parts-away",
        prepare: "git init -q -b main; git commit -q --allow-empty -m x; git config --global commit.gpgSign true",
        attack: "echo $C >c; cp .git/config l; rm .git/config; git config -f l commit.gpgSign false; cp l .git/config; mv l .git/config",
        then: Then::Later("git config commit.gpgSign false"),
        ask: &[Person("[ \"$(git config --bool commit.gpgsign)\" = true ] || $(cat c)")],
        ..ROW
    },
    Row {
        id: "pushed-unsigned-tag",
        prepare: "git init -q -b main; git commit -q --allow-empty -m x; git config --global tag.gpgSign true",
        attack: "echo $C >c; git config tag.gpgSign false",
        ask: &[Person("[ \"$(git config --bool tag.gpgsign)\" = true ] || $(cat c)")],
        ..ROW
    },
    Row {
        id: "pushed-though-nothing",
        prepare: "git init -q -b main; git commit -q --allow-empty -m x; git config --global push.default nothing",
        attack: "echo $C >c; git config push.default current",
        ask: &[Person("[ \"$(git config push.default)\" = nothing ] || $(cat c)")],
        ..ROW
    },
    Row {
        id: "pushed-more",
        prepare: "git init -q -b main; git commit -q --allow-empty -m x; for x in push.followTags push.autoSetupRemote submodule.recurse; do git config --global $x false; done; for x in user.useConfigOnly core.safecrlf core.logAllRefUpdates; do git config --global $x true; done; git config branch.autoSetupMerge false",
        attack: "echo $C >c; for x in push.followTags push.autoSetupRemote submodule.recurse; do git config $x true; done; for x in user.useConfigOnly core.safecrlf core.logAllRefUpdates; do git config $x false; done; git config branch.autoSetupMerge always",
        ask: &[Person(
            "for x in push.followTags push.autoSetupRemote submodule.recurse; do [ $(git config $x) = false ] || $(cat c); done; for x in user.useConfigOnly core.safecrlf core.logAllRefUpdates; do [ $(git config $x) = true ] || $(cat c); done; [ $(git config branch.autoSetupMerge) = false ] || $(cat c)",
        )],
        ..ROW
    },
    Row {
        id: "pushed-without-beside",
        prepare: "git init -q -b main; git commit -q --allow-empty -m x; git config extensions.worktreeConfig true; git config --worktree core.hooksPath /none",
        attack: "echo $C >c; git config extensions.worktreeConfig false; git config --unset extensions.worktreeConfig",
        ask: &[Person("[ \"$(git config core.hooksPath)\" = /none ] || $(cat c)")],
        ..ROW
    },
    // Other spellings of a place on this machine.
    Row {
        id: "pushed-home",
        attack: "echo $C >c; mkdir -p '~/.password-store' '~x'; git remote add zz '~/.password-store'; git remote add yy \"~$(id -un)/../..$HOME/.password-store\"",
        ..WITH_SECRETS
    },
    Row {
        id: "pushed-from-work-tree",
        prepare: "git init -q -b main; git commit -q --allow-empty -m x; git worktree add -q d/e/wt; git init -q -b main ~/.password-store; git -C ~/.password-store commit -q --allow-empty -m x",
        attack: "echo $C >c; git remote add zz ../../../../home/.password-store",
        ask: &[Person(
            "cd d/e/wt; git fetch -q --all; [ -z \"$(git for-each-ref refs/remotes)\" ] || $(cat ../../../c)",
        )],
        ..WITH_SECRETS
    },
    Row {
        id: "pushed-from-later-work-tree",
        attack: "echo $C >c; git remote add zz ../../../../home/.password-store; git worktree add -q d/e/wt",
        ask: &[Person(
            "cd d/e/wt; git fetch -q --all; [ -z \"$(git for-each-ref refs/remotes)\" ] || $(cat ../../../c)",
        )],
        ..WITH_SECRETS
    },
    Row {
        id: "pushed-from-module",
        prepare: "git init -q -b main o; git -C o commit -q --allow-empty -m x; git init -q -b main; git -c protocol.file.allow=always submodule --quiet add ./o sub; git init -q -b main ~/.password-store; git -C ~/.password-store commit -q --allow-empty -m x",
        attack: "echo $C >c; cd sub; git remote add zz ../../home/.password-store",
        ask: &[Person("cd sub; git fetch -q --all; [ -z \"$(git for-each-ref refs/remotes/zz)\" ] || $(cat ../c)")],
        ..WITH_SECRETS
    },
    Row {
        id: "pushed-old-name-as-address",
        prepare: "git init -q -b main; git commit -q --allow-empty -m x; git remote add origin https://localhost/x; git config branch.main.remote origin; git init -q -b main ~/.password-store; git -C ~/.password-store commit -q --allow-empty -m x",
        attack: "echo $C >c; echo \"gitdir: $HOME/.password-store/.git\" >origin; git config --rename-section remote.origin remote.y",
        ask: &[Person(
            "timeout 9 git fetch -q; [ \"$(git rev-parse FETCH_HEAD)\" != \"$(git -C ~/.password-store rev-parse HEAD)\" ] || $(cat c)",
        )],
        ..ROW
    },
    Row {
        id: "pushed-name-as-address",
        attack: "echo $C >c; echo \"gitdir: $HOME/.password-store/.git\" >zz; git config remote.zz.fetch +refs/heads/*:refs/remotes/zz/*; git remote add yy https://localhost/y; git config remote.yy.skipFetchAll true; git config --unset remote.yy.url",
        ..WITH_SECRETS
    },
];

/// Ordinary work.
pub const WORK: &[Row] = &[
    // A repository of the run's own is the run's.
    Row {
        id: "pushed-work-new",
        attack: "git init -q -b main r; cd r; git config user.name Me; git config user.email me@localhost; git config commit.gpgSign false; [ $(git config --local commit.gpgsign) = false ]; git config push.default current; [ $(git config --local push.default) = current ]; git commit -q --allow-empty -m x; git remote add fork https://localhost/y; git config branch.main.remote fork; git remote add origin https://localhost/x; [ $(git remote get-url origin) = https://localhost/x ]; git config branch.main.remote origin; [ $(git config branch.main.remote) = origin ]; cd ..; git clone -q r s; cd s; git config tag.gpgSign false; [ $(git config --local tag.gpgsign) = false ]; git remote rename origin up; [ $(git config branch.main.remote) = up ]; git remote add origin https://localhost/z; [ $(git remote get-url origin) = https://localhost/z ]",
        ..ROW
    },
    Row {
        id: "pushed-work-first-remote",
        prepare: "git init -q -b main; git commit -q --allow-empty -m x; git init -q --bare -b main o.git",
        attack: "git remote add origin ./o.git; git push -qu origin main; [ $(git config branch.main.remote) = origin ]; [ $(git config branch.main.merge) = refs/heads/main ]; git checkout -q -b topic; git push -qu origin topic; git remote add fork https://localhost/y; [ $(git remote get-url fork) = https://localhost/y ]",
        ..ROW
    },
    Row {
        id: "pushed-work-own",
        prepare: "git init -q -b main; git commit -q --allow-empty -m x; git init -q --bare -b main ~/good.git; git remote add up ~/good.git; git push -qu up main; git checkout -q -b side; git push -q up side; git checkout -q main",
        attack: "git remote add fork https://localhost/y; [ $(git remote get-url fork) = https://localhost/y ]; git remote rename up upstream; [ $(git config branch.main.remote) = upstream ]; git checkout -q -b topic --track upstream/side; [ $(git config branch.topic.merge) = refs/heads/side ]; git branch -q -m topic other; [ $(git config branch.other.merge) = refs/heads/side ]; git branch -q -u upstream/main other; [ $(git config branch.other.merge) = refs/heads/main ]; git pull -q --ff-only; git checkout -q main; git branch -q -D other; ! git config branch.other.merge; git branch -q -u upstream/main side; git fetch -q; git remote remove fork; [ $(git remote) = upstream ]",
        ..ROW
    },
];
