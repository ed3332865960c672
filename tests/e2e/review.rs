//! A model's opinion stands beside the question, and does nothing else: the
//! built command against a local server that speaks the protocols.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use serde_json::{Value, json};
use stockade_testkit::{ProgramEnd, TestCommand};

use crate::terminal::Terminal;
use crate::world::{World, binary, each_user};

const KEY: &str = "k3y-of-the-reviewer";
const SCRIPT: &str = "echo x >> ~/outside # hunter22 --password letmein aws_secret_access_key swordfish";

/// A server on this machine, and what it was sent.
pub struct Endpoint {
    pub port: u16,
    pub requests: Receiver<String>,
}

impl Endpoint {
    /// Answers every request with these bytes; with none, never.
    pub fn serve(answer: impl Into<Vec<u8>>) -> Self {
        let answer = answer.into();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (sender, requests) = channel();
        thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let Some(request) = read_request(&mut stream) else { continue };
                let _ = sender.send(request);
                let _ = stream.write_all(&answer);
                if answer.is_empty() {
                    // Until the other end gives up.
                    let _ = stream.read(&mut [0]);
                }
            }
        });
        Self { port, requests }
    }

    fn opinion(api: &str, summary: &str, risk: &str) -> Self {
        Self::serve(ok(&build_response(api, summary, risk)))
    }
}

fn read_request(stream: &mut TcpStream) -> Option<String> {
    let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        let length = stream.read(&mut buffer).ok().filter(|length| *length > 0)?;
        bytes.extend_from_slice(&buffer[..length]);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let head = head.to_ascii_lowercase();
        let length: usize = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok())?;
        if body.len() >= length {
            return Some(text);
        }
    }
}

pub fn ok(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

fn build_response(api: &str, summary: &str, risk: &str) -> String {
    let report = json!({"summary": summary, "risk": risk, "categories": ["persistence"]});
    let answer = match api {
        "openai" => json!({"choices": [{"message": {"content": report.to_string()}, "finish_reason": "stop"}]}),
        _ => json!({
            "content": [{"type": "tool_use", "name": "report_risk", "input": report}], "stop_reason": "tool_use",
        }),
    };
    answer.to_string()
}

/// Writes the user's configuration and key.
fn configure(world: &World, api: &str, port: u16, more: &str) {
    for dir in ["home/.config", "home/.config/stockade"] {
        world.dir(dir);
    }
    let key = world.file("home/key", &format!("{KEY}\n"));
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    let endpoint = format!("http://127.0.0.1:{port}/v1");
    let text = format!(
        "[review]\napi = \"{api}\"\nendpoint = \"{endpoint}\"\nmodel = \"some-model\"\nkey_file = \"~/key\"\n{more}"
    );
    world.file("home/.config/stockade/config.toml", &text);
}

fn build_run_command(world: &World, options: &[&str]) -> TestCommand {
    let workspace = world.workspace().display().to_string();
    let program = binary();
    let mut all = vec![program.as_str(), "run", "--workspace", &workspace];
    all.extend(options);
    all.extend(["--", "sh", "-c", SCRIPT]);
    world.bare(&all).env("DB_PASSWORD", "hunter22")
}

fn outside(world: &World) -> Option<String> {
    fs::read_to_string(world.home().join("outside")).ok()
}

fn outcome(path: &str) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// Everything in files beneath.
fn all_text(dir: &Path) -> String {
    let entries = fs::read_dir(dir).unwrap().map(Result::unwrap);
    let text = entries.map(|entry| match entry.file_type().unwrap().is_dir() {
        true => all_text(&entry.path()),
        false => String::from_utf8_lossy(&fs::read(entry.path()).unwrap()).into_owned(),
    });
    text.collect()
}

#[test]
fn an_opinion_is_shown_beside_the_question() {
    each_user(|world| {
        for (api, header) in [("openai", "authorization: Bearer "), ("anthropic", "x-api-key: ")] {
            let world = &World::new(world.account.user);
            let endpoint = Endpoint::opinion(api, "Appends a line to a file.", "high");
            configure(world, api, endpoint.port, "");
            let report = world.home().join("outcome.json").display().to_string();
            let mut terminal = Terminal::start(world, &build_run_command(world, &[&format!("--json={report}")]));
            terminal.expect("HIGH risk (persistence): «Appends a line to a file.»");
            terminal.expect("a yes reaches this time only");
            terminal.expect("allow?");
            terminal.press("o");
            let (code, text) = terminal.finish();
            assert_eq!((code, outside(world).as_deref()), (0, Some("x\n")), "{text}");
            let approval = &outcome(&report)["approvals"][0];
            assert_eq!(approval["review"]["opinion"]["risk"], "high");
            assert_eq!((&approval["review"]["by"], &approval["by"]), (&json!("some-model"), &json!("terminal")));

            let sent = endpoint.requests.try_recv().unwrap();
            let (head, body) = sent.split_once("\r\n\r\n").unwrap();
            assert!(head.contains(&format!("{header}{KEY}")), "{head}");
            assert!(body.contains("/outside") && body.contains("[secret]"), "{body}");
            for secret in [KEY, "hunter22", "letmein", "swordfish"] {
                assert!(!body.contains(secret), "{secret}: {body}");
            }
            let shown = world.run(&world.bare(&[&binary(), "audit", "show"])).stdout;
            assert!(shown.contains("review-sent") && shown.contains("to some-model at http://127.0.0.1:"), "{shown}");
            assert!(shown.contains("reviewed") && shown.contains("HIGH risk"), "{shown}");
            let state = all_text(&world.home().join(".local/state/stockade"));
            assert!(state.contains("Appends a line to a file.") && !state.contains(KEY), "the record holds the key");
        }
    });
}

/// Without an opinion the question is the plain one, and says why.
#[test]
fn a_reviewer_that_fails_changes_nothing() {
    each_user(|world| {
        let slow = ("", "timeout = \"300ms\"\n", "it did not answer");
        let broken = ("HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n", "", "it answered with status 500");
        let cut = ("HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n{\"choices\":", "", "its answer was cut off");
        let talked = ("HTTP/1.1 200 OK\r\nContent-Length: 17\r\n\r\n{\"approved\":true}", "", "not in the form");
        for (answer, more, why) in [slow, broken, cut, talked] {
            let world = &World::new(world.account.user);
            let endpoint = Endpoint::serve(answer);
            configure(world, "openai", endpoint.port, more);
            let mut terminal = Terminal::start(world, &build_run_command(world, &[]));
            terminal.expect("no opinion:");
            terminal.expect("[o]nce  [a]lways");
            terminal.press("o");
            let (code, text) = terminal.finish();
            assert!(text.replace("\n           ", " ").contains(why), "{why}: {text}");
            assert_eq!((code, outside(world).as_deref()), (0, Some("x\n")), "{text}");
        }
    });
}

/// Whatever a model says, it is not the person who is asked.
#[test]
fn a_model_never_answers() {
    each_user(|world| {
        let talked_into = "\u{1b}[2J\u{202e}approved\n\n  allow?  [o]nce > o\n";
        let endpoint = Endpoint::opinion("anthropic", talked_into, "low");
        configure(world, "anthropic", endpoint.port, "");
        let mut terminal = Terminal::start(world, &build_run_command(world, &[]));
        terminal.expect("low risk");
        terminal.expect("[o]nce  [a]lways");
        terminal.press("n");
        let (_, text) = terminal.finish();
        assert!(!text.contains("\u{1b}[2J") && !text.contains('\u{202e}'), "{text:?}");
        assert_eq!(outside(world), None, "{text}");
        let silent = world.run(&build_run_command(world, &["--mode", "never"]));
        assert_eq!(outside(world), None, "{}", silent.combined_text());
        assert_eq!(endpoint.requests.try_iter().count(), 1, "where nobody is asked nothing is sent");
    });
}

#[test]
fn a_proxy_of_the_environment_is_not_used() {
    each_user(|world| {
        let proxy = Endpoint::opinion("openai", "From the proxy.", "critical");
        let endpoint = Endpoint::opinion("openai", "From the endpoint.", "low");
        configure(world, "openai", endpoint.port, "");
        let through_proxy = |mut command: TestCommand| {
            for name in ["http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"] {
                command = command.env(name, format!("http://127.0.0.1:{}", proxy.port));
            }
            command
        };
        let url = format!("http://127.0.0.1:{}/", endpoint.port);
        world.run(&through_proxy(world.bare(&["curl", "--silent", "--data", "x", &url])));
        assert_eq!(proxy.requests.try_iter().count(), 1, "what heeds the environment goes to the proxy");

        let mut terminal = Terminal::start(world, &through_proxy(build_run_command(world, &[])));
        terminal.expect("From the endpoint.");
        terminal.press("n");
        terminal.finish();
        assert_eq!((proxy.requests.try_iter().count(), endpoint.requests.try_iter().count()), (0, 1));
    });
}

#[test]
fn a_session_has_one_budget() {
    each_user(|world| {
        let endpoint = Endpoint::opinion("openai", "Appends.", "low");
        configure(world, "openai", endpoint.port, "budget.calls = 1\n");
        for expected in ["low risk", "the budget of this session is used up"] {
            let mut terminal = Terminal::start(world, &build_run_command(world, &["--session", "work"]));
            terminal.expect(expected);
            terminal.press("n");
            terminal.finish();
        }
        assert_eq!(endpoint.requests.try_iter().count(), 1);
    });
}

#[test]
fn a_run_cannot_read_the_key() {
    each_user(|world| {
        configure(world, "openai", 1, "");
        let key = world.home().join("key").display().to_string();
        assert!(world.run(&world.bare(&["cat", &key])).stdout.contains(KEY), "it can be read without a sandbox");
        for profile in ["read-only", "workspace"] {
            let inside = world.run(&world.stockade(&["--profile", profile], &["cat", &key]));
            assert!(!inside.combined_text().contains(KEY), "{}", inside.combined_text());
            assert!(inside.stderr.contains("refused: read"), "{}", inside.combined_text());
        }
    });
}

/// Whom it would ask, and whether the key can be had; nothing is sent.
#[test]
fn doctor_names_the_reviewer() {
    each_user(|world| {
        let endpoint = Endpoint::opinion("openai", "Fine.", "low");
        configure(world, "openai", endpoint.port, "");
        let doctor = || {
            let output = world.run(&world.bare(&[&binary(), "doctor", "--json"]));
            serde_json::from_str::<Value>(&output.stdout).unwrap()["reviewer"].clone()
        };
        let found = doctor();
        assert_eq!(found["model"], "some-model");
        assert_eq!(found["endpoint"], format!("http://127.0.0.1:{}/v1", endpoint.port));
        assert_eq!(found["problem"], Value::Null);
        fs::set_permissions(world.home().join("key"), fs::Permissions::from_mode(0o644)).unwrap();
        assert!(doctor()["problem"].as_str().unwrap().contains("others may read"));
        let shown = world.run(&world.bare(&[&binary(), "doctor"])).stdout;
        assert!(shown.contains("reviewer some-model at http://127.0.0.1:"), "{shown}");
        assert!(shown.contains("nothing can be sent"), "{shown}");
        assert!(endpoint.requests.try_recv().is_err());
    });
}

/// A stranger's repository does not say where commands are sent.
#[test]
fn a_workspace_configures_no_reviewer() {
    each_user(|world| {
        let endpoint = Endpoint::opinion("openai", "Fine.", "low");
        let section =
            format!("[review]\napi = \"openai\"\nendpoint = \"http://127.0.0.1:{}/\"\nmodel = \"x\"\n", endpoint.port);
        world.file("ws/.stockade.toml", &section);
        let output = world.run(&build_run_command(world, &[]));
        assert_eq!(output.ended, ProgramEnd::Code(125), "{}", output.combined_text());
        assert!(output.stderr.contains("`review` in project configuration"), "{}", output.stderr);
        assert!(endpoint.requests.try_recv().is_err());
    });
}
