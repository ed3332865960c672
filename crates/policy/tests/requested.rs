//! Powers that a request asks for, although it is the person's own command line: each
//! mode and each kind of rule has its say, and the person's own grants need none.

#![allow(clippy::unwrap_used, reason = "what cannot be had fails the test")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use stockade_model::{
    ApprovalMode, Assessment, GranularMode, IsolationLevel, PolicyVerdict, QuestionKind, RequestCommand, RunRequest,
    SandboxPreference, Tier,
};
use stockade_policy::{ConfigLayer, LayerText, OwnDirectories, PolicyRuling, PolicySettings, rule_on};

const MODES: [ApprovalMode; 4] =
    [ApprovalMode::Untrusted, ApprovalMode::OnFailure, ApprovalMode::OnRequest, ApprovalMode::Never];

fn ruling(configured: &str, mode: ApprovalMode, grants: &[&str], requested: &[&str]) -> PolicyRuling {
    let path = PathBuf::from("/home/u/.config/stockade/config.toml");
    let layer = LayerText { layer: ConfigLayer::User, path, source: configured.to_owned() };
    let settings = PolicySettings::from_layers(Path::new("/home/u"), OwnDirectories::default(), &[layer]).unwrap();
    let parsed = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<_>>();
    let request = RunRequest {
        id: "req_1".parse().unwrap(),
        session: None,
        command: RequestCommand::Argv(vec!["tool".into(), "x".into()]),
        cwd: "/work".into(),
        workspace: "/work".into(),
        environment: BTreeMap::new(),
        profile: "workspace".to_owned(),
        grants: [parsed(grants), parsed(requested)].concat(),
        requested: parsed(requested),
        level: IsolationLevel::Full,
        approval_mode: mode,
        sandbox: SandboxPreference::Auto,
        timeout_ms: None,
        limits: Default::default(),
        caller_approval: None,
    };
    let assessment = Assessment::without_findings(Tier::Allow);
    rule_on(&settings, &request, &assessment, true)
}

#[track_caller]
fn check(configured: &str, mode: ApprovalMode, requested: &str, expected: PolicyVerdict) {
    let found = ruling(configured, mode, &[], &[requested]);
    assert_eq!(found.decision.verdict, expected, "{requested} {:?}", found.decision);
    let expected_questions = [QuestionKind::Grants { grants: vec![requested.parse().unwrap()] }];
    let expected_questions = if expected == PolicyVerdict::Ask { &expected_questions[..] } else { &[] };
    assert_eq!(found.questions, expected_questions, "{requested}");
    assert!(expected == PolicyVerdict::Allow || found.decision.reasons.contains(&format!("it asks for `{requested}`")));
}

const POWERS: [&str; 8] = [
    "write /srv/x",
    "read /home/u/.ssh",
    "connect pypi.org:443",
    "listen 80",
    "socket /run/x.sock",
    "exec /usr/bin/ssh",
    "env GITHUB_TOKEN",
    "memory 900GiB",
];

#[test]
fn each_mode_decides_on_each_power() {
    for power in POWERS {
        for mode in MODES {
            let expected = if mode == ApprovalMode::Never { PolicyVerdict::Deny } else { PolicyVerdict::Ask };
            check("", mode, power, expected);
            // The control: the person's own grant is the person's own yes.
            assert_eq!(ruling("", mode, &[power], &[]).decision.verdict, PolicyVerdict::Allow, "{power} {mode:?}");
        }
    }
    let files = ApprovalMode::Granular(GranularMode { filesystem: true, ..GranularMode::default() });
    check("", files, "write /srv/x", PolicyVerdict::Ask);
    check("", files, "connect pypi.org:443", PolicyVerdict::Deny);
    let both = ruling("", files, &[], &["write /srv/x", "connect pypi.org:443"]);
    assert_eq!(
        both.decision.verdict,
        PolicyVerdict::Deny,
        "one power that nobody may be asked about refuses the request"
    );
}

#[test]
fn only_powers_that_the_profile_lacks_are_asked_about() {
    check("", ApprovalMode::Never, "write /work/src", PolicyVerdict::Allow);
    let mixed = ruling("", ApprovalMode::OnRequest, &["env CI"], &["write /work/src", "write /srv/x"]);
    assert_eq!(mixed.questions, [QuestionKind::Grants { grants: vec!["write /srv/x".parse().unwrap()] }]);
}

/// Every kind of rule that can speak of a power, in the strictest mode and in one that asks.
#[test]
fn rules_decide_before_the_mode() {
    let never = ApprovalMode::Never;
    let rule = |effect: &str, matcher: &str| {
        format!("[[rules]]\n{matcher}\neffect = \"{effect}\"\njustification = \"because\"\n")
    };
    // A rule about the command that comes with the power.
    let with = |grants: &str| rule("allow", &format!("glob = [\"tool x\"]\ngrants = [\"{grants}\"]"));
    check(&with("connect pypi.org:443"), never, "connect pypi.org:443", PolicyVerdict::Allow);
    check(&with("connect pypi.org:443"), never, "connect pypi.org:80", PolicyVerdict::Deny);
    check(&with("write /srv/x"), never, "write /srv/x", PolicyVerdict::Allow);
    check(&with("write /srv/x"), never, "write /srv", PolicyVerdict::Deny);
    // About hosts.
    check(&rule("allow", "hosts = [\"pypi.org:443\"]"), never, "connect pypi.org:443", PolicyVerdict::Allow);
    check(&rule("allow", "hosts = [\"pypi.org:443\"]"), never, "connect *.pypi.org:443", PolicyVerdict::Deny);
    check(
        &rule("deny", "hosts = [\"pypi.org:443\"]"),
        ApprovalMode::OnRequest,
        "connect pypi.org:443",
        PolicyVerdict::Deny,
    );
    check(
        &rule("ask", "hosts = [\"pypi.org:443\"]"),
        ApprovalMode::OnRequest,
        "connect pypi.org:443",
        PolicyVerdict::Ask,
    );
    check(&rule("ask", "hosts = [\"pypi.org:443\"]"), never, "connect pypi.org:443", PolicyVerdict::Deny);
    // About files: a power over a path is one over everything beneath it.
    let files = |effect: &str, paths: &str, operations: &str| {
        rule(effect, &format!("files = [\"{paths}\"]\noperations = [{operations}]"))
    };
    let all = "\"write\", \"create\", \"delete\"";
    check(&files("allow", "/srv/**", all), never, "write /srv/x", PolicyVerdict::Allow);
    check(&files("allow", "/srv/x", all), never, "write /srv/x", PolicyVerdict::Allow);
    check(&files("allow", "/srv/x/y", all), never, "write /srv/x", PolicyVerdict::Deny);
    check(&files("allow", "/srv/**", "\"write\""), never, "write /srv/x", PolicyVerdict::Deny);
    check(&files("deny", "/srv/**", "\"delete\""), ApprovalMode::OnRequest, "write /srv/x", PolicyVerdict::Deny);
    let narrowed = files("allow", "/srv/**", all) + &files("deny", "/srv/x/secret", all);
    check(&narrowed, never, "write /srv/x", PolicyVerdict::Deny);
    check(&narrowed, ApprovalMode::OnRequest, "write /srv/x", PolicyVerdict::Ask);
    // A rule gives nothing over what is hidden, and nobody gives Stockade's own files.
    check(&files("allow", "/home/u/.ssh/**", "\"read\""), never, "read /home/u/.ssh", PolicyVerdict::Deny);
    let own = ruling("", ApprovalMode::OnRequest, &[], &["write /work/.stockade.toml"]);
    assert_eq!(own.decision.verdict, PolicyVerdict::Deny, "{:?}", own.decision);
}
