//! Work that needs a power which no run has by itself: the hints of the first run, followed
//! once and to the letter, make it pass.

use crate::workflow::Workflow;

const NEW: Workflow = Workflow { hinted: true, ..Workflow::NEW };
const GIT: Workflow = Workflow { needs: &["git"], ..NEW };
/// A server of the host, whose port stands in `../port`. It ends by itself.
macro_rules! server {
    ($made:literal) => {
        concat!(
            "mkdir ../site; ",
            $made,
            "; PYTHONUNBUFFERED=1 timeout 200 /usr/bin/python3 -m http.server 0 --bind 127.0.0.1 --directory ../site \
            >../said 2>/dev/null & echo $! >../pid; for i in $(seq 100); do grep -q port ../said && break; sleep 0.1; done; \
            sed 's/.*port \\([0-9]*\\) .*/\\1/' ../said >../port"
        )
    };
}

pub const ALL: &[Workflow] = &[
    Workflow {
        id: "hinted-copy-out",
        before: "mkdir src ../backup; echo x >src/a; echo y >src/b",
        work: "cp -r src ../backup/",
        after: "test -s ../backup/src/b",
        ..NEW
    },
    Workflow {
        id: "hinted-new-directory",
        work: "mkdir ../made; echo x >../made/x; mkdir ../made/in; cat ../made/x; echo y >../made/in/y",
        after: "test -s ../made/in/y",
        ..NEW
    },
    Workflow {
        id: "hinted-move-out",
        before: "echo x >x",
        work: "mv x ../moved; cat ../moved",
        after: "test -s ../moved",
        ..NEW
    },
    Workflow {
        id: "hinted-append",
        before: "mkdir ../logs; echo a >../logs/app.log",
        work: "echo b >>../logs/app.log; tail -1 ../logs/app.log",
        after: "test $(wc -l <../logs/app.log) = 2",
        ..NEW
    },
    Workflow {
        id: "hinted-settings-of-a-tool",
        work: "mkdir -p ~/.config/tool; echo x >~/.config/tool/settings; cat ~/.config/tool/settings",
        after: "test -s ~/.config/tool/settings",
        ..NEW
    },
    Workflow {
        id: "hinted-make-install",
        needs: &["make"],
        before: "printf 'install:\\n\\tmkdir -p $(HOME)/.local/bin\\n\\tinstall -m 755 tool $(HOME)/.local/bin/tool\\n' >Makefile; printf '#!/bin/sh\\n' >tool",
        work: "make install",
        after: "test -x ~/.local/bin/tool",
        ..NEW
    },
    Workflow {
        id: "hinted-environment-elsewhere",
        needs: &["python3"],
        work: "/usr/bin/python3 -m venv --without-pip ~/environments/x; ~/environments/x/bin/python -c 'import json'",
        after: "test -x ~/environments/x/bin/python",
        ..NEW
    },
    Workflow {
        id: "hinted-push-beside",
        before: "git init -q .; echo one >a; git add a; git commit -qm one; git clone -q --bare . ../remote.git; \
            git remote add origin ../remote.git; echo two >>a; git commit -qam two",
        work: "git push -q origin main",
        after: "test $(git -C ../remote.git rev-list --count main) = 2",
        ..GIT
    },
    Workflow {
        id: "hinted-commit-beside",
        before: "git init -q ../other; echo x >../other/a",
        work: "cd ../other; git add a; git commit -qm one",
        after: "test $(git -C ../other rev-list --count HEAD) = 1",
        ..GIT
    },
    Workflow {
        id: "hinted-work-tree-beside",
        before: "git init -q .; echo one >a; git add a; git commit -qm one",
        work: "git worktree add -q ../tree; cd ../tree; echo z >>a; git commit -qam z",
        // Each names the other by its path, and that was another one in a container.
        after: "git worktree repair ../tree; test $(git -C ../tree rev-list --count HEAD) = 2",
        ..GIT
    },
    Workflow {
        id: "hinted-name-of-all-repositories",
        work: "git config --global user.name Other; test $(git config --global user.name) = Other",
        after: "grep Other ~/.gitconfig",
        ..GIT
    },
    Workflow {
        id: "hinted-hook-of-a-manager",
        before: "git init -q .; mkdir .husky; git config core.hooksPath .husky",
        work: "echo true >.husky/pre-push",
        after: "test -s .husky/pre-push",
        ..GIT
    },
    Workflow {
        id: "hinted-compiler-wrapper",
        before: "mkdir .cargo",
        work: "printf '[build]\\nrustc-wrapper = \"sccache\"\\n' >.cargo/config.toml; sleep 0.2; grep sccache .cargo/config.toml",
        after: "grep sccache .cargo/config.toml",
        ..NEW
    },
    Workflow {
        id: "hinted-task-of-an-editor",
        before: "mkdir .vscode",
        work: "echo '{\"version\":\"2.0.0\",\"tasks\":[{\"label\":\"x\",\"command\":\"x\",\"runOptions\":{\"runOn\":\"folderOpen\"}}]}' >.vscode/tasks.json; sleep 0.2; grep folderOpen .vscode/tasks.json",
        after: "grep folderOpen .vscode/tasks.json",
        ..NEW
    },
    Workflow { id: "hinted-directory-environment", work: "echo export A=b >.envrc", after: "test -s .envrc", ..NEW },
    Workflow {
        id: "hinted-socket-of-a-server",
        needs: &["redis-server", "redis-cli"],
        before: "timeout 200 redis-server --port 0 --unixsocket ../r.sock --save '' >/dev/null 2>&1 & echo $! >../pid; \
            for i in $(seq 100); do redis-cli -s ../r.sock ping >/dev/null 2>&1 && break; sleep 0.1; done",
        work: "redis-cli -s ../r.sock set a b | grep OK",
        after: "redis-cli -s ../r.sock get a >../got; kill $(cat ../pid); grep b ../got",
        ..NEW
    },
    Workflow {
        id: "hinted-server-of-the-host",
        needs: &["python3", "curl"],
        before: server!("echo page >../site/page"),
        work: "curl -sf http://localhost:$(cat ../port)/page >got",
        after: "kill $(cat ../pid); grep page got",
        ..NEW
    },
    Workflow {
        id: "hinted-clone-from-the-host",
        before: server!(
            "git init -q ../one; (cd ../one; echo one >a; git add a; git commit -qm one); \
            git clone -q --bare ../one ../site/r.git; git -C ../site/r.git update-server-info"
        ),
        work: "git clone -q http://localhost:$(cat ../port)/r.git mine; cd mine; git log --oneline",
        after: "kill $(cat ../pid); test -s mine/a",
        ..GIT
    },
];
