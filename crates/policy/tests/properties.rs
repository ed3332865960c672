//! Laws of the rules, over rules and commands made at random: merging is
//! associative, order never beats deny-overrides, narrowing never widens, an
//! explanation names the rule that decided, `decide` is pure and total.

#![allow(clippy::unwrap_used, reason = "what cannot be had fails the test")]

use std::path::Path;

use proptest::prelude::*;
use stockade_model::{
    ApprovalMode, Assessment, Capability, Finding, Impact, IsolationLevel, PolicyVerdict, RawText, RequestCommand,
    RunRequest, SandboxPreference, Tier,
};
use stockade_policy::{
    Act, ActContext, CombiningAlgorithm, ConfigLayer, FileOperation, LayerText, OwnDirectories, PolicyRuling,
    PolicySettings, RequestContext, RuleMatch, consider_request, decide_act, resolve_profile, rule_in,
};

/// A rule as text: what it speaks of and what it says, from small sets so that
/// rules meet commands and each other. Names are drawn so that no two rules share one.
fn rule(effects: &'static [&'static str]) -> impl Strategy<Value = String> {
    let words = prop_oneof![Just("git"), Just("push"), Just("rm"), Just("-f"), Just("ls"), Just("x")];
    let prefix = proptest::collection::vec(words, 1..3).prop_map(|words| format!("prefix = {words:?}"));
    let speaks = prop_oneof![
        4 => prefix,
        1 => Just("glob = [\"git * x\"]".to_owned()),
        1 => Just("glob = [\"*\"]".to_owned()),
        1 => Just("options.present = [[\"-f\", \"--force\"]]\nprefix = [\"git\"]".to_owned()),
        1 => Just("options.absent = [\"-n\"]\nprefix = [\"rm\"]".to_owned()),
        1 => Just("facts.writes = [\"outside-workspace\"]".to_owned()),
        1 => Just("facts.network = [\"*.example:443\"]\nprefix = [\"ls\"]".to_owned()),
        1 => Just("files = [\"./src/**\"]".to_owned()),
        1 => Just("hosts = [\"*.example\"]".to_owned()),
        1 => Just("tool = [\"mcp__*\"]".to_owned()),
    ];
    let around = prop_oneof![
        6 => Just(""),
        1 => Just("cwd = [\"./src\"]\n"),
        1 => Just("user = [\"u\"]\n"),
        1 => Just("time = [\"mon-fri\"]\n"),
        1 => Just("session = [\"ses_a*\"]\n"),
        1 => Just("limits.wall = \"1m\"\n"),
        1 => Just("profile = \"read-only\"\n"),
        1 => Just("approver = \"person\"\n"),
    ];
    let effect = proptest::sample::select(effects);
    (speaks, around, effect, any::<u32>()).prop_map(|(speaks, around, effect, number)| {
        format!("[[rules]]\nname = \"r{number}\"\n{speaks}\n{around}effect = \"{effect}\"\njustification = \"j\"\n")
    })
}

const ALL: &[&str] = &["allow", "ask", "deny"];
const RAISING: &[&str] = &["ask", "deny"];

fn script() -> impl Strategy<Value = String> {
    let command = prop_oneof![
        Just("git push"),
        Just("git push -f x"),
        Just("rm -f x"),
        Just("rm -n"),
        Just("ls"),
        Just("ls x"),
        Just("sudo git push"),
        Just("/usr/bin/git push"),
        Just("x"),
        Just("$(git push)"),
        Just("rm x > y"),
    ];
    proptest::collection::vec(command, 1..4).prop_map(|commands| commands.join(" && "))
}

fn assessment() -> impl Strategy<Value = Assessment> {
    let capability = prop_oneof![
        Just(Capability::Write("/home/u/work/a".into())),
        Just(Capability::Write("/etc/x".into())),
        Just(Capability::Network(None)),
        Just(Capability::Network(Some("a.example:443".into()))),
        Just(Capability::Network(Some("other".into()))),
        Just(Capability::Secret("/home/u/.ssh/id".into())),
    ];
    let tier = prop_oneof![Just(Tier::Allow), Just(Tier::Ask), Just(Tier::Deny)];
    (tier, proptest::collection::vec(capability, 0..3)).prop_map(|(tier, capabilities)| {
        let finding = Finding { code: "code".into(), tier, impact: Impact::default(), message: "m".into(), span: None };
        Assessment { findings: vec![finding], capabilities, ..Assessment::without_findings(tier) }
    })
}

fn circumstances() -> impl Strategy<Value = RequestContext> {
    let user = prop_oneof![Just(None), Just(Some("u".to_owned())), Just(Some("v".to_owned()))];
    let time = prop_oneof![Just(None), Just(Some(1_704_276_000_000)), Just(Some(1_704_535_200_000))];
    (user, time).prop_map(|(user, time_ms)| RequestContext { user, tool: None, time_ms, keeps_changes: None })
}

fn request(script: &str, mode: ApprovalMode, in_source: bool) -> RunRequest {
    RunRequest {
        id: "req_00000000000000000000000000".parse().unwrap(),
        session: Some("ses_abc".parse().unwrap()),
        command: RequestCommand::Script(RawText::from(script)),
        cwd: if in_source { "/home/u/work/src" } else { "/home/u/work" }.into(),
        workspace: "/home/u/work".into(),
        environment: Default::default(),
        profile: "workspace".into(),
        grants: Vec::new(),
        requested: Vec::new(),
        level: IsolationLevel::Full,
        approval_mode: mode,
        sandbox: SandboxPreference::Auto,
        timeout_ms: None,
        limits: Default::default(),
        caller_approval: None,
    }
}

fn mode() -> impl Strategy<Value = ApprovalMode> {
    prop_oneof![Just(ApprovalMode::Untrusted), Just(ApprovalMode::OnFailure), Just(ApprovalMode::Never)]
}

fn layer(layer: ConfigLayer, source: String) -> LayerText {
    LayerText { layer, path: format!("/{layer}").into(), source }
}

fn settings(layers: &[LayerText]) -> PolicySettings {
    PolicySettings::from_layers(Path::new("/home/u"), OwnDirectories::default(), layers).unwrap()
}

fn joined(rules: &[String]) -> String {
    rules.concat()
}

fn acts(settings: &PolicySettings) -> Vec<PolicyVerdict> {
    let workspace = Path::new("/home/u/work");
    let stage = ActContext {
        cwd: workspace,
        workspace,
        session: None,
        profile: "workspace",
        approval_mode: ApprovalMode::OnFailure,
    };
    let around =
        RequestContext { user: Some("u".into()), tool: None, time_ms: Some(1_704_276_000_000), keeps_changes: None };
    let source = Path::new("/home/u/work/src/a");
    let host = "a.example".parse().unwrap();
    [
        Act::File { path: source, operation: FileOperation::Write },
        Act::File { path: Path::new("/srv/x"), operation: FileOperation::Create },
        Act::Network { host: &host, port: Some(443) },
        Act::Tool { name: "mcp__x", arguments: &serde_json::Value::Null },
    ]
    .map(|act| decide_act(settings, act, &stage, &around).decision.verdict)
    .into()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 250, failure_persistence: None, ..ProptestConfig::default() })]

    /// Books of rules merge in any grouping, layers in any order and grouping,
    /// and one that narrows the same later as at once.
    #[test]
    fn merging_is_associative(
        a in proptest::collection::vec(rule(ALL), 0..3),
        b in proptest::collection::vec(rule(ALL), 0..3),
        c in proptest::collection::vec(rule(RAISING), 0..3),
        script in script(), assessment in assessment(), around in circumstances(), mode in mode(),
    ) {
        let layers = [
            layer(ConfigLayer::System, joined(&a)),
            layer(ConfigLayer::User, joined(&b)),
            layer(ConfigLayer::Session, joined(&c)),
        ];
        let all = settings(&layers);
        let [x, y, z] = layers.each_ref().map(|one| settings(std::slice::from_ref(one)).rule_book().clone());
        let left = x.clone().merge(y.clone()).merge(z.clone());
        let right = x.merge(y.merge(z));
        prop_assert_eq!(&left, &right);
        prop_assert_eq!(&left, all.rule_book());
        let mut reversed = layers.clone();
        reversed.reverse();
        let turned = settings(&reversed);
        prop_assert_eq!(turned.rule_book(), all.rule_book());
        let later = settings(&layers[..2]).with_session(Path::new("/session"), &layers[2].source).unwrap();
        prop_assert_eq!(later.compute_digest(), all.compute_digest());
        let request = request(&script, mode, false);
        let decide = |settings: &PolicySettings| rule_in(settings, &request, &assessment, true, &around);
        prop_assert_eq!(decide(&later), decide(&all));
    }

    /// L9: neither order nor file changes a verdict, a rule more never makes it
    /// milder, and a rule that certainly denies is final.
    #[test]
    fn order_never_beats_deny_overrides(
        rules in proptest::collection::vec(rule(ALL), 1..6),
        cut in 0..6usize,
        script in script(), assessment in assessment(), around in circumstances(), mode in mode(), in_source: bool,
    ) {
        let request = request(&script, mode, in_source);
        let decide = |layers: &[LayerText]| rule_in(&settings(layers), &request, &assessment, true, &around);
        let whole = decide(&[layer(ConfigLayer::User, joined(&rules))]);
        let mut reversed = rules.clone();
        reversed.reverse();
        let turned = decide(&[layer(ConfigLayer::User, joined(&reversed))]);
        prop_assert_eq!(&whole.decision.verdict, &turned.decision.verdict);
        // What is named is the same rule, wherever it stands now.
        let label = |ruling: &PolicyRuling| ruling.decision.rule.split(", ").next().unwrap().to_owned();
        prop_assert_eq!(label(&whole), label(&turned));
        let cut = cut.min(rules.len());
        let split = decide(&[layer(ConfigLayer::System, joined(&rules[..cut])), layer(ConfigLayer::User, joined(&rules[cut..]))]);
        prop_assert_eq!(&whole.decision.verdict, &split.decision.verdict);
        let ordered = format!("combining = \"ordered-deny-overrides\"\n{}", joined(&rules));
        prop_assert_eq!(decide(&[layer(ConfigLayer::User, ordered)]).decision.verdict, whole.decision.verdict);
        for raising in RAISING {
            let more = format!("{}[[rules]]\nprefix = [\"git\"]\neffect = \"{raising}\"\njustification = \"j\"\n", joined(&rules));
            prop_assert!(decide(&[layer(ConfigLayer::User, more)]).decision.verdict >= whole.decision.verdict);
        }
        let settings = settings(&[layer(ConfigLayer::User, joined(&rules))]);
        let denies = consider_request(&settings, &request, &assessment, &around)
            .iter()
            .any(|one| one.rule.effect == PolicyVerdict::Deny && one.found == RuleMatch::Certain);
        if denies {
            prop_assert_eq!(whole.decision.verdict, PolicyVerdict::Deny);
        }
    }

    /// L7: whatever a project or a session adds, nothing becomes milder and no
    /// run gets more; an allow rule of theirs is refused.
    #[test]
    fn narrowing_never_widens(
        rules in proptest::collection::vec(rule(ALL), 0..4),
        added in proptest::collection::vec(rule(ALL), 0..4),
        first_applicable: bool, by_session: bool,
        script in script(), assessment in assessment(), around in circumstances(), mode in mode(),
    ) {
        let head = if first_applicable { "combining = \"first-applicable\"\n" } else { "" };
        let user = layer(ConfigLayer::User, joined(&rules));
        let narrow = layer(if by_session { ConfigLayer::Session } else { ConfigLayer::Project }, format!("{head}{}", joined(&added)));
        let before = settings(std::slice::from_ref(&user));
        let after = PolicySettings::from_layers(Path::new("/home/u"), OwnDirectories::default(), &[user, narrow]);
        let allows = added.iter().any(|rule| rule.contains("effect = \"allow\""));
        prop_assert_eq!(after.is_err(), allows);
        let Ok(after) = after else { return Ok(()) };
        let request = request(&script, mode, false);
        let decide = |settings: &PolicySettings| rule_in(settings, &request, &assessment, true, &around);
        let (old, new) = (decide(&before), decide(&after));
        prop_assert!(new.decision.verdict >= old.decision.verdict);
        for (old, new) in acts(&before).into_iter().zip(acts(&after)) {
            prop_assert!(new >= old);
        }
        // What the run would get.
        prop_assert!(new.obligations.grants.iter().all(|grant| old.obligations.grants.contains(grant)));
        let lower = |new: Option<u64>, old: Option<u64>| old.is_none_or(|old| new.is_some_and(|new| new <= old));
        prop_assert!(lower(new.obligations.limits.wall_ms, old.obligations.limits.wall_ms));
        if new.decision.verdict != PolicyVerdict::Deny {
            let write = |settings: &PolicySettings, ruling: &PolicyRuling| {
                let effective_request = ruling.obligations.apply_to_request(&request);
                resolve_profile(settings, &effective_request.profile, Path::new("/home/u/work"), &effective_request.grants).unwrap().filesystem.write
            };
            let (old, new) = (write(&before, &old), write(&after, &new));
            prop_assert!(new.iter().all(|path| old.contains(path)));
        }
    }

    /// The rule that is named decided: it spoke, and its verdict is the decision.
    #[test]
    fn explanations_name_the_rule_that_decided(
        rules in proptest::collection::vec(rule(ALL), 0..6),
        combining in proptest::sample::select(vec!["deny-overrides", "ordered-deny-overrides", "first-applicable"]),
        script in script(), assessment in assessment(), around in circumstances(), mode in mode(), by_person: bool,
    ) {
        let source = format!("combining = \"{combining}\"\n{}", joined(&rules));
        let settings = settings(&[layer(ConfigLayer::User, source)]);
        let request = request(&script, mode, false);
        let ruling = rule_in(&settings, &request, &assessment, by_person, &around);
        let named: Vec<_> = ruling.voices.iter().filter(|voice| voice.source == ruling.decision.rule).collect();
        prop_assert!(!named.is_empty());
        prop_assert!(named.iter().any(|voice| voice.decides && voice.verdict == ruling.decision.verdict));
        prop_assert!(ruling.voices.iter().all(|voice| voice.decides == (voice.verdict == ruling.decision.verdict)));
        prop_assert!(ruling.voices.iter().all(|voice| voice.verdict <= ruling.decision.verdict));
        if ruling.decision.rule.starts_with("rule ") {
            let considered = consider_request(&settings, &request, &assessment, &around);
            let named = considered.iter().find(|one| {
                ruling.decision.rule.contains(&format!("`{}`", one.rule.label()))
                    && ruling.decision.rule.ends_with(&one.rule.origin.to_string())
            });
            let named = named.unwrap();
            prop_assert_ne!(named.found, RuleMatch::No);
            prop_assert!(named.failing.is_none());
            // A `deny` that is not certain asks; nothing else differs.
            let certain = named.found == RuleMatch::Certain || named.rule.effect != PolicyVerdict::Deny;
            if ruling.decision.verdict == named.rule.effect || !certain {
                return Ok(());
            }
            // Mode `never` makes of an `ask` a `deny`.
            prop_assert_eq!((named.rule.effect, mode), (PolicyVerdict::Ask, ApprovalMode::Never));
        }
    }

    /// The same again is the same, and everything has an answer.
    #[test]
    fn decide_is_pure_and_total(
        rules in proptest::collection::vec(rule(ALL), 0..4),
        script: Vec<u8>, assessment in assessment(), around in circumstances(), mode in mode(), by_person: bool,
    ) {
        let settings = settings(&[layer(ConfigLayer::User, joined(&rules))]);
        let mut request = request("", mode, false);
        request.command = RequestCommand::Script(RawText::from(script));
        let decide = || rule_in(&settings, &request, &assessment, by_person, &around);
        let ruling = decide();
        prop_assert_eq!(&ruling, &decide());
        prop_assert!(!ruling.decision.rule.is_empty());
        prop_assert_eq!(ruling.decision.verdict == PolicyVerdict::Ask, !ruling.questions.is_empty());
        prop_assert_eq!(consider_request(&settings, &request, &assessment, &around).len(), rules.len());
    }
}

/// Each algorithm by its name, where they differ.
#[test]
fn combining_algorithms() {
    let rules = "[[rules]]\nprefix = [\"git\", \"status\"]\neffect = \"allow\"\njustification = \"j\"\n\
                 [[rules]]\nname = \"second\"\nprefix = [\"git\"]\neffect = \"deny\"\njustification = \"j\"\n\
                 [[rules]]\nname = \"third\"\nprefix = [\"git\", \"status\", \"-s\"]\neffect = \"deny\"\njustification = \"j\"\n";
    let assessment = Assessment::without_findings(Tier::Ask);
    let decide = |combining: &str, script: &str, extra: &str| {
        let user = layer(ConfigLayer::User, format!("combining = \"{combining}\"\n{rules}"));
        let settings = settings(&[user, layer(ConfigLayer::Project, extra.to_owned())]);
        let request = request(script, ApprovalMode::Untrusted, false);
        let ruling = rule_in(&settings, &request, &assessment, true, &RequestContext::default());
        let rule = ruling.decision.rule.split('`').nth(1).unwrap_or_default().to_owned();
        (ruling.decision.verdict, rule)
    };
    let (allow, deny) = (PolicyVerdict::Allow, PolicyVerdict::Deny);
    // The most specific is named, whatever the order.
    assert_eq!(decide("deny-overrides", "git status -s", ""), (deny, "third".to_owned()));
    assert_eq!(decide("ordered-deny-overrides", "git status -s", ""), (deny, "second".to_owned()));
    assert_eq!(decide("first-applicable", "git status -s", ""), (allow, "git status".to_owned()));
    assert_eq!(decide("first-applicable", "git push", ""), (deny, "second".to_owned()));
    // Each command of a script by itself, the strictest counts.
    assert_eq!(decide("first-applicable", "git status && git push", "").0, deny);
    // Behind a wrapper, a later deny is heard.
    assert_eq!(decide("first-applicable", "sudo git push", "").0, deny);
    // Files are combined by deny-overrides, whatever each says within.
    let project = "[[rules]]\nprefix = [\"git\"]\neffect = \"deny\"\njustification = \"j\"\n";
    assert_eq!(decide("first-applicable", "git status", project).0, deny);
    assert_eq!(CombiningAlgorithm::default(), CombiningAlgorithm::DenyOverrides);
}

/// What is managed is a default and a bound: no other layer undoes it.
#[test]
fn managed_values_hold() {
    let managed = layer(
        ConfigLayer::Managed,
        "approval_mode = \"on-request\"\nlevel = \"full\"\nsandbox = \"require\"\nallow_host = false\napproval_timeout = \"60s\"\n\
         [profiles.workspace]\nhide = [\"~/private\"]\nprotect = [\"LICENSE\"]\nlimits.wall = \"10m\"\nenv.drop = [\"BUILD_KEY\"]\n"
            .to_owned(),
    );
    let user = layer(
        ConfigLayer::User,
        "approval_mode = \"on-failure\"\nlevel = \"restricted\"\nsandbox = \"auto\"\nallow_host = true\napproval_timeout = \"120s\"\n\
         [profiles.workspace]\nreveal = [\"~/private\", \"~/private/x\"]\nlimits.wall = \"1h\"\nenv.pass = [\"BUILD_KEY\"]\nwrite = [\"~/more\"]\n"
            .to_owned(),
    );
    let settings = settings(&[user, managed]);
    assert_eq!(settings.approval_mode.value, ApprovalMode::OnRequest);
    assert_eq!((settings.level.value, settings.allow_host.value), (IsolationLevel::Full, false));
    assert_eq!((settings.sandbox.value, settings.approval_timeout_ms.value), (SandboxPreference::Require, 60_000));
    assert_eq!(settings.level.origin.layer(), Some(ConfigLayer::Managed));
    let profile = resolve_profile(&settings, "workspace", Path::new("/home/u/work"), &[]).unwrap();
    assert!(profile.filesystem.hide.contains(&"/home/u/private".into()) && profile.filesystem.reveal.is_empty());
    assert!(profile.filesystem.protect.contains(&"LICENSE".to_owned()));
    assert_eq!(profile.limits.wall_ms, Some(600_000));
    assert!(profile.environment.drop.iter().any(|entry| entry.pattern == "BUILD_KEY"));
    assert!(!profile.environment.pass.contains(&"BUILD_KEY".to_owned()));
    // What it does not speak of stays the person's.
    assert!(profile.filesystem.write.contains(&"/home/u/more".into()));
}

/// What a rule wants of a run.
#[test]
fn rules_bring_profiles_powers_and_limits() {
    let source = "[profiles.web]\nwrite = [\"~/web\"]\n\
        [[rules]]\nprefix = [\"npm\", \"ci\"]\neffect = \"allow\"\njustification = \"j\"\nprofile = \"web\"\n\
        grants = [\"connect registry.npmjs.org:443\", \"write ~/.npm\"]\nlimits.wall = \"5m\"\n\
        [[rules]]\nprefix = [\"deploy\"]\neffect = \"ask\"\njustification = \"j\"\ngrants = [\"connect a.example:22\"]\napprover = \"person\"\n";
    let settings = settings(&[layer(ConfigLayer::User, source.to_owned())]);
    let assessment = Assessment::without_findings(Tier::Ask);
    let rule = |script: &str, profile: &str| {
        let mut request = request(script, ApprovalMode::Untrusted, false);
        request.profile = profile.to_owned();
        rule_in(&settings, &request, &assessment, true, &RequestContext::default())
    };
    let found = rule("npm ci", "workspace");
    let grants: Vec<String> = found.obligations.grants.iter().map(ToString::to_string).collect();
    assert_eq!(grants, ["write /home/u/.npm", "connect registry.npmjs.org:443"]);
    assert_eq!((found.obligations.profile.as_deref(), found.obligations.limits.wall_ms), (Some("web"), Some(300_000)));
    assert_eq!(found.decision.verdict, PolicyVerdict::Allow);
    // A profile asked for by name is only narrowed.
    assert_eq!(rule("npm ci", "read-only").obligations.profile, None);
    // Part of a script that is not allowed as a whole gets nothing.
    assert!(rule("npm ci && other", "workspace").obligations.is_empty());
    let ask_ruling = rule("deploy now", "workspace");
    assert_eq!(ask_ruling.decision.verdict, PolicyVerdict::Ask);
    assert_eq!(ask_ruling.questions.len(), 2);
    assert_eq!(ask_ruling.obligations.grants.len(), 1);
}
