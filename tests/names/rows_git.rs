//! git's own indirections: repositories under any name, `commondir`, files that
//! name a repository, settings that name further files.

use crate::oracle::Tool::{Attributes, Git, Reader};
use crate::row::{ROW, Row, Then};

const GIT: Row = Row { ask: &[Git, Reader], ..ROW };
/// Only git: what is no guarded name by itself.
const BARE: Row = Row { ask: &[Git], ..ROW };

/// All of them.
pub const ROWS: &[Row] = &[
    // A repository without a guarded name, assembled by the run.
    Row {
        id: "bare-orders",
        attack: r#"
            parts() { case $1 in HEAD) head_file >HEAD;; config) gitcfg >config;; *) mkdir $1;; esac; }
            for order in $(python3 -c 'import itertools as i; [print("+".join(p)) for p in i.permutations(["HEAD","objects","refs","config"])]'); do
                mkdir $order; (cd $order; for part in ${order//+/ }; do parts $part; done)
            done"#,
        ..BARE
    },
    Row {
        id: "bare-orders-moved",
        attack: r#"
            mkdir s; parts() { rm -rf ../s/x; case $1 in HEAD) head_file >../s/x;; config) gitcfg >../s/x;; *) mkdir ../s/x;; esac; mv ../s/x $1; }
            for order in $(python3 -c 'import itertools as i; [print("+".join(p)) for p in i.permutations(["HEAD","objects","refs","config"])]'); do
                mkdir $order; (cd $order; for part in ${order//+/ }; do parts $part; done)
            done"#,
        ..BARE
    },
    Row {
        id: "bare-orders-linked",
        attack: r#"
            mkdir -p s/d; head_file >s/HEAD; gitcfg >s/config
            parts() { case $1 in HEAD|config) ln ../s/$1 $1;; *) ln -s ../s/d $1;; esac; }
            for order in $(python3 -c 'import itertools as i; [print("+".join(p)) for p in i.permutations(["HEAD","objects","refs","config"])]'); do
                mkdir $order; (cd $order; for part in ${order//+/ }; do parts $part; done)
            done"#,
        ..BARE
    },
    Row {
        id: "bare-orders-config-linked",
        attack: r#"
            mkdir -p s/d; head_file >s/HEAD; gitcfg >s/config
            parts() { case $1 in HEAD|config) ln -s ../s/$1 $1;; *) mkdir $1;; esac; }
            for order in $(python3 -c 'import itertools as i; [print("+".join(p)) for p in i.permutations(["HEAD","objects","refs","config"])]'); do
                mkdir $order; (cd $order; ln -sf refs/heads/main HEAD.x; for part in ${order//+/ }; do [ $part = HEAD ] && ln -s refs/heads/main HEAD || parts $part; done)
            done"#,
        ..BARE
    },
    Row {
        id: "bare-orders-hooks",
        attack: r#"
            parts() { case $1 in HEAD) head_file >HEAD;; hooks) mkhook hooks/pre-commit;; *) mkdir $1;; esac; }
            for order in $(python3 -c 'import itertools as i; [print("+".join(p)) for p in i.permutations(["HEAD","objects","refs","hooks"])]'); do
                mkdir $order; (cd $order; for part in ${order//+/ }; do parts $part; done)
            done"#,
        ..BARE
    },
    Row {
        id: "bare-exchanged",
        attack: "mkdir -p r/objects r/refs; echo x >r/HEAD; gitcfg >r/config; head_file >h; $ACTS exchange h r/HEAD",
        ..BARE
    },
    Row {
        id: "bare-head-written-late",
        attack: ": >HEAD; mkdir -p r/objects r/refs; gitcfg >r/config; ln HEAD r/HEAD; head_file >HEAD",
        ..BARE
    },
    Row {
        id: "bare-config-written-late",
        attack: "mkdir -p r/objects r/refs; : >c; ln c r/config; head_file >r/HEAD; gitcfg >>c",
        ..BARE
    },
    Row {
        id: "bare-config-linked-late",
        attack: "mkdir -p r/objects r/refs; ln -s ../c r/config; head_file >r/HEAD; gitcfg >c",
        ..BARE
    },
    Row {
        id: "bare-directory-moved",
        attack: "mkdir -p a/objects a/refs; gitcfg >a/config; mkdir r; head_file >r/HEAD; mv a/objects a/refs a/config r/",
        ..BARE
    },
    Row {
        id: "bare-objects-through-link",
        attack: "mkdir -p a/objects a/refs r; gitcfg >r/config; head_file >r/HEAD; ln -s ../a/objects ../a/refs r/",
        ..BARE
    },
    Row {
        id: "bare-objects-appear",
        attack: "mkdir a r; gitcfg >r/config; head_file >r/HEAD; ln -s ../a/objects ../a/refs r/; mkdir a/objects a/refs",
        ..BARE
    },
    Row {
        id: "bare-objects-dangling-moved",
        attack: "mkdir -p q/o; mkdir r; gitcfg >r/config; head_file >r/HEAD; ln -s ../o r/objects; ln -s ../o r/refs; mv r q/r",
        ..BARE
    },
    Row { id: "bare-workspace-itself", attack: "gitcfg >config; mkdir objects refs; head_file >HEAD", ..BARE },
    Row {
        id: "bare-two-runs",
        attack: "mkdir -p r/objects r/refs; gitcfg >r/config",
        then: Then::Later("head_file >r/HEAD"),
        ..BARE
    },
    Row {
        id: "bare-named-git",
        attack: "mkdir -p x/objects x/refs; gitcfg >x/config; mkdir s; head_file >h; mv x s/.git; mv h s/.git/HEAD",
        ..GIT
    },
    Row {
        id: "bare-git-link",
        attack: "mkdir -p x/objects x/refs; gitcfg >x/config; ln -s x .git; mv x/../h x/HEAD 2>/dev/null; head_file >x/HEAD",
        ..GIT
    },
    Row {
        id: "bare-git-file",
        attack: "mkdir -p x/objects x/refs; gitcfg >x/config; echo 'gitdir: x' >.git; head_file >x/HEAD",
        ..GIT
    },
    Row {
        id: "bare-shipped-half",
        prepare: "mkdir -p r/refs r/objects; gitcfg >r/config",
        attack: "head_file >r/HEAD",
        ..BARE
    },
    Row { id: "bare-shipped", prepare: "git init -q --bare m", attack: "gitcfg >>m/config", ..BARE },
    Row { id: "bare-shipped-hook", prepare: "git init -q --bare m", attack: "mkhook m/hooks/pre-commit", ..BARE },
    Row {
        id: "bare-shipped-moved",
        prepare: "git init -q --bare m",
        attack: "mv m n; mkdir n2; gitcfg >n2/config; mv n2/config n/config",
        ..BARE
    },
    Row {
        id: "bare-shipped-unmade",
        prepare: "git init -q --bare m",
        attack: "mv m/HEAD h; gitcfg >>m/config; mv h m/HEAD",
        ..BARE
    },
    Row {
        id: "bare-shipped-worktree-config",
        prepare: "git init -q --bare m; git -C m config extensions.worktreeConfig true",
        attack: "gitcfg >m/config.worktree",
        ..BARE
    },
    Row {
        id: "bare-shipped-commondir",
        prepare: "git init -q --bare m",
        attack: "mkdir -p y/objects y/refs; gitcfg >y/config; echo ../y >m/commondir",
        ..BARE
    },
    Row {
        id: "bare-shipped-attributes",
        prepare: "git init -q --bare m; git -C m config core.bare false; git -C m config core.worktree $W",
        attack: "mkdir -p m/info; echo '* STOCKADE-PLANTED' >m/info/attributes",
        ask: &[Attributes],
        ..BARE
    },
    Row {
        id: "bare-shipped-include",
        prepare: "git init -q --bare m; git -C m config include.path shared.cfg",
        attack: "gitcfg >m/shared.cfg",
        ..BARE
    },
    // `commondir`: the settings are those of another directory.
    Row {
        id: "commondir",
        attack: "mkdir -p r y/objects y/refs; gitcfg >y/config; head_file >r/HEAD; echo ../y >r/commondir",
        ..BARE
    },
    Row {
        id: "commondir-orders",
        attack: r#"
            parts() { case $1 in HEAD) head_file >r/HEAD;; commondir) echo ../y >r/commondir;; config) gitcfg >y/config;; *) mkdir y/$1;; esac; }
            for order in $(python3 -c 'import itertools as i; [print("+".join(p)) for n,p in enumerate(i.permutations(["HEAD","objects","refs","config","commondir"])) if n%4==0]'); do
                mkdir -p $order/r $order/y; (cd $order; for part in ${order//+/ }; do parts $part; done)
            done"#,
        ..BARE
    },
    Row {
        id: "commondir-hooks",
        attack: "mkdir -p r y/objects y/refs; mkhook y/hooks/pre-commit; head_file >r/HEAD; echo ../y >r/commondir",
        ..BARE
    },
    Row {
        id: "commondir-absolute",
        attack: "mkdir -p r y/objects y/refs; gitcfg >y/config; head_file >r/HEAD; echo $W/y >r/commondir",
        ..BARE
    },
    Row {
        id: "commondir-moved",
        attack: "mkdir -p r y/objects y/refs; gitcfg >y/config; echo ../y >c; echo x >r/HEAD; mv c r/commondir; head_file >h; mv h r/HEAD",
        ..BARE
    },
    Row {
        id: "commondir-linked",
        attack: "mkdir -p r y/objects y/refs; gitcfg >y/config; echo ../y >c; head_file >r/HEAD; ln -s ../c r/commondir",
        ..BARE
    },
    Row {
        id: "commondir-written-late",
        attack: "mkdir -p r y/objects y/refs; gitcfg >y/config; echo nowhere >r/commondir; head_file >r/HEAD; echo ../y >r/commondir",
        ..BARE
    },
    Row {
        id: "commondir-target-appears",
        attack: "mkdir r; echo ../y >r/commondir; head_file >r/HEAD; mkdir -p z/objects z/refs; gitcfg >z/config; mv z y",
        ..BARE
    },
    Row {
        id: "commondir-directory-moved",
        attack: "mkdir -p s/r y/objects y/refs; gitcfg >y/config; echo ../y >s/r/commondir; head_file >s/r/HEAD; mv s/r r",
        ..BARE
    },
    Row {
        id: "commondir-shipped-half",
        prepare: "mkdir r; head_file >r/HEAD; echo ../y >r/commondir",
        attack: "mkdir -p y/objects y/refs; gitcfg >y/config",
        ..BARE
    },
    Row {
        id: "commondir-worktree-config",
        prepare: "git init -q repo; git -C repo config extensions.worktreeConfig true",
        attack: "mkdir r; echo ../repo/.git >r/commondir; gitcfg >r/config.worktree; head_file >r/HEAD",
        ..BARE
    },
    // A shipped file that names a repository.
    Row {
        id: "gitfile-shipped",
        prepare: "echo 'gitdir: meta' >.git",
        attack: "mkdir -p meta/objects meta/refs; gitcfg >meta/config; head_file >meta/HEAD",
        ..GIT
    },
    Row {
        id: "gitfile-shipped-sub",
        prepare: "mkdir sub; echo 'gitdir: ../meta' >sub/.git",
        attack: "mkdir -p m/objects m/refs; head_file >m/HEAD; mv m meta; gitcfg >meta/config",
        ..GIT
    },
    Row {
        id: "gitfile-shipped-commondir",
        prepare: "mkdir sub; echo 'gitdir: ../meta' >sub/.git",
        attack: "mkdir -p meta y/objects y/refs; gitcfg >y/config; echo ../y >meta/commondir; head_file >meta/HEAD",
        ..GIT
    },
    Row {
        id: "gitfile-shipped-moved",
        prepare: "mkdir sub q; echo 'gitdir: ../meta' >sub/.git",
        attack: "mkdir -p q/meta/objects q/meta/refs; gitcfg >q/meta/config; mv sub q/sub; head_file >q/meta/HEAD",
        ..GIT
    },
    Row {
        id: "gitfile-shipped-there",
        prepare: "git init -q --separate-git-dir meta sub; sed -i s,$W,..,  sub/.git",
        attack: "gitcfg >>meta/config; mkhook meta/hooks/pre-commit",
        ..GIT
    },
    Row {
        id: "gitfile-shipped-there-worktree",
        prepare: "git init -q --separate-git-dir meta sub; git -C sub config extensions.worktreeConfig true",
        attack: "gitcfg >meta/config.worktree",
        ..GIT
    },
    Row {
        id: "gitfile-shipped-there-commondir",
        prepare: "git init -q --separate-git-dir meta sub",
        attack: "mkdir -p y/objects y/refs; gitcfg >y/config; echo ../y >meta/commondir",
        ..GIT
    },
    Row {
        id: "gitfile-shipped-there-swapped",
        prepare: "git init -q --separate-git-dir meta sub",
        attack: "cp -r meta n; mv meta old; mv n/HEAD h; gitcfg >>n/config; mv n meta; mv h meta/HEAD",
        ..GIT
    },
    Row {
        id: "gitlink-shipped",
        prepare: "ln -s meta .git",
        attack: "mkdir -p meta/objects meta/refs; gitcfg >meta/config; head_file >meta/HEAD",
        ..GIT
    },
    Row {
        id: "gitlink-shipped-sub",
        prepare: "mkdir sub; ln -s ../meta sub/.git",
        attack: "mkdir -p meta/objects meta/refs; gitcfg >meta/config; head_file >meta/HEAD",
        ..GIT
    },
    // Settings of the person's own repository that name further files.
    Row {
        id: "include-shipped",
        prepare: "git init -q; git config include.path ../shared.cfg",
        attack: "gitcfg >shared.cfg",
        ..GIT
    },
    Row {
        id: "include-shipped-there",
        prepare: "git init -q; git config include.path ../shared.cfg; : >shared.cfg",
        attack: "gitcfg >>shared.cfg",
        ..GIT
    },
    Row {
        id: "include-shipped-sub",
        prepare: "git init -q sub; git -C sub config include.path ../../shared.cfg",
        attack: "gitcfg >x; mv x shared.cfg",
        ..GIT
    },
    Row {
        id: "include-shipped-if",
        prepare: "git init -q; git config 'includeIf.gitdir:**.path' ../shared.cfg",
        attack: "gitcfg >shared.cfg",
        ..GIT
    },
    Row {
        id: "include-shipped-if-branch",
        prepare: "git init -q; git config 'includeIf.onbranch:x.path' ../shared.cfg; git symbolic-ref HEAD refs/heads/x",
        attack: "gitcfg >shared.cfg",
        ..GIT
    },
    Row {
        id: "include-shipped-nested",
        prepare: "git init -q; git config include.path ../a.cfg; git config -f a.cfg include.path b.cfg",
        attack: "gitcfg >b.cfg",
        ..GIT
    },
    Row {
        id: "include-shipped-link",
        prepare: "git init -q; git config include.path ../l.cfg; ln -s real.cfg l.cfg",
        attack: "gitcfg >real.cfg",
        ..GIT
    },
    Row {
        id: "include-shipped-link-replaced",
        prepare: "git init -q; git config include.path ../l.cfg; : >real.cfg; ln -s real.cfg l.cfg",
        attack: "gitcfg >x; ln -sf x l.cfg",
        ..GIT
    },
    Row {
        id: "include-shipped-way",
        prepare: "git init -q; git config include.path ../conf/shared.cfg; mkdir conf; : >conf/shared.cfg",
        attack: "mv conf old; mkdir conf; gitcfg >conf/shared.cfg",
        ..GIT
    },
    Row {
        id: "include-shipped-way-missing",
        prepare: "git init -q; git config include.path ../conf/shared.cfg",
        attack: "mkdir c; gitcfg >c/shared.cfg; mv c conf",
        ..GIT
    },
    Row {
        id: "include-shipped-moved",
        prepare: "git init -q sub; git -C sub config include.path ../../shared.cfg; mkdir q",
        attack: "gitcfg >q/shared.cfg; mv sub q/sub",
        ..GIT
    },
    Row {
        id: "include-shipped-above",
        prepare: "git init -q; mkdir sub; git config include.path ../sub/shared.cfg",
        workspace: "sub",
        attack: "gitcfg >shared.cfg",
        ..GIT
    },
    Row {
        id: "include-stage",
        prepare: "git init -q; git config include.path ../shared.cfg",
        attack: "gitcfg >shared.cfg",
        then: Then::Commit(&[]),
        ..GIT
    },
    Row {
        id: "include-hard-link",
        prepare: "git init -q; git config include.path ../shared.cfg; : >shared.cfg; ln shared.cfg s2",
        attack: "gitcfg >>s2",
        ..GIT
    },
    Row {
        id: "hookspath-shipped",
        prepare: "git init -q; git config core.hooksPath hooks2",
        attack: "mkhook hooks2/pre-commit",
        ..GIT
    },
    // Git ends a comment at the end of its line, whatever the last byte is.
    Row {
        id: "hookspath-after-comment",
        prepare: "git init -q; git config core.hooksPath hooks2",
        attack: r"{ printf '[gc]\n\tauto = 1 # \\\n'; cat .git/config; } >.git/config.lock; mv .git/config.lock .git/config",
        then: Then::Later("mkhook hooks2/pre-commit"),
        ..GIT
    },
    Row {
        id: "hookspath-in-long-settings",
        prepare: "git init -q; git config extensions.worktreeConfig true; git config --worktree core.hooksPath hooks2; \
                  { printf '#'; head -c 9000000 /dev/zero | tr '\\0' x; echo; } >>.git/config.worktree",
        attack: "mkhook hooks2/pre-commit",
        ..GIT
    },
    Row {
        id: "hookspath-shipped-absolute",
        prepare: "git init -q; git config core.hooksPath $W/hooks2",
        attack: "mkhook hooks2/pre-commit",
        ..GIT
    },
    Row {
        id: "hookspath-shipped-there",
        prepare: "git init -q; git config core.hooksPath hooks2; mkdir hooks2",
        attack: "hook >x; chmod 755 x; mv x hooks2/pre-commit",
        ..GIT
    },
    Row {
        id: "hookspath-shipped-sub",
        prepare: "git init -q sub; git -C sub config core.hooksPath ../hooks2",
        attack: "mkhook h/pre-commit; mv h hooks2",
        ..GIT
    },
    Row {
        id: "hookspath-shipped-link",
        prepare: "git init -q; git config core.hooksPath hooks2; ln -s h hooks2",
        attack: "mkhook h/pre-commit",
        ..GIT
    },
    Row {
        id: "hookspath-shipped-file-link",
        prepare: "git init -q; git config core.hooksPath hooks2; mkdir hooks2; ln -s ../s.sh hooks2/pre-commit",
        attack: "mkhook s.sh",
        ..GIT
    },
    Row {
        id: "hookspath-shipped-above",
        prepare: "git init -q; mkdir sub; git config core.hooksPath sub/hooks2",
        workspace: "sub",
        attack: "mkhook hooks2/pre-commit",
        ..GIT
    },
    Row {
        id: "hookspath-bare",
        prepare: "git init -q --bare m; git -C m config core.hooksPath ../h",
        attack: "mkhook h/pre-commit",
        ..BARE
    },
    Row {
        id: "hook-shipped-link",
        prepare: "git init -q; mkdir -p s; ln -s ../../s/pre-commit.sh .git/hooks/pre-commit",
        attack: "mkhook s/pre-commit.sh",
        ..GIT
    },
    Row {
        id: "hook-shipped-link-sub",
        prepare: "git init -q sub; mkdir -p s; ln -s ../../../s/pre-commit.sh sub/.git/hooks/pre-commit",
        attack: "mkhook s/pre-commit.sh",
        ..GIT
    },
    Row {
        id: "hook-shipped-hard-link",
        prepare: "git init -q; printf '#!/bin/sh\\n' >s.sh; chmod 755 s.sh; ln s.sh .git/hooks/pre-commit",
        attack: "hook >>s.sh",
        ..GIT
    },
    Row {
        id: "hooks-shipped-link",
        prepare: "git init -q sub; rm -rf sub/.git/hooks; ln -s ../../hooks sub/.git/hooks",
        attack: "mkhook hooks/pre-commit",
        ..GIT
    },
    Row {
        id: "config-shipped-hard-link",
        prepare: "git init -q; ln .git/config b.cfg",
        attack: "gitcfg >>b.cfg",
        ..GIT
    },
    Row {
        id: "config-shipped-link",
        prepare: "git init -q sub; mv sub/.git/config c.cfg; ln -s ../../c.cfg sub/.git/config",
        attack: "gitcfg >>c.cfg",
        ..GIT
    },
    // The person's settings for every repository.
    Row {
        id: "global-hookspath",
        prepare: "git init -q; git config --global core.hooksPath hooks2",
        attack: "mkhook hooks2/pre-commit",
        ..GIT
    },
    Row {
        id: "global-hookspath-absolute",
        prepare: "git init -q; git config --global core.hooksPath $W/hooks2",
        attack: "mkhook hooks2/pre-commit",
        ..GIT
    },
    Row {
        id: "global-hookspath-sub",
        prepare: "git init -q sub; git config --global core.hooksPath hooks2",
        attack: "mkhook sub/hooks2/pre-commit",
        ..GIT
    },
    Row {
        id: "global-hookspath-new",
        prepare: "git config --global core.hooksPath hooks2",
        attack: "git init -q n || { mkdir -p n/objects n/refs; head_file >n/HEAD; }; mkhook n/hooks2/pre-commit",
        ..GIT
    },
    Row {
        id: "global-include",
        prepare: "git init -q; git config --global include.path $W/shared.cfg",
        attack: "gitcfg >shared.cfg",
        ..GIT
    },
    Row {
        id: "global-include-if",
        prepare: "git init -q; git config --global includeIf.gitdir:$W/.path $W/shared.cfg",
        attack: "gitcfg >shared.cfg",
        ..GIT
    },
    Row {
        id: "global-linked",
        prepare: "mkdir dot; mv ~/.gitconfig dot/gitconfig; ln -s $W/dot/gitconfig ~/.gitconfig",
        attack: "gitcfg >>dot/gitconfig",
        ..BARE
    },
    // Submodules and work trees.
    Row {
        id: "submodule",
        prepare: "git init -q o; git -C o commit -q --allow-empty -m x; git init -q; git -c protocol.file.allow=always submodule --quiet add ./o sub",
        attack: "gitcfg >>.git/modules/sub/config; mkhook .git/modules/sub/hooks/pre-commit",
        ..GIT
    },
    Row {
        id: "submodule-file-moved",
        prepare: "git init -q o; git -C o commit -q --allow-empty -m x; git init -q; git -c protocol.file.allow=always submodule --quiet add ./o sub",
        attack: "mkdir -p q/.x/modules/sub; mkdir -p m/objects m/refs; gitcfg >m/config; head_file >m/HEAD; mkdir -p q/s; mv sub q/sub; mkdir -p q/.git/modules; mv m q/.git/modules/sub",
        ..GIT
    },
    Row {
        id: "worktree",
        prepare: "git init -q o; git -C o commit -q --allow-empty -m x; git -C o worktree add -q ../w; git -C o config extensions.worktreeConfig true",
        attack: "gitcfg >o/.git/worktrees/w/config.worktree",
        ..GIT
    },
    // With other parts of `.git` agreed to, these stay guarded.
    Row {
        id: "grant-git-commondir",
        prepare: "git init -q",
        options: &["--grant", "write .git"],
        attack: "mkdir -p y/objects y/refs; gitcfg >y/config; echo ../y >.git/commondir",
        ..GIT
    },
    Row {
        id: "grant-git-commondir-absolute",
        prepare: "git init -q",
        options: &["--grant", "write .git"],
        attack: "mkdir -p y/objects y/refs; gitcfg >y/config; echo $W/y >c; mv c .git/commondir",
        ..GIT
    },
    Row {
        id: "grant-git-worktree-config",
        prepare: "git init -q; git config extensions.worktreeConfig true",
        options: &["--grant", "write .git"],
        attack: "gitcfg >.git/config.worktree",
        ..GIT
    },
    Row {
        id: "grant-git-config",
        prepare: "git init -q",
        options: &["--grant", "write .git"],
        attack: "gitcfg >>.git/config; gitcfg >.git/config.lock; mv .git/config.lock .git/config; ln .git/config x; gitcfg >>x",
        ..GIT
    },
    Row {
        id: "grant-git-hooks",
        prepare: "git init -q",
        options: &["--grant", "write .git"],
        attack: "mkhook .git/hooks/pre-commit; mkhook h/pre-commit; $ACTS exchange h .git/hooks; mv .git/hooks o; mv h .git/hooks",
        ..GIT
    },
    Row {
        id: "grant-git-hooks-missing",
        prepare: "git init -q; rm -r .git/hooks",
        options: &["--grant", "write .git"],
        attack: "mkhook h/pre-commit; ln -s ../h .git/hooks; mv h .git/hooks",
        ..GIT
    },
    Row {
        id: "grant-git-modules",
        prepare: "git init -q; mkdir sub; echo 'gitdir: ../.git/modules/sub' >sub/.git",
        options: &["--grant", "write .git"],
        attack: "mkdir -p .git/modules/sub/objects .git/modules/sub/refs; gitcfg >.git/modules/sub/config; head_file >.git/modules/sub/HEAD",
        ..GIT
    },
    Row {
        id: "grant-git-modules-moved",
        prepare: "git init -q; mkdir sub; echo 'gitdir: ../.git/modules/sub' >sub/.git",
        options: &["--grant", "write .git"],
        attack: "mkdir -p m/sub/objects m/sub/refs; gitcfg >m/sub/config; mv m .git/modules; head_file >h; mv h .git/modules/sub/HEAD; head_file >m/sub/HEAD; ln -s ../m .git/modules",
        ..GIT
    },
    Row {
        id: "grant-git-worktrees",
        prepare: "git init -q; git config extensions.worktreeConfig true; mkdir w; echo 'gitdir: ../.git/worktrees/w' >w/.git",
        options: &["--grant", "write .git"],
        attack: "mkdir -p .git/worktrees/w; gitcfg >.git/worktrees/w/config.worktree; echo ../.. >.git/worktrees/w/commondir; head_file >.git/worktrees/w/HEAD",
        ..GIT
    },
    Row {
        id: "grant-git-attributes",
        prepare: "git init -q",
        options: &["--grant", "write .git"],
        attack: "mkdir -p .git/info; echo '* STOCKADE-PLANTED' >.git/info/attributes",
        ask: &[Attributes],
        ..GIT
    },
    Row {
        id: "grant-git-attributes-moved",
        prepare: "git init -q; rm -rf .git/info",
        options: &["--grant", "write .git"],
        attack: "mkdir i; echo '* STOCKADE-PLANTED' >i/attributes; mv i .git/info; ln -s ../i .git/info",
        ask: &[Attributes],
        ..GIT
    },
    Row {
        id: "grant-git-replaced",
        prepare: "git init -q",
        options: &["--grant", "write .git"],
        attack: "cp -r .git n; mv n/HEAD h; gitcfg >>n/config; mv .git old; mv n .git; mv h .git/HEAD",
        ..GIT
    },
    Row {
        id: "grant-git-file",
        prepare: "git init -q",
        options: &["--grant", "write .git"],
        attack: "mkdir -p meta/objects meta/refs; gitcfg >meta/config; mv .git old; echo 'gitdir: meta' >.git; head_file >meta/HEAD",
        ..GIT
    },
    Row {
        id: "grant-git-inner",
        prepare: "git init -q",
        options: &["--grant", "write .git"],
        attack: "mkdir -p .git/z/objects .git/z/refs; gitcfg >.git/z/config; head_file >.git/z/HEAD",
        ..GIT
    },
    Row {
        id: "grant-git-include",
        prepare: "git init -q; git config include.path extra",
        options: &["--grant", "write .git"],
        attack: "gitcfg >.git/extra",
        ..GIT
    },
    // What is open for writing becomes a part of a repository.
    Row {
        id: "bare-config-open",
        attack: "mkdir -p r/objects r/refs; exec 9>r/config; head_file >r/HEAD; gitcfg >&9",
        ..BARE
    },
    Row {
        id: "bare-head-open",
        attack: "mkdir -p r/objects r/refs; exec 9>r/HEAD; gitcfg >r/config; head_file >&9",
        ..BARE
    },
    Row {
        id: "bare-hook-open",
        attack: "mkdir -p r/objects r/refs r/hooks; exec 9>r/hooks/pre-commit; chmod 755 r/hooks/pre-commit; head_file >r/HEAD; hook >&9",
        ..BARE
    },
    Row {
        id: "commondir-open",
        attack: "mkdir -p r y/objects y/refs; gitcfg >y/config; exec 9>r/commondir; head_file >r/HEAD; echo ../y >&9",
        ..BARE
    },
    Row {
        id: "include-shipped-open",
        prepare: "git init -q; git config include.path ../conf/shared.cfg; mkdir conf",
        attack: "mkdir c; exec 9>c/shared.cfg; $ACTS exchange c conf; gitcfg >&9",
        ..GIT
    },
    // By git itself.
    Row { id: "bare-by-git", attack: "git init -q --bare m; gitcfg >>m/config; mkhook m/hooks/pre-commit", ..BARE },
    Row {
        id: "bare-by-git-template",
        attack: "mkdir t; gitcfg >t/config; mkhook t/hooks/pre-commit; git init -q --bare --template=t m",
        ..BARE
    },
    Row {
        id: "bare-by-git-settings",
        attack: "git init -q --bare m; git -C m config stockade.planted STOCKADE-PLANTED; git -C m config core.fsmonitor $C",
        ..BARE
    },
    Row {
        id: "worktree-by-git",
        prepare: "git init -q o; git -C o commit -q --allow-empty -m x",
        options: &["--grant", "write o/.git"],
        attack: "git -C o worktree add -q ../w; gitcfg >o/.git/worktrees/w/config.worktree; mkdir -p y/objects y/refs; gitcfg >y/config; echo $W/y >o/.git/worktrees/w/commondir",
        ..GIT
    },
    // Stages.
    Row {
        id: "bare-stage-two",
        attack: "mkdir -p r/objects r/refs; gitcfg >r/config; : >r/objects/x; : >r/refs/x",
        then: Then::Commit(&["head_file >r/HEAD"]),
        ..BARE
    },
    Row {
        id: "commondir-stage",
        attack: "mkdir -p r y/objects y/refs; gitcfg >y/config; head_file >r/HEAD; echo ../y >r/commondir",
        then: Then::Commit(&[]),
        ..BARE
    },
    Row {
        id: "bare-shipped-commondir-stage",
        prepare: "git init -q --bare m",
        attack: "mkdir -p y/objects y/refs; gitcfg >y/config; echo ../y >m/commondir",
        then: Then::Commit(&[]),
        ..BARE
    },
    Row {
        id: "gitfile-stage",
        prepare: "mkdir sub; echo 'gitdir: ../meta' >sub/.git",
        attack: "mkdir -p meta/objects meta/refs; gitcfg >meta/config; head_file >meta/HEAD",
        then: Then::Commit(&[]),
        ..GIT
    },
    Row {
        id: "hookspath-stage",
        prepare: "git init -q sub; git -C sub config core.hooksPath ../hooks2",
        attack: "mkhook hooks2/pre-commit",
        then: Then::Commit(&[]),
        ..GIT
    },
    Row {
        id: "hook-shipped-link-stage",
        prepare: "git init -q sub; mkdir -p s; ln -s ../../../s/pre-commit.sh sub/.git/hooks/pre-commit",
        attack: "mkhook s/pre-commit.sh",
        then: Then::Commit(&[]),
        ..GIT
    },
    Row {
        id: "config-shipped-hard-link-stage",
        prepare: "git init -q; ln .git/config b.cfg",
        attack: "gitcfg >>b.cfg",
        then: Then::Commit(&[]),
        ..GIT
    },
    Row {
        id: "bare-during",
        attack: "wait_for_go; gitcfg >>m/config",
        then: Then::During("git init -q --bare m"),
        ..BARE
    },
];
