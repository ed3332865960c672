//! Everyday commands and what is decided about them: no needless question, and none
//! left out where an effect is beyond the sandbox. The rows are text here and are
//! never run.

#![allow(clippy::unwrap_used, reason = "what cannot be had fails the test")]

use std::path::Path;

use stockade_model::{
    ApprovalMode, Assessment, Grant, GranularMode, Impact, IsolationLevel, PolicyVerdict, QuestionKind, RawText,
    RequestCommand, RunRequest, SandboxPreference, Tier,
};
use stockade_policy::{
    ConfigLayer, LayerText, OwnDirectories, PolicyRuling, PolicySettings, RequestContext, configured_files, rule_in,
    rule_on, written_hooks,
};
use stockade_shell::{CommandContext, assess_script};

/// Most rows, in per mille, that may be answered otherwise than agreed.
const WRONG_PER_MILLE: usize = 0;
/// Most rows to be run that the mode `untrusted` may ask about. May fall, not rise.
const QUESTIONS_OF_UNTRUSTED: usize = 159;

/// Where a home and a workspace may lie.
const CONTEXTS: &[(&str, &str)] = &[
    ("/home/dev", "/home/dev/x"),
    ("/root", "/root/x"),
    ("/root", "/root/a/b/x"),
    ("/home/dev", "/tmp/x"),
    ("/home/dev", "/srv/x"),
    ("/root", "/srv/x"),
    ("/home/dev", "/workspace"),
    ("/root", "/workspace"),
    ("/home/dev", "/var/lib/ci/x"),
];

struct Row {
    id: String,
    expect: String,
    command: String,
}

fn rows() -> Vec<Row> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/cases/everyday.tsv");
    let text = std::fs::read_to_string(path).unwrap();
    text.lines()
        .skip(1)
        .map(|line| {
            let cells: Vec<&str> = line.split('\t').collect();
            let command = cells[2].replace("\\\\", "\u{1}").replace("\\n", "\n").replace('\u{1}', "\\");
            Row { id: cells[0].to_owned(), expect: cells[1].to_owned(), command }
        })
        .collect()
}

fn settings(home: &str, source: &str) -> PolicySettings {
    let layer = LayerText { layer: ConfigLayer::User, path: "/etc/user.toml".into(), source: source.to_owned() };
    PolicySettings::from_layers(Path::new(home), OwnDirectories::default(), &[layer]).unwrap()
}

fn request(command: &str, workspace: &str, mode: ApprovalMode, grants: &[&str]) -> RunRequest {
    RunRequest {
        id: "req_00000000000000000000000000".parse().unwrap(),
        session: None,
        command: RequestCommand::Script(RawText::from(command)),
        cwd: workspace.into(),
        workspace: workspace.into(),
        environment: Default::default(),
        profile: "workspace".into(),
        grants: grants.iter().map(|grant| grant.parse().unwrap()).collect(),
        requested: Vec::new(),
        level: IsolationLevel::Full,
        approval_mode: mode,
        sandbox: SandboxPreference::Auto,
        timeout_ms: None,
        limits: Default::default(),
        caller_approval: None,
    }
}

fn assess(command: &str, home: &str, workspace: &str) -> Assessment {
    let context =
        CommandContext { cwd: workspace.into(), home: home.into(), workspace: workspace.into(), sanitized: true };
    assess_script(command.as_bytes(), &context)
}

fn rule(command: &str, (home, workspace): (&str, &str), mode: ApprovalMode) -> (Assessment, PolicyRuling) {
    let assessment = assess(command, home, workspace);
    let ruling = rule_on(&settings(home, ""), &request(command, workspace, mode, &[]), &assessment, true);
    (assessment, ruling)
}

fn is_as_agreed(expect: &str, tier: Tier, verdict: PolicyVerdict) -> bool {
    match expect {
        "run" => verdict == PolicyVerdict::Allow,
        "ask" => verdict == PolicyVerdict::Ask && tier != Tier::Deny,
        "deny" => tier == Tier::Deny,
        "ask-or-deny" => verdict == PolicyVerdict::Ask,
        "any-but-deny" => tier != Tier::Deny,
        "any" => true,
        other => panic!("unknown expectation {other}"),
    }
}

#[test]
fn everyday_commands_are_decided_as_agreed_in_every_workspace() {
    let rows = rows();
    let mut wrong = Vec::new();
    for row in &rows {
        let mut first = None;
        for directories in CONTEXTS {
            let (assessment, ruling) = rule(&row.command, *directories, ApprovalMode::OnFailure);
            let answer = (assessment.tier, assessment.impact, ruling.decision.verdict);
            if !is_as_agreed(&row.expect, answer.0, answer.2) || *first.get_or_insert(answer) != answer {
                wrong.push(format!("{} {} {answer:?} at {}: {}", row.id, row.expect, directories.1, row.command));
                break;
            }
        }
    }
    println!("everyday rows: {} of {} otherwise than agreed", wrong.len(), rows.len());
    assert!(wrong.len() * 1000 <= WRONG_PER_MILLE * rows.len(), "{}", wrong.join("\n"));
}

/// The codes of what is asked about a command.
fn codes(command: &str) -> Vec<String> {
    let assessment = assess(command, CONTEXTS[0].0, CONTEXTS[0].1);
    assessment.findings.into_iter().filter(|finding| finding.tier > Tier::Allow).map(|finding| finding.code).collect()
}

#[test]
fn untrusted_asks_about_few_everyday_commands() {
    let runs: Vec<Row> = rows().into_iter().filter(|row| row.expect == "run").collect();
    let not_allowed: Vec<&Row> = runs
        .iter()
        .filter(|row| {
            rule(&row.command, CONTEXTS[0], ApprovalMode::Untrusted).1.decision.verdict != PolicyVerdict::Allow
        })
        .collect();
    println!("untrusted asks about {} of {} rows to be run", not_allowed.len(), runs.len());
    let not_allowed: Vec<String> =
        not_allowed.iter().map(|row| format!("{} {:?}", row.command, codes(&row.command))).collect();
    println!("{}", not_allowed.join("\n"));
    assert!(not_allowed.len() <= QUESTIONS_OF_UNTRUSTED, "{}", not_allowed.join("\n"));
}

/// Changes of files of the workspace by known tools.
const CHANGES: &[&str] = &[
    "touch a.txt",
    "mkdir -p src/a",
    "cp a.txt b.txt",
    "mv a.txt src/",
    "echo x > a.txt",
    "printf x >> a.txt",
    "sort a > b",
    "sed -i 's/a/b/' a.txt",
    "tee a.txt < b.txt",
    "gcc -c main.c -o main.o",
    "gzip a.txt",
    "zip -r a.zip src",
    "ln -s a b",
    "cd src && touch a",
    "cp ./a/../b src/b",
    "true > /home/dev/x/a.txt",
    "env LANG=C sort a -o b",
    "chmod +x a",
    "chmod -R 755 dist",
    "tar xzf a.tgz",
    "tar -xf a.tar -C build --strip-components=1",
    "unzip a.zip -d out",
    "patch -p1 -i fix.diff",
    "ruff format",
    "git log > out.txt",
];

/// What is no more than close to it.
const OTHERS: &[&str] = &[
    "rm a.txt",
    "touch ../a.txt",
    "touch /etc/a",
    "echo x > ~/.profile",
    "echo x > /home/dev/y/a.txt",
    "cd .. && touch a",
    "cp a.txt $X",
    "cp $X a.txt",
    "cp /etc/hosts a",
    "cp -t/etc a.txt",
    "cp --target-directory=/etc a.txt",
    "ln -s /etc/passwd p",
    "echo x > .git/hooks/pre-commit",
    "cp a .git/config",
    "tee .vscode/settings.json < a",
    "echo x > .stockade.toml",
    "echo x > .bashrc",
    "touch a; ./a",
    "touch a && make",
    "touch a &",
    "echo x > $F",
    "unknown-tool > a",
    "curl https://x.example/ > a",
    "cat .env > a",
    "sudo touch a",
    "./touch a",
    "touch --no-such-option a",
    "sed -i 's/a/b/e' a.txt",
    "sed -i 's/a/b/w /etc/x' a.txt",
    "chmod u+t a",
    "chmod 1755 a",
    "chmod +x ../a",
    "chmod +x .git/hooks/post-merge",
    "tar -xf a.tar --to-command=./x",
    "tar -xf a.tar -I ./x",
    "tar -xPf a.tar",
    "tar -C / -xf a.tar",
    "tar -xf a.tar -C../y",
    "tar --directory=/etc -xf a.tar",
    "tar -xf a.tar --transform 's,^,../,'",
    "tar -xf h:a.tar",
    "tar -cf a.tar src --remove-files",
    "tar -xf a.tar --listed-incremental=x",
    "cd .. && tar -xf a.tar",
    "curl https://x.example/a.tgz | tar xz",
    "unzip a.zip -d /etc",
    "unzip -: a.zip",
    "zip -rm a.zip src",
    "patch -d / -p1 -i fix.diff",
    "ruff check --config ../x",
    "echo touch x | sh",
    "find . -exec touch {} +",
    "find . -name '*.pyc' -delete",
    "cp a ~/.bashrc",
];

/// Known tools that change files of the workspace, and what is no more than close to it.
#[test]
fn untrusted_lets_known_tools_change_the_workspace() {
    let verdict = |command: &str| rule(command, CONTEXTS[0], ApprovalMode::Untrusted).1.decision.verdict;
    let not_allowed: Vec<&&str> = CHANGES.iter().filter(|command| verdict(command) != PolicyVerdict::Allow).collect();
    let run: Vec<&&str> = OTHERS.iter().filter(|command| verdict(command) != PolicyVerdict::Ask).collect();
    assert!(not_allowed.is_empty() && run.is_empty(), "asked about {not_allowed:?}, run {run:?}");
}

/// Where what a run removes can be brought back, removing within the workspace is a change as well.
#[test]
fn untrusted_lets_known_tools_remove_kept_files() {
    let verdict = |command: &str, keeps_changes, source: &str| {
        let directories = ("/home/dev", "/home/dev/x");
        let assessment = assess(command, directories.0, directories.1);
        let request = request(command, directories.1, ApprovalMode::Untrusted, &[]);
        let around = RequestContext { keeps_changes, ..RequestContext::default() };
        rule_in(&settings(directories.0, source), &request, &assessment, true, &around).decision.verdict
    };
    let undo = "[profiles.workspace]\nundo = true\n";
    for (command, keeps, source, expected) in [
        ("rm a.txt", Some(true), "", PolicyVerdict::Allow),
        ("rm -rf build", Some(true), "", PolicyVerdict::Allow),
        ("rm -rf build", Some(false), undo, PolicyVerdict::Allow),
        ("rm -rf build", Some(false), "", PolicyVerdict::Ask),
        // Such a sandbox keeps nothing, whatever the profile says.
        ("rm -rf build", None, undo, PolicyVerdict::Ask),
        ("rm ../a.txt", Some(true), "", PolicyVerdict::Ask),
        ("rm -rf .git/hooks", Some(true), "", PolicyVerdict::Ask),
        ("rm \"$X\"", Some(true), "", PolicyVerdict::Ask),
    ] {
        assert_eq!(verdict(command, keeps, source), expected, "{command} {keeps:?} {source}");
    }
}

/// Uses of git that change the repository of the workspace and nothing else.
const LOCAL_GIT: &[&str] = &[
    "git init",
    "git init -b main sub",
    "git add -A",
    "git add src/*.rs",
    "git -C sub add .",
    "git commit -m x",
    "git commit -am 'fix: a thing, /etc/x and a::b'",
    "git commit -m \"$(cat <<'EOF'\nfix: thing\n\nmore\nEOF\n)\"",
    "git commit --amend --no-edit",
    "git commit -F - <<'EOF'\nfix: thing\nEOF",
    "git add a && git commit -m x && git status && git log -1",
    "echo x > a.txt && git add a.txt && git commit -q -m x",
    "git checkout -b feature",
    "git checkout main",
    "git checkout -q feature/x",
    "git checkout -",
    "git switch -c feature origin/main",
    "git restore --staged a.txt",
    "git reset HEAD~1",
    "git branch feature",
    "git branch -M main",
    "git branch --set-upstream-to=origin/main",
    "git tag v1",
    "git tag -a v1 -m 'first: one'",
    "git merge --no-edit feature",
    "git merge --ff-only origin/main",
    "git rebase main",
    "git rebase --onto main a b",
    "git cherry-pick -x abc123",
    "git revert --no-edit HEAD",
    "git stash",
    "git stash push -m 'a: b'",
    "git stash pop",
    "git apply fix.diff",
    "git mv a.txt b.txt",
    "git worktree add wt -b x",
    "git remote add origin https://git.example/a.git",
    "git remote add origin git@git.example:a.git",
    "git remote set-url origin https://git.example/b.git",
    "git config user.name 'A B'",
    "git config --local pull.rebase true",
    "git config --unset user.name",
    "git format-patch -1 -o out",
    "git bisect start",
    "git gc",
    "git diff --output=out.txt",
    "cd src && git add .",
];

/// What is no more than close to it: it starts something, leads elsewhere, or loses something.
const OTHER_GIT: &[&str] = &[
    // Nothing restores what these lose.
    "git checkout .",
    "git checkout ./main",
    "git checkout -- main",
    "git checkout main a.txt",
    "git checkout -p main",
    "git checkout --ours main",
    "git checkout :/",
    "git checkout '*.c'",
    "git checkout $X",
    "git checkout ../main",
    "cp a main && git checkout main",
    "git stash pop && git checkout main",
    "git checkout -- a.txt",
    "git restore a.txt",
    "git restore -SW a.txt",
    // A plan of an earlier rebase goes on.
    "git rebase --skip",
    "git am --skip",
    "git -c core.editor=./x commit -m x",
    "git -c core.hooksPath=h commit -m x",
    "git -c user.name=x commit -m x",
    "git -C ../other commit -m x",
    "cd ../other && git add .",
    "cd $D && git add .",
    "git --git-dir=/other/.git add .",
    "git --work-tree=/other add .",
    "git --exec-path=x add .",
    "git -p add .",
    "GIT_DIR=/other git add .",
    "env GIT_DIR=/other git add .",
    "export GIT_DIR=/other; git add .",
    "GIT_EDITOR=./x git commit -m x",
    "HOME=/other git commit -m x",
    "./git commit -m x",
    "git commit",
    "git commit --amend",
    "git commit -e -m x",
    "git commit -c HEAD",
    "git commit -S -m x",
    "git commit -F ../y",
    "git commit -F .env",
    "git commit -m \"$X\"",
    "git commit -m x --no-such-option",
    "git commit -m x && ./x",
    "git commit -m x && git push",
    "git add -e",
    "git add .env",
    "git add $X",
    "git add --pathspec-from-file=x",
    "git checkout -f main",
    "git switch --discard-changes main",
    "git reset --hard",
    "git clean -fd",
    "git rm a.txt",
    "git stash drop",
    "git stash clear",
    "git branch -D feature",
    "git branch --edit-description",
    "git tag -d v1",
    "git tag -s v1 -m x",
    "git merge main",
    "git merge --no-edit -s x main",
    "git rebase -i main",
    "git rebase -x ./x main",
    "git rebase --continue",
    "git rebase -s x main",
    "git cherry-pick --strategy=x abc",
    "git revert HEAD",
    "git apply --unsafe-paths fix.diff",
    "git apply --directory=../y fix.diff",
    "git init ../y",
    "git init /srv/x",
    "git init $X",
    "git init --template=t",
    "git init --separate-git-dir=../y",
    "git init .git/hooks/x",
    "git worktree add ../y",
    "git worktree add -f wt",
    "git worktree add /tmp/../home/dev/y",
    "git remote add -f x https://git.example/a.git",
    "git remote add x ext::./x",
    "git remote set-url --delete x y",
    "git remote remove x",
    "git config alias.x '!sh'",
    "git config alias.x log",
    "git config core.editor vim",
    "git config core.fsmonitor ./x",
    "git config core.hooksPath h",
    "git config core.worktree /",
    "git config --global user.name x",
    "git config --system user.name x",
    "git config --file ../y user.name x",
    "git config --rename-section x core",
    "git config --edit",
    "git config --unset core.hooksPath",
    "git config user.name x y",
    "git config include.path ../y",
    "git config user.name $X",
    "git format-patch -1 -o ../y",
    "git gc --prune=now",
    "git bisect run ./x",
    "git submodule update --init",
    "git submodule foreach ./x",
    "git fetch",
    "git pull",
    "git push",
    "git clone https://git.example/a.git",
    "git filter-branch --tree-filter ./x",
    "git difftool",
    "git hook run x",
    "git x",
    "git add . | sh",
    "mv x .git && git add a",
    "cp -r x sub/.git && git -C sub add a",
    "ln -s x .git",
    "tar -xf a.tar -C .git",
    "echo x > .git/HEAD",
];

/// Git where it only changes the repository of the workspace, which starts nothing of its
/// own: see the crate of the engine for the look at it.
#[test]
fn untrusted_lets_git_change_the_repository_of_the_workspace() {
    let verdict = |command: &str| rule(command, CONTEXTS[0], ApprovalMode::Untrusted).1.decision.verdict;
    let describe_command = |command: &&str| format!("{command} {:?}", codes(command));
    let not_allowed: Vec<String> =
        LOCAL_GIT.iter().filter(|command| verdict(command) != PolicyVerdict::Allow).map(describe_command).collect();
    let run: Vec<String> =
        OTHER_GIT.iter().filter(|command| verdict(command) == PolicyVerdict::Allow).map(describe_command).collect();
    assert!(
        not_allowed.is_empty() && run.is_empty(),
        "asked about\n{}\nrun\n{}",
        not_allowed.join("\n"),
        run.join("\n")
    );
}

#[test]
fn untrusted_asks_before_a_read_only_workspace_changes() {
    let mut request = request("touch a.txt", "/home/dev/x", ApprovalMode::Untrusted, &[]);
    request.profile = "read-only".to_owned();
    let assessment = assess("touch a.txt", "/home/dev", "/home/dev/x");
    assert_eq!(rule_on(&settings("/home/dev", ""), &request, &assessment, true).decision.verdict, PolicyVerdict::Ask);
}

#[test]
fn a_rule_gives_a_group_as_its_hosts() {
    let source = "[[rules]]\nprefix = [\"pip\"]\neffect = \"allow\"\njustification = \"j\"\ngrants = [\"@pypi\"]\n";
    let assessment = assess("pip download x", "/home/dev", "/home/dev/x");
    let request = request("pip download x", "/home/dev/x", ApprovalMode::OnFailure, &[]);
    let ruling = rule_on(&settings("/home/dev", source), &request, &assessment, true);
    let grant_texts: Vec<String> = ruling.obligations.grants.iter().map(ToString::to_string).collect();
    assert_eq!(grant_texts, ["connect files.pythonhosted.org:443", "connect pypi.org:443"]);
}

#[test]
fn effects_beyond_the_sandbox_are_asked_about_whatever_was_granted() {
    use ApprovalMode::{Granular, Never, OnFailure, OnRequest, Untrusted};
    let run = GranularMode { run: true, ..GranularMode::default() };
    let allowing = "[[rules]]\nprefix = [\"git\"]\neffect = \"allow\"\njustification = \"j\"\n\
                    grants = [\"connect github.com:22\"]\n";
    let assessment = assess("git push --force origin main", "/home/dev", "/home/dev/x");
    assert_eq!(assessment.impact, Impact::Outward);
    for (mode, verdict) in [
        (Untrusted, PolicyVerdict::Ask),
        (OnFailure, PolicyVerdict::Ask),
        (OnRequest, PolicyVerdict::Ask),
        (Granular(run), PolicyVerdict::Ask),
        (Granular(GranularMode::default()), PolicyVerdict::Deny),
        (Never, PolicyVerdict::Deny),
    ] {
        for source in ["", allowing] {
            let request = request("git push --force origin main", "/home/dev/x", mode, &["connect github.com:22"]);
            let ruling = rule_on(&settings("/home/dev", source), &request, &assessment, true);
            assert_eq!(ruling.decision.verdict, verdict, "{mode:?} {source}");
            let reason = "overwrites-remote: Overwrites or removes data of others at the remote.";
            assert!(ruling.decision.reasons.iter().any(|r| r == reason), "{mode:?} {:?}", ruling.decision.reasons);
        }
    }
}

#[test]
fn a_reason_is_printed_once() {
    let script = "kubectl apply -f a.yaml && kubectl apply -f b.yaml && make a && make b";
    for mode in [ApprovalMode::Untrusted, ApprovalMode::OnFailure] {
        let (_, ruling) = rule(script, CONTEXTS[0], mode);
        let [QuestionKind::Run { reasons }] = ruling.questions.as_slice() else { panic!("{ruling:?}") };
        for reasons in [&ruling.decision.reasons, reasons] {
            let mut once = reasons.clone();
            once.sort();
            once.dedup();
            assert_eq!(once.len(), reasons.len(), "{reasons:?}");
        }
    }
}

/// A grant that the person typed is a yes to what the text does with it, and to nothing else.
#[test]
fn an_explicit_grant_is_not_refused_by_the_text() {
    let hooks = "write /home/u/ws/.git/hooks";
    let check = |command: &str, grants: &[&str], requested: bool, by_person: bool, expected: PolicyVerdict| {
        let (home, workspace) = ("/home/u", "/home/u/ws");
        let assessment = assess(command, home, workspace);
        assert_eq!(assessment.tier, Tier::Deny, "{command}");
        let mut request = request(command, workspace, ApprovalMode::OnFailure, grants);
        if requested {
            request.requested = request.grants.clone();
        }
        let ruling = rule_on(&settings(home, ""), &request, &assessment, by_person);
        assert_eq!(ruling.decision.verdict, expected, "{command}: {:?}", ruling.decision);
    };
    let copy = "cp /bin/true .git/hooks/pre-commit";
    check(copy, &[hooks], false, true, PolicyVerdict::Allow);
    check("echo x > .git/hooks/pre-commit", &[hooks], false, true, PolicyVerdict::Allow);
    check(copy, &[], false, true, PolicyVerdict::Ask);
    check(copy, &["write /home/u/ws/other"], false, true, PolicyVerdict::Ask);
    // Only asked for, or an agent's word.
    check(copy, &[hooks], true, true, PolicyVerdict::Ask);
    check(copy, &[hooks], false, false, PolicyVerdict::Ask);
    // Something else is refused as well.
    check("cp a .git/hooks/pre-commit; crontab x", &[hooks], false, true, PolicyVerdict::Ask);
    check("cp a .git/hooks/pre-commit; cp a ~/.bashrc", &[hooks], false, true, PolicyVerdict::Ask);
    check("cp a .git/hooks/pre-commit; rm -rf ~", &[hooks], false, true, PolicyVerdict::Ask);
}

/// Which files a yes to a command is one to.
#[track_caller]
fn check_agreed(agreed: fn(&RunRequest, &Assessment) -> Vec<Grant>, command: &str, expected: &[&str]) {
    let request = request(command, "/home/u/ws", ApprovalMode::OnFailure, &[]);
    let files = agreed(&request, &assess(command, "/home/u", "/home/u/ws"));
    let files: Vec<String> = files.iter().map(ToString::to_string).collect();
    assert_eq!(files, expected, "{command}");
}

/// A yes to one command that sets a program is one to the file in which it does.
#[test]
fn a_yes_to_a_setting_is_one_to_its_file() {
    let check = |command: &str, expected: &[&str]| check_agreed(configured_files, command, expected);
    check("git config core.editor vim", &["write /home/u/ws/.git/config"]);
    check("git config --add core.pager './x -R'", &["write /home/u/ws/.git/config"]);
    check("git -C sub config core.editor vim", &["write /home/u/ws/sub/.git/config"]);
    for command in [
        "git config user.name x",
        "git config --global core.editor vim",
        "git config --file x core.editor vim",
        "git -C ../y config core.editor vim",
        "git -c core.pager=./x config core.editor vim",
        "git config core.fsmonitor ./x && git status",
        "git config core.editor vim; git config core.pager x",
        "git config core.editor $(./x)",
        "bash -c 'git config core.editor vim'",
        "env A=1 git config core.editor vim",
        "GIT_DIR=x git config core.editor vim",
        "git push -f",
        "echo x > .git/config",
    ] {
        check(command, &[]);
    }
}

/// A yes to a command that writes a hook, and does nothing else, reaches the hook.
#[test]
fn a_yes_to_a_hook_is_one_to_its_file() {
    let check = |command: &str, expected: &[&str]| check_agreed(written_hooks, command, expected);
    let hook = "write /home/u/ws/.git/hooks/pre-commit";
    check("cp a.sh .git/hooks/pre-commit", &[hook]);
    check("echo 'exec make test' > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit", &[hook]);
    check("sh -c 'echo x > .git/hooks/pre-commit && chmod 755 .git/hooks/pre-commit'", &[hook]);
    check("echo x > sub/.git/hooks/post-merge", &["write /home/u/ws/sub/.git/hooks/post-merge"]);
    for command in [
        "cp a.sh .git/hooks/pre-commit; ./x",
        "cp a.sh .git/hooks/pre-commit && git commit -m x",
        "cp a.sh .git/hooks/pre-commit; python3 x.py",
        "cp a.sh .git/hooks/pre-commit; echo x > .git/config",
        "cp a.sh .git/hooks/pre-commit; echo x > ~/.bashrc",
        "cp a.sh ../other/.git/hooks/pre-commit",
        "cp \"$X\" .git/hooks/pre-commit",
        "sed -i 's/a/b/e' .git/hooks/pre-commit",
        "sh x.sh > .git/hooks/pre-commit",
        "./cp a.sh .git/hooks/pre-commit",
        "PATH=. cp a.sh .git/hooks/pre-commit",
        "rm -rf .git/hooks",
        "chmod +x .git/hooks/pre-commit",
        "echo x > a.txt",
    ] {
        check(command, &[]);
    }
}

/// The same of a program that git is told to start, in the file that was granted by its name.
#[test]
fn a_setting_in_a_file_that_is_granted_by_hand_needs_no_question() {
    let config = "write /home/u/ws/.git/config";
    let check = |command: &str, grants: &[&str], requested: bool, by_person: bool, expected: PolicyVerdict| {
        let (home, workspace) = ("/home/u", "/home/u/ws");
        let assessment = assess(command, home, workspace);
        let mut request = request(command, workspace, ApprovalMode::OnFailure, grants);
        if requested {
            request.requested = request.grants.clone();
        }
        let ruling = rule_on(&settings(home, ""), &request, &assessment, by_person);
        assert_eq!(ruling.decision.verdict, expected, "{command} {grants:?}: {:?}", ruling.decision);
    };
    let editor = "git config core.editor vim";
    for command in [editor, "git config --local core.editor vim", "git config --add core.pager ./x"] {
        check(command, &[config], false, true, PolicyVerdict::Allow);
        check(command, &[], false, true, PolicyVerdict::Ask);
        check(command, &["write /home/u/ws/.git/config.worktree"], false, true, PolicyVerdict::Ask);
        // Only what is granted by its name.
        check(command, &["write /home/u/ws"], false, true, PolicyVerdict::Ask);
        check(command, &[config], true, true, PolicyVerdict::Ask);
        check(command, &[config], false, false, PolicyVerdict::Ask);
    }
    for command in [
        "git config --global core.editor vim",
        "git config --system core.editor vim",
        "git config --worktree core.editor vim",
        "git config --file .git/config core.editor vim",
        "git config --file /home/u/x core.editor vim",
        "git -C ../y config core.editor vim",
        "git --git-dir=../y/.git config core.editor vim",
        "GIT_DIR=../y/.git git config core.editor vim",
        "cd ../y && git config core.editor vim",
        "cd $X && git config core.editor vim",
        "git config core.editor vim; git config --file ../z core.editor vim",
        "git config core.editor vim; git config --system core.editor vim",
        "git config core.editor vim; git push -f",
        "git config core.editor vim; cp a ../z",
        "./git config core.editor vim",
    ] {
        check(command, &[config], false, true, PolicyVerdict::Ask);
    }
}
