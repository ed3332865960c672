//! Hints lead to the end: what is refused without a power passes once each hint has been
//! followed as it stands, and nothing else is needed.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use stockade_testkit::{ProgramEnd, ProgramOutput};

use crate::world::{World, binary, one_user};

/// Most hints that are given after one run.
const MAX_HINTS: usize = 5;

/// Work that lacks powers.
struct Work {
    name: &'static str,
    /// A script without a sandbox that makes it ready, in the workspace.
    before: &'static str,
    /// Where it is done, in the workspace.
    at: &'static str,
    /// `PORT` is that of a server of the host, which has the directory above the workspace.
    script: &'static str,
}

const WORKS: &[Work] = &[
    Work {
        name: "push to a repository beside",
        before: "git init -q; git commit -q --allow-empty -m x; git init -q --bare ../out/o.git; \
                 git remote add origin ../out/o.git",
        at: "",
        script: "git push -q origin HEAD:main",
    },
    Work {
        name: "commit in a directory of the repository",
        before: "git init -q; mkdir -p a/b",
        at: "a/b",
        script: "echo x >f; git add f; git -c user.name=x -c user.email=x commit -qm x",
    },
    Work {
        name: "a work tree beside",
        before: "git init -q; git commit -q --allow-empty -m x",
        at: "",
        script: "git worktree add -q ../out/tree",
    },
    Work { name: "a directory outside", before: "true", at: "", script: "mkdir -p ../out/a/b && echo x >../out/a/b/c" },
    Work {
        name: "names made up outside",
        before: "mkdir -p ../out/made",
        at: "",
        script: "for n in 1 2 3; do mktemp ../out/made/x.XXXXXX || failed=1; done; exit ${failed:-0}",
    },
    Work {
        name: "many files outside",
        before: "mkdir -p ../out/many",
        at: "",
        script: "for n in 1 2 3 4 5 6 7; do echo x >../out/many/$n || failed=1; done; exit ${failed:-0}",
    },
    Work {
        name: "settings behind a lock",
        before: "true",
        at: "",
        script: "git config --file ../settings user.name x",
    },
    Work {
        name: "the person's settings of git",
        before: "git config --global user.name x",
        at: "",
        script: "git config --global user.name y",
    },
    Work {
        name: "a server of the host",
        before: "true",
        at: "",
        script: "curl -sSf http://localhost:PORT/canary && curl -sSf http://127.0.0.1:PORT/canary",
    },
    Work {
        name: "clone over http",
        before: "git init -q ../out/r; git -C ../out/r commit -q --allow-empty -m x; \
                 git -C ../out/r update-server-info",
        at: "",
        script: "git clone -q http://localhost:PORT/r/.git r && git -C r log --oneline",
    },
];

#[test]
fn each_hint_that_is_followed_makes_the_work_pass() {
    for level in ["full", "restricted"] {
        for work in WORKS {
            one_user(|world| follow(world, work, level));
        }
    }
}

fn follow(world: &World, work: &Work, level: &str) {
    let what = format!("{} at {level}", work.name);
    world.dir("out");
    world.file("out/canary", "canary\n");
    let identity = "export GIT_AUTHOR_NAME=x GIT_AUTHOR_EMAIL=x GIT_COMMITTER_NAME=x GIT_COMMITTER_EMAIL=x";
    let before = world.run(&world.bare(&["sh", "-ec", &format!("{identity}; {}", work.before)]));
    assert_eq!(before.ended, ProgramEnd::Code(0), "{what}: {}", before.combined_text());
    let script = work.script.replace("PORT", &serve(world.outside()).to_string());
    let play = |options: &[&str]| -> ProgramOutput {
        let binary = binary();
        let run = [&binary, "run", "--mode", "never", "--level", level];
        let mut command = world.bare(&[&run, options, &["--", "sh", "-c", &script]].concat());
        command.cwd = world.workspace().join(work.at);
        world.run(&command)
    };
    let refused = play(&[]);
    assert_ne!(refused.ended, ProgramEnd::Code(0), "{what}: it needs nothing: {}", refused.combined_text());
    let hints: Vec<&str> = refused.stderr.lines().filter_map(|line| line.trim_start().strip_prefix("hint: ")).collect();
    assert!(!hints.is_empty() && hints.len() <= MAX_HINTS, "{what}: {}", refused.stderr);
    // A person at a terminal is told `--grant`.
    let followed: Vec<String> = hints.iter().flat_map(|hint| words(&hint.replace("--request ", "--grant "))).collect();
    let passed = play(&followed.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(passed.ended, ProgramEnd::Code(0), "{what}: {followed:?}: {}", passed.combined_text());
    assert!(!passed.stderr.contains("refused"), "{what}: {}", passed.stderr);
}

/// The words of a line of options, whose values are quoted by single quotes.
fn words(line: &str) -> Vec<String> {
    let mut all = Vec::new();
    for (index, part) in line.split('\'').enumerate() {
        match index % 2 {
            0 => all.extend(part.split_whitespace().map(str::to_owned)),
            _ => all.push(part.to_owned()),
        }
    }
    all
}

/// The port of a server with the files of `directory`, on the host's 127.0.0.1.
fn serve(directory: PathBuf) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let _ = answer(stream, &directory);
        }
    });
    port
}

fn answer(mut stream: TcpStream, directory: &Path) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut request_line = String::new();
    let mut reader = BufReader::new(stream.try_clone()?);
    reader.read_line(&mut request_line)?;
    let mut line = String::new();
    while reader.read_line(&mut line)? > 2 {
        line.clear();
    }
    let path =
        request_line.split(' ').nth(1).and_then(|path| path.split('?').next()).unwrap_or("/").trim_start_matches('/');
    let (state, body) = match fs::read(directory.join(path)) {
        Ok(body) => ("200 OK", body),
        Err(_) => ("404 Not Found", Vec::new()),
    };
    write!(stream, "HTTP/1.1 {state}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len())?;
    stream.write_all(&body)
}
