//! Rules about tool calls, files and connections, and what holds where no rule
//! speaks.

#![allow(clippy::unwrap_used, reason = "what cannot be had fails the test")]

use std::path::Path;
use std::sync::Arc;

use serde_json::json;
use stockade_model::{ApprovalMode, Host, PolicyVerdict};
use stockade_policy::{
    Act, ActContext, ConfigLayer, FileOperation, LayerText, OwnDirectories, PolicyRegistry, PolicySettings,
    RequestContext, decide_act,
};

const RULES: &str = r#"
[[rules]]
name = "github-read"
tool = ["mcp__github__get_*", "mcp__github__list_*"]
effect = "allow"
justification = "reading is fine"
match = ["mcp__github__get_issue"]
not_match = ["mcp__github__create_issue"]

[[rules]]
name = "own-repositories"
tool = ["mcp__github__*"]
arguments = { repo = ["acme/*"], "labels" = ["bug", "feature"] }
effect = "allow"
justification = "our own"
match = ['mcp__github__create_issue {"repo": "acme/x", "labels": ["bug"]}']
not_match = ['mcp__github__create_issue {"repo": "evil/x", "labels": ["bug"]}', 'mcp__github__create_issue {"repo": "acme/x", "labels": ["bug", "other"]}']

[[rules]]
tool = ["mcp__shell__*"]
effect = "deny"
justification = "no shell behind a tool"

[[rules]]
files = ["./migrations/**"]
effect = "ask"
justification = "migrations are reviewed"
match = ["write ./migrations/1.sql", "delete ./migrations/1.sql"]
not_match = ["read ./migrations/1.sql", "write ./migrations"]

[[rules]]
files = ["**/*.pem"]
operations = ["read", "write", "create", "delete"]
effect = "deny"
justification = "keys"

[[rules]]
files = ["/srv/data", "./.git/hooks", "~/.ssh"]
effect = "allow"
justification = "data is written here"

[[rules]]
hosts = ["*.internal.example:443", "pypi.org"]
effect = "allow"
justification = "known"
match = ["a.internal.example:443"]
not_match = ["a.internal.example:80"]

[[rules]]
hosts = ["metadata.internal.example"]
effect = "deny"
justification = "credentials of the machine"

[[rules]]
user = ["root"]
time = ["sat,sun"]
effect = "deny"
justification = "not as root at the weekend"
"#;

fn settings() -> PolicySettings {
    let layer = LayerText { layer: ConfigLayer::User, path: "/u".into(), source: RULES.to_owned() };
    let own = OwnDirectories {
        configuration: vec!["/home/u/.config/stockade".into()],
        state: vec!["/home/u/.s".into()],
        ..OwnDirectories::default()
    };
    PolicySettings::from_layers(Path::new("/home/u"), own, &[layer]).unwrap()
}

fn stage(approval_mode: ApprovalMode) -> ActContext<'static> {
    let workspace = Path::new("/home/u/work");
    ActContext { cwd: workspace, workspace, session: None, profile: "workspace", approval_mode }
}

fn nobody() -> RequestContext {
    // A Wednesday.
    RequestContext { user: Some("u".into()), tool: None, time_ms: Some(1_704_276_000_000), keeps_changes: None }
}

#[track_caller]
fn check(act: Act<'_>, verdict: PolicyVerdict, rule: &str, grant: Option<&str>) {
    let ruling = decide_act(&settings(), act, &stage(ApprovalMode::OnFailure), &nobody());
    assert_eq!(ruling.decision.verdict, verdict, "{act:?}: {ruling:?}");
    assert!(ruling.decision.rule.contains(rule), "{act:?}: {}", ruling.decision.rule);
    assert_eq!(ruling.grant.map(|grant| grant.to_string()).as_deref(), grant, "{act:?}");
    assert!(ruling.voices.iter().any(|voice| voice.decides && voice.source == ruling.decision.rule));
}

#[test]
fn tool_calls() {
    use PolicyVerdict::{Allow, Ask, Deny};
    let call = |name: &str, arguments, verdict, rule: &str| {
        check(Act::Tool { name, arguments: &arguments }, verdict, rule, None)
    };
    call("mcp__github__get_issue", json!({}), Allow, "github-read");
    call("mcp__github__create_issue", json!({ "repo": "acme/x", "labels": ["bug"] }), Allow, "own-repositories");
    call("mcp__github__create_issue", json!({ "repo": "acme/x" }), Ask, "mode on-failure");
    call("mcp__github__create_issue", json!({ "repo": "evil/x", "labels": [] }), Ask, "mode on-failure");
    call("mcp__shell__run", json!({}), Deny, "rule deny");
    call("unknown", json!(null), Ask, "mode on-failure");
}

#[test]
fn files() {
    use FileOperation::{Create, Delete, Read, Write};
    use PolicyVerdict::{Allow, Ask, Deny};
    let file = |path: &str, operation, verdict, rule: &str, grant| {
        check(Act::File { path: Path::new(path), operation }, verdict, rule, grant);
    };
    file("/home/u/work/src/a.rs", Write, Allow, "profile workspace", None);
    file("/home/u/work/migrations/1.sql", Create, Ask, "rule ask `files ./migrations/**`", None);
    file("/home/u/work/migrations/1.sql", Read, Allow, "profile workspace", None);
    file("/home/u/work/key.pem", Read, Deny, "rule deny", None);
    file("/srv/data/x", Write, Allow, "rule allow", None);
    file("/srv/other", Write, Ask, "mode on-failure", Some("write /srv/other"));
    // L7: what is protected or hidden needs a grant that names it.
    file("/home/u/work/.git/hooks/pre-commit", Create, Ask, "mode", Some("write /home/u/work/.git/hooks/pre-commit"));
    file("/home/u/.ssh/config", Write, Ask, "mode", Some("write /home/u/.ssh/config"));
    file("/home/u/.ssh/config", Read, Ask, "mode", Some("read /home/u/.ssh/config"));
    file("/home/u/.config/stockade/config.toml", Write, Deny, "what governs", None);
    file("/home/u/work/.stockade.toml", Write, Deny, "what governs", None);
    file("/home/u/work/sub/.Stockade/config.toml", Delete, Deny, "what governs", None);
    file("/home/u/.s/audit", Read, Deny, "what governs", None);
    file("work/a", Write, Deny, "not a plain path", None);
    file("/home/u/work/../.ssh/x", Write, Deny, "not a plain path", None);
}

fn host(name: &str) -> Host {
    name.parse().unwrap()
}

#[test]
fn connections() {
    use PolicyVerdict::{Allow, Ask, Deny};
    let connect = |name: &str, port, verdict, rule: &str, grant| {
        check(Act::Network { host: &host(name), port }, verdict, rule, grant);
    };
    connect("pypi.org", Some(443), Allow, "rule allow", None);
    connect("a.internal.example", Some(443), Allow, "rule allow", None);
    connect("a.internal.example", Some(80), Ask, "mode", Some("connect a.internal.example:80"));
    connect("metadata.internal.example", Some(443), Deny, "rule deny", None);
    connect("METADATA.internal.example.", None, Deny, "rule deny", None);
    connect("evil.example", None, Ask, "mode", Some("connect evil.example"));
    let ruling = decide_act(
        &settings(),
        Act::Network { host: &host("evil.example"), port: None },
        &stage(ApprovalMode::Never),
        &nobody(),
    );
    assert_eq!((ruling.decision.verdict, ruling.grant), (Deny, None));
}

/// What is not known raises caution: a `deny` that depends on it asks.
#[test]
fn circumstances() {
    let at = |user: Option<&str>, time_ms| {
        let around = RequestContext { user: user.map(str::to_owned), tool: None, time_ms, keeps_changes: None };
        let host = host("pypi.org");
        let act = Act::Network { host: &host, port: None };
        decide_act(&settings(), act, &stage(ApprovalMode::OnFailure), &around).decision.verdict
    };
    let (wednesday, saturday) = (Some(1_704_276_000_000), Some(1_704_535_200_000));
    assert_eq!(at(Some("root"), saturday), PolicyVerdict::Deny);
    assert_eq!(at(Some("root"), wednesday), PolicyVerdict::Allow);
    assert_eq!(at(Some("u"), saturday), PolicyVerdict::Allow);
    assert_eq!(at(None, saturday), PolicyVerdict::Ask);
    assert_eq!(at(Some("root"), None), PolicyVerdict::Ask);
    assert_eq!(at(None, wednesday), PolicyVerdict::Allow);
}

#[test]
fn sessions_have_policies_of_their_own() {
    let mut registry = PolicyRegistry::new(Arc::new(settings()));
    let (one, two) = ("ses_one".parse().unwrap(), "ses_two".parse().unwrap());
    registry
        .register_session(&one, "[[rules]]\nhosts = [\"pypi.org\"]\neffect = \"deny\"\njustification = \"x\"")
        .unwrap();
    let verdict = |registry: &PolicyRegistry, session| {
        let settings = registry.settings_for(Some(session));
        let host = host("pypi.org");
        let act = Act::Network { host: &host, port: None };
        decide_act(settings, act, &stage(ApprovalMode::OnFailure), &nobody()).decision.verdict
    };
    assert_eq!((verdict(&registry, &one), verdict(&registry, &two)), (PolicyVerdict::Deny, PolicyVerdict::Allow));
    let widening = "[[rules]]\nhosts = [\"*\"]\neffect = \"allow\"\njustification = \"x\"";
    let error = registry.register_session(&two, widening).unwrap_err().to_string();
    assert!(error.starts_with("session ses_two:3:1: `rules[0].effect` in session configuration"), "{error}");
    assert_eq!(verdict(&registry, &two), PolicyVerdict::Allow);
    registry.remove_session(&one);
    assert_eq!(verdict(&registry, &one), PolicyVerdict::Allow);
    assert!(registry.take_notice().is_none());
    let bare = PolicySettings::from_layers(Path::new("/home/u"), OwnDirectories::default(), &[]).unwrap();
    let mut registry = PolicyRegistry::new(Arc::new(bare));
    assert!(registry.take_notice().is_some() && registry.take_notice().is_none());
}
