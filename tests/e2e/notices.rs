//! `[notify]`: whoever the person named hears what becomes of sandboxes that last, also
//! when it happens though nobody looks; and nothing waits for who does not listen.

use std::fs;
use std::time::Duration;

use serde_json::Value;

use crate::kept::{supervisor, wait_until};
use crate::review::{Endpoint, ok};
use crate::sandbox::{create, done, exec, stockade};
use crate::world::{World, each_user};

const TIMEOUT: Duration = Duration::from_secs(60);

fn configure(world: &World, section: &str) {
    for dir in ["home/.config", "home/.config/stockade"] {
        world.dir(dir);
    }
    world.file("home/.config/stockade/config.toml", &format!("[notify]\n{section}\n"));
}

/// A program that keeps every notice, and what it kept.
fn keeping(world: &World) -> (String, impl Fn() -> Vec<Value>) {
    let file = world.dir("heard").join("notices");
    let script = format!("cat >> {0}; echo >> {0}", file.display());
    let read_notices = move || {
        let text = fs::read_to_string(&file).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    };
    (format!("program = [\"/bin/sh\", \"-c\", \"{script}\"]"), read_notices)
}

fn find_notice_reason(read_notices: impl Fn() -> Vec<Value>, id: &str, what: &str) -> Option<String> {
    let notice = read_notices().into_iter().find(|notice| notice["sandbox"] == id && notice["what"] == what)?;
    assert_eq!(notice["schema"], "stockade.notice.v1");
    Some(notice["why"].as_str().unwrap().to_owned())
}

#[test]
fn a_program_receives_ends_limits_and_losses() {
    each_user(|world| {
        let (section, read_notices) = keeping(world);
        configure(world, &section);
        let ended = create(world, &["--label", "task=7"]);
        done(world, &["destroy", &ended]);
        assert_eq!(find_notice_reason(&read_notices, &ended, "ended").as_deref(), Some("its user requested it"));
        assert_eq!(read_notices()[0]["labels"]["task"], "7");
        // Nobody is there who would read the configuration again.
        let brief = create(world, &["--ttl", "1s"]);
        wait_until("its end is not told", || find_notice_reason(&read_notices, &brief, "ended").is_some());
        assert_eq!(find_notice_reason(&read_notices, &brief, "ended").as_deref(), Some("its time to live has expired"));
        let limited = create(world, &["--limit", "memory=100MiB"]);
        // Written to, and there until somebody looks.
        let hungry = "import time; many = b'x' * (300 << 20); time.sleep(60)";
        let ran = stockade(world, &["exec", "--mode", "never", &limited, "--", "python3", "-c", hungry]);
        let why = find_notice_reason(&read_notices, &limited, "limit");
        assert!(why.is_some_and(|why| why.starts_with("memory: at most 100MiB")), "{}", ran.combined_text());
        let lost = create(world, &[]);
        exec(world, &lost, "true");
        let threads = fs::read_dir(format!("/proc/{}/task", supervisor(world, &lost))).unwrap().map(Result::unwrap);
        let children = threads.map(|thread| fs::read_to_string(thread.path().join("children")).unwrap_or_default());
        let all: Vec<String> = children.collect();
        all.iter().flat_map(|all| all.split_whitespace()).for_each(|child| crate::kept::kill(child.parse().unwrap()));
        wait_until("what was lost is not told", || find_notice_reason(&read_notices, &lost, "lost").is_some());
    });
}

#[test]
fn a_webhook_is_posted_to_and_one_that_fails_is_complained_of_and_stops_nothing() {
    each_user(|world| {
        let hook = Endpoint::serve(ok(""));
        configure(world, &format!("on = [\"ended\"]\nwebhook = \"http://127.0.0.1:{}/told\"", hook.port));
        let id = create(world, &[]);
        done(world, &["destroy", &id]);
        let request = hook.requests.recv_timeout(TIMEOUT).unwrap();
        let (head, body) = request.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("POST /told HTTP/1.1"), "{head}");
        assert_eq!(serde_json::from_str::<Value>(body).unwrap()["sandbox"], id);

        let deaf = Endpoint::serve("HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n");
        configure(world, &format!("program = [\"/nonexistent\"]\nwebhook = \"http://127.0.0.1:{}/\"", deaf.port));
        let id = create(world, &[]);
        let ran = stockade(world, &["destroy", &id]);
        let error_text = &ran.stderr;
        assert!(
            error_text.contains("/nonexistent was not notified") && error_text.contains("status 500"),
            "{error_text}"
        );
        assert!(error_text.contains("hint: `[notify]`"), "{error_text}");
        assert!(!done(world, &["list"]).contains(&id), "it is destroyed all the same");

        let id = create(world, &[]);
        configure(world, "told = \"me\"");
        let ran = stockade(world, &["destroy", &id]);
        assert!(
            ran.stderr.contains("no notifications about sandboxes are sent") && ran.stderr.contains("`told`"),
            "{}",
            ran.stderr
        );
        configure(world, "");
        assert!(!done(world, &["list"]).contains(&id), "it is destroyed all the same");
    });
}
