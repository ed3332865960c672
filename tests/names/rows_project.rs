//! Settings of projects, for editors and for tools that run things by merely being looked at:
//! what carries code never gets such a name, and what is harmless gets it without a word. What is
//! refused to git is left out, and git goes on.

use crate::oracle::Tool::{Npm, Person, Reader, There};
use crate::row::{ROW, Row, Then};

const READ: Row = Row { ask: &[Reader], ..ROW };

/// Settings by which an editor would start what they name.
macro_rules! settings {
    () => {
        "evil() { printf '{\"git.path\": \"STOCKADE-PLANTED\"}'; }; "
    };
}

/// Tasks of which one runs when the folder is opened.
macro_rules! tasks {
    () => {
        "evil() { printf '{\"tasks\": [{\"command\": \"STOCKADE-PLANTED\", \"runOptions\": {\"runOn\": \"folderOpen\"}}]}'; }; "
    };
}

/// Attacks.
pub const ROWS: &[Row] = &[
    Row { id: "project-written", attack: concat!(settings!(), "mkdir .vscode; evil >.vscode/settings.json"), ..READ },
    Row { id: "project-tasks", attack: concat!(tasks!(), "mkdir .vscode; evil >.vscode/tasks.json"), ..READ },
    Row {
        id: "project-moved",
        attack: concat!(settings!(), "mkdir .vscode; evil >x; mv x .vscode/settings.json"),
        ..READ
    },
    Row {
        id: "project-linked",
        attack: concat!(settings!(), "mkdir .vscode; evil >x; ln x .vscode/settings.json"),
        ..READ
    },
    Row {
        id: "project-led",
        attack: concat!(settings!(), "mkdir .vscode; evil >x; ln -s ../x .vscode/settings.json"),
        ..READ
    },
    Row {
        id: "project-directory-moved",
        attack: concat!(settings!(), "mkdir x; evil >x/settings.json; mv x .vscode"),
        ..READ
    },
    Row {
        id: "project-directory-led",
        attack: concat!(settings!(), "mkdir x; evil >x/settings.json; ln -s x .vscode"),
        ..READ
    },
    Row {
        id: "project-written-later",
        attack: concat!(
            settings!(),
            "mkdir .vscode; exec 3>.vscode/settings.json; echo '{}' >&3; ls .vscode; sleep 0.1; echo x >y; evil >&3; exec 3>&-; echo x >z"
        ),
        ..READ
    },
    Row {
        id: "project-replaced",
        attack: concat!(
            settings!(),
            "mkdir .vscode; echo '{}' >.vscode/settings.json; sleep 0.1; evil >.vscode/settings.json; sleep 0.1; evil >>.vscode/settings.json"
        ),
        ..READ
    },
    // What is there is written further, in any way.
    Row {
        id: "project-further",
        prepare: "mkdir .vscode; echo '{}' >.vscode/settings.json",
        attack: "evil() { printf '{\"git.path\": \"STOCKADE-PLANTED\"}'; }; evil >.vscode/settings.json; evil >>.vscode/settings.json; evil 1<>.vscode/settings.json; \
                 evil >.vscode/sedAbCdEf; mv .vscode/sedAbCdEf .vscode/settings.json; evil >.vscode/tasks.json.tmp.1; mv .vscode/tasks.json.tmp.1 .vscode/mcp.json; ln .vscode/tasks.json.tmp.1 .vscode/mcp.json; \
                 mkdir .vscode/settings.json.tmp; mv .vscode/sedAbCdEf .vscode/mcp.json; ln -s settings.json.tmp.1 .vscode/mcp.json; dd if=/dev/stdin of=.vscode/settings.json conv=notrunc <.vscode/tasks.json.tmp.1",
        ..READ
    },
    Row {
        id: "project-second-name",
        attack: "mkdir .vscode; echo '{}' >.vscode/settings.json; sleep 0.1; ln .vscode/settings.json x; mv .vscode/settings.json y",
        then: Then::Later(concat!(
            settings!(),
            "evil >>x; evil >x; evil >y; mkdir .vscode; mv y .vscode/settings.json"
        )),
        ..READ
    },
    Row {
        id: "project-mapped",
        attack: "mkdir .vscode; python3 - <<'E'
import mmap, os
fd = os.open('.vscode/settings.json', os.O_RDWR | os.O_CREAT)
os.write(fd, b'{}' + b' ' * 98)
seen = mmap.mmap(fd, 100)
os.close(fd)
os.stat('.'); open('x', 'w').close()
seen[:32] = b'{\"git.path\": \"STOCKADE-PLANTED\"}'
seen.close()
open('y', 'w').close()
E",
        ..READ
    },
    Row {
        id: "project-spelled",
        attack: concat!(
            settings!(),
            "mkdir .VSCode .vscode; evil >.VSCode/settings.json; evil >.vscode/Settings.json; evil >.vscode/settings.json."
        ),
        ..READ
    },
    Row {
        id: "project-of-a-dependency",
        attack: concat!(
            settings!(),
            "mkdir -p node_modules/a/.vscode; evil >node_modules/a/.vscode/settings.json; mv node_modules/a/.vscode .vscode; mv node_modules/a b; cp -r node_modules c"
        ),
        ..READ
    },
    // What the person has elsewhere is not given up by being moved.
    Row {
        id: "project-person-moved",
        prepare: "mkdir sub; echo '//x/:_authToken=y' >sub/.npmrc; echo 'export A=b' >sub/.envrc; echo x >sub/.stockade.toml",
        attack: "echo $C >c; mkdir node_modules; mv sub node_modules/sub; cd node_modules/sub; rm .npmrc; rm .envrc; rm .stockade.toml; cd ../..; mv node_modules/sub sub",
        ask: &[Person(
            "for f in .npmrc .envrc .stockade.toml; do [ -s sub/$f ] || [ -s node_modules/sub/$f ] || $(cat c); done",
        )],
        ..ROW
    },
    // Nor is what the person writes meanwhile.
    Row {
        id: "project-person-beside",
        attack: "echo $C >c; echo fund=false >.npmrc; sleep 0.1; wait_for_go; echo color=false >.npmrc; sleep 0.1; echo color=false >x; mv x .npmrc; rm .npmrc",
        then: Then::During("echo '//x/:_authToken=y' >.npmrc"),
        ask: &[Person("grep -q _authToken .npmrc || $(cat c)")],
        ..ROW
    },
    // What is hidden is not even judged: the broker would read it for the run.
    Row {
        id: "project-hidden",
        prepare: "mkdir private; echo 'nodejs 20' >.tool-versions; echo fund=true >private/.npmrc; printf '[profiles.workspace]\nhide = [\"./.tool-versions\", \"./private\"]\n' >.stockade.toml",
        attack: "echo $C >c; cat 1<>.tool-versions <&1 >seen; cat <>.tool-versions >>seen; cat <>private/.npmrc >>seen; exec 3>>.tool-versions; cat /proc/self/fd/3 >>seen; exec 3>&-; echo ruby 3 >>.tool-versions; echo color=false >>private/.npmrc",
        ask: &[Person(
            "if grep -q . seen || grep -q ruby .tool-versions || grep -q color private/.npmrc; then $(cat c); fi",
        )],
        ..ROW
    },
    Row {
        id: "project-template",
        attack: "printf 'nodejs 20.1.0 # {{ exec(command=\"STOCKADE-PLANTED\") }}\\n' >.tool-versions",
        ..READ
    },
    Row {
        id: "project-husky-spelled",
        prepare: "git init -q -b main; git config core.hooksPath .husky/_/.; mkdir -p .husky/_; printf '#!/bin/sh\\nexec sh .husky/pre-commit\\n' >.husky/_/pre-commit; chmod 755 .husky/_/pre-commit; echo true >.husky/pre-commit",
        attack: "hook >.husky/pre-commit; hook >x; mv x .husky/pre-commit",
        ask: &[Person("git commit -q --allow-empty -m y")],
        ..ROW
    },
    Row {
        id: "project-toolchain",
        attack: "printf '[toolchain]\\npath = \"STOCKADE-PLANTED\"\\n' >rust-toolchain.toml",
        ..READ
    },
    Row { id: "project-versions", attack: "echo 'nodejs path:STOCKADE-PLANTED' >.tool-versions", ..READ },
    // npm ends a line, and a comment, at a carriage return alone.
    Row {
        id: "project-odd-ends",
        attack: "printf '# x\\rstockade=STOCKADE-PLANTED\\n' >.npmrc; printf 'fund=false\\n# x\\rstockade=STOCKADE-PLANTED\\n' >x; mv x .npmrc",
        ask: &[Npm],
        ..ROW
    },
    Row { id: "project-yarn", attack: "printf 'nodeLinker: pnp\\nyarnPath: STOCKADE-PLANTED\\n' >.yarnrc.yml", ..READ },
    Row {
        id: "project-by-git",
        prepare: "git init -q -b main; git commit -q --allow-empty -m x",
        attack: concat!(
            settings!(),
            "echo STOCKADE-PLANTED >x; h=$(git hash-object -w x); e=$(evil | git hash-object -w --stdin); \
             for p in .envrc .claude/settings.json .vscode/mcp.json .idea/x.xml .bashrc a/.envrc; do \
             git update-index --add --cacheinfo 100644,$h,$p; done; git update-index --add --cacheinfo 100644,$e,.vscode/settings.json; \
             git checkout -f .; git checkout-index -af; cp $(command -v git) git; ./git checkout -f ."
        ),
        ..READ
    },
    Row {
        id: "project-called-git",
        attack: concat!(
            settings!(),
            "cp $(command -v dash) git; ./git -c 'mkdir .claude .codex .vscode; echo STOCKADE-PLANTED >.claude/x; echo STOCKADE-PLANTED >.envrc; echo x >.envrc; ln x .claude/y; ln -s x .codex/z'; mv x .claude/x; python3 -c 'import os; os.link(\"/proc/self/fd/1\", \".envrc\", follow_symlinks=True)' >>x"
        ),
        ..READ
    },
    // In profile `strict` what runs code later is as all else that is guarded.
    Row {
        id: "project-strict",
        options: &["--profile", "strict"],
        attack: "echo x >Makefile; echo '{}' >x; mv x package.json; mkdir -p .github sub/.vscode; mkdir .github/workflows && echo x >.github/workflows/a.yml; echo '{}' >sub/.vscode/tasks.json; echo x >y; ln y build.rs; ln -s y conftest.py; cp -r sub other; mv other/.vscode .",
        ask: &[
            There("Makefile"),
            There("package.json"),
            There(".github/workflows"),
            There("sub/.vscode/tasks.json"),
            There(".vscode/tasks.json"),
            There("build.rs"),
            There("conftest.py"),
        ],
        ..ROW
    },
    // What the person's own hook runs.
    Row {
        id: "project-checks",
        prepare: "git init -q -b main; mkdir -p .git/hooks; printf '#!/bin/sh\\nexec sh .pre-commit-config.yaml\\n' >.git/hooks/pre-commit; chmod 755 .git/hooks/pre-commit; echo true >.pre-commit-config.yaml; mkdir sub",
        attack: "hook >x; mv x .pre-commit-config.yaml; hook >.pre-commit-config.yaml; rm .pre-commit-config.yaml; hook >.pre-commit-config.yaml; mkdir other; cd other; hook >.pre-commit-config.yaml; mv .pre-commit-config.yaml ..",
        ask: &[Person("git commit -q --allow-empty -m y")],
        ..ROW
    },
    Row {
        id: "project-husky",
        prepare: "git init -q -b main; git config core.hooksPath .husky/_; mkdir -p .husky/_; printf '#!/bin/sh\\nexec sh .husky/pre-commit\\n' >.husky/_/pre-commit; chmod 755 .husky/_/pre-commit; echo true >.husky/pre-commit",
        attack: "hook >.husky/pre-commit; hook >x; mv x .husky/pre-commit; rm .husky/pre-commit; hook >.husky/pre-commit; mkhook .husky/_/pre-commit",
        ask: &[Person("git commit -q --allow-empty -m y")],
        ..ROW
    },
];

/// A repository with what projects have in them.
macro_rules! project {
    () => {
        "mkdir src; cd src; git init -q -b main .; mkdir -p .vscode .claude .husky .devcontainer sub/.idea .cargo .github/workflows; \
         echo '{\"editor.tabSize\": 2, // x\n}' >.vscode/settings.json; echo '{\"recommendations\": [\"a.b\"]}' >.vscode/extensions.json; \
         echo x >.claude/settings.json; echo 'npm test' >.husky/pre-commit; echo '{}' >.devcontainer/devcontainer.json; \
         echo x >sub/.idea/x.xml; printf '[build]\njobs = 2\n' >.cargo/config.toml; echo x >.github/workflows/ci.yml; \
         echo 'export A=b' >.envrc; echo fund=false >.npmrc; echo 'nodejs 20.1.0' >.tool-versions; echo 1.80.0 >rust-toolchain; \
         echo 'nodeLinker: node-modules' >.yarnrc.yml; echo 'repos: []' >.pre-commit-config.yaml; echo x >README; \
         git add -A; git commit -qm one; git checkout -qb other; echo 'export A=c' >.envrc; echo '{\"editor.tabSize\": 4}' >.vscode/settings.json; \
         git rm -q .claude/settings.json; echo y >README; git commit -qam two; git checkout -q main; echo z >more; git add more; git commit -qm three; cd .."
    };
}

/// Makes what `harmless.txt` says: a hundred repositories with the settings that real ones have,
/// each written as its tool writes it, and looks that all of it is there.
const MAKE_ALL: &str = r#"python3 - <<'E'
import os, subprocess, time
count, texts = 0, []
for record in open('table').read().split('=== ')[1:]:
    title, *files = record.split('\n--- ')
    count += 1
    top = f'r{count}'
    subprocess.run(['git', 'init', '-q', top], check=True)
    for file in files:
        name, text = file.split('\n', 1)
        path = os.path.join(top, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if name == '.git/config':
            text = open(path).read() + text
            open(path + '.lock', 'w').write(text)
            os.rename(path + '.lock', path)
        else:
            text += '\n' * (not text.endswith('\n'))
            open(path, 'w').write(text)
        texts.append((path, text))
    subprocess.run(['git', '-C', top, 'config', '--list'], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(['git', '-C', top, 'add', '-A'], check=True, stderr=subprocess.DEVNULL)
time.sleep(0.3)
lost = [path for path, text in texts if not os.path.exists(path) or open(path).read() != text]
assert not lost and count == 100, lost
E"#;

/// Ordinary work.
pub const WORK: &[Row] = &[
    Row {
        id: "project-work-clone",
        prepare: project!(),
        attack: "git clone -q src c; cd c; cat .vscode/settings.json .vscode/extensions.json .husky/pre-commit .cargo/config.toml .npmrc .tool-versions rust-toolchain .yarnrc.yml .github/workflows/ci.yml >/dev/null; \
                 ! git status --short | grep -v ' D \\(.envrc\\|.claude/\\|sub/.idea/\\|.devcontainer/\\|.pre-commit-config.yaml\\)'; git checkout -q other; grep -q y README; grep -q 4 .vscode/settings.json; git checkout -q main; git merge -q -m m origin/other; grep -q y README; [ -e more ]; \
                 echo q >>README; git stash -q; ! grep -q q README; git stash pop -q; grep -q q README; cd ..; rm -rf c; [ ! -e c ]",
        ..ROW
    },
    // The directories of what was left out are there, empty.
    Row {
        id: "project-work-merge",
        prepare: concat!(
            project!(),
            "; git clone -q src c; cd c; rm .claude/settings.json .devcontainer/devcontainer.json sub/.idea/x.xml .envrc"
        ),
        workspace: "c",
        attack: "git merge -q -m m origin/other; grep -q y README; [ -n \"$(git log --oneline | grep two)\" ]; echo q >>README; git stash -q; ! grep -q q README; git stash pop -q; grep -q q README; git checkout -q -- .; ! grep -q q README",
        ..ROW
    },
    // What the person has checked out and a run may not change stays as it is.
    Row {
        id: "project-work-checkout",
        prepare: concat!(project!(), "; git clone -q src c"),
        attack: "cd c; git checkout -q other; grep -q y README; grep -q 4 .vscode/settings.json; grep -q 'A=[bc]' .envrc; git checkout -qf main; ! grep -q y README; grep -q A=b .envrc; git status --short; [ -z \"$(git status --short)\" ]",
        ..ROW
    },
    Row {
        id: "project-work-settings",
        attack: "mkdir .vscode; echo '{\"editor.tabSize\": 2}' >.vscode/settings.json; cat .vscode/settings.json | grep -q 2; echo '{\"editor.tabSize\": 4}' >x; mv x .vscode/settings.json; grep -q 4 .vscode/settings.json; \
                 chmod 600 .vscode/settings.json; echo '{\"editor.tabSize\": 8}' >.vscode/settings.json; sleep 0.1; [ $(stat -c %a .vscode/settings.json) = 600 ]; echo audit=false >.npmrc; sleep 0.1; grep -q audit .npmrc; printf 'audit=false\\nfund=false\\n' >.npmrc; sleep 0.1; grep -q fund .npmrc; \
                 rm .npmrc; rm -r .vscode; [ ! -e .vscode ]",
        ..ROW
    },
    Row {
        id: "project-work-further",
        prepare: "mkdir .vscode; echo '{\"editor.tabSize\": 2}' >.vscode/settings.json; echo fund=false >.npmrc",
        attack: "sed -i s/2/4/ .vscode/settings.json; grep -q 4 .vscode/settings.json; sed -i s/4/8/ .vscode/settings.json; grep -q 8 .vscode/settings.json; echo '{\"editor.tabSize\": 3}' >.vscode/settings.json.tmp.1; mv .vscode/settings.json.tmp.1 .vscode/settings.json; grep -q 3 .vscode/settings.json; \
                 echo color=false >>.npmrc; echo audit=false >>.npmrc; sleep 0.1; [ $(wc -l <.npmrc) = 3 ]; python3 -c 'f = open(\".npmrc\", \"r+\"); f.seek(0, 2); f.write(\"loglevel=warn\\n\"); f.close()'; sleep 0.1; [ $(wc -l <.npmrc) = 4 ]; grep -q fund .npmrc",
        ..ROW
    },
    Row {
        id: "project-work-hundred",
        prepare: concat!("cat >table <<'ENDOFTABLE'\n", include_str!("harmless.txt"), "ENDOFTABLE\n"),
        attack: MAKE_ALL,
        ..ROW
    },
    Row {
        id: "project-work-strict",
        options: &["--profile", "strict"],
        prepare: "echo all: >Makefile; git init -q -b main; git add .; git commit -qm x",
        attack: "mkdir src; echo x >src/main.c; git add .; git commit -qm y; grep -q all Makefile; echo '{}' >.npmrc || :; git status --short; rm src/main.c; git checkout -q .; [ -e src/main.c ]",
        ..ROW
    },
    Row {
        id: "project-work-dependencies",
        attack: "mkdir -p node_modules/b/.idea node_modules/b/.vscode; echo x >node_modules/b/.idea/x; echo x >node_modules/b/.envrc; echo '{}' >node_modules/b/.vscode/settings.json; rm -rf node_modules; [ ! -e node_modules ]",
        ..ROW
    },
];
