//! Ordinary work, which must succeed as it does without a sandbox: what guards names
//! stands in nobody's way.

use crate::row::{ROW, Row};

/// All of them.
pub const ROWS: &[Row] = &[
    Row {
        id: "work-cargo-directory",
        attack: "mkdir -p a/.cargo; rmdir a/.cargo; mkdir .cargo; echo x >.cargo/notes; mv .cargo y; mv y .cargo; cat .cargo/notes",
        ..ROW
    },
    Row {
        id: "work-links",
        attack: "mkdir -p node_modules/.bin p; echo x >p/x.js; ln -s ../../p/x.js node_modules/.bin/x; ln -s p q; cat q/x.js node_modules/.bin/x; mv q r; rm r; ln -s nowhere l; ln -sfn elsewhere l; rm l; ln -s . self; ls self/self/p/x.js",
        ..ROW
    },
    Row {
        id: "work-names",
        attack: "mkdir -p src/hooks src/config src/refs src/git objects; echo x >src/hooks/use.js; echo x >src/config/index.js; echo x >HEAD; echo x >config; echo x >src/commondir; mv src/hooks src/hooks2; mv src/hooks2 src/hooks; mv config src/config/config; echo y >>src/config/config; rm -r src",
        ..ROW
    },
    Row {
        id: "work-hard-links",
        attack: "mkdir s; for n in $(seq 50); do echo $n >s/$n; done; cp -al s t; echo more >>t/1; rm -r s; grep -q more t/1; ln t/1 u; mv t/1 v; cat u v",
        ..ROW
    },
    Row {
        id: "work-archive",
        attack: "mkdir -p a/b; echo x >a/b/c; ln -s b a/l; ln a/b/c a/d; tar -cf a.tar a; mkdir out; tar -xf a.tar -C out; diff -r a out/a",
        ..ROW
    },
    Row {
        id: "work-replaced",
        attack: "for n in $(seq 200); do echo $n >x.new; mv x.new x; done; [ $(cat x) = 200 ]; mkdir d e; echo 1 >d/1; echo 2 >e/2; $ACTS exchange d e; cat d/2 e/1; echo y | $ACTS tmplink . unnamed; cat unnamed",
        ..ROW
    },
    Row {
        id: "work-moved-directory",
        attack: "mkdir -p x/y; cd x/y; mv ../../x ../../z; echo a >f; cat ../../z/y/f; cd ../..; mkdir -p $(seq -s / 60); mv 1 one; rm -r one",
        ..ROW
    },
    Row { id: "work-many", attack: "mkdir m; for n in $(seq 1500); do : >m/$n; done; mv m n; rm -r n", ..ROW },
    Row {
        id: "work-compiler",
        attack: "echo 'int main(void) { return 0; }' >a.c; cc -o a a.c; ./a; printf 'b: a\\n\\tcp a b\\n' >Makefile; if command -v make >/dev/null; then make -s b; ./b; fi",
        ..ROW
    },
    Row {
        id: "work-npm",
        prepare: "mkdir -p dep; echo '{\"name\":\"dep\",\"version\":\"1.0.0\",\"bin\":\"x.js\"}' >dep/package.json; echo '#!/usr/bin/env node' >dep/x.js",
        attack: "npm init -y >/dev/null; npm install --offline --no-audit --no-fund ./dep >/dev/null; [ -L node_modules/dep ]; [ -e node_modules/.bin/dep ]",
        ..ROW
    },
    Row {
        id: "work-git-read",
        prepare: "git init -q; echo x >f; git add f; git commit -qm x; git config include.path ../shared.cfg; git config core.hooksPath hooks2",
        attack: "echo y >>f; mkdir d; echo z >d/g; git diff --stat; git log --oneline; git status --short; git ls-files; git grep -q y; mv d e; rm -r e",
        ..ROW
    },
    Row {
        id: "work-git-granted",
        prepare: "git init -q; echo x >f; git add f; git commit -qm x",
        options: &["--grant", "write .git"],
        attack: "echo y >>f; git add -A; git commit -qm y; git checkout -qb n; git mv f g; git commit -qm z; git checkout -q main; git merge -q n; git tag t; git gc -q; git fsck; git reset -q --hard HEAD^; git stash list",
        ..ROW
    },
    Row {
        id: "work-git-settings-granted",
        prepare: "git init -q",
        options: &["--grant", "write .git", "--grant", "write .git/config"],
        attack: "git config a.b c; git config a.d e; [ $(git config a.b)$(git config a.d) = ce ]; git config --unset a.b; ! git config a.b; git remote add o /nowhere; chmod 600 .git/config; git config a.f g; [ $(stat -c %h .git/config) = 1 ]",
        ..ROW
    },
    Row {
        id: "work-hook-granted",
        prepare: "git init -q; echo x >f; git add f; git commit -qm x",
        options: &["--grant", "write .git", "--grant", "write .git/hooks"],
        attack: "printf '#!/bin/sh\\necho hooked >&2\\n' >h; chmod 755 h; cp h .git/hooks/post-commit; mv h .git/hooks/pre-commit; [ -x .git/hooks/pre-commit ]; git commit -q --allow-empty -m y 2>&1 | grep hooked; rm .git/hooks/pre-commit",
        ..ROW
    },
    Row {
        id: "work-npmrc-granted",
        options: &["--grant", "write .npmrc"],
        attack: "echo a=b >.npmrc; echo c=d >>.npmrc; grep -q a=b .npmrc; echo e=f >n; mv n .npmrc; [ \"$(cat .npmrc)\" = e=f ]; echo g=h >n; cat n >.npmrc; rm .npmrc; echo i=j >.npmrc; chmod 600 .npmrc; touch -d 2001-02-03 .npmrc; [ $(stat -c %Y .npmrc) -lt 1000000000 ]",
        ..ROW
    },
    Row {
        id: "work-cargo-settings-granted",
        options: &["--grant", "write .cargo/config.toml"],
        attack: "mkdir -p .cargo; echo '# a' >.cargo/config.toml; echo '# b' >x; mv x .cargo/config.toml; grep -q b .cargo/config.toml",
        ..ROW
    },
    Row {
        id: "work-shipped-links",
        prepare: "mkdir -p docs sub; echo x >README; ln -s ../README docs/README; ln -s docs d; ln -s ../docs sub/docs",
        attack: "echo y >>docs/README; echo z >README.new; mv README.new README; cat sub/docs/README; echo n >d/new; mv docs old; mkdir docs; ls -l d; rm d; mv old/new docs/",
        ..ROW
    },
];
