//! What git writes is judged by what it says: no key, file or spelling of one carries code
//! past that, and everyday work of git goes through without a word.

use crate::oracle::Tool::{Git, Person, Reader, There};
use crate::row::{ROW, Row, Then};

const OWN: Row = Row { prepare: "git init -q -b main; git commit -q --allow-empty -m x", ask: &[Git, Reader], ..ROW };
/// Where what is left of it means nothing: a header, a sample.
const KEY: Row = Row { ask: &[Git], ..OWN };
const NEW: Row = Row { ask: &[Git, Reader], ..ROW };

/// Attacks.
pub const ROWS: &[Row] = &[
    // One key, however it is spelled.
    Row { id: "checked-set", attack: "git config core.fsmonitor $C", ..OWN },
    Row {
        id: "checked-moved",
        attack: "{ cat .git/config; gitcfg; } >.git/config.lock; mv .git/config.lock .git/config",
        ..OWN
    },
    Row {
        id: "checked-case",
        attack: "printf '[CoRe]\\n\\tFsMonitor = %s\\n' $C >l; cat l >>.git/config.lock; mv .git/config.lock .git/config",
        ..OWN
    },
    Row { id: "checked-one-line", attack: "printf '[core] fsmonitor=%s' $C >l; mv l .git/config", ..OWN },
    Row { id: "checked-headers", attack: "printf '[user][core]fsmonitor=%s' $C >l; mv l .git/config", ..OWN },
    Row { id: "checked-quoted", attack: "printf '[core]\\n\\tfsmonitor = \"%s\"\\n' $C >l; mv l .git/config", ..OWN },
    Row {
        id: "checked-quoted-within",
        attack: "printf '[core]\\n\\tfsmonitor = \"/\"%s ; x\\n' ${C#/} >l; mv l .git/config",
        ..OWN
    },
    Row {
        id: "checked-after-comment",
        attack: "printf '[core]\\n# \\\\\\n\\tfsmonitor = %s\\n' $C >l; mv l .git/config",
        ..OWN
    },
    Row {
        id: "checked-after-value-comment",
        attack: "printf '[core]\\n\\tbare = false # \\\\\\n\\tfsmonitor = %s\\n' $C >l; mv l .git/config",
        ..OWN
    },
    Row {
        id: "checked-continued",
        attack: "printf '[core]\\n\\tfsmonitor = \\\\\\n%s\\n' $C >l; mv l .git/config",
        ..OWN
    },
    Row {
        id: "checked-after-continued",
        attack: "printf '[user]\\n\\tname = \"a\\\\\\n\"\\n[core]\\n\\tfsmonitor = %s\\n' $C >l; mv l .git/config",
        ..OWN
    },
    Row {
        id: "checked-mark",
        attack: "printf '\\xef\\xbb\\xbf[core]\\n\\tfsmonitor = %s\\n' $C >l; mv l .git/config",
        ..OWN
    },
    Row { id: "checked-return", attack: "printf '[core]\\r\\n\\tfsmonitor = %s\\r\\n' $C >l; mv l .git/config", ..OWN },
    Row {
        id: "checked-zero",
        attack: "printf '[user]\\n\\tname = a\\0b\\n[core]\\n\\tfsmonitor = %s\\n' $C >l; mv l .git/config",
        ..OWN
    },
    Row { id: "checked-large", attack: "{ printf '# %2000000d\\n' 1; gitcfg; } >l; mv l .git/config", ..OWN },
    Row { id: "checked-include", attack: "gitcfg >s.cfg; git config include.path ../s.cfg", ..OWN },
    Row { id: "checked-include-if", attack: "gitcfg >s.cfg; git config 'includeIf.gitdir:**.path' ../s.cfg", ..OWN },
    Row { id: "checked-hooks-path", attack: "mkhook h/pre-commit; git config core.hooksPath h", ..OWN },
    Row { id: "checked-alias", attack: "git config alias.zz \"!$C\"", ask: &[Person("git zz")], ..OWN },
    Row {
        id: "checked-editor",
        attack: "git config core.editor $C",
        ask: &[Person("git commit --allow-empty")],
        ..OWN
    },
    Row {
        id: "checked-filter",
        attack: "git config filter.x.clean $C; echo '* filter=x' >.gitattributes; echo x >f",
        ask: &[Person("git add f")],
        ..OWN
    },
    Row {
        id: "checked-renamed-section",
        attack: "git config user.fsmonitor $C; git config --rename-section user core",
        ..OWN
    },
    Row { id: "checked-unknown", attack: "git config stockade.planted STOCKADE-PLANTED", ..OWN },
    // Where the person's git goes.
    Row { id: "checked-remote-program", attack: "git remote add x 'ext::sh -c STOCKADE-PLANTED'", ..OWN },
    Row { id: "checked-remote-option", attack: "git config remote.x.url -STOCKADE-PLANTED", ..OWN },
    Row { id: "checked-remote-helper", attack: "git config remote.x.url STOCKADE-PLANTED://x", ..OWN },
    Row {
        id: "checked-remote-changed",
        prepare: "git init -q; git remote add origin https://localhost/a",
        attack: "git remote set-url origin https://localhost/STOCKADE-PLANTED",
        ..OWN
    },
    Row {
        id: "checked-remote-made-anew",
        prepare: "git init -q; git remote add origin https://localhost/a",
        attack: "git remote remove origin; git remote add origin https://localhost/STOCKADE-PLANTED",
        ..OWN
    },
    Row {
        id: "checked-remote-renamed",
        prepare: "git init -q; git remote add origin https://localhost/a; git config branch.x.remote origin",
        attack: "git config --rename-section remote.origin remote.y; git remote add origin https://localhost/STOCKADE-PLANTED",
        ..OWN
    },
    Row {
        id: "checked-branch-changed",
        prepare: "git init -q; git remote add origin https://localhost/a; git config branch.x.remote origin",
        attack: "git config remote.STOCKADE-PLANTED.fetch x; git config branch.x.remote STOCKADE-PLANTED",
        ..KEY
    },
    Row { id: "checked-instead-of", attack: "git config url.STOCKADE-PLANTED.insteadOf https", ..KEY },
    Row { id: "checked-work-tree", attack: "git config core.worktree /STOCKADE-PLANTED", ..OWN },
    // Another way to the name.
    Row { id: "checked-appended", attack: "gitcfg >>.git/config", ..OWN },
    Row { id: "checked-overwritten", attack: "gitcfg | dd of=.git/config conv=notrunc status=none", ..OWN },
    Row { id: "checked-exchanged", attack: "gitcfg >x; $ACTS exchange x .git/config", ..OWN },
    Row {
        id: "checked-linked",
        attack: "gitcfg >x; rm -f .git/config; ln x .git/config; ln -s ../x .git/config",
        ..OWN
    },
    Row { id: "checked-unnamed", attack: "rm -f .git/config; gitcfg | $ACTS tmplink .git .git/config", ..OWN },
    Row { id: "checked-link-moved", attack: "gitcfg >x; ln -s ../x y; mv -T y .git/config", ..OWN },
    Row {
        id: "checked-source-linked",
        attack: "cp .git/config x; ln x .git/config.lock; mv .git/config.lock .git/config; gitcfg >>x",
        ..OWN
    },
    Row {
        id: "checked-source-open",
        attack: "cp .git/config .git/config.lock; exec 9>>.git/config.lock; mv .git/config.lock .git/config; gitcfg >&9",
        ..OWN
    },
    Row {
        id: "checked-source-mapped",
        attack: "gitcfg | $ACTS map .git/config.lock go & for n in $(seq 200); do [ -e go.ready ] && break; sleep 0.02; done; mv .git/config.lock .git/config; : >go; wait",
        ..OWN
    },
    Row {
        id: "checked-source-later",
        attack: "cp .git/config x; ln x y; mv x .git/config",
        then: Then::Later("gitcfg >>y"),
        ..OWN
    },
    Row {
        id: "checked-source-beside",
        attack: "mv w .git/config",
        then: Then::Beside("cp .git/config w; gitcfg | $ACTS hold w go"),
        ..OWN
    },
    Row {
        id: "checked-race",
        attack: r#"C=$C python3 -c '
import os, threading, time
good, bad = b"[user]\n\tname = aaaa\n", b"[core]\n\tfsmonitor=%s\n" % os.environ["C"].encode()
over = False
def turn():
    while not over:
        try:
            fd = os.open(".git/config.lock", os.O_RDWR)
            for n in range(20):
                for text in (good, bad):
                    os.pwrite(fd, text.ljust(200, b"\n"), 0)
            os.close(fd)
        except OSError:
            pass
threads = [threading.Thread(target=turn) for n in range(2)]
[thread.start() for thread in threads]
for n in range(300):
    with open(".git/config.lock", "wb") as file:
        file.write(good.ljust(200, b"\n"))
    try:
        os.rename(".git/config.lock", ".git/config")
    except OSError:
        pass
over = True
[thread.join() for thread in threads]'
        { cat .git/config; gitcfg; } >l; mv l .git/config"#,
        ..OWN
    },
    Row { id: "checked-staged", attack: "git config core.fsmonitor $C", then: Then::Commit(&[]), ..OWN },
    Row {
        id: "checked-work-tree-settings",
        attack: "git config extensions.worktreeConfig true; gitcfg >x; mv x .git/config.worktree; gitcfg >.git/config.worktree",
        ..OWN
    },
    // A new repository.
    Row {
        id: "checked-new",
        attack: "git init -q s; { cat s/.git/config; gitcfg; } >x; mv x s/.git/config; gitcfg >>s/.git/config",
        ..NEW
    },
    Row {
        id: "checked-new-template",
        attack: "mkdir t; gitcfg >t/config; mkhook t/hooks/pre-commit; git init -q --template=t s",
        ..NEW
    },
    // Written in their place, by programs that are not git's.
    Row {
        id: "checked-in-place",
        attack: "mkdir -p .git/objects .git/refs; head_file >.git/HEAD; gitcfg >.git/config",
        ..NEW
    },
    Row {
        id: "checked-in-place-late",
        attack: "mkdir -p .git/objects .git/refs; exec 3>.git/config; head_file >.git/HEAD; ls .git >/dev/null; gitcfg >&3; exec 3>&-; touch x",
        ..NEW
    },
    Row {
        id: "checked-in-place-kept",
        attack: "mkdir -p .git/objects .git/refs; head_file >.git/HEAD; exec 3<>.git/config; touch x; (exec 4>/proc/self/fd/3; exec 3>&-; touch y; gitcfg >&4) & wait; exec 3>&-; touch z; cat .git/config >/dev/null",
        ..NEW
    },
    Row {
        id: "checked-in-place-linked",
        attack: "mkdir -p .git/objects .git/refs; head_file >.git/HEAD; : >.git/config; ln .git/config l; gitcfg >>l; touch x",
        ..NEW
    },
    Row { id: "checked-new-hook", attack: "git init -q s; mkhook s/.git/hooks/pre-commit", ..NEW },
    Row {
        id: "checked-new-sample",
        attack: "git init -q s; cd s/.git/hooks; hook >x.sample; chmod 755 x.sample; ln x.sample pre-commit; mv x.sample pre-commit",
        ask: &[Git],
        ..NEW
    },
    Row {
        id: "checked-new-hooks-moved",
        attack: "git init -q s; rm -rf s/.git/hooks; mkhook h/pre-commit; mv -T h s/.git/hooks",
        ..NEW
    },
    Row {
        id: "checked-new-hooks-linked",
        attack: "git init -q s; rm -rf s/.git/hooks; mkhook h/pre-commit; ln -s ../../h s/.git/hooks",
        ..NEW
    },
    Row {
        id: "checked-new-moved",
        attack: "git init -q s; mv s/.git g; mkhook g/hooks/pre-commit; gitcfg >>g/config; mv g s/.git",
        ..NEW
    },
    Row {
        id: "checked-new-common",
        attack: "git init -q s; mkdir -p y/objects y/refs; gitcfg >y/config; echo $W/y >s/.git/commondir; echo $W/y >x; mv x s/.git/commondir",
        ..NEW
    },
    Row {
        id: "checked-clone-settings",
        attack: "git init -q -b main o; git -C o commit -q --allow-empty -m x; git clone -q -c core.fsmonitor=$C o s",
        ..NEW
    },
    Row {
        id: "checked-separate",
        attack: "git init -q --separate-git-dir=m s; mkhook m/hooks/pre-commit; gitcfg >>m/config",
        ..NEW
    },
    Row {
        id: "checked-global-hooks-there",
        prepare: "git config --global core.hooksPath hooks2",
        attack: "mkhook n/hooks2/pre-commit; git init -q n",
        ..NEW
    },
    Row {
        id: "checked-global-hooks-moved",
        prepare: "git config --global core.hooksPath d/hooks2",
        attack: "git init -q n; mkhook d/hooks2/pre-commit; mv d n/d; mkhook x/pre-commit; mkdir n/d; mv x n/d/hooks2",
        ..NEW
    },
    Row {
        id: "checked-global-hooks-linked",
        prepare: "git config --global core.hooksPath d/hooks2",
        attack: "mkdir n; ln -s ../e n/d; git init -q n; mkhook e/hooks2/pre-commit; rm -f n/d; ln -s ../e n/d",
        ..NEW
    },
    Row {
        id: "checked-shipped-half",
        prepare: "mkdir -p .git/objects .git/refs; gitcfg >.git/config",
        attack: "head_file >.git/HEAD; head_file >x; mv x .git/HEAD; git init -q",
        ask: &[Git],
        ..NEW
    },
    Row {
        id: "checked-shipped-half-hooks",
        prepare: "mkdir -p .git/refs; head_file >.git/HEAD; mkhook .git/hooks/pre-commit",
        attack: "mkdir .git/objects; git init -q",
        ask: &[Git],
        ..NEW
    },
    // What leads to a repository.
    Row {
        id: "checked-pointer",
        attack: "mkdir -p y/objects y/refs w; gitcfg >y/config; head_file >y/HEAD; echo \"gitdir: $W/y\" >w/.git; echo \"gitdir: $W/y\" >x; mv x w/.git",
        ..OWN
    },
    Row {
        id: "checked-pointer-in-store",
        attack: "mkdir -p .git/refs/y/objects .git/refs/y/refs w; gitcfg >.git/refs/y/config; head_file >.git/refs/y/HEAD; echo \"gitdir: $W/.git/refs/y\" >w/.git",
        ..OWN
    },
    Row {
        id: "checked-pointer-to-module",
        attack: "mkdir -p .git/modules/y/objects .git/modules/y/refs w; gitcfg >.git/modules/y/config; gitcfg >x; mv x .git/modules/y/config; head_file >.git/modules/y/HEAD; echo \"gitdir: $W/.git/modules/y\" >w/.git",
        ..OWN
    },
    Row {
        id: "checked-pointer-to-module-hooks",
        attack: "mkdir -p .git/modules/y/objects .git/modules/y/refs w; mkhook .git/modules/y/hooks/pre-commit; head_file >.git/modules/y/HEAD; echo \"gitdir: $W/.git/modules/y\" >w/.git",
        ..OWN
    },
    Row {
        id: "checked-pointer-through-link",
        attack: "mkdir -p .git/modules y/objects y/refs w; gitcfg >y/config; head_file >y/HEAD; ln -s $W/y .git/modules/y; ln -s $W/y y2; mv y2 .git/modules/y; echo \"gitdir: $W/.git/modules/y\" >w/.git",
        ..OWN
    },
    Row {
        id: "checked-pointer-late",
        attack: r#"mkdir -p .git/modules/y y/objects y/refs w; gitcfg >y/config; head_file >y/HEAD
            python3 -c '
import os
fd = os.open("w/.git", os.O_CREAT | os.O_RDWR, 0o644)
os.write(fd, b"gitdir: ../.git/modules/y\n")
open("z", "w").close()
os.ftruncate(fd, 0)
os.pwrite(fd, b"gitdir: ../y\n", 0)
os.close(fd)
open("z", "w").close()
open("w/.git", "r+").write("gitdir: ../y\n")'"#,
        ..OWN
    },
    Row {
        id: "checked-common-of-work-tree",
        attack: "mkdir -p .git/worktrees/x y/objects y/refs w; gitcfg >y/config; head_file >.git/worktrees/x/HEAD; echo $W/y >.git/worktrees/x/commondir; echo $W/y >c; mv c .git/worktrees/x/commondir; echo \"gitdir: $W/.git/worktrees/x\" >w/.git",
        ..OWN
    },
    Row {
        id: "checked-settings-of-work-tree",
        attack: "git worktree add -q w; git config extensions.worktreeConfig true; gitcfg >x; mv x .git/worktrees/w/config.worktree; gitcfg >.git/worktrees/w/config.worktree",
        ..OWN
    },
    Row {
        id: "checked-hooks-of-work-tree",
        prepare: "git init -q; git commit -q --allow-empty -m x; git config core.hooksPath hooks2",
        attack: "git worktree add -q w || git worktree add -f -q w; mkhook w/hooks2/pre-commit",
        ..OWN
    },
    // A file that leads to a repository is judged for one place, and links are no names.
    Row {
        id: "checked-pointer-moved",
        prepare: "git init -q; git commit -q --allow-empty -m x; git config core.hooksPath hooks2",
        attack: "mkdir -p .git/worktrees/x s/d/lib w; git init -q s; mkdir -p s/.git/worktrees/x; echo ref: refs/heads/x >.git/worktrees/x/HEAD; echo ../.. >.git/worktrees/x/commondir; \
            echo 'gitdir: ../../.git/worktrees/x' >s/d/lib/.git; cat s/d/lib/.git; mv s/d/lib w/lib; echo $W/w/lib/.git >.git/worktrees/x/gitdir; cat .git/worktrees/x/commondir; mkhook w/lib/hooks2/pre-commit",
        ..OWN
    },
    Row {
        id: "checked-pointer-past-link",
        prepare: "git init -q; git commit -q --allow-empty -m x; git config core.hooksPath hooks2",
        attack: "git init -q s; mkdir -p .git/worktrees/x p/q s/lib s/.git/worktrees/x; echo ref: refs/heads/x >.git/worktrees/x/HEAD; echo ../.. >.git/worktrees/x/commondir; ln -s ../../p/q s/lib/ln; \
            echo 'gitdir: ln/../../.git/worktrees/x' >s/lib/.git; cat s/lib/.git; echo $W/s/lib/.git >.git/worktrees/x/gitdir; cat .git/worktrees/x/commondir; mkhook s/lib/hooks2/pre-commit",
        ..OWN
    },
    Row {
        id: "checked-work-tree-of-module",
        prepare: "git config --global core.hooksPath hooks2; git init -q; git commit -q --allow-empty -m x",
        attack: "mkdir -p evil lib .git/modules/lib/objects .git/modules/lib/refs; echo ref: refs/heads/x >.git/modules/lib/HEAD; printf '[core]\\n\\trepositoryformatversion = 0\\n' >.git/modules/lib/config; \
            echo 'gitdir: ../.git/modules/lib' >lib/.git; cat lib/.git; mkhook evil/hooks2/post-index-change; \
            printf '[core]\\n\\trepositoryformatversion = 0\\n\\tworktree = ../../../evil\\n' >c; mv -f c .git/modules/lib/config",
        ask: &[Person("git -C lib status; git -C lib commit --allow-empty -m x; git status"), Git],
        ..OWN
    },
    Row {
        id: "checked-work-tree-through-link",
        attack: "ln -s $HOME ln; mkdir lib; git init -q t; cd t; git commit -q --allow-empty -m x; echo $C >bp; git update-index --add --cacheinfo 100644,$(git hash-object -w bp),.bash_profile; git commit -qm y; cd ..; \
            mkdir -p .git/modules/lib/objects .git/modules/lib/refs/heads; cp -r t/.git/objects/?? .git/modules/lib/objects/; git -C t rev-parse HEAD~1 >.git/modules/lib/HEAD; git -C t rev-parse HEAD >.git/modules/lib/refs/heads/main; \
            printf '[core]\\n\\trepositoryformatversion = 0\\n\\tbare = false\\n\\tworktree = ../../../ln\\n' >.git/modules/lib/config; echo 'gitdir: ../.git/modules/lib' >lib/.git; cat lib/.git",
        ask: &[Person("git -C lib checkout -q -f main; bash -lc true"), Git],
        ..OWN
    },
    // Shells take it into their prompt.
    Row {
        id: "checked-number-of-rebase",
        attack: "mkdir .git/rebase-merge; printf '$(%s)\\n' $C >.git/rebase-merge/msgnum; printf '$(%s)\\n' $C >x; mv x .git/rebase-merge/end; echo refs/heads/main >.git/rebase-merge/head-name; cat .git/rebase-merge/*",
        ask: &[Person(
            "for f in /usr/lib/git-core /usr/share/git-core/contrib/completion /usr/local/libexec/git-core; do test ! -e $f/git-sh-prompt || . $f/git-sh-prompt; done; __git_ps1 a b; : \"${PS1@P}\"",
        )],
        ..OWN
    },
    // What a run keeps for itself is not judged, and cannot be found from the workspace later.
    Row {
        id: "checked-in-a-cache",
        attack: "U=${UV_CACHE_DIR:-$W/../cache}; mkdir -p $U/r/.git/objects $U/r/.git/refs; head_file >$U/r/.git/HEAD; gitcfg >$U/r/.git/config; ln -s $U/r sub; cat sub/.git/config",
        ask: &[Person("cd sub && git status"), Git],
        ..OWN
    },
    Row {
        id: "checked-module-settings",
        prepare: "git init -q o; git -C o commit -q --allow-empty -m x; git init -q; git -c protocol.file.allow=always submodule --quiet add ./o sub",
        attack: "cd sub; git config core.fsmonitor $C; git config core.hooksPath ../h; mkhook ../h/pre-commit",
        ..OWN
    },
    Row {
        id: "checked-modules-file",
        attack: "printf '[submodule \"x\"]\\n\\tpath = x\\n\\tupdate = !STOCKADE-PLANTED\\n' >x; cp x .gitmodules; mv x .gitmodules",
        ask: &[Reader],
        ..OWN
    },
    Row {
        id: "checked-modules-in-place",
        attack: "printf '[submodule \"x\"]\\n\\tpath = x\\n\\tupdate = !STOCKADE-PLANTED\\n' >x; cat x >.gitmodules; rm -f .gitmodules; cat x >.gitmodules; rm -f .gitmodules; exec 3>.gitmodules; cat x >&3; ls >/dev/null; cat x >&3",
        ask: &[Reader],
        ..OWN
    },
    Row {
        id: "checked-unmade",
        attack: "for part in HEAD config index description; do rm -f .git/$part; done; rm -rf .git/objects .git/refs .git/info .git/hooks .git/branches; gitcfg >.git/config; gitcfg >x; mv x .git/config; mkhook .git/hooks/pre-commit; git init -q; mkhook .git/hooks/pre-commit",
        ..OWN
    },
    Row {
        id: "checked-unmade-address",
        prepare: "git init -q; git remote add origin https://localhost/x",
        attack: "rm -f .git/config; git config remote.origin.url https://STOCKADE-PLANTED/y; printf '[remote \"origin\"]\\n\\turl = https://STOCKADE-PLANTED/y\\n' >.git/config",
        ask: &[Reader],
        ..OWN
    },
    Row {
        id: "checked-unmade-module",
        prepare: "git init -q o; git -C o commit -q --allow-empty -m x; git init -q; git -c protocol.file.allow=always submodule --quiet add ./o sub",
        attack: "cd .git/modules/sub; rm -f HEAD config index; rm -rf objects refs hooks; gitcfg >config; gitcfg >x; mv x config; mkhook hooks/pre-commit; mkdir -p objects refs; head_file >HEAD",
        ..OWN
    },
    // What git writes to, or copies, under the name that it finds there.
    Row {
        id: "checked-reference",
        prepare: "git init -q -b main; git commit -q --allow-empty -m x; echo x >f; git add f",
        attack: "echo $C >c; ln -s ~ lnk; for r in ORIG_HEAD refs/stash refs/tags/v refs/notes/commits; do mkdir -p .git/refs/notes; echo 'ref: refs/../../lnk/planted' >x; cp x .git/$r; cp x .git/$r.lock; mv .git/$r.lock .git/$r; rm -f .git/$r; ln x .git/$r; cp x .git/$r.lock; ln .git/$r.lock .git/$r; rm -f .git/$r.lock; [ -e .git/$r ] || cp x .git/$r; done",
        ask: &[Person(
            "git notes add -m x; git tag -f v; git stash -q; git reset -q --hard; [ ! -e ~/planted ] || $(cat c)",
        )],
        ..OWN
    },
    Row {
        id: "checked-reference-of-head",
        attack: "echo $C >c; ln -s ~ lnk; echo 'ref: refs/../../lnk/planted' >x; cp x .git/HEAD; cp x .git/HEAD.lock; mv .git/HEAD.lock .git/HEAD",
        ask: &[Person("git commit -q --allow-empty -m y; [ ! -e ~/planted ] || $(cat c)")],
        ..OWN
    },
    Row {
        id: "checked-reference-moved",
        attack: "echo $C >c; ln -s ~ lnk; for d in .git/objects/aa .git/logs/d d; do mkdir -p $d; echo 'ref: refs/../../lnk/planted' >$d/main; rm -rf .git/refs/heads; mv -T $d .git/refs/heads; done",
        ask: &[Person("git commit -q --allow-empty -m y; [ ! -e ~/planted ] || $(cat c)")],
        ..OWN
    },
    Row {
        id: "checked-reference-of-work-tree",
        prepare: "git init -q -b main; git commit -q --allow-empty -m x; git worktree add -q w -b w",
        attack: "echo $C >c; ln -s ~ lnk; echo 'ref: refs/../../lnk/planted' >x; cp x .git/worktrees/w/HEAD; mv x .git/worktrees/w/HEAD",
        ask: &[Person("git -C w commit -q --allow-empty -m y; [ ! -e ~/planted ] || $(cat c)")],
        ..OWN
    },
    Row {
        id: "checked-resolutions",
        prepare: "git init -q; git commit -q --allow-empty -m x; mkdir ~/keep; echo STOCKADE-PLANTED >~/keep/secret",
        attack: "echo $C >c; h=1111111111111111111111111111111111111111; mkdir -p .git/rr-cache/$h; echo a >.git/rr-cache/$h/preimage; printf '%s\\t%s\\0' $h ~/keep/secret >x; cp x .git/MERGE_RR; mv x .git/MERGE_RR",
        ask: &[Person("echo y >>f; git add f; git commit -qm y; grep -rq STOCKADE .git/rr-cache && $(cat c)")],
        ..OWN
    },
    Row {
        id: "checked-two-ways-to-a-module",
        prepare: "git init -q o; git -C o commit -q --allow-empty -m x; git init -q; git -c protocol.file.allow=always submodule --quiet add ./o sub",
        attack: "echo $C >c; echo x >sub/planted; git -C sub add planted; git -C sub -c user.name=x -c user.email=x commit -qm x; mkdir sub2; echo 'gitdir: ../.git/modules/sub' >sub2/.git; ls >/dev/null; git config -f .git/modules/sub/config core.worktree ../../../sub2; rm -r sub2; ln -s ~ sub2; ln -s ~ x; mv -T x sub2; mkdir d; ln -s ~ d/sub2",
        ask: &[Person(
            "git -C sub checkout -q -f .; git -C .git/modules/sub checkout -q -f .; [ ! -e ~/planted ] || $(cat c)",
        )],
        ..OWN
    },
    Row {
        id: "checked-place-of-work-tree",
        prepare: "git init -q -b main; git commit -q --allow-empty -m x; mkdir ~/v; git worktree add -q w -b w",
        attack: "echo $C >c; mkdir -p .git/worktrees/x; git rev-parse HEAD >.git/worktrees/x/HEAD; cp .git/index i; mv i .git/worktrees/x/index; echo ../.. >.git/worktrees/x/commondir; for x in w x; do echo ~/v/.git >.git/worktrees/$x/gitdir; echo ~/v/.git >y; mv y .git/worktrees/$x/gitdir; done",
        ask: &[Person("git worktree repair; [ ! -e ~/v/.git ] || $(cat c)")],
        ..OWN
    },
    Row {
        id: "checked-beside-settings",
        prepare: "git init -q -b main; git commit -q --allow-empty -m x; git remote add origin https://localhost/x; git config branch.main.remote origin",
        attack: "echo $C >c; git config extensions.worktreeConfig true; git config --worktree remote.origin.pushurl https://localhost/y; git config remote.zz.url https://localhost/z; git config --worktree branch.main.remote zz; git config --worktree submodule.x.url https://localhost/z",
        ask: &[Person(
            "[ -z \"$(git config remote.origin.pushurl)$(git config submodule.x.url)\" ] && [ \"$(git config branch.main.remote)\" = origin ] || $(cat c)",
        )],
        ..OWN
    },
    Row {
        id: "checked-remote-hidden",
        prepare: "git init -q -b main; git init -q -b main ~/.password-store; git -C ~/.password-store commit -q --allow-empty -m x",
        attack: "echo $C >c; git remote add zz ~/.password-store; git remote add yy file://$HOME/.password-store; ln -s ~/.password-store l; git remote add xx ./l",
        ask: &[Person("git fetch -q --all; [ -z \"$(git for-each-ref refs/remotes)\" ] || $(cat c)")],
        ..OWN
    },
    Row {
        id: "checked-branch-begun",
        prepare: "git init -q -b main; git commit -q --allow-empty -m x; git remote add origin https://localhost/x",
        attack: "echo $C >c; git remote add up https://localhost/y; git config branch.main.remote up",
        ask: &[Person("[ -z \"$(git config branch.main.remote)\" ] || $(cat c)")],
        ..OWN
    },
    Row {
        id: "checked-last-taken-away",
        prepare: "git init -q; for x in a b a; do git config --add core.hooksPath $x; done",
        attack: "echo $C >c; grep -v Path .git/config >l; printf '\\thooksPath = a\\n\\thooksPath = b\\n' >>l; mv l .git/config",
        ask: &[Person("[ \"$(git config core.hooksPath)\" = a ] || $(cat c)")],
        ..OWN
    },
    // The directory leads git by its place, which the run beside began too early to know.
    Row {
        id: "checked-work-tree-beside",
        prepare: "git init -q -b main; git commit -q --allow-empty -m x; git config core.hooksPath .githooks",
        attack: "git init -q -b main h; git -C h config user.name Me; git -C h config user.email me@localhost; git -C h commit -q --allow-empty -m x; git -C h worktree add -q s HEAD; mkdir h/s/.githooks; mkhook h/s/.githooks/pre-commit; echo 'gitdir: ../.git/worktrees/s' >h/s/.git; cat h/s/.git",
        then: Then::Beside(
            "wait_for_go; mkdir -p .git/worktrees/s; git rev-parse HEAD >.git/worktrees/s/HEAD.lock; mv .git/worktrees/s/HEAD.lock .git/worktrees/s/HEAD; echo ../.. >.git/worktrees/s/commondir; mv h/s s",
        ),
        ask: &[Person("cd s; echo x >n; git add n; git commit -qm n")],
        ..OWN
    },
    Row {
        id: "checked-start-of-bisection",
        attack: "echo $C >c; git rev-parse HEAD >.git/BISECT_EXPECTED_REV; : >.git/BISECT_LOG; echo --orphan=zz >x; cp x .git/BISECT_START; mv x .git/BISECT_START",
        ask: &[Person("git bisect reset; [ \"$(git symbolic-ref HEAD)\" != refs/heads/zz ] || $(cat c)")],
        ..OWN
    },
    // What else git acts on.
    Row {
        id: "checked-index",
        attack: r#"hook >e; chmod 755 e; git add e; B=$(git hash-object -w e) python3 -c '
import hashlib, os, struct
name = b".git/hooks/post-checkout"
entry = struct.pack(">10I", *[0] * 6, 0o100755, 0, 0, 0) + bytes.fromhex(os.environ["B"]) + struct.pack(">H", len(name)) + name
text = b"DIRC" + struct.pack(">II", 2, 1) + entry.ljust(len(entry) // 8 * 8 + 8, b"\0")
text += hashlib.sha1(text).digest()
for place in (".git/index.lock", ".git/index"):
    try:
        if place == ".git/index":
            os.remove(place)
    except OSError:
        pass
    try:
        open(place, "wb").write(text)
    except OSError:
        pass'; mv .git/index.lock .git/index"#,
        ask: &[Person("git checkout -- .; git checkout -q HEAD")],
        ..OWN
    },
    Row {
        id: "checked-steps",
        prepare: "git init -q; for n in 1 2 3; do git commit -q --allow-empty -m $n; done; GIT_SEQUENCE_EDITOR='printf break >' git rebase -i HEAD~2",
        attack: "printf 'exec %s\\n' $C >x; cp x .git/rebase-merge/git-rebase-todo; mv x .git/rebase-merge/git-rebase-todo",
        ask: &[Person("git rebase --continue")],
        ..OWN
    },
    Row {
        id: "checked-strategy",
        attack: "mkdir .git/rebase-merge; echo x >.git/rebase-merge/strategy",
        ask: &[There(".git/rebase-merge/strategy")],
        ..OWN
    },
    Row {
        id: "checked-old-remote",
        attack: "mkdir -p .git/remotes .git/branches; echo x >.git/remotes/x; echo x >.git/branches/x; [ -e .git/remotes/x ] || mv .git/branches .git/remotes",
        ask: &[There(".git/remotes/x")],
        ..OWN
    },
    Row {
        id: "checked-link-in-logs",
        attack: "mkdir -p d .git/logs; ln -s ~/.bashrc d/x; ln -s ~/.bashrc .git/logs/x; ln d/x .git/logs/x; rm -rf .git/logs; mv -T d .git/logs",
        ask: &[There(".git/logs/x")],
        ..OWN
    },
    Row {
        id: "checked-attributes",
        attack: "mkdir -p .git/info; echo '* STOCKADE-PLANTED' >.git/info/attributes; echo '* STOCKADE-PLANTED' >x; mv x .git/info/attributes",
        ask: &[Reader],
        ..OWN
    },
    Row {
        id: "checked-git-moved",
        attack: "mv .git old; mkdir -p .git/objects .git/refs; head_file >.git/HEAD; gitcfg >.git/config; gitcfg >x; mv x .git/config",
        ..OWN
    },
];

/// Everyday work of git, which needs no word.
pub const WORK: &[Row] = &[
    Row {
        id: "git-new",
        attack: "git init -q -b main a; cd a; git config user.name Me; git config user.email me@localhost; echo x >f; git add f; git commit -qm x; [ $(git config core.symlinks || echo true) = true ]; [ $(git config core.filemode) = true ]; [ -e .git/hooks/pre-commit.sample ]; git status --short; git fsck",
        ..ROW
    },
    Row {
        id: "git-own",
        prepare: OWN.prepare,
        attack: "git config user.name Me; git config user.email me@localhost; echo x >f; git add f; git commit -qm x; git checkout -q -b s; echo y >g; git add g; git commit -qm y; git checkout -q main; git merge -q --no-ff --no-edit s; echo z >>f; git stash -q; git stash pop -q; git commit -qam z; git checkout -q -b r HEAD~1; echo q >q; git add q; git commit -qm q; git rebase -q main; git branch -q --track t main; git branch -q -m t u; git branch -q -D u; git tag v1; git reset -q --hard HEAD^; git gc -q; git fsck; test -z \"$(git status --short -uno)\"",
        ..ROW
    },
    Row {
        id: "git-remote",
        prepare: "git init -q -b main; git commit -q --allow-empty -m x; git remote add origin https://localhost/x; git config branch.main.remote origin; git config alias.mine '!true'; git config core.pager cat",
        attack: "git remote add up git@localhost:x/y.git; git remote rename up down; [ $(git remote get-url down) = git@localhost:x/y.git ]; [ $(git config remote.down.fetch) = '+refs/heads/*:refs/remotes/down/*' ]; git remote remove down; git remote rename origin other; [ $(git config branch.main.remote) = other ]; [ $(git config alias.mine) = '!true' ]; [ $(git config core.pager) = cat ]",
        ..ROW
    },
    Row {
        id: "git-clone",
        prepare: "git init -q -b main o; git -C o commit -q --allow-empty -m x",
        attack: "git clone -q o a; git clone -q file://$PWD/o b; git clone -q --depth 1 file://$PWD/o c; cd a; git config user.name Me; git config user.email me@localhost; git commit -q --allow-empty -m y; cd ../b; git remote add a ../a; git fetch -q a; git pull -q --no-rebase a main; git branch -q -u origin/main; [ $(git rev-parse HEAD) = $(git -C ../a rev-parse HEAD) ]; [ $(git config branch.main.remote) = origin ]",
        ..ROW
    },
    Row {
        id: "git-bisect",
        prepare: "git init -q -b main; for n in 1 2 3 4 5; do git commit -q --allow-empty -m $n; done",
        attack: "git bisect start HEAD HEAD~4; git bisect run true >/dev/null; git bisect reset",
        ..ROW
    },
    Row {
        id: "git-worktree",
        prepare: OWN.prepare,
        attack: "git config user.name Me; git config user.email me@localhost; git worktree add -q w -b w; cd w; echo x >f; git add f; git commit -qm x; git status --short; cd ..; [ $(git worktree list | wc -l) = 2 ]; git worktree remove w; [ ! -e .git/worktrees/w ]; git merge -q w",
        ..ROW
    },
    Row {
        id: "git-clone-outside",
        prepare: "git init -q -b main ~/o; git -C ~/o commit -q --allow-empty -m x",
        attack: "git clone -q ~/o n; [ $(git -C n remote get-url origin) = $HOME/o ]; git clone -q file://$HOME/o u; git init -q m; git -C m remote add o ~/o; git -C m fetch -q o; [ -n \"$(git -C m for-each-ref refs/remotes/o)\" ]",
        ..ROW
    },
    Row {
        id: "git-worktree-own",
        prepare: "git init -q -b main; git commit -q --allow-empty -m x; git worktree add -q w -b w",
        attack: "cd w; git config user.name Me; git config user.email me@localhost; echo x >f; git add f; git commit -qm x; git checkout -q -b v; git stash list; cd ..; git worktree remove w",
        ..ROW
    },
    Row {
        id: "git-submodule",
        prepare: "git init -q -b main o; git -C o commit -q --allow-empty -m x; git init -q -b main a; git -C a commit -q --allow-empty -m x",
        attack: "export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=protocol.file.allow GIT_CONFIG_VALUE_0=always; cd a; git config user.name Me; git config user.email me@localhost; git submodule --quiet add ../o libs/o; git commit -qm sub; cd libs/o; git config user.name Me; git config user.email me@localhost; git commit -q --allow-empty -m y; [ $(git rev-parse --show-toplevel) = $PWD ]; cd ../..; git commit -qam more; git submodule --quiet update; [ $(git config -f .gitmodules submodule.libs/o.url) = ../o ]",
        ..ROW
    },
    Row {
        id: "git-copied",
        prepare: "git init -q -b main o; git -C o commit -q --allow-empty -m x; echo x >o/f; git -C o add f; git -C o commit -qm f",
        attack: "git clone -q o n; rm -r n; cp -a o a; cp -r o b; tar cf c.tar o; mkdir c; tar xf c.tar -C c; for d in a b c/o; do [ -z \"$(git -C $d status --short)\" ]; git -C $d fsck; done; rm -r a b c o; [ ! -e o ]",
        ..ROW
    },
    Row {
        id: "git-modules-in-a-branch",
        prepare: "git init -q -b main o; git -C o commit -q --allow-empty -m x; git init -q -b main; git commit -q --allow-empty -m x; git checkout -q -b s; git -c protocol.file.allow=always submodule --quiet add ./o sub; git commit -qm sub; git checkout -q main; rm -rf sub",
        attack: "git config user.name Me; git config user.email me@localhost; git checkout -q s; [ -e .gitmodules ]; git config -f .gitmodules submodule.sub.branch main; git stash -q; git stash pop -q; git commit -qam m; git checkout -q main; [ ! -e .gitmodules ]; git merge -q s; [ -e .gitmodules ]; git reset -q --hard HEAD^^; rm -rf sub; git rebase -q s; git rm -qf sub; rm -r .git/modules/sub; git commit -qm gone",
        ..ROW
    },
    Row {
        id: "git-in-place",
        attack: "mkdir -p .git/objects .git/refs/heads; echo ref: refs/heads/main >.git/HEAD; : >.git/config; [ -e .git/config ]; git config user.name Me; git config user.email me@localhost; git commit -q --allow-empty -m x; mkdir -p n/.git; printf '[core]\\n\\tbare = false\\n' >n/.git/config; touch n/x; [ $(git config -f n/.git/config core.bare) = false ]",
        ..ROW
    },
    Row {
        id: "git-code-left-out",
        prepare: OWN.prepare,
        attack: "git config core.hooksPath h; ! git config core.hooksPath; git clone -q -c core.pager=x -c user.name=Me . c; [ $(git -C c config user.name) = Me ]; ! git -C c config --local core.pager; git -C c log --oneline",
        ..ROW
    },
];
