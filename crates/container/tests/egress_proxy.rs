//! What leads out of containers: the door on the host, and nothing else.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops where its expectation fails")]
#![allow(clippy::disallowed_methods, reason = "a test makes what it needs")]

mod support;

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use stockade_backend_api::{AttemptEvent, CommandEnd, HeldAnswer, SandboxProvider};
use stockade_egress::{NameLookupError, NameResolver};
use stockade_model::{AttemptPlan, HostName, IsolationLevel, LayerState};
use support::{CAPTURE, Engine, TIMEOUT, TestSandbox, begun, inside, plan};

/// Every name is this machine.
struct Here;

impl NameResolver for Here {
    fn resolve_name(&self, _: &HostName) -> Result<Vec<IpAddr>, NameLookupError> {
        Ok(vec![Ipv4Addr::LOCALHOST.into()])
    }
}

/// Somebody on the host's loopback who speaks HTTP, and how often they were asked.
fn server() -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let request_count = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&request_count);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            count.fetch_add(1, Ordering::SeqCst);
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(b"HTTP/1.0 200 OK\r\ncontent-length: 6\r\n\r\nhello\n");
        }
    });
    (port, request_count)
}

fn test_sandbox(engine: &Engine, runtime: Option<&str>) -> TestSandbox {
    let top = tempfile::Builder::new().prefix("sandbox-").tempdir().unwrap();
    let mut plan = plan(engine, top.path());
    if let Some(runtime) = runtime {
        plan.runtime = Some(runtime.parse().unwrap());
        plan.level = IsolationLevel::Restricted;
        plan.profile.filesystem.protect.clear();
    }
    let sandboxes = engine.sandboxes().with_resolver(Arc::new(Here));
    let (sandbox, event_receiver) = begun(&plan, |plan, events| sandboxes.create_sandbox(plan, events)).unwrap();
    TestSandbox { top, plan, sandbox, event_receiver }
}

/// Fetches from a port of a host, as programs do that know of proxies.
fn fetch(test_sandbox: &TestSandbox, target: &str) -> AttemptPlan {
    let mut plan = inside(&format!("wget -q -O - http://{target}/"));
    plan.level = test_sandbox.plan.level;
    plan.profile.egress.special = vec!["127.0.0.0/8".parse().unwrap()];
    plan
}

/// By grant alone, each attempt with its control, whatever the walls inside.
fn check_only_approved_target_is_reached(test_sandbox: &TestSandbox) {
    let (port, request_count) = server();
    let target = format!("host.test:{port}");
    let grant_text = format!("connect {target}");

    let ran = test_sandbox.run_plan(&fetch(test_sandbox, &target));
    assert_ne!(ran.end.end, CommandEnd::Exited(0), "{ran:#?}");
    let suggested_grants: Vec<String> =
        ran.denials.iter().filter_map(|d| d.grant.as_ref().map(ToString::to_string)).collect();
    assert_eq!(suggested_grants, std::slice::from_ref(&grant_text), "{ran:#?}");
    // Around the door: the host's own address, its loopback, and where nobody is.
    for other in [format!("127.0.0.1:{port}"), format!("203.0.113.7:{port}")] {
        let plain = format!("unset http_proxy HTTP_PROXY; wget -T 5 -q -O - http://{other}/");
        let plan = AttemptPlan { argv: inside(&plain).argv, ..fetch(test_sandbox, &target) };
        assert_ne!(test_sandbox.run_plan(&plan).end.end, CommandEnd::Exited(0));
    }
    assert_eq!(request_count.load(Ordering::SeqCst), 0, "somebody was reached");

    let mut granted = fetch(test_sandbox, &target);
    granted.grants = vec![grant_text.parse().unwrap()];
    assert_eq!(test_sandbox.run_plan(&granted).ok(), "hello\n");
    assert_eq!(request_count.load(Ordering::SeqCst), 1);
    // Deny outweighs it (L9).
    granted.profile.egress.deny = vec![target.parse().unwrap()];
    assert_ne!(test_sandbox.run_plan(&granted).end.end, CommandEnd::Exited(0));

    for (answer, expected) in [(true, CommandEnd::Exited(0)), (false, CommandEnd::Exited(1))] {
        let before = request_count.load(Ordering::SeqCst);
        let (mut attempt, events) = test_sandbox.begin(&fetch(test_sandbox, &target), CAPTURE, true).unwrap();
        attempt.release_command().unwrap();
        let end = loop {
            match events.recv_timeout(TIMEOUT).unwrap() {
                AttemptEvent::Held { id, denial } => {
                    assert_eq!(denial.grant, Some(grant_text.parse().unwrap()), "{denial:#?}");
                    assert_eq!(request_count.load(Ordering::SeqCst), before, "it did not wait");
                    let new_grants = denial.grant.into_iter().collect();
                    attempt.answer_call(id, if answer { HeldAnswer::Granted(new_grants) } else { HeldAnswer::Refused });
                }
                AttemptEvent::Ended(end) => break end,
                _ => {}
            }
        };
        assert_eq!(end.end, expected, "{end:?}");
        assert_eq!(request_count.load(Ordering::SeqCst) - before, usize::from(answer));
    }
}

#[test]
fn with_docker() {
    let Some(engine) = Engine::docker() else { return };
    let test_sandbox = test_sandbox(&engine, None);
    check_only_approved_target_is_reached(&test_sandbox);
    assert_eq!(test_sandbox.run("true").report.layers["network"].state, LayerState::Enforced);
}

#[test]
fn with_podman() {
    let Some(engine) = Engine::podman() else { return };
    check_only_approved_target_is_reached(&test_sandbox(&engine, None));
}

/// There no call waits or is told; what its proxy is asked for is.
#[test]
fn with_gvisor_by_its_proxy_alone() {
    let Some(engine) = Engine::docker() else { return };
    let test_sandbox = test_sandbox(&engine, Some("runsc"));
    check_only_approved_target_is_reached(&test_sandbox);
    let plan = AttemptPlan { level: IsolationLevel::Restricted, ..inside("true") };
    let layer = &test_sandbox.run_plan(&plan).report.layers["network"];
    assert_eq!(layer.state, LayerState::Partial, "{layer:?}");
    assert!(layer.detail.contains("HTTP proxy only"), "{layer:?}");
}
