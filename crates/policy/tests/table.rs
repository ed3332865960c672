//! The full decision table, committed: every mode, tier, rule, grant, sandbox
//! preference, and whether a caller agreed already.
//!
//! A cell holds the verdict without and with a caller's own approval.

#![allow(clippy::unwrap_used, reason = "what cannot be had fails the test")]

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use proptest::prelude::*;
use stockade_model::{
    ApprovalMode, Assessment, CallerApproval, Decision, Finding, Grant, GranularMode, Impact, IsolationLevel,
    PolicyVerdict, QuestionKind, RawText, RequestCommand, RunRequest, SandboxPreference, Tier,
};
use stockade_policy::{
    ClassAnswers, ConfigLayer, LayerText, ModeAnswers, OwnDirectories, PolicyRuling, PolicySettings, decide_request,
    rule_on,
};

const SNAPSHOT: &str = include_str!("snapshots/table__decisions.snap");

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RuleCase {
    None,
    Allow,
    Ask,
    Deny,
    MaybeDeny,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GrantCase {
    None,
    Filesystem,
    Network,
    Other,
    ByPerson,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExecutionPlace {
    Workspace,
    Host,
    HostPermitted,
}

/// Every value of each dimension. The `match` beside each makes a new value a
/// compile error until it is added.
fn modes() -> Vec<(String, ApprovalMode)> {
    let known = |mode: &ApprovalMode| match mode {
        ApprovalMode::Untrusted => 0,
        ApprovalMode::OnFailure => 1,
        ApprovalMode::OnRequest => 2,
        ApprovalMode::Never => 3,
        ApprovalMode::Granular(_) => 4,
    };
    let mut modes = vec![
        ("untrusted".to_owned(), ApprovalMode::Untrusted),
        ("on-failure".to_owned(), ApprovalMode::OnFailure),
        ("on-request".to_owned(), ApprovalMode::OnRequest),
        ("never".to_owned(), ApprovalMode::Never),
    ];
    // The classes are independent of each other (tested below), so each alone
    // and all together tell the rest.
    for bits in [0b0000, 0b0001, 0b0010, 0b0100, 0b1000, 0b1111u8] {
        modes.push((format!("granular {bits:04b}"), ApprovalMode::Granular(classes(bits))));
    }
    assert_eq!(modes.iter().map(|(_, mode)| known(mode)).collect::<BTreeSet<_>>().len(), 5);
    modes
}

fn classes(bits: u8) -> GranularMode {
    let on = |bit: u8| bits & (1 << bit) != 0;
    GranularMode { run: on(3), filesystem: on(2), network: on(1), other: on(0) }
}

#[test]
fn granular_classes_are_independent() {
    let answers = |bits| ModeAnswers::from_mode(ApprovalMode::Granular(classes(bits)));
    for bits in 0..16u8 {
        let (found, none, all) = (answers(bits), answers(0), answers(15));
        let pick = |bit: u8| if bits & (1 << bit) != 0 { all } else { none };
        let expected = ModeAnswers {
            tier_ask: pick(3).tier_ask,
            known_changes: pick(3).known_changes,
            tier_deny: pick(3).tier_deny,
            impact: pick(3).impact,
            rule_ask: pick(3).rule_ask,
            requested: ClassAnswers {
                filesystem: pick(2).requested.filesystem,
                network: pick(1).requested.network,
                other: pick(0).requested.other,
            },
            unsandboxed: if bits == 15 { PolicyVerdict::Ask } else { PolicyVerdict::Deny },
            denied: ClassAnswers {
                filesystem: pick(2).denied.filesystem,
                network: pick(1).denied.network,
                other: pick(0).denied.other,
            },
        };
        assert_eq!(found, expected, "{bits:04b}");
    }
}

fn tiers() -> [Tier; 3] {
    let all = [Tier::Allow, Tier::Ask, Tier::Deny];
    all.map(|tier| match tier {
        Tier::Allow | Tier::Ask | Tier::Deny => tier,
    })
}

fn rules() -> [RuleCase; 5] {
    [RuleCase::None, RuleCase::Allow, RuleCase::Ask, RuleCase::Deny, RuleCase::MaybeDeny]
}

fn grants() -> [GrantCase; 5] {
    [GrantCase::None, GrantCase::Filesystem, GrantCase::Network, GrantCase::Other, GrantCase::ByPerson]
}

fn preferences() -> [(&'static str, SandboxPreference); 3] {
    let all = [SandboxPreference::Auto, SandboxPreference::Require, SandboxPreference::Forbid];
    all.map(|preference| match preference {
        SandboxPreference::Auto => ("auto", preference),
        SandboxPreference::Require => ("require", preference),
        SandboxPreference::Forbid => ("forbid", preference),
    })
}

fn execution_places() -> [(&'static str, ExecutionPlace); 3] {
    [
        ("workspace", ExecutionPlace::Workspace),
        ("host", ExecutionPlace::Host),
        ("host permitted", ExecutionPlace::HostPermitted),
    ]
}

fn settings(rule: RuleCase, place: ExecutionPlace) -> PolicySettings {
    let effect = match rule {
        RuleCase::None => None,
        RuleCase::Allow => Some("allow"),
        RuleCase::Ask => Some("ask"),
        RuleCase::Deny | RuleCase::MaybeDeny => Some("deny"),
    };
    let rule = effect.map_or(String::new(), |effect| {
        format!("[[rules]]\nprefix = [\"tool\"]\neffect = \"{effect}\"\njustification = \"because\"\n")
    });
    let source = format!("allow_host = {}\n{rule}", place == ExecutionPlace::HostPermitted);
    let layer =
        LayerText { layer: ConfigLayer::User, path: PathBuf::from("/home/u/.config/stockade/config.toml"), source };
    PolicySettings::from_layers(Path::new("/home/u"), OwnDirectories::default(), &[layer]).unwrap()
}

fn request(mode: ApprovalMode, rule: RuleCase, grants: GrantCase, place: ExecutionPlace) -> RunRequest {
    let script = if rule == RuleCase::MaybeDeny { "run $(tool)" } else { "tool --flag" };
    let grants = match grants {
        GrantCase::None => &[][..],
        GrantCase::Filesystem => &["write /srv/data"],
        GrantCase::Network => &["connect pypi.org:443"],
        GrantCase::Other => &["env GITHUB_TOKEN"],
        GrantCase::ByPerson => &["write /srv/data", "connect pypi.org:443", "env GITHUB_TOKEN"],
    };
    RunRequest {
        id: "req_00000000000000000000000000".parse().unwrap(),
        session: None,
        command: RequestCommand::Script(script.into()),
        cwd: "/work".into(),
        workspace: "/work".into(),
        environment: [("HOME".to_owned(), RawText::from("/home/u"))].into(),
        profile: if place == ExecutionPlace::Workspace { "workspace".into() } else { "host".into() },
        grants: grants.iter().map(|text| text.parse::<Grant>().unwrap()).collect(),
        requested: Vec::new(),
        level: IsolationLevel::Full,
        approval_mode: mode,
        sandbox: SandboxPreference::Auto,
        timeout_ms: None,
        limits: Default::default(),
        caller_approval: None,
    }
}

fn assessment(tier: Tier) -> Assessment {
    let finding =
        Finding { code: "some-code".into(), tier, impact: Impact::default(), message: "Something.".into(), span: None };
    Assessment { findings: vec![finding], ..Assessment::without_findings(tier) }
}

struct Cell {
    mode: ApprovalMode,
    tier: Tier,
    rule: RuleCase,
    grants: GrantCase,
    place: ExecutionPlace,
    preference: SandboxPreference,
    ruling: PolicyRuling,
    with_caller: PolicyRuling,
}

impl Cell {
    /// `A`llow, `?` ask, `D`eny.
    fn text(&self) -> String {
        let letter = |decision: &Decision| match decision.verdict {
            PolicyVerdict::Allow => 'A',
            PolicyVerdict::Ask => '?',
            PolicyVerdict::Deny => 'D',
        };
        format!("{}{}", letter(&self.ruling.decision), letter(&self.with_caller.decision))
    }
}

fn row_key(mode: &str, place: &str, preference: &str, grants: GrantCase) -> String {
    format!("{mode:<13} {place:<14} {preference:<7} {:<10}", format!("{grants:?}").to_lowercase())
}

/// Every row of the table, in order, with its cells; made once.
fn table() -> &'static [(String, Vec<Cell>)] {
    static TABLE: OnceLock<Vec<(String, Vec<Cell>)>> = OnceLock::new();
    TABLE.get_or_init(make_table)
}

fn make_table() -> Vec<(String, Vec<Cell>)> {
    let mut rows = Vec::new();
    let all_settings: Vec<Vec<PolicySettings>> = execution_places()
        .iter()
        .map(|(_, place)| rules().iter().map(|rule| settings(*rule, *place)).collect())
        .collect();
    for (mode_name, mode) in modes() {
        for (p, (place_name, place)) in execution_places().into_iter().enumerate() {
            for (preference_name, preference) in preferences() {
                for grants in grants() {
                    let mut cells = Vec::new();
                    for tier in tiers() {
                        for (r, rule) in rules().into_iter().enumerate() {
                            let mut request = request(mode, rule, grants, place);
                            request.sandbox = preference;
                            let rule_on = |request: &RunRequest| {
                                // The configured mode is the mildest, so the request's own holds.
                                let by_person = grants == GrantCase::ByPerson;
                                rule_on(&all_settings[p][r], request, &assessment(tier), by_person)
                            };
                            let ruling = rule_on(&request);
                            let warnings = vec!["careful".to_owned()];
                            request.caller_approval = Some(CallerApproval { by: "agent".into(), warnings });
                            let with_caller = rule_on(&request);
                            cells.push(Cell { mode, tier, rule, grants, place, preference, ruling, with_caller });
                        }
                    }
                    rows.push((row_key(&mode_name, place_name, preference_name, grants), cells));
                }
            }
        }
    }
    rows
}

fn render(rows: &[(String, Vec<Cell>)]) -> String {
    let mut text = String::from(
        "Each cell: the verdict, then the verdict where a caller's own policy agreed already.\n\
         A allow, ? ask, D deny. Granular: run, filesystem, network, other.\n\
         Rules: - none, a allow, ? ask, d deny, m deny that may be held by a text not understood.\n\n",
    );
    let _ = writeln!(text, "{:<47} tier allow      tier ask        tier deny", "");
    let _ = write!(text, "{:<13} {:<14} {:<7} {:<10}", "mode", "profile", "sandbox", "grants");
    text.push_str(&" -  a  ?  d  m ".repeat(3));
    text = text.trim_end().to_owned();
    for (key, cells) in rows {
        text.push('\n');
        text.push_str(key);
        for (i, cell) in cells.iter().enumerate() {
            text.push_str(if i > 0 && i % rules().len() == 0 { "  " } else { " " });
            text.push_str(&cell.text());
        }
    }
    text
}

#[test]
fn decisions() {
    insta::assert_snapshot!(render(table()));
}

#[test]
fn no_case_is_missing() {
    let rows = table();
    let dimensions = modes().len() * execution_places().len() * preferences().len() * grants().len();
    assert_eq!(rows.len(), dimensions);
    for (key, cells) in rows {
        assert_eq!(cells.len(), tiers().len() * rules().len());
        let committed: Vec<&str> = SNAPSHOT.lines().filter(|line| line.starts_with(key.as_str())).collect();
        assert_eq!(committed.len(), 1, "the committed table has {} rows `{key}`", committed.len());
        let verdicts = committed[0][key.len()..].split_whitespace().count();
        assert_eq!(verdicts, cells.len(), "the committed row `{key}` has {verdicts} cells");
    }
}

/// Each law as a sentence that holds for every cell.
#[test]
fn laws_hold_in_every_case() {
    for (key, cells) in table() {
        for cell in cells {
            let why = format!("{key} {:?} {:?}", cell.tier, cell.rule);
            let (verdict, with_caller) = (cell.ruling.decision.verdict, cell.with_caller.decision.verdict);
            // L9: a rule's deny is final.
            if cell.rule == RuleCase::Deny {
                assert_eq!((verdict, with_caller), (PolicyVerdict::Deny, PolicyVerdict::Deny), "{why}");
            }
            // L1: nothing runs unsandboxed without a question that only a person answers.
            for ruling in [&cell.ruling, &cell.with_caller] {
                assert_eq!(ruling.unsandboxed, cell.place != ExecutionPlace::Workspace, "{why}");
                if ruling.unsandboxed {
                    assert_ne!(ruling.decision.verdict, PolicyVerdict::Allow, "{why}");
                }
                let asks = ruling.decision.verdict == PolicyVerdict::Ask;
                assert_eq!(!ruling.questions.is_empty(), asks, "{why}");
                if ruling.unsandboxed && asks {
                    assert_eq!(ruling.questions, [QuestionKind::Unsandboxed], "{why}");
                    assert_eq!(cell.place, ExecutionPlace::HostPermitted, "{why}");
                    assert_ne!(cell.preference, SandboxPreference::Require, "{why}");
                }
                assert!(!ruling.decision.rule.is_empty(), "{why}");
            }
            if cell.mode == ApprovalMode::Never {
                assert_ne!(verdict, PolicyVerdict::Ask, "{why}");
            }
            // A caller's approval spares a question and does nothing else.
            assert!(
                with_caller <= verdict && (verdict != PolicyVerdict::Deny || with_caller == PolicyVerdict::Deny),
                "{why}"
            );
            // L1: powers that came with the request always need a person.
            if !matches!(cell.grants, GrantCase::None | GrantCase::ByPerson) && cell.place == ExecutionPlace::Workspace
            {
                assert_ne!(with_caller, PolicyVerdict::Allow, "{why}");
            }
            assert!(cell.with_caller.decision.reasons.contains(&"agent was warned: careful".to_owned()), "{why}");
        }
    }
}

fn settings_of(rules: &[(&str, &str)]) -> PolicySettings {
    // In any of the files: a project may not allow, so allow rules stand in the user's.
    let text = |(program, effect): &(&str, &str)| {
        format!("[[rules]]\nprefix = [\"{program}\"]\neffect = \"{effect}\"\njustification = \"because\"\n")
    };
    let layer = |layer, path: &str, source| LayerText { layer, path: path.into(), source };
    let (allow, raise): (Vec<_>, Vec<_>) = rules.iter().partition(|(_, effect)| *effect == "allow");
    let user: String = allow.into_iter().map(text).collect();
    let project: String = raise.into_iter().map(text).collect();
    let all: String = rules.iter().map(text).collect();
    let layers = match rules.len() % 2 {
        0 => vec![layer(ConfigLayer::User, "/u", user), layer(ConfigLayer::Project, "/p", project)],
        _ => vec![layer(ConfigLayer::System, "/s", all)],
    };
    PolicySettings::from_layers(Path::new("/home/u"), OwnDirectories::default(), &layers).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// L9: the order and the file of rules decide nothing, and deny is final.
    #[test]
    fn order_never_beats_deny(
        rules in proptest::collection::vec(
            (prop_oneof![Just("tool"), Just("other"), Just("ls")], prop_oneof![Just("allow"), Just("ask"), Just("deny")]),
            0..6,
        ).prop_shuffle(),
        script in prop_oneof![Just("tool"), Just("tool --flag; ls"), Just("other | tool"), Just("ls"), Just("$(tool)")],
        mode in 0..10usize,
        tier in 0..3usize,
        by_person: bool,
        caller: bool,
    ) {
        let mut request = request(modes()[mode].1, RuleCase::None, GrantCase::None, ExecutionPlace::Workspace);
        request.command = RequestCommand::Script(script.into());
        request.caller_approval = caller.then(|| CallerApproval { by: "agent".into(), warnings: vec![] });
        let assessment = assessment(tiers()[tier]);
        let decide = |rules: &[(&str, &str)]| decide_request(&settings_of(rules), &request, &assessment, by_person);
        let decision = decide(&rules);
        // Pure: the same again.
        prop_assert_eq!(&decision, &decide(&rules));
        let mut reversed = rules.clone();
        reversed.reverse();
        prop_assert_eq!(decision.verdict, decide(&reversed).verdict);
        let plain = script != "$(tool)";
        if plain && rules.iter().any(|(program, effect)| *effect == "deny" && script.contains(program)) {
            prop_assert_eq!(decision.verdict, PolicyVerdict::Deny);
        }
        // One more raising rule never makes it milder.
        for raising in ["ask", "deny"] {
            let mut more = rules.clone();
            more.insert(0, ("tool", raising));
            prop_assert!(decide(&more).verdict >= decision.verdict || caller);
        }
    }

    /// Total: whatever the command, there is a verdict with a rule.
    #[test]
    fn every_command_has_a_verdict(script: Vec<u8>, words in proptest::collection::vec(any::<Vec<u8>>(), 0..4)) {
        let settings = settings_of(&[("tool", "deny"), ("ls", "allow"), ("a", "ask")]);
        let mut request = request(ApprovalMode::Untrusted, RuleCase::None, GrantCase::None, ExecutionPlace::Workspace);
        let argv = RequestCommand::Argv(words.into_iter().map(RawText::from).collect());
        for command in [RequestCommand::Script(script.into()), argv] {
            request.command = command;
            prop_assert!(!decide_request(&settings, &request, &assessment(Tier::Ask), true).rule.is_empty());
        }
    }
}

#[test]
fn texts_for_users() {
    let mut text = String::new();
    for (tier, rule, grants, place) in [
        (Tier::Allow, RuleCase::None, GrantCase::None, ExecutionPlace::Workspace),
        (Tier::Ask, RuleCase::None, GrantCase::None, ExecutionPlace::Workspace),
        (Tier::Deny, RuleCase::None, GrantCase::Network, ExecutionPlace::Workspace),
        (Tier::Ask, RuleCase::Allow, GrantCase::None, ExecutionPlace::Workspace),
        (Tier::Ask, RuleCase::Deny, GrantCase::None, ExecutionPlace::Workspace),
        (Tier::Ask, RuleCase::MaybeDeny, GrantCase::None, ExecutionPlace::Workspace),
        (Tier::Ask, RuleCase::None, GrantCase::None, ExecutionPlace::Host),
        (Tier::Ask, RuleCase::None, GrantCase::None, ExecutionPlace::HostPermitted),
    ] {
        let request = request(ApprovalMode::OnFailure, rule, grants, place);
        let decision = decide_request(&settings(rule, place), &request, &assessment(tier), false);
        let _ = writeln!(text, "{:?}: {}", decision.verdict, decision.rule);
        decision.reasons.iter().for_each(|reason| {
            let _ = writeln!(text, "  {reason}");
        });
    }
    insta::assert_snapshot!(text);
}

#[track_caller]
fn check(configured: &str, change: impl Fn(&mut RunRequest), by_person: bool, expected: PolicyVerdict) {
    let path = PathBuf::from("/home/u/.config/stockade/config.toml");
    let layer = LayerText { layer: ConfigLayer::User, path, source: configured.to_owned() };
    let settings = PolicySettings::from_layers(Path::new("/home/u"), OwnDirectories::default(), &[layer]).unwrap();
    let mut request = request(ApprovalMode::OnFailure, RuleCase::None, GrantCase::None, ExecutionPlace::Workspace);
    change(&mut request);
    let decision = decide_request(&settings, &request, &assessment(Tier::Ask), by_person);
    assert_eq!(decision.verdict, expected, "{decision:?}");
}

#[test]
fn a_request_may_only_tighten_unless_it_is_the_persons() {
    let restricted = |request: &mut RunRequest| request.level = IsolationLevel::Restricted;
    check("", restricted, false, PolicyVerdict::Deny);
    check("", restricted, true, PolicyVerdict::Allow);
    check("level = \"restricted\"", restricted, false, PolicyVerdict::Allow);
    check("", |request| request.level = IsolationLevel::None, true, PolicyVerdict::Deny);
    let nothing = |_: &mut RunRequest| {};
    check("approval_mode = \"untrusted\"", nothing, false, PolicyVerdict::Ask);
    check("approval_mode = \"untrusted\"", nothing, true, PolicyVerdict::Allow);
    check("profile = \"read-only\"", nothing, false, PolicyVerdict::Ask);
    check("profile = \"read-only\"", nothing, true, PolicyVerdict::Allow);
    check("", |request| request.profile = "read-only".into(), false, PolicyVerdict::Allow);
    check("", |request| request.profile = "nonesuch".into(), true, PolicyVerdict::Deny);
    check("", |request| request.workspace = "relative".into(), true, PolicyVerdict::Deny);
    let host = |request: &mut RunRequest| request.profile = "host".into();
    check("allow_host = true", host, true, PolicyVerdict::Ask);
    check("allow_host = true\nsandbox = \"require\"", host, true, PolicyVerdict::Deny);
}

#[test]
fn powers_that_are_there_already_need_no_consent() {
    let grants = |text: &'static str| move |request: &mut RunRequest| request.grants = vec![text.parse().unwrap()];
    check("", grants("write /work/src"), false, PolicyVerdict::Allow);
    check("", grants("read /usr/share"), false, PolicyVerdict::Allow);
    check("", grants("env PATH"), false, PolicyVerdict::Allow);
    check("", grants("write /work/.git"), false, PolicyVerdict::Ask);
    check("", grants("write /work/.GIT/hooks"), false, PolicyVerdict::Ask);
    check("", grants("read /home/u/.ssh/config"), false, PolicyVerdict::Ask);
    check("", grants("env GITHUB_TOKEN"), false, PolicyVerdict::Ask);
    check("", grants("listen 80"), false, PolicyVerdict::Ask);
    check("", grants("write /work/.stockade.toml"), true, PolicyVerdict::Deny);
}
