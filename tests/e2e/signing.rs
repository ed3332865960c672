//! Keys of the person's ssh agent in runs: they sign what was granted, with real agents,
//! servers and git. Each attack on the agent of a run is first made on the person's own, where
//! it succeeds.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use stockade_testkit::{ProgramEnd, ProgramOutput, RunningProgram, TestCommand};

use crate::world::{World, binary, each_user};

const LEVELS: [&str; 2] = ["full", "restricted"];
/// The path at which a run finds its agent.
const INSIDE: &str = "/run/stockade/ssh-agent";
const CLIENT: &str = include_str!("programs/agent_client.py");

/// A program that is ended with this.
struct Served(Option<RunningProgram>);

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(running) = self.0.take() {
            let _ = running.send_signal(Signal::TERM);
            let _ = running.wait_for_end();
        }
    }
}

/// A person with an agent and keys.
struct Person<'a> {
    world: &'a World,
    socket: PathBuf,
    client: PathBuf,
    _agent: Served,
}

impl<'a> Person<'a> {
    fn new(world: &'a World, keys: &[&str]) -> Self {
        let socket = world.dir("out/agents").join(format!("{}.sock", keys.len()));
        let agent = Person::serve(world, &["ssh-agent", "-D", "-a", path(&socket)]);
        let client = world.file("ws/agent_client.py", CLIENT);
        let person = Self { world, socket, client, _agent: agent };
        wait_for(|| person.socket.exists(), "the agent's socket");
        for key in keys {
            let file = world.outside().join(key);
            if !file.exists() {
                person.outside(&["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", key, "-f", path(&file)]);
            }
            person.outside(&["ssh-add", "-q", path(&file)]);
        }
        person
    }

    fn serve(world: &World, argv: &[&str]) -> Served {
        Served(Some(
            RunningProgram::start(&world.account, &world.bare(argv).timeout(Duration::from_secs(900))).unwrap(),
        ))
    }

    fn command(&self, command: TestCommand) -> ProgramOutput {
        self.world.run(&command.env("SSH_AUTH_SOCK", &self.socket))
    }

    #[track_caller]
    fn outside(&self, argv: &[&str]) -> String {
        let output = self.command(self.world.bare(argv));
        assert_eq!(output.ended, ProgramEnd::Code(0), "{argv:?}\n{}\n{}", output.stdout, output.stderr);
        output.stdout.trim().to_owned()
    }

    fn inside(&self, options: &[&str], argv: &[&str]) -> ProgramOutput {
        self.command(self.world.stockade(options, argv))
    }

    #[track_caller]
    fn passes(&self, options: &[&str], argv: &[&str]) -> String {
        let output = self.inside(options, argv);
        assert_eq!(output.ended, ProgramEnd::Code(0), "{options:?} {argv:?}\n{}\n{}", output.stdout, output.stderr);
        output.stdout.trim().to_owned()
    }

    fn key(&self, name: &str) -> String {
        path(&self.world.outside().join(name)).to_owned()
    }

    fn public(&self, name: &str) -> String {
        self.key(name) + ".pub"
    }

    /// The fingerprint of a key.
    fn fingerprint(&self, name: &str) -> String {
        let shown = self.outside(&["ssh-keygen", "-l", "-f", &self.public(name)]);
        shown.split_ascii_whitespace().nth(1).unwrap().to_owned()
    }

    /// What the raw client makes of the person's agent.
    #[track_caller]
    fn raw(&self, arguments: &[&str]) -> String {
        self.outside(&[&["python3", path(&self.client), path(&self.socket)], arguments].concat())
    }

    /// What it makes of the agent of a run.
    #[track_caller]
    fn granted(&self, level: &str, grant: &str, arguments: &[&str]) -> String {
        let argv = [&["python3", path(&self.client), INSIDE], arguments].concat();
        self.passes(&["--level", level, "--grant", grant], &argv)
    }

    /// Makes a repository in the workspace, and the settings of a person who signs.
    fn repository(&self) {
        let text = std::fs::read_to_string(self.public("id")).unwrap();
        self.world.dir("home/.ssh");
        self.world.file("home/.ssh/id.pub", &text);
        self.world.file("out/signers", &format!("me@example.org {text}"));
        self.world.file(
            "home/.gitconfig",
            "[user]\n\tname = Me\n\temail = me@example.org\n\tsigningkey = ~/.ssh/id.pub\n[gpg]\n\tformat = ssh\n",
        );
        self.outside(&["git", "init", "-q", "-b", "main", "."]);
    }
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn wait_for(is_there: impl Fn() -> bool, what: &str) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_there() {
        assert!(Instant::now() < deadline, "{what} is not there");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn commits_are_signed_and_verify_outside() {
    each_user(|world| {
        let person = Person::new(world, &["id", "other"]);
        person.repository();
        let commit = ["git", "commit", "-q", "--allow-empty", "-S", "-m", "signed"];
        for level in LEVELS {
            let refused = person.inside(&["--level", level], &commit);
            assert_ne!(refused.ended, ProgramEnd::Code(0), "without a grant");
            person.passes(&["--level", level, "--grant", "@git-signing"], &commit);
            let signers = format!("gpg.ssh.allowedSignersFile={}", path(&world.outside().join("signers")));
            person.outside(&["git", "-c", &signers, "verify-commit", "HEAD"]);
            person.passes(&["--level", level, "--grant", "@git-signing"], &["git", "tag", "-s", "-m", "t", level]);
            person.outside(&["git", "-c", &signers, "verify-tag", level]);
        }
        let log = person.outside(&[&binary(), "audit", "query", "--type", "signed"]);
        let grant = format!("sign {} for git", person.fingerprint("id"));
        assert_eq!(log.lines().filter(|line| line.contains(&grant) && line.contains("sha512:")).count(), 4, "{log}");
    });
}

#[test]
fn a_key_for_git_signs_nothing_else_and_no_other_key_signs() {
    each_user(|world| {
        let person = Person::new(world, &["id", "other"]);
        let (own, other) = (person.public("id"), person.public("other"));
        let grant = format!("sign {} for git", person.fingerprint("id"));
        assert_eq!(person.raw(&["list"]), "2");
        for (key, data) in [(&own, "git"), (&own, "file"), (&own, "bytes"), (&own, "longer"), (&other, "git")] {
            assert_eq!(person.raw(&["sign", key, data]), "done", "{data}");
        }
        assert_eq!(person.raw(&["authenticate", &own, "session"]), "done");
        for level in LEVELS {
            assert_eq!(person.granted(level, &grant, &["list"]), "1");
            assert_eq!(person.granted(level, &grant, &["sign", &own, "git"]), "done");
            for (key, data) in [(&own, "file"), (&own, "bytes"), (&own, "longer"), (&other, "git")] {
                assert_eq!(person.granted(level, &grant, &["sign", key, data]), "refused", "{data}");
            }
            assert_eq!(person.granted(level, &grant, &["authenticate", &own, "session"]), "refused");
            assert_eq!(person.granted(level, &grant, &["malformed"]), "1");
            let many = person.granted(level, &grant, &["many", "1000"]);
            let served: usize = many.strip_prefix("1 ").unwrap().parse().unwrap();
            assert!((1..=16).contains(&served), "{many}");
        }
        let outcome: Value = serde_json::from_str(&person.passes(&["--json", "--grant", &grant], &["true"])).unwrap();
        let layer = &outcome["attempts"][0]["enforced"]["layers"]["ssh-agent"];
        assert!(layer["detail"].as_str().unwrap().contains(&grant["sign ".len()..]), "{layer}");
        let refused =
            person.inside(&["--grant", &grant], &["python3", path(&person.client), INSIDE, "sign", &other, "git"]);
        let hint = format!("--request 'sign {} for git'", person.fingerprint("other"));
        assert!(refused.stderr.contains(&hint), "{}", refused.stderr);
    });
}

#[test]
fn the_users_agent_is_never_changed_and_reached_by_no_grant() {
    each_user(|world| {
        let person = Person::new(world, &["id"]);
        let grant = format!("sign {} for git", person.fingerprint("id"));
        let secret = "0000000173";
        // Lock and unlock; remove all keys. Each is done to the person's own first.
        for message in [format!("16{secret}"), format!("17{secret}"), "13".to_owned()] {
            assert_eq!(person.raw(&["message", &message]), "done", "{message}");
        }
        person.outside(&["ssh-add", "-q", &person.key("id")]);
        for level in LEVELS {
            for message in [format!("16{secret}"), format!("17{secret}"), "13".to_owned(), "09".to_owned()] {
                assert_eq!(person.granted(level, &grant, &["message", &message]), "refused", "{message}");
            }
            assert_eq!(person.raw(&["list"]), "1");
            let socket = path(&person.socket);
            let named = format!("socket {socket}");
            let direct = ["python3", path(&person.client), socket, "list"];
            for options in [
                vec!["--level", level],
                vec!["--level", level, "--grant", &named],
                vec!["--level", level, "--grant", &named, "--grant", &grant, "--grant", "env SSH_AUTH_SOCK"],
            ] {
                let output = person.inside(&options, &direct);
                assert!(output.stdout.starts_with("unreachable"), "{options:?}: {}", output.stdout);
            }
            let nothing = person.passes(&["--level", level], &["sh", "-c", "echo \"[$SSH_AUTH_SOCK]\""]);
            assert_eq!(nothing, "[]");
        }
    });
}

#[test]
fn the_agent_of_a_run_is_that_runs_alone() {
    each_user(|world| {
        let person = Person::new(world, &["id"]);
        let grant = format!("sign {} for git", person.fingerprint("id"));
        let client = path(&person.client);
        for level in LEVELS {
            let script =
                format!("python3 {client} {INSIDE} list; touch there; while [ ! -e gone ]; do sleep 0.1; done");
            let first = world.stockade(&["--level", level, "--grant", &grant], &["sh", "-c", &script]);
            let first = RunningProgram::start(&world.account, &first.env("SSH_AUTH_SOCK", &person.socket)).unwrap();
            let there = world.workspace().join("there");
            wait_for(|| there.exists(), "the first run");
            for options in [vec!["--level", level], vec!["--level", level, "--grant", "socket /run/stockade/ssh-agent"]]
            {
                let other = person.inside(&options, &["python3", client, INSIDE, "list"]);
                assert!(other.stdout.starts_with("unreachable"), "{}", other.stdout);
            }
            let host = person.outside(&["python3", client, INSIDE, "list"]);
            assert!(host.starts_with("unreachable"), "{host}");
            world.file("ws/gone", "");
            let first = first.wait_for_end().unwrap();
            assert_eq!((first.ended, first.stdout.trim()), (ProgramEnd::Code(0), "1"), "{}", first.stderr);
            for name in ["there", "gone"] {
                std::fs::remove_file(world.workspace().join(name)).unwrap();
            }
        }
    });
}

/// A server on the loopback, run by the person.
struct Server {
    port: u16,
    _served: Served,
}

impl Server {
    fn new(person: &Person<'_>, name: &str) -> Self {
        let world = person.world;
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let host_key = world.outside().join(name);
        if !host_key.exists() {
            person.outside(&["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", path(&host_key)]);
        }
        let authorized = std::fs::read_to_string(person.public("id")).unwrap();
        let authorized = world.file("out/authorized", &authorized);
        let config = world.file(
            &format!("out/{name}.config"),
            &format!(
                "Port {port}\nListenAddress 127.0.0.1\nHostKey {}\nPidFile none\nAuthorizedKeysFile {}\nStrictModes no\n\
                 UsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin yes\n",
                path(&host_key),
                path(&authorized)
            ),
        );
        if rustix::process::geteuid().is_root() {
            std::fs::create_dir_all("/run/sshd").unwrap();
        }
        let served = Person::serve(world, &["/usr/sbin/sshd", "-D", "-e", "-f", path(&config)]);
        wait_for(|| std::net::TcpStream::connect(("127.0.0.1", port)).is_ok(), "the server");
        Self { port, _served: served }
    }

    fn target(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    fn known_line(&self, person: &Person<'_>, name: &str) -> String {
        let key = std::fs::read_to_string(person.public(name)).unwrap();
        format!("[127.0.0.1]:{} {key}", self.port)
    }
}

#[test]
fn repositories_are_cloned_and_pushed_over_ssh() {
    each_user(|world| {
        let person = Person::new(world, &["id"]);
        person.repository();
        let server = Server::new(&person, "host_a");
        let known = server.known_line(&person, "host_a")
            + "other.example "
            + &std::fs::read_to_string(person.public("id")).unwrap();
        world.file("home/.ssh/known_hosts", &known);
        let remote = world.outside().join("remote.git");
        person.outside(&["git", "init", "-q", "--bare", "-b", "main", path(&remote)]);
        person.outside(&["git", "commit", "-q", "--allow-empty", "-m", "first"]);
        person.outside(&["git", "push", "-q", path(&remote), "main"]);
        let user = person.outside(&["id", "-un"]);
        let url = format!("ssh://{user}@{}{}", server.target(), path(&remote));
        let named = format!("@ssh:{}", server.target());
        for level in LEVELS {
            let options = ["--level", level, "--grant", &named];
            let script = format!(
                "git clone -q {url} {level} && cd {level} && git commit -q --allow-empty -m {level} && git push -q"
            );
            // A grant to connect is not enough.
            let connect = format!("connect {}", server.target());
            let refused = person.inside(&["--level", level, "--grant", &connect], &["git", "ls-remote", &url]);
            assert_ne!(refused.ended, ProgramEnd::Code(0));
            person.passes(&options, &["sh", "-c", &script]);
            let pushed = person.outside(&["git", "-C", path(&remote), "log", "-1", "--format=%s", "main"]);
            assert_eq!(pushed, level);
            let script = format!(
                "cat \"$STOCKADE_KNOWN_HOSTS\" && ssh -o \"UserKnownHostsFile=$STOCKADE_KNOWN_HOSTS\" -p {} {user}@127.0.0.1 echo reached",
                server.port
            );
            let seen = person.passes(&options, &["sh", "-c", &script]);
            assert!(seen.ends_with("reached") && !seen.contains("other.example"), "{seen}");
        }
        let seen = person.passes(&["--level", "full", "--grant", &named], &["sh", "-c", "cat ~/.ssh/known_hosts"]);
        assert!(seen.contains(&format!("[127.0.0.1]:{}", server.port)) && !seen.contains("other.example"), "{seen}");
        let log = person.outside(&[&binary(), "audit", "query", "--type", "signed"]);
        assert!(log.contains(&format!("{user}@{}", server.target())), "{log}");
    });
}

#[test]
fn a_key_to_one_server_authenticates_to_no_other() {
    each_user(|world| {
        let person = Person::new(world, &["id"]);
        let (a, b) = (Server::new(&person, "host_a"), Server::new(&person, "host_b"));
        // The agent that the servers' own signatures come from.
        let hosts = Person::new(world, &["host_a", "host_b"]);
        world.dir("home/.ssh");
        world.file("home/.ssh/known_hosts", &(a.known_line(&person, "host_a") + &b.known_line(&person, "host_b")));
        person.outside(&["ssh-keygen", "-q", "-H", "-f", path(&world.home().join(".ssh/known_hosts"))]);
        let grant = format!("sign {} to {}", person.fingerprint("id"), a.target());
        let (own, key_a, key_b) = (person.public("id"), person.public("host_a"), person.public("host_b"));
        let by = |key: &str, session: &str| hosts.raw(&["signature", key, session]);
        let (a1, a2, b1, b2) = (by(&key_a, "s1"), by(&key_a, "s2"), by(&key_b, "s1"), by(&key_b, "s2"));
        let good = [&*own, "s1", &*key_a, "s1", &*a1, "0"];
        let attacks: Vec<(&str, Vec<&str>)> = vec![
            ("no bind", vec![&own, "s1"]),
            ("another server", vec![&own, "s1", &key_b, "s1", &b1, "0"]),
            ("a replayed bind", vec![&own, "s2", &key_a, "s1", &a1, "0"]),
            ("a second bind", vec![&own, "s2", &key_a, "s1", &a1, "0", &key_b, "s2", &b2, "0"]),
            ("another server first", vec![&own, "s2", &key_b, "s1", &b1, "0", &key_a, "s2", &a2, "0"]),
            ("a forged signature", vec![&own, "s1", &key_a, "s1", &b1, "0"]),
            ("forwarding", vec![&own, "s1", &key_a, "s1", &a1, "1"]),
            ("another key", vec![&key_b, "s1", &key_a, "s1", &a1, "0"]),
        ];
        assert_eq!(person.raw(&[&["authenticate"], &good[..]].concat()), "done");
        for (name, arguments) in attacks.iter().filter(|(name, _)| *name != "another key" && *name != "forwarding") {
            assert_eq!(person.raw(&[&["authenticate"], &arguments[..]].concat()), "done", "{name}");
        }
        for level in LEVELS {
            assert_eq!(person.granted(level, &grant, &[&["authenticate"], &good[..]].concat()), "done");
            for (name, arguments) in &attacks {
                let answer = person.granted(level, &grant, &[&["authenticate"], &arguments[..]].concat());
                assert_eq!(answer, "refused", "{name}");
            }
            assert_eq!(person.granted(level, &grant, &["sign", &own, "git"]), "refused");
            // A real client and a real server.
            let user = person.outside(&["id", "-un"]);
            let to_b = ["--level", level, "--grant", &grant, "--grant", &format!("connect {}", b.target())];
            let ssh = format!(
                "ssh -o StrictHostKeyChecking=no -o UserKnownHostsFile=known -p {} {user}@127.0.0.1 true",
                b.port
            );
            let refused = person.inside(&to_b, &["sh", "-c", &ssh]);
            assert_eq!(refused.ended, ProgramEnd::Code(255), "{}", refused.stderr);
            assert!(refused.stderr.contains("Permission denied (publickey)"), "{}", refused.stderr);
        }
    });
}

#[test]
fn an_impossible_power_is_reported_before_the_start() {
    each_user(|world| {
        let person = Person::new(world, &["id", "other"]);
        let grant = format!("sign {} to nowhere.example", person.fingerprint("id"));
        let absent = format!("sign SHA256:{} for git", "A".repeat(43));
        let many = format!("--grant 'sign {} to github.com' --grant 'connect github.com:22'", person.fingerprint("id"));
        for (options, expected_text) in [
            (vec!["--grant", "@ssh"], "hint: for example --grant @ssh:github.com"),
            (vec!["--grant", "@ssh:github.com"], &*many),
            (vec!["--grant", "@git-signing"], "the ssh agent has 2 keys"),
            (vec!["--grant", &grant], "hint: connect to it once yourself: ssh nowhere.example"),
            (vec!["--grant", &absent], "hint: add it: ssh-add"),
        ] {
            let output = person.inside(&options, &["touch", "ran"]);
            assert_eq!(output.ended, ProgramEnd::Code(125), "{options:?}: {}", output.stderr);
            assert!(output.stderr.contains(expected_text), "{options:?}: {}", output.stderr);
        }
        let none = world.run(&world.stockade(&["--grant", "@git-signing"], &["touch", "ran"]));
        assert!(none.stderr.contains("SSH_AUTH_SOCK is not set"), "{}", none.stderr);
        assert!(!world.workspace().join("ran").exists());
    });
}

#[test]
fn servers_with_keys_of_each_kind_are_known_by_them() {
    each_user(|world| {
        let person = Person::new(world, &["id"]);
        let user = person.outside(&["id", "-un"]);
        world.dir("home/.ssh");
        for (kind, bits) in [("ecdsa", "256"), ("ecdsa", "384"), ("ecdsa", "521"), ("rsa", "2048")] {
            let name = format!("host_{kind}_{bits}");
            let file = person.key(&name);
            person.outside(&["ssh-keygen", "-q", "-t", kind, "-b", bits, "-N", "", "-f", &file]);
            let server = Server::new(&person, &name);
            world.file("home/.ssh/known_hosts", &server.known_line(&person, &name));
            let ssh = format!(
                "ssh -o \"UserKnownHostsFile=$STOCKADE_KNOWN_HOSTS\" -p {} {user}@127.0.0.1 echo reached",
                server.port
            );
            let named = format!("@ssh:{}", server.target());
            assert_eq!(person.passes(&["--grant", &named], &["sh", "-c", &ssh]), "reached", "{name}");
            // A key that was revoked since is nobody's.
            let line = server.known_line(&person, &name);
            world.file("home/.ssh/known_hosts", &format!("{line}@revoked {line}"));
            let refused = person.inside(&["--grant", &named], &["sh", "-c", &ssh]);
            assert_eq!(refused.ended, ProgramEnd::Code(125), "{}", refused.stderr);
        }
    });
}

#[test]
fn a_program_that_asks_for_a_key_gets_none_by_itself() {
    each_user(|world| {
        let person = Person::new(world, &["id"]);
        person.repository();
        for level in LEVELS {
            let refused = person.inside(&["--level", level, "--request", "@git-signing"], &["touch", "ran"]);
            assert_eq!(refused.ended, ProgramEnd::Code(126), "{}", refused.stderr);
            assert!(refused.stderr.contains(&person.fingerprint("id")), "{}", refused.stderr);
        }
        assert!(!world.workspace().join("ran").exists());
        let grant = format!("sign {} for git", person.fingerprint("id"));
        // Neither does what lies in the workspace.
        let rule = format!(
            "[[rules]]\nprefix = [\"touch\"]\neffect = \"allow\"\ngrants = [\"{grant}\"]\njustification = \"j\"\n"
        );
        let config = world.dir("ws/.stockade").join("config.toml");
        world.file("ws/.stockade/config.toml", &rule);
        let refused = person.inside(&[], &["touch", "ran"]);
        assert_eq!(refused.ended, ProgramEnd::Code(125), "{}", refused.stderr);
        std::fs::remove_file(config).unwrap();
    });
}

#[test]
fn a_session_and_a_detached_run_have_the_callers_agent() {
    each_user(|world| {
        let person = Person::new(world, &["id"]);
        let client = path(&person.client);
        let workspace = world.workspace();
        let start = ["session", "start", "--mode", "never", "--workspace", path(&workspace), "--grant", "@git-signing"];
        let session = person.outside(&[&[&*binary()], &start[..]].concat());
        let listed = person.outside(&[&binary(), "session", "exec", &session, "--", "python3", client, INSIDE, "list"]);
        person.outside(&[&binary(), "session", "end", &session]);
        assert_eq!(listed, "1");
        let script = format!("test \"$(python3 {client} {INSIDE} list)\" = 1");
        let id = person.passes(&["--detach", "--grant", "@git-signing"], &["sh", "-c", &script]);
        assert_eq!(crate::detached::waited(world, &id), ProgramEnd::Code(0));
    });
}
