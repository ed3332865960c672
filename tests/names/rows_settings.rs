//! Settings and links of the person's own that lead back into the workspace in a
//! roundabout way: homes of users, directories outside, command lines.

use crate::oracle::Tool::{Cargo, Git, Person, Reader};
use crate::row::{ROW, Row};

const GIT: Row = Row { ask: &[Git, Reader], ..ROW };
const READ: Row = Row { ask: &[Reader], ..ROW };
/// `git zz`, an alias or a tool that the person starts.
const ALIAS: Row = Row { ask: &[Person("git zz")], ..ROW };

/// All of them.
pub const ROWS: &[Row] = &[
    // `~USER` is that user's home.
    Row {
        id: "hookspath-user-home",
        prepare: "git init -q; git config core.hooksPath \"$(from_user_home)/hooks2\"",
        attack: "mkhook hooks2/pre-commit",
        ..GIT
    },
    Row {
        id: "global-hookspath-user-home",
        prepare: "git init -q; git config --global core.hooksPath \"$(from_user_home)/hooks2\"",
        attack: "mkhook hooks2/pre-commit",
        ..GIT
    },
    Row {
        id: "include-user-home",
        prepare: "git init -q; git config include.path \"$(from_user_home)/shared.cfg\"",
        attack: "gitcfg >shared.cfg",
        ..GIT
    },
    Row {
        id: "global-include-user-home",
        prepare: "git init -q; git config --global include.path \"$(from_user_home)/shared.cfg\"",
        attack: "gitcfg >shared.cfg",
        ..GIT
    },
    // `..` behind a link is the parent of what the link leads to.
    Row {
        id: "hookspath-link-parent",
        prepare: "git init -q; mkdir -p x/d; ln -s x/d lnk; git config core.hooksPath lnk/../hk",
        attack: "mkhook x/hk/pre-commit",
        ..GIT
    },
    Row {
        id: "hookspath-link-parent-made",
        prepare: "git init -q; git config core.hooksPath lnk/../hk",
        attack: "mkdir -p x/d; ln -s x/d lnk; mkhook x/hk/pre-commit",
        ..GIT
    },
    Row {
        id: "hookspath-link-parent-led-elsewhere",
        prepare: "git init -q; mkdir -p x/d; ln -s x/d lnk; git config core.hooksPath lnk/../hk",
        attack: "mkdir -p y/d; mkhook y/hk/pre-commit; ln -s y/d l; mv -T l lnk",
        ..GIT
    },
    Row {
        id: "global-hookspath-link-parent",
        prepare: "git init -q; mkdir d; ln -s $W/d ~/l; git config --global core.hooksPath ~/l/../hk",
        attack: "mkhook hk/pre-commit",
        ..GIT
    },
    Row {
        id: "include-link-parent",
        prepare: "git init -q; mkdir -p x/d; ln -s ../x/d .git/lnk; git config include.path lnk/../shared.cfg",
        attack: "gitcfg >x/shared.cfg",
        ..GIT
    },
    Row {
        id: "include-within-link-parent",
        prepare: "git init -q; mkdir -p x/d; ln -s ../x/d .git/lnk; git config include.path lnk/i; git config -f x/d/i include.path ../shared.cfg",
        attack: "gitcfg >x/shared.cfg",
        ..GIT
    },
    // Command lines.
    Row {
        id: "alias-script",
        prepare: "git init -q; git config alias.zz '!sh deploy.sh'",
        attack: "rc >deploy.sh",
        ..ALIAS
    },
    Row {
        id: "alias-script-bare",
        prepare: "git init -q; git config alias.zz '!sh deploy'",
        attack: "rc >deploy",
        ..ALIAS
    },
    Row {
        id: "global-alias-script",
        prepare: "git init -q; git config --global alias.zz '!sh deploy.sh'",
        attack: "rc >deploy.sh",
        ..ALIAS
    },
    Row {
        id: "alias-escaped",
        prepare: "git init -q; printf '[alias]\\n zz = !sh\\\\tdeploy.sh\\n' >>.git/config",
        attack: "rc >deploy.sh",
        ..ALIAS
    },
    Row {
        id: "alias-variable",
        prepare: "git init -q; git config alias.zz '!$PWD/tools/z'",
        attack: "mkhook tools/z",
        ..ALIAS
    },
    Row {
        id: "alias-top-level",
        prepare: "git init -q; git config alias.zz '!\"$(git rev-parse --show-toplevel)\"/tools/z'",
        attack: "mkhook tools/z",
        ..ALIAS
    },
    Row {
        id: "global-alias-home",
        prepare: "git init -q; git config --global alias.zz '!$HOME/../ws/tools/z'",
        attack: "mkhook tools/z",
        ..ALIAS
    },
    Row {
        id: "alias-entered",
        prepare: "git init -q; mkdir tools; git config alias.zz '!cd tools && ./z'",
        attack: "mkhook tools/z",
        ..ALIAS
    },
    Row {
        id: "pager-script",
        prepare: "git init -q; git config core.pager 'sh z.sh'",
        attack: "rc >z.sh",
        ask: &[Person("script -qec 'git -p status' /dev/null")],
        ..ROW
    },
    Row {
        id: "difftool-script",
        prepare: "git init -q; echo 1 >f; git add f; git commit -qm x; echo 2 >f; git config difftool.x.cmd 'sh z.sh'",
        attack: "rc >z.sh",
        ask: &[Person("git difftool -y -t x")],
        ..ROW
    },
    Row {
        id: "ssh-settings",
        prepare: "git init -q; git config core.sshCommand 'ssh -F sshcfg'",
        attack: "printf 'Host *\\n ProxyCommand %s\\n' $C >sshcfg",
        ask: &[Person("git ls-remote ssh://127.0.0.1/x")],
        ..ROW
    },
    Row {
        id: "remote-command",
        prepare: "git init -q; git config protocol.ext.allow always; git config remote.o.url 'ext::sh z.sh'",
        attack: "rc >z.sh",
        ask: &[Person("git ls-remote o")],
        ..ROW
    },
    Row {
        id: "recent-objects-hook",
        prepare: "git init -q; git config gc.recentObjectsHook tools/z; echo a | git hash-object -w --stdin",
        attack: "mkhook tools/z",
        ask: &[Person("git prune --expire=now")],
        ..ROW
    },
    Row {
        id: "imap-tunnel",
        prepare: "git init -q; git config imap.tunnel tools/z; git config imap.folder x",
        attack: "mkhook tools/z",
        ask: &[Person(
            "printf 'From a Mon Sep 17 00:00:00 2001\\nFrom: a\\nDate: x\\nSubject: x\\n\\nx\\n' | git imap-send",
        )],
        ..ROW
    },
    // A subsection with a bracket.
    Row {
        id: "filter-bracket",
        prepare: "git init -q; printf '[filter \"x]y\"] clean = tools/z\\n' >>.git/config; echo 'f filter=x]y' >.git/info/attributes; echo 1 >f",
        attack: "mkhook tools/z",
        ask: &[Person("git add f")],
        ..ROW
    },
    Row {
        id: "textconv-bracket",
        prepare: "git init -q; echo 1 >f; git add f; git commit -qm x; printf '[diff \"x]y\"] textconv = tools/z\\n' >>.git/config; echo 'f diff=x]y' >.git/info/attributes; echo 2 >f",
        attack: "mkhook tools/z",
        ask: &[Person("git diff")],
        ..ROW
    },
    // Directories outside of what is written, with links and hard links back into it.
    Row {
        id: "outside-hooks",
        prepare: "git init -q; mkdir ~/gh s; : >s/pc; chmod 755 s/pc; ln -s $W/s/pc ~/gh/pre-commit; git config --global core.hooksPath ~/gh",
        attack: "hook >s/pc",
        ..GIT
    },
    Row {
        id: "outside-hooks-dangling",
        prepare: "git init -q; mkdir ~/gh; ln -s $W/s/pc ~/gh/pre-commit; git config --global core.hooksPath ~/gh",
        attack: "mkhook s/pc",
        ..GIT
    },
    Row {
        id: "outside-hooks-chain",
        prepare: "git init -q; mkdir ~/gh ~/more s; ln -s $W/s/pc ~/more/pc; ln -s ../more/pc ~/gh/pre-commit; git config --global core.hooksPath ~/gh",
        attack: "mkhook s/pc",
        ..GIT
    },
    Row {
        id: "outside-hooks-link",
        prepare: "git init -q; mkdir ~/gh s; rm -r .git/hooks; ln -s ~/gh .git/hooks; ln -s $W/s/pc ~/gh/pre-commit",
        attack: "mkhook s/pc",
        ..GIT
    },
    Row {
        id: "outside-repository",
        prepare: "git init -q; mkdir s; mv .git ~/gd; echo \"gitdir: $HOME/gd\" >.git; mkdir -p ~/gd/hooks; ln -s $W/s/pc ~/gd/hooks/pre-commit",
        attack: "mkhook s/pc",
        ..GIT
    },
    Row {
        id: "outside-repository-hard-link",
        prepare: "git init -q; mv .git ~/gd; echo \"gitdir: $HOME/gd\" >.git; : >pc; chmod 755 pc; mkdir -p ~/gd/hooks; ln pc ~/gd/hooks/pre-commit",
        attack: "hook >pc",
        ..GIT
    },
    Row {
        id: "outside-repository-linked-settings",
        prepare: "git init -q; mv .git ~/gd; echo \"gitdir: $HOME/gd\" >.git; mv ~/gd/config c; ln -s $W/c ~/gd/config",
        attack: "gitcfg >>c",
        ..GIT
    },
    Row {
        id: "outside-editor",
        prepare: "mkdir ~/vs; : >t.json; ln -s $W/t.json ~/vs/tasks.json; ln -s ~/vs .vscode",
        attack: "rc >t.json",
        ..READ
    },
    Row {
        id: "outside-editor-deep",
        prepare: "mkdir ~/vs ~/other; ln -s ~/other ~/vs/sub; ln -s ~/vs ~/other/loop; ln -s $W/t.json ~/other/t.json; ln -s ~/vs .vscode",
        attack: "rc >t.json",
        ..READ
    },
    Row {
        id: "outside-cargo",
        prepare: "mkdir ~/co; ln -s $W/c.toml ~/co/config.toml; ln -s ~/co .cargo",
        attack: "cargocfg >c.toml",
        ask: &[Cargo, Reader],
        ..ROW
    },
    Row {
        id: "outside-home",
        prepare: "mkdir -p ~/.config ~/fish; ln -s ~/fish ~/.config/fish; ln -s $W/t ~/fish/config.fish",
        attack: "rc >t",
        ask: &[Person("sh ~/.config/fish/config.fish")],
        ..ROW
    },
    Row {
        // Hidden from a run, and read by the host all the same.
        id: "outside-hidden",
        prepare: "mkdir -p ~/.ssh/gh; ln -s $W/s/pc ~/.ssh/gh/pre-commit; git init -q; git config --global core.hooksPath ~/.ssh/gh",
        attack: "mkhook s/pc",
        ..GIT
    },
    Row {
        // A run has a `/tmp` of its own.
        id: "outside-temporary",
        prepare: "T=$(mktemp -d); ln -s $W/s/pc $T/pre-commit; git init -q; git config --global core.hooksPath $T",
        attack: "mkhook s/pc",
        ask: &[Person("git hook run --ignore-missing pre-commit; rm -r \"$(git config core.hooksPath)\"")],
        ..ROW
    },
];
