//! Clones of a repository whose maker, server and surroundings are hostile. The
//! commands are run here as they are: what keeps them in is not the question.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use stockade_lifecycle::{clone_steps, diff_commands, head_command};
use stockade_model::{GitRevision, Grant, RawText, RepositoryUrl};
use stockade_testkit::write_program;

/// A repository on a server of its own, and a home whose settings start programs.
struct Ground {
    dir: tempfile::TempDir,
    url: RepositoryUrl,
}

impl Ground {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let ground = dir.path().to_owned();
        fs::create_dir_all(ground.join("home/template/hooks")).unwrap();
        let marking = |name: &str| format!("touch '{}'", ground.join(format!("marks-{name}")).display());
        script(&ground.join("home/template/hooks/post-checkout"), &marking("template"));
        script(&ground.join("home/hooks/post-checkout"), &marking("hooks"));
        let settings = format!(
            "[core]\n hooksPath = {hooks}\n[init]\n templateDir = {template}\n[filter \"evil\"]\n smudge = \"{filter}; cat\"\n\
             [submodule]\n recurse = true\n[protocol]\n allow = always\n[credential]\n helper = \"!{helper}; true\"\n",
            hooks = ground.join("home/hooks").display(),
            template = ground.join("home/template").display(),
            filter = marking("filter"),
            helper = marking("helper"),
        );
        fs::write(ground.join("home/.gitconfig"), settings).unwrap();
        let server = Server::start(ground.join("served"));
        let url: RepositoryUrl = format!("http://127.0.0.1:{}/hostile.git", server.port).parse().unwrap();
        let made = Self { dir, url };
        made.make_repository(&marking("submodule"));
        made
    }

    /// Filters for each file, and a submodule whose transport is a program.
    fn make_repository(&self, marking: &str) {
        let source = self.path("source");
        let git = |arguments: &[&str]| {
            let mut command = quiet("git");
            command.args(["-c", "user.name=t", "-c", "user.email=t@t", "-c", "init.defaultBranch=main"]);
            command.args(arguments).current_dir(&source).env("HOME", "/nonexistent");
            assert!(command.status().unwrap().success(), "git {arguments:?}");
        };
        fs::create_dir(&source).unwrap();
        git(&["init", "--quiet"]);
        fs::write(source.join("file"), "content\n").unwrap();
        git(&["add", "."]);
        git(&["commit", "--quiet", "-m", "first"]);
        git(&["tag", "v1"]);
        fs::write(source.join(".gitattributes"), "* filter=evil\n").unwrap();
        let transport = self.path("transport");
        script(&transport, marking);
        let modules = format!("[submodule \"sub\"]\n path = sub\n url = ext::{} %S\n", transport.display());
        fs::write(source.join(".gitmodules"), modules).unwrap();
        git(&["add", "."]);
        git(&["update-index", "--add", "--cacheinfo", "160000,0123456789012345678901234567890123456789,sub"]);
        git(&["commit", "--quiet", "-m", "second"]);
        git(&["branch", "side/line", "v1"]);
        git(&["clone", "--quiet", "--bare", ".", "../served/hostile.git"]);
        git(&["--git-dir=../served/hostile.git", "update-server-info"]);
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// What ran that nobody asked for.
    fn marks(&self) -> Vec<String> {
        let names =
            fs::read_dir(self.dir.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut marks: Vec<String> = names.filter(|name| name.starts_with("marks-")).collect();
        marks.sort();
        marks
    }

    /// A command as a person with that home would run it.
    fn run(&self, program: &Command, workspace: &Path) -> bool {
        let mut command = quiet(program.get_program().to_str().unwrap());
        command.args(program.get_args()).current_dir(workspace);
        command.env("HOME", self.path("home")).env("GIT_CONFIG_NOSYSTEM", "0").env_remove("GIT_CONFIG_GLOBAL");
        command.env("GIT_ALLOW_PROTOCOL", "http:ext").env("GIT_TERMINAL_PROMPT", "1");
        command.status().unwrap().success()
    }

    fn clone(&self, revision: Option<&str>) -> (bool, PathBuf) {
        let workspace = self.path(&format!("workspace-{}", revision.unwrap_or("none").replace('/', "-")));
        fs::create_dir(&workspace).unwrap();
        let clone = clone_steps(&self.url, revision.map(|name| name.parse().unwrap()).as_ref());
        assert!(clone.grants.contains(&Grant::connect_to(self.url.target())));
        let all = clone.commands.iter().all(|argv| {
            let mut command = quiet(argv[0].to_str().unwrap());
            command.args(argv[1..].iter().map(|argument| argument.as_os_str()));
            self.run(&command, &workspace)
        });
        (all, workspace)
    }
}

#[allow(clippy::disallowed_methods, reason = "tests start git")]
fn quiet(program: &str) -> Command {
    let mut command = Command::new(program);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn script(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    write_program(path, format!("#!/bin/sh\n{text}\n").as_bytes()).unwrap();
}

/// Files over HTTP, which is all that git's plain transport needs.
struct Server {
    port: u16,
}

impl Server {
    /// Lives as long as the test's process.
    fn start(root: PathBuf) -> Self {
        fs::create_dir(&root).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let _ = answer(&stream, &root);
            }
        });
        Self { port }
    }
}

fn answer(stream: &TcpStream, root: &Path) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.take(64 << 10)).lines();
    let request = lines.next().unwrap_or(Ok(String::new()))?;
    while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
    let path = request.split(' ').nth(1).unwrap_or_default().split('?').next().unwrap_or_default();
    let mut stream = stream;
    match fs::read(root.join(path.trim_start_matches('/'))) {
        Ok(content) => {
            write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", content.len())?;
            stream.write_all(&content)
        }
        Err(_) => stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"),
    }
}

#[test]
fn a_clone_starts_nothing_but_git() {
    let ground = Ground::new();
    let (cloned, workspace) = ground.clone(None);
    assert!(cloned);
    assert_eq!(fs::read_to_string(workspace.join("file")).unwrap(), "content\n");
    assert!(workspace.join(".gitmodules").exists() && !workspace.join("sub/.git").exists());
    assert!(!workspace.join(".git/hooks").exists(), "a template was copied");
    assert_eq!(ground.marks(), [""; 0]);
    // The control: the same home and the same repository, as git does by itself.
    let plain = ground.path("plain");
    fs::create_dir(&plain).unwrap();
    let mut command = quiet("git");
    command.args(["clone", "--recurse-submodules", ground.url.as_str(), "."]);
    ground.run(&command, &plain);
    assert_eq!(ground.marks(), ["marks-filter", "marks-hooks", "marks-submodule"]);
}

#[test]
fn a_branch_a_tag_and_a_commit_are_checked_out_and_nothing_else() {
    let ground = Ground::new();
    let head = |workspace: &Path| {
        let mut git = quiet("git");
        let output = git.args(["rev-parse", "HEAD"]).current_dir(workspace).stdout(Stdio::piped()).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    let (cloned, workspace) = ground.clone(Some("v1"));
    let first = head(&workspace);
    assert!(cloned && workspace.join("file").exists() && !workspace.join(".gitmodules").exists());
    for revision in ["side/line", first.as_str()] {
        let (cloned, workspace) = ground.clone(Some(revision));
        assert!(cloned, "{revision}");
        assert_eq!(head(&workspace), first, "{revision}");
    }
    for missing in ["nothing", "file", "0123456789012345678901234567890123456789"] {
        assert!(!ground.clone(Some(missing)).0, "{missing}");
    }
    assert_eq!(ground.marks(), [""; 0]);
}

#[test]
fn no_user_is_asked_for_a_password() {
    let ground = Ground::new();
    // A server that wants one: git ends, and starts no helper.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut lines = BufReader::new(&stream).lines();
            while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
            let head = "HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Basic realm=\"x\"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
            let _ = (&stream).write_all(head.as_bytes());
        }
    });
    let url: RepositoryUrl = format!("http://127.0.0.1:{port}/private.git").parse().unwrap();
    let asking = Ground { dir: ground.dir, url };
    assert!(!asking.clone(None).0);
    assert_eq!(asking.marks(), [""; 0]);
    let mut plain = quiet("git");
    plain.args(["clone", asking.url.as_str(), "plain"]);
    assert!(!asking.run(&plain, asking.dir.path()));
    assert_eq!(asking.marks(), ["marks-helper"]);
}

#[test]
fn results_of_a_clone_are_reported_despite_changed_settings() {
    let ground = Ground::new();
    let (cloned, workspace) = ground.clone(Some("v1"));
    assert!(cloned);
    let tell = |words: &[RawText]| {
        let mut command = quiet(words[0].to_str().unwrap());
        command.args(words[1..].iter().map(RawText::as_os_str)).current_dir(&workspace).stdout(Stdio::piped());
        let output = command.env("HOME", ground.path("home")).output().unwrap();
        assert!(output.status.success(), "{words:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let base: GitRevision = tell(&head_command()).trim().parse().unwrap();
    fs::write(workspace.join("file"), "changed\n").unwrap();
    fs::write(workspace.join("new"), "new\n").unwrap();
    let committed = |name: &str| {
        let mut git = quiet("git");
        git.args([
            "-c",
            "user.name=t",
            "-c",
            "user.email=t@t",
            "-c",
            "core.hooksPath=/dev/null",
            "commit",
            "-qam",
            name,
        ]);
        assert!(git.current_dir(&workspace).env("HOME", "/nonexistent").status().unwrap().success());
    };
    committed("hidden from a plain diff");
    let marking = |name: &str| format!("touch '{}'; cat", ground.path(&format!("marks-{name}")).display());
    let settings = format!(
        "[diff]\n external = {0}\n[core]\n pager = \"{1}\"\n fsmonitor = \"{2}\"\n[diff \"own\"]\n textconv = \"{3}\"\n",
        "/bin/false",
        marking("pager"),
        marking("monitor"),
        marking("text")
    );
    let mut config = fs::OpenOptions::new().append(true).open(workspace.join(".git/config")).unwrap();
    config.write_all(settings.as_bytes()).unwrap();
    fs::create_dir_all(workspace.join(".git/info")).unwrap();
    fs::write(workspace.join(".git/info/attributes"), "* diff=own\n").unwrap();
    let command_text: String = diff_commands(&base).iter().map(|words| tell(words)).collect();
    for line in ["-content", "+changed", "+++ b/new", "+new"] {
        assert!(command_text.lines().any(|command_text| command_text == line), "{line}:\n{command_text}");
    }
    assert_eq!(ground.marks(), [""; 0]);
    // The control: git by itself does as it is told there.
    let mut plain = quiet("git");
    plain.args(["diff", base.as_str(), "--"]).current_dir(&workspace).env("HOME", "/nonexistent");
    assert!(!plain.status().unwrap().success());
}
