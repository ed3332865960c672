//! A way that could not be looked along in the moment it was asked about: a text of more parts
//! than anybody counts, a directory that the run has closed and opens again. And addresses of
//! remotes at which git finds more than was looked at.

use crate::oracle::Tool::{Person, Reader};
use crate::row::{ROW, Row, Then};
use crate::rows_ways::{IN_OWN_DIRECTORY, WITH_HOOKS, WITH_SECRETS};

/// A branch that goes to a place where everything is well.
const WITH_ORIGIN: Row = Row {
    prepare: "git init -q -b main; git commit -q --allow-empty -m x; git init -q --bare -b main ../good.git; git remote add origin ../good.git; git push -qu origin main",
    ..ROW
};

/// A repository of the run's own with a work tree and hooks in it. `name NAME` is
/// `./././.../NAME`, of 1,100 parts.
macro_rules! with_own {
    ($place:literal, $then:literal) => {
        concat!(
            "git init -q -b main ",
            $place,
            "; git -C ",
            $place,
            " commit -q --allow-empty -m x; mkdir x; git -C ",
            $place,
            " worktree add -q $PWD/x/pw; mkdir x/pw/.githooks; mkhook x/pw/.githooks/pre-commit; ",
            "name() { printf './%.0s' $(seq 1100); printf '%s' \"$1\"; }; ",
            $then
        )
    };
}

/// Attacks.
pub const ROWS: &[Row] = &[
    Row { id: "closed-long", attack: with_own!("q", "mv q q2; ln -s $(name r) q"), ..WITH_HOOKS },
    Row {
        id: "closed-long-moved",
        attack: with_own!("a/q", "mkdir b; ln -s $(name ../r) b/q; mv a a2; mv b a"),
        ..WITH_HOOKS
    },
    Row {
        id: "closed-repository",
        attack: with_own!("q", "mv q q2; chmod 300 r; ln -s r q; chmod 755 r"),
        ..WITH_HOOKS
    },
    Row {
        id: "closed-work-tree",
        attack: with_own!(
            "q",
            "mv x/pw/.githooks h; mv q q2; chmod 400 x/pw; ln -s r q; chmod 755 x/pw; mv h x/pw/.githooks"
        ),
        ..WITH_HOOKS
    },
    Row {
        id: "closed-pointer",
        attack: with_own!("q", "mv q q2; chmod 000 x/pw/.git; ln -s r q; chmod 644 x/pw/.git"),
        ..WITH_HOOKS
    },
    Row {
        id: "closed-above",
        attack: with_own!("q", "mv q q2; chmod 000 d; ln -s d/r q; chmod 755 d"),
        prepare: "git init -q -b main d/r; git -C d/r commit -q --allow-empty -m x; git -C d/r config core.hooksPath .githooks; git -C d/r worktree add -q ../../keep/pw",
        ..WITH_HOOKS
    },
    // Two runs: the second one cannot look.
    Row {
        id: "closed-pointer-later",
        attack: "chmod 000 keep/pw/.git",
        then: Then::Later("mkdir keep/pw/.githooks; mkhook keep/pw/.githooks/pre-commit; chmod 644 keep/pw/.git"),
        ask: &[Person("cd keep/pw; echo x >n; git add n; git commit -qm n")],
        ..WITH_HOOKS
    },
    Row {
        id: "closed-settings-later",
        attack: "chmod 000 r/.git/config",
        then: Then::Later("mkdir r/.githooks; mkhook r/.githooks/pre-commit; chmod 644 r/.git/config"),
        ask: &[Person("cd r; echo x >n; git add n; git commit -qm n")],
        ..WITH_HOOKS
    },
    Row {
        id: "closed-settings-beside-later",
        prepare: "git init -q -b main r; git -C r commit -q --allow-empty -m x; git -C r config extensions.worktreeConfig true; git -C r config --worktree core.hooksPath .githooks",
        attack: "chmod 000 r/.git/config.worktree",
        then: Then::Later("mkdir r/.githooks; mkhook r/.githooks/pre-commit; chmod 644 r/.git/config.worktree"),
        ask: &[Person("cd r; echo x >n; git add n; git commit -qm n")],
        ..WITH_HOOKS
    },
    // By a descriptor a run works in a directory that it has closed.
    Row {
        id: "closed-global-hooks",
        prepare: "git config --global core.hooksPath .githooks",
        attack: "mkdir -p d/top/.githooks; mkhook d/top/.githooks/pre-commit; D=$PWD/d; cd d/top; chmod 000 $D; mkdir .git; chmod 755 $D; git init -q .",
        ask: &[Person("cd d/top; echo x >n; git add n; git commit -qm n")],
        ..ROW
    },
    Row {
        id: "closed-global-hooks-later",
        prepare: "git config --global core.hooksPath .githooks",
        attack: "mkdir -p d/top; git init -q d/top; D=$PWD/d; mkhook $D/h; cd d/top; chmod 000 $D; mkdir .githooks; chmod 755 $D; chmod 000 $D; mv -f ../h .githooks/pre-commit; chmod 755 $D; mv $D/h .githooks/pre-commit",
        ask: &[Person("cd d/top; echo x >n; git add n; git commit -qm n")],
        ..ROW
    },
    Row {
        id: "closed-bare",
        attack: "mkdir -p d/b/hooks d/b/refs d/b/objects; mkhook d/b/hooks/reference-transaction; D=$PWD/d; cd d/b; chmod 000 $D; echo 'ref: refs/heads/main' >HEAD; chmod 755 $D",
        ask: &[Person(
            "git -C d/b update-ref refs/heads/x $(echo x | git -C d/b commit-tree $(git -C d/b hash-object -t tree -w /dev/null))",
        )],
        ..ROW
    },
    // What is hidden.
    Row {
        id: "closed-long-hidden",
        attack: "echo $C >c; git init -q a; git remote add zz $PWD/a; mv a b; ln -s $(printf '/.%.0s' $(seq 1100))$HOME/.password-store a",
        ..WITH_SECRETS
    },
    Row {
        id: "closed-way-hidden",
        attack: "echo $C >c; mkdir a; git remote add zz $PWD/a; rmdir a; mkdir -p d/e; up=$(pwd | sed 's,[^/]*/,../,g;s,[^/]*$,,'); chmod 000 d; ln -s d/e/../../${up}..$HOME/.password-store a; chmod 755 d",
        ..WITH_SECRETS
    },
    Row {
        id: "closed-address-file",
        attack: "echo $C >c; mkdir p; git remote add zz $PWD/p; rmdir p; echo \"gitdir: $HOME/.password-store/.git\" >p",
        ..WITH_SECRETS
    },
    Row {
        id: "closed-address-file-moved",
        attack: "echo $C >c; mkdir p; git remote add zz $PWD/p; rmdir p; echo \"gitdir: $HOME/.password-store/.git\" >q; mv q p; ln q p",
        ..WITH_SECRETS
    },
    Row {
        id: "closed-address-other-name",
        attack: "echo $C >c; mkdir p; echo \"gitdir: $HOME/.password-store/.git\" >p.git; git remote add zz $PWD/p",
        ..WITH_SECRETS
    },
    Row {
        id: "closed-address-other-name-later",
        attack: "echo $C >c; mkdir p; git remote add zz $PWD/p",
        then: Then::Later("echo \"gitdir: $HOME/.password-store/.git\" >p.git"),
        ..WITH_SECRETS
    },
    Row {
        id: "closed-address-later",
        attack: "echo $C >c; mkdir p; git remote add zz $PWD/p",
        then: Then::Later("rmdir p; echo \"gitdir: $HOME/.password-store/.git\" >p"),
        ..WITH_SECRETS
    },
    Row {
        id: "closed-address-behind-link",
        attack: "echo $C >c; mkdir -p d/p; ln -s d l; git remote add zz $PWD/l/p; rmdir d/p; echo \"gitdir: $HOME/.password-store/.git\" >d/p",
        ..WITH_SECRETS
    },
    Row {
        id: "closed-address-above",
        attack: "echo $C >c; mkdir -p d/p e; git remote add zz $PWD/d/p; echo \"gitdir: $HOME/.password-store/.git\" >e/p; mv d d2; mv e d",
        ..WITH_SECRETS
    },
    Row {
        id: "closed-address-exchanged",
        attack: "echo $C >c; mkdir p; git remote add zz $PWD/p; echo \"gitdir: $HOME/.password-store/.git\" >q; python3 -c 'import ctypes; ctypes.CDLL(None).renameat2(-100, b\"p\", -100, b\"q\", 2)'",
        ..WITH_SECRETS
    },
    Row {
        id: "closed-address-staged",
        options: &["--stage"],
        attack: "echo $C >c; git init -q z; rmdir p; echo \"gitdir: $HOME/.password-store/.git\" >p",
        then: Then::Commit(&[]),
        prepare: "git init -q -b main; git init -q -b main ~/.password-store; git -C ~/.password-store commit -q --allow-empty -m x; mkdir p; git remote add zz $PWD/p",
        ..WITH_SECRETS
    },
    Row {
        id: "closed-cache-link",
        attack: "echo $C >c; E=$GOCACHE; [ -n \"$E\" ] || E=$(mktemp -d); git init -q $E/e; printf '[core]\\n\\tfsmonitor = \"touch %s/marker; false\"\\n' $PWD >>$E/e/.git/config; ln -s $E/e sub; ln -s $E over; wait_for_go",
        ..IN_OWN_DIRECTORY
    },
    // Where nothing is judged: hooks of such a place run at a push.
    Row {
        id: "closed-address-cache",
        attack: "E=$GOCACHE; [ -n \"$E\" ] || E=$(mktemp -d); git init -q --bare -b main $E/e; mkhook $E/e/hooks/post-receive; git remote add y $E/e; wait_for_go",
        then: Then::During("git push -q y main || true"),
        ask: &[Person("git push -q y main || true")],
        ..WITH_ORIGIN
    },
    Row {
        id: "closed-address-temporary",
        attack: "E=$(mktemp -d); git init -q --bare -b main $E/e; mkhook $E/e/hooks/post-receive; git remote add y $E/e; wait_for_go",
        then: Then::During("git push -q y main || true"),
        ask: &[Person("git push -q y main || true")],
        ..WITH_ORIGIN
    },
    // What was closed before the run is opened by it and looked at before anything is written.
    Row {
        id: "closed-opened",
        prepare: "mkdir -p nr b; ln -s ../b nr/.cargo; chmod 000 nr",
        attack: "p() { echo STOCKADE-PLANTED >b/config.toml; echo STOCKADE-PLANTED >x; mv x b/config.toml; ln x b/config.toml; }; \
                 p; chmod 400 nr; p; chmod 100 nr; p; chmod 500 nr; p; chmod 000 nr; p; chmod 777 nr; p; chmod 755 nr; p; mkdir b2; mv b2 b",
        ask: &[Reader],
        ..ROW
    },
];

/// Ordinary work.
pub const WORK: &[Row] = &[
    Row {
        id: "closed-work-opened",
        prepare: "mkdir -p nr/deep; echo x >nr/f; chmod 000 nr/deep; chmod 000 nr",
        attack: "touch y || :; chmod u+rx nr; chmod 755 nr/deep; touch y; grep -q x nr/f; chmod 755 nr; rm -r nr; [ ! -e nr ]; [ -e y ]",
        ..ROW
    },
    Row {
        id: "closed-work-modes",
        attack: "mkdir -p d/e; chmod 000 d; chmod 755 d; mkdir -m 0 s; rmdir s; mkdir m; chmod 500 m; ln -s m l; chmod 700 m; ln -s /root/x away; ln -s d/e/../f up; touch d/f; test -e up; ln -s loop loop; ln -s b a; ln -s a b; mkdir n; mv loop n; mv n n2",
        ..WITH_HOOKS
    },
    Row {
        id: "closed-work-remotes",
        attack: "git clone -q . lib; git remote add lib $PWD/lib; git push -q lib main:other; git fetch -q lib; git clone -q lib d; git -C d pull -q; rm -rf d",
        ..WITH_ORIGIN
    },
];
