//! Hostile repositories: with what [`stockade_shell::judge_argv`] says a run
//! must carry, nothing that the repository configures runs. Each attack is first
//! played without, and must succeed: a test that cannot fail proves nothing.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on must fail")]
#![allow(clippy::disallowed_methods, reason = "the tests start git")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use stockade_model::{RawText, Tier};
use stockade_shell::{
    CommandContext, SanitizeSettings, classify_argv, default_toolchain, has_no_submodules, is_plain_configuration,
};
use stockade_testkit::{copy_program, write_program};

/// A repository with one commit, and a program that leaves a mark when it runs.
struct Repository {
    _directory: tempfile::TempDir,
    root: PathBuf,
    mark: PathBuf,
    program: PathBuf,
}

impl Repository {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("repo");
        let mark = directory.path().join("mark");
        let program = directory.path().join("evil");
        fs::create_dir(&root).unwrap();
        let script = format!("#!/bin/sh\necho ran >> {}\nexit 1\n", mark.display());
        write_program(&program, script.as_bytes()).unwrap();
        let repository = Self { _directory: directory, root, mark, program };
        repository.git(&["init", "-q", "-b", "main"]);
        repository.write("a.txt", "one\n");
        repository.git(&["add", "."]);
        repository.commit("first");
        repository.write("a.txt", "two\n");
        repository.git(&["commit", "-q", "-a", "-m", "second"]);
        repository
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn commit(&self, message: &str) {
        self.git(&["commit", "-q", "-m", message]);
    }

    fn config(&self, key: &str, value: &str) {
        self.git(&["config", key, value]);
    }

    fn evil(&self) -> String {
        self.program.display().to_string()
    }

    /// A command as the host would prepare it: a plain environment.
    fn command(&self, directory: &Path, argv: &[&str]) -> Command {
        let mut command = Command::new(argv[0]);
        command.args(&argv[1..]).current_dir(directory).env_clear();
        command.env("PATH", std::env::var_os("PATH").unwrap()).env("HOME", self.root.parent().unwrap());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    fn git(&self, arguments: &[&str]) {
        let mut argv = vec!["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "protocol.file.allow=always"];
        argv.extend(arguments);
        let status = self.command(&self.root, &argv).status().unwrap();
        assert!(status.success(), "git {arguments:?}");
    }

    /// Whether the mark is there after a run; takes it away.
    fn ran(&self, directory: &Path, argv: &[&str], carried: Option<&SanitizeSettings>) -> bool {
        let _ = fs::remove_file(&self.mark);
        let mut command = self.command(directory, argv);
        if let Some(carried) = carried {
            command.envs(&carried.environment);
        }
        command.status().unwrap();
        fs::remove_file(&self.mark).is_ok()
    }

    /// What the runner finds by looking: the repository of a directory is plain.
    fn is_plain(&self, directory: &Path) -> bool {
        let top = directory.ancestors().find(|d| d.join(".git").exists()).unwrap();
        let git = top.join(".git");
        git.is_dir()
            && !git.join("commondir").exists()
            && is_plain_configuration(&fs::read(git.join("config")).unwrap())
            && fs::read(git.join("index")).map_or(true, |index| has_no_submodules(&index))
    }
}

fn classification(repository: &Repository, directory: &Path, argv: &[&str]) -> (Tier, SanitizeSettings) {
    let context = CommandContext {
        cwd: RawText::from(directory.as_os_str().as_encoded_bytes()),
        home: RawText::from("/home/nobody"),
        workspace: RawText::from(repository.root.as_os_str().as_encoded_bytes()),
        sanitized: true,
    };
    let words: Vec<RawText> = argv.iter().map(|w| RawText::from(*w)).collect();
    let classification = classify_argv(&words, &context);
    (classification.assessment.tier, classification.neutralisation)
}

/// How an attack is stopped.
#[derive(Debug, PartialEq)]
enum By {
    /// The variables.
    Environment,
    /// The repository is not plain, so that nothing is allowed in it.
    Look,
}

/// The attack succeeds as it stands, and fails by what the judge says.
#[track_caller]
fn stopped(repository: &Repository, directory: &Path, argv: &[&str], by: By) {
    let (tier, carried) = classification(repository, directory, argv);
    assert_eq!(tier, Tier::Allow, "{argv:?} is not allowed, so that nothing is shown here");
    assert!(repository.ran(directory, argv, None), "{argv:?}: the attack does not work without protection");
    let ran = repository.ran(directory, argv, Some(&carried));
    match by {
        By::Environment => assert!(!ran, "{argv:?}: ran although the variables were set"),
        By::Look => {
            let looked = !carried.plain_repositories.is_empty() && !carried.unknown_repository;
            assert!(looked, "{argv:?}: nobody looks at the repository");
            assert!(!repository.is_plain(directory), "{argv:?}: the repository passes for plain");
        }
    }
}

/// Every reading use that the attack may reach.
#[track_caller]
fn stopped_in_some(repository: &Repository, commands: &[&str], by: &By) {
    let mut shown = 0;
    for command in commands {
        let argv: Vec<&str> = command.split(' ').collect();
        let (tier, carried) = classification(repository, &repository.root, &argv);
        assert_eq!(tier, Tier::Allow, "{command}");
        // git skips what it believes to be unchanged, and writes its index where
        // a file was only touched.
        let play = |carried: Option<&SanitizeSettings>| {
            ["three\n", "two\n"].iter().any(|text| {
                repository.write("a.txt", text);
                repository.ran(&repository.root, &argv, carried)
            })
        };
        shown += usize::from(play(None));
        let ran = play(Some(&carried));
        let looked = !carried.plain_repositories.is_empty();
        assert!(!ran || (*by == By::Look && looked), "{command}: ran");
    }
    assert!(shown > 0, "the attack does not work at all");
    if *by == By::Look {
        assert!(!repository.is_plain(&repository.root));
    }
}

const READERS: &[&str] = &[
    "git status",
    "git status --porcelain=v2 --branch",
    "git diff",
    "git diff --stat",
    "git diff --cached",
    "git diff HEAD~1",
    "git show HEAD",
    "git show --stat HEAD",
    "git log -p",
    "git log --oneline -5",
    "git log --stat",
    "git log -Stwo",
    "git log -Gtwo",
    "git log -L1,1:a.txt",
    "git ls-files",
    "git ls-files -m",
    "git ls-files --others --exclude-standard",
    "git grep -n two",
    "git blame a.txt",
    "git branch -a",
    "git tag -l",
    "git describe --always",
    "git describe --always --dirty",
    "git rev-parse HEAD",
    "git reflog -5",
    "git shortlog -sn HEAD",
    "git cat-file -p HEAD",
    "git ls-tree HEAD",
    "git diff-tree -p HEAD",
    "git diff-index HEAD",
    "git diff-files",
    "git stash list",
    "git worktree list",
    "git for-each-ref",
    "git config --get remote.origin.url",
    "git check-ignore a.txt",
    "git check-attr diff a.txt",
];

#[test]
fn the_file_system_monitor_does_not_run() {
    let repository = Repository::new();
    repository.config("core.fsmonitor", &repository.evil());
    for command in ["git status", "git diff", "git ls-files", "git blame a.txt", "git grep -n two"] {
        let argv: Vec<&str> = command.split(' ').collect();
        stopped(&repository, &repository.root, &argv, By::Environment);
    }
    stopped_in_some(&repository, READERS, &By::Environment);
}

#[test]
fn hooks_do_not_run() {
    let repository = Repository::new();
    let hooks = repository.root.join(".git/hooks");
    for hook in ["post-index-change", "fsmonitor-watchman", "pre-auto-gc", "reference-transaction"] {
        copy_program(&repository.program, &hooks.join(hook)).unwrap();
    }
    stopped_in_some(&repository, READERS, &By::Environment);
    repository.config("core.hooksPath", &hooks.display().to_string());
    stopped_in_some(&repository, READERS, &By::Environment);
}

#[test]
fn signatures_are_not_checked() {
    let repository = Repository::new();
    let signed = "tree 4b825dc642cb6eb9a060e54bf8d69288fbee4904\nauthor a <a@b> 0 +0000\ncommitter a <a@b> 0 +0000\ngpgsig -----BEGIN PGP SIGNATURE-----\n \n aaaa\n -----END PGP SIGNATURE-----\n\nsigned\n";
    repository.write("commit", signed);
    repository.git(&["hash-object", "-w", "-t", "commit", "commit"]);
    let output = repository.command(&repository.root, &["git", "hash-object", "-t", "commit", "commit"]);
    let id = { output }.stdout(Stdio::piped()).output().unwrap().stdout;
    repository.git(&["reset", "-q", "--soft", String::from_utf8(id).unwrap().trim()]);
    fs::remove_file(repository.root.join("commit")).unwrap();
    repository.config("gpg.program", &repository.evil());
    repository.config("log.showSignature", "true");
    stopped(&repository, &repository.root, &["git", "log", "--oneline", "-5"], By::Environment);
    stopped_in_some(&repository, READERS, &By::Environment);
    repository.config("log.showSignature", "false");
    repository.config("format.pretty", "%G?");
    stopped(&repository, &repository.root, &["git", "log", "-5"], By::Environment);
    repository.config("gpg.openpgp.program", &repository.evil());
    stopped(&repository, &repository.root, &["git", "log", "-5"], By::Environment);
}

#[test]
fn pagers_do_not_run_in_a_terminal() {
    let repository = Repository::new();
    repository.config("core.pager", &repository.evil());
    for command in ["log", "branch", "diff", "status", "tag", "show", "grep", "blame", "stash", "reflog", "config"] {
        repository.config(&format!("pager.{command}"), &repository.evil());
    }
    let mut shown = 0;
    for command in READERS {
        let argv: Vec<&str> = command.split(' ').collect();
        let (_, carried) = classification(&repository, &repository.root, &argv);
        // script(1) gives it a terminal.
        let in_terminal = ["script", "-qec", command, "/dev/null"];
        shown += usize::from(repository.ran(&repository.root, &in_terminal, None));
        assert!(!repository.ran(&repository.root, &in_terminal, Some(&carried)), "{command}");
    }
    assert!(shown > 5, "{shown} of them used a pager without protection");
}

#[test]
fn a_repository_hidden_in_a_directory_does_not_take_over() {
    let repository = Repository::new();
    let hidden = repository.root.join("src");
    repository.git(&["init", "-q", "--bare", "src"]);
    let config = format!(
        "[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tworktree = {}\n\tfsmonitor = {}\n",
        hidden.display(),
        repository.evil()
    );
    fs::write(hidden.join("config"), config).unwrap();
    stopped(&repository, &hidden, &["git", "status"], By::Environment);
    stopped(&repository, &repository.root, &["git", "-C", "src", "status", "-s"], By::Environment);
}

#[test]
fn nothing_is_fetched_on_the_way() {
    let repository = Repository::new();
    repository.config("core.repositoryformatversion", "1");
    repository.config("extensions.partialClone", "origin");
    repository.config("remote.origin.promisor", "true");
    repository.config("remote.origin.url", &format!("ext::{}", repository.evil()));
    repository.config("protocol.ext.allow", "always");
    let blob = repository.command(&repository.root, &["git", "rev-parse", "HEAD~1:a.txt"]);
    let id = String::from_utf8({ blob }.stdout(Stdio::piped()).output().unwrap().stdout).unwrap();
    let (first, rest) = id.trim().split_at(2);
    fs::remove_file(repository.root.join(".git/objects").join(first).join(rest)).unwrap();
    stopped(&repository, &repository.root, &["git", "cat-file", "-p", "HEAD~1:a.txt"], By::Environment);
    stopped_in_some(&repository, READERS, &By::Environment);
}

/// Drivers have names of the repository's choosing: no variable switches them
/// off, so that the runner must look.
#[test]
fn drivers_are_looked_for() {
    for (attribute, key) in [
        ("*.txt filter=evil", "filter.evil.clean"),
        ("*.txt filter=evil", "filter.evil.process"),
        ("*.txt diff=evil", "diff.evil.textconv"),
        ("*.txt diff=evil", "diff.evil.command"),
    ] {
        let repository = Repository::new();
        repository.config(key, &repository.evil());
        repository.write(".gitattributes", attribute);
        stopped_in_some(&repository, READERS, &By::Look);
        fs::remove_file(repository.root.join(".gitattributes")).unwrap();
        fs::write(repository.root.join(".git/info/attributes"), attribute).unwrap();
        stopped_in_some(&repository, READERS, &By::Look);
    }
    let repository = Repository::new();
    repository.config("diff.external", &repository.evil());
    stopped_in_some(&repository, READERS, &By::Look);
}

/// A driver behind an include, in another file of the repository.
#[test]
fn drivers_behind_includes_are_looked_for() {
    let repository = Repository::new();
    repository.write("more", &format!("[filter \"evil\"]\n\tclean = {}\n", repository.evil()));
    repository.config("include.path", "../more");
    repository.write(".gitattributes", "*.txt filter=evil");
    stopped_in_some(&repository, READERS, &By::Look);
    let repository = Repository::new();
    repository.config("extensions.worktreeConfig", "true");
    fs::write(
        repository.root.join(".git/config.worktree"),
        format!("[filter \"evil\"]\n\tclean = {}\n", repository.evil()),
    )
    .unwrap();
    repository.write(".gitattributes", "*.txt filter=evil");
    stopped_in_some(&repository, READERS, &By::Look);
}

/// git starts itself in each submodule, under that one's configuration.
#[test]
fn submodules_are_looked_for() {
    let repository = Repository::new();
    let inner = repository.root.join("sub");
    fs::create_dir(&inner).unwrap();
    for arguments in [&["init", "-q"][..], &["commit", "-q", "--allow-empty", "-m", "x"]] {
        let mut argv = vec!["git", "-c", "user.name=a", "-c", "user.email=a@b"];
        argv.extend(arguments);
        assert!(repository.command(&inner, &argv).status().unwrap().success());
    }
    fs::write(inner.join("b.txt"), "one\n").unwrap();
    assert!(repository.command(&inner, &["git", "add", "b.txt"]).status().unwrap().success());
    repository.git(&["add", "sub"]);
    repository.commit("with a submodule");
    fs::write(inner.join("b.txt"), "two\n").unwrap();
    let config = inner.join(".git/config");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, format!("{text}[filter \"evil\"]\n\tclean = {}\n", repository.evil())).unwrap();
    fs::write(inner.join(".gitattributes"), "*.txt filter=evil").unwrap();
    repository.write(".gitmodules", "[submodule \"sub\"]\n\tpath = sub\n\turl = ./sub\n\tignore = none\n");
    stopped(&repository, &repository.root, &["git", "status"], By::Look);
}

/// What is allowed without a look must not be reached by any driver.
#[test]
fn unneeded_checks_run_nothing() {
    let repository = Repository::new();
    for key in ["filter.evil.clean", "diff.evil.textconv", "diff.evil.command", "diff.external", "merge.evil.driver"] {
        repository.config(key, &repository.evil());
    }
    repository.write(".gitattributes", "*.txt filter=evil diff=evil merge=evil");
    let mut seen = 0;
    for command in READERS {
        let argv: Vec<&str> = command.split(' ').collect();
        let (tier, carried) = classification(&repository, &repository.root, &argv);
        assert_eq!(tier, Tier::Allow, "{command}");
        if carried.plain_repositories.is_empty() {
            seen += 1;
            repository.write("a.txt", &format!("{seen}\n"));
            assert!(!repository.ran(&repository.root, &argv, Some(&carried)), "{command}: ran");
        }
    }
    assert!(seen > 10, "{seen}");
}

/// Where rustup stands between: a file of the repository names the program.
#[test]
fn a_toolchain_of_the_repository_does_not_run() {
    let home = PathBuf::from(std::env::var_os("HOME").unwrap());
    let rustup = std::env::var_os("RUSTUP_HOME").map_or(home.join(".rustup"), PathBuf::from);
    let proxies = home.join(".cargo/bin");
    let Ok(settings) = fs::read(rustup.join("settings.toml")) else { return };
    let Some(default) = default_toolchain(&settings).filter(|_| proxies.join("rustup").exists()) else { return };
    let repository = Repository::new();
    let toolchain = repository.root.join("evil-toolchain");
    repository.write("rust-toolchain.toml", &format!("[toolchain]\npath = {:?}\n", toolchain.display().to_string()));
    let bin = toolchain.join("bin");
    fs::create_dir_all(&bin).unwrap();
    fs::create_dir_all(repository.root.join("evil-toolchain/lib")).unwrap();
    for name in ["cargo", "rustc"] {
        copy_program(&repository.program, &bin.join(name)).unwrap();
    }
    for command in ["cargo --version", "rustc --version", "cargo metadata --no-deps --offline --format-version 1"] {
        let argv: Vec<&str> = command.split(' ').collect();
        let (tier, carried) = classification(&repository, &repository.root, &argv);
        assert_eq!(tier, Tier::Allow, "{command}");
        assert!(carried.rustup, "{command}");
        let ran = |carried: Option<&SanitizeSettings>| {
            let _ = fs::remove_file(&repository.mark);
            let mut run = repository.command(&repository.root, &argv);
            run.env("PATH", format!("{}:/usr/bin:/bin", proxies.display()))
                .env("HOME", &home)
                .env("RUSTUP_HOME", &rustup);
            if let Some(carried) = carried {
                run.envs(&carried.environment).env("RUSTUP_TOOLCHAIN", &default);
            }
            let _ = run.status().unwrap();
            fs::remove_file(&repository.mark).is_ok()
        };
        assert!(ran(None), "{command}: the attack does not work without protection");
        assert!(!ran(Some(&carried)), "{command}: ran");
    }
    // Without the file, the settings of cargo name compilers and wrappers.
    fs::remove_file(repository.root.join("rust-toolchain.toml")).unwrap();
    repository.write(
        "Cargo.toml",
        "[package]\nname = \"x\"\nversion = \"0.1.0\"\nedition = \"2021\"\n[lib]\npath = \"x.rs\"\n",
    );
    repository.write("x.rs", "");
    let evil = repository.evil();
    repository.write(".cargo/config.toml", &format!("[build]\nrustc = {evil:?}\nrustc-wrapper = {evil:?}\n"));
    let argv = ["cargo", "metadata", "--no-deps", "--offline", "--format-version", "1"];
    let (_, carried) = classification(&repository, &repository.root, &argv);
    let mut run = repository.command(&repository.root, &argv);
    run.env("PATH", format!("{}:/usr/bin:/bin", proxies.display())).env("HOME", &home).env("RUSTUP_HOME", &rustup);
    run.envs(&carried.environment).env("RUSTUP_TOOLCHAIN", &default);
    assert!(run.status().unwrap().success());
    assert!(!repository.mark.exists());
}

#[test]
fn an_ordinary_repository_works_as_before() {
    let repository = Repository::new();
    repository.write("a.txt", "changed\n");
    for command in READERS {
        let argv: Vec<&str> = command.split(' ').collect();
        let (_, carried) = classification(&repository, &repository.root, &argv);
        let output = |carried: Option<&SanitizeSettings>| {
            let mut command = repository.command(&repository.root, &argv);
            if let Some(carried) = carried {
                command.envs(&carried.environment);
            }
            command.stdout(Stdio::piped()).output().unwrap().stdout
        };
        assert_eq!(output(None), output(Some(&carried)), "{command}");
    }
    assert!(repository.is_plain(&repository.root));
}

#[test]
fn only_an_allowed_command_carries_anything() {
    let repository = Repository::new();
    let (tier, carried) = classification(&repository, &repository.root, &["git", "commit", "-m", "x"]);
    assert_eq!(tier, Tier::Ask);
    assert!(carried.environment.is_empty() && carried.remove.is_empty(), "hooks of a commit are wanted");
    assert_eq!(carried.quiet_repositories, [RawText::from(repository.root.as_os_str().as_encoded_bytes())]);
    let (tier, carried) = classification(&repository, &repository.root, &["ls", "-la"]);
    assert_eq!((tier, carried.is_empty()), (Tier::Allow, true));
}

/// Which repository it is, or what it is by then, is not in the text.
#[test]
fn an_unidentifiable_repository_is_unknown() {
    for (command, is_unknown) in [
        ("git commit -m x", false),
        ("git -C sub commit -m x", false),
        ("git -C ../x commit -m x", false),
        ("cd a/.. && git commit -m x", false),
        ("touch a && git add a && git commit -m x", false),
        ("git -C link/.. commit -m x", true),
        ("git -C link/.. diff", true),
        ("cd -P link/.. && git commit -m x", true),
        ("mv good g2 && mv evil good && git -C good commit -m x", true),
        ("tar -xf a.tar && cd sub && git commit -m x", true),
    ] {
        let (workspace, home) = (RawText::from("/home/dev/x"), RawText::from("/home/dev"));
        let context = CommandContext { cwd: workspace.clone(), home, workspace, sanitized: true };
        let carried = stockade_shell::classify_script(command.as_bytes(), &context).neutralisation;
        assert_eq!(carried.unknown_repository, is_unknown, "{command}: {carried:?}");
    }
}
