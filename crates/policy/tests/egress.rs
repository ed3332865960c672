//! The network part of profiles: what a file may say, what wins, that a project
//! only tightens, and that rules about hosts hold against the lists.

#![allow(clippy::unwrap_used, reason = "what cannot be had fails the test")]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use stockade_model::{
    ApprovalMode, EgressRules, Grant, NetworkTarget, PolicyVerdict, SecretKind, SecretSource, TargetListing,
    UpstreamKind,
};
use stockade_policy::{
    ActContext, ConfigError, ConfigLayer, LayerText, OwnDirectories, PolicySettings, RequestContext, resolve_profile,
};

const WORKSPACE: &str = "/home/u/work";

fn merge(layers: &[(ConfigLayer, &str)]) -> Result<PolicySettings, ConfigError> {
    let text = |(layer, source): &(ConfigLayer, &str)| LayerText {
        layer: *layer,
        path: PathBuf::from(format!("/{layer}.toml")),
        source: (*source).to_owned(),
    };
    let layers: Vec<LayerText> = layers.iter().map(text).collect();
    PolicySettings::from_layers(Path::new("/home/u"), OwnDirectories::default(), &layers)
}

fn egress(settings: &PolicySettings, profile: &str) -> EgressRules {
    resolve_profile(settings, profile, Path::new(WORKSPACE), &[]).unwrap().egress
}

/// What the lists say, from mild to strict.
fn strictness(egress: &EgressRules, target: &NetworkTarget) -> u8 {
    match egress.look_up_target(target) {
        TargetListing::Allowed(_) | TargetListing::Granted(_) => 0,
        TargetListing::Not => 1,
        TargetListing::Denied(_) => 2,
    }
}

#[test]
fn everything_that_can_be_said() {
    let source = r#"
        [profiles.web.egress]
        allow = ["@pypi", "API.example.com:443", "**.internal.example.com:80,8000-8100"]
        ask = ["api.example.com"]
        deny = ["**.ru", "upload.pypi.org"]
        special = ["10.0.0.0/8:443"]
        limits = { requests_per_minute = 60, connections = 20, total = "2GiB", up_per_second = "1MiB" }
        inspect = { hosts = ["api.example.com"], allow = ["GET https://api.example.com/v1/*"], except = ["pinned.example.com"], upgrade = ["live.example.com:443"] }
        upstream = { proxy = "http://proxy.corp:3128", credentials = "env PROXY_LOGIN", except = ["**.corp"] }

        [profiles.web.egress.secrets.github]
        from = "file ~/.config/token"
        hosts = ["api.github.com:443"]
        kind = "header X-Token"
        inside = "env GH_TOKEN"
    "#;
    let result = egress(&merge(&[(ConfigLayer::User, source)]).unwrap(), "web");
    assert_eq!(result.allow.len(), 4);
    assert_eq!((result.limits.requests_per_minute, result.limits.connections), (Some(60), Some(20)));
    assert_eq!((result.limits.total_bytes, result.limits.up_bytes_per_second), (Some(2 << 30), Some(1 << 20)));
    assert_eq!((result.limits.connections_per_second, result.limits.down_bytes_per_second), (None, None));
    let secret = &result.secrets[0];
    assert_eq!((secret.name.as_str(), &secret.kind), ("github", &SecretKind::Header("x-token".into())));
    assert_eq!(secret.from, SecretSource::File("/home/u/.config/token".into()));
    assert_eq!(secret.inside, SecretSource::Env("GH_TOKEN".into()));
    let upstream = result.upstream.clone().unwrap();
    assert_eq!((upstream.kind, upstream.proxy.to_string()), (UpstreamKind::Http, "proxy.corp:3128".to_owned()));
    let target = |text: &str| text.parse::<NetworkTarget>().unwrap();
    for (at, expected) in [
        ("pypi.org:443", 0),
        ("pypi.org:80", 1),
        ("api.example.com:443", 1),
        ("a.b.internal.example.com:8050", 0),
        ("x.y.ru:443", 2),
        ("other.org:443", 1),
    ] {
        assert_eq!(strictness(&result, &target(at)), expected, "{at}");
    }
    assert!(result.may_dial(&target("api.example.com:443"), "10.1.1.1".parse().unwrap()).is_ok());
    // Nothing is said where nothing is configured.
    assert!(egress(&merge(&[]).unwrap(), "workspace").is_empty());
}

/// Every way the section can be wrong, as a person reads it.
#[test]
fn errors_name_the_position() {
    use ConfigLayer::{Project, User};
    let before = "[profiles.workspace.egress]\nallow = [\"**.example.com\"]\nlimits.connections = 10\n\
                  inspect.allow = [\"GET https://a.example.com/*\"]\n";
    let cases = [
        (User, "allow = [\"pypi.org\", \"@pypy\"]"),
        (User, "allow = [\"@nothinglikeit\"]"),
        (User, "allow = [\"https://pypi.org\"]"),
        (User, "allow = [\"pypi.org:0\"]"),
        (User, "allow = [\n    \"a.example.com\",\n    \"*.co.uk:443\",\n]"),
        (User, "allow = [\"**.github.io\"]"),
        (User, "alow = []"),
        (User, "special = [\"10.0.0.0/8\", \"corp\"]"),
        (User, "limits.connections = 0"),
        (User, "limits.total = \"2GB\""),
        (User, "limits.bandwidth = 1"),
        (User, "inspect.deny = [\"get https://a/\"]"),
        (User, "inspect.deny = [\"GET https://a/../b\"]"),
        (User, "upstream.proxy = \"http://user:pw@proxy:3128\""),
        (User, "upstream.except = []"),
        (User, "secrets.x = { from = \"sk-123\", hosts = [\"a.example.com\"], kind = \"bearer\" }"),
        (User, "secrets.x = { from = \"env A\", hosts = [\"*\"], kind = \"bearer\" }"),
        (User, "secrets.x = { from = \"env A\", hosts = [], kind = \"bearer\" }"),
        (User, "secrets.x = { from = \"env A\", hosts = [\"**.com\"], kind = \"bearer\" }"),
        (User, "secrets.x = { from = \"env A\", hosts = [\"a.example.com\"], kind = \"header Host\" }"),
        (User, "secrets.x = { from = \"file ./token\", hosts = [\"a.example.com\"], kind = \"basic\" }"),
        (User, "secrets.\"a b\" = { from = \"env A\", hosts = [\"a.example.com\"], kind = \"basic\" }"),
        (Project, "allow = [\"a.example.com\"]"),
        (Project, "special = [\"10.0.0.0/8\"]"),
        (Project, "limits.connections = 11"),
        (Project, "inspect.except = [\"a.example.com\"]"),
        (Project, "inspect.allow = [\"GET https://a.example.com/x\"]"),
        (Project, "inspect.upgrade = [\"a.example.com\"]"),
        (Project, "upstream.proxy = \"http://evil:1\""),
        (Project, "secrets.x = { from = \"env A\", hosts = [\"a.example.com\"], kind = \"bearer\" }"),
    ];
    let mut text = String::new();
    for (layer, source) in cases {
        let error = merge(&[(ConfigLayer::System, before), (layer, &format!("[profiles.workspace.egress]\n{source}"))]);
        let shown = error.map_or_else(|error| format!("error: {error}"), |_| "ACCEPTED".to_owned());
        let _ = writeln!(text, "{source}\n{shown}\n");
    }
    assert!(!text.contains("ACCEPTED"), "{text}");
    // What stands where a secret's place belongs may be the secret itself.
    let shown: Vec<&str> = text.lines().filter(|line| line.starts_with("error: ")).collect();
    assert!(!shown.iter().any(|line| line.contains("sk-123") || line.contains("user:pw")), "{shown:#?}");
    insta::assert_snapshot!(text);
}

#[test]
fn deny_and_ask_outweigh_allow_whatever_their_file() {
    let target: NetworkTarget = "a.example.com:443".parse().unwrap();
    let allow = "[profiles.workspace.egress]\nallow = [\"a.example.com\"]";
    for (keeps, expected) in [("deny", 2), ("ask", 1)] {
        let keeps = format!("[profiles.workspace.egress]\n{keeps} = [\"**.example.com:443\"]");
        for (first, second) in [
            (ConfigLayer::System, ConfigLayer::User),
            (ConfigLayer::User, ConfigLayer::System),
            (ConfigLayer::User, ConfigLayer::Project),
            (ConfigLayer::User, ConfigLayer::Managed),
        ] {
            let settings = merge(&[(first, allow), (second, &keeps)]).unwrap();
            assert_eq!(strictness(&egress(&settings, "workspace"), &target), expected, "{second} {keeps}");
        }
    }
}

#[test]
fn managed_limits_hold_and_heirs_keep_their_own() {
    let limits = |profile: &str, text: &str| format!("[profiles.{profile}.egress]\nlimits.{text}\n");
    let settings = merge(&[
        (ConfigLayer::Managed, &limits("workspace", "connections = 10")),
        (ConfigLayer::User, &(limits("workspace", "connections = 50") + &limits("web", "total = \"1MiB\""))),
        (ConfigLayer::Project, &limits("workspace", "total = \"1KiB\"")),
    ])
    .unwrap();
    assert_eq!(egress(&settings, "workspace").limits.connections, Some(10));
    assert_eq!(egress(&settings, "workspace").limits.total_bytes, Some(1 << 10));
    let web = egress(&settings, "web").limits;
    assert_eq!((web.connections, web.total_bytes), (Some(10), Some(1 << 10)));
}

#[test]
fn a_grant_for_a_public_suffix_makes_no_profile() {
    let settings = merge(&[]).unwrap();
    let resolve = |grant: &str| {
        let grants: [Grant; 1] = [grant.parse().unwrap()];
        resolve_profile(&settings, "workspace", Path::new(WORKSPACE), &grants).map(drop).map_err(|e| e.to_string())
    };
    assert_eq!(
        resolve("connect **.com:443").unwrap_err(),
        "`connect **.com:443`: `**.com:443` is too wide: anyone can register a name under `com`, a public suffix\n\
         hint: name the hosts, or the domain that owns them"
    );
    assert_eq!(resolve("connect *.example.com:443"), Ok(()));
    assert_eq!(resolve("connect *:443"), Ok(()));
}

const SECRET: &str = "[profiles.workspace.egress.secrets.github]\nfrom = \"env GITHUB_TOKEN\"\nhosts = [\"github.com:443\"]\nkind = \"bearer\"\n";

#[test]
fn a_grant_for_a_secret_adds_one_host_to_it_and_nothing_else() {
    let denies = "[profiles.workspace.egress]\ndeny = [\"**.evil.example\"]\n".to_owned();
    let settings = merge(&[(ConfigLayer::User, &(denies + SECRET))]).unwrap();
    let resolve = |grants: &[&str]| {
        let grants: Vec<Grant> = grants.iter().map(|grant| grant.parse().unwrap()).collect();
        resolve_profile(&settings, "workspace", Path::new(WORKSPACE), &grants).map_err(|error| error.to_string())
    };
    let before = resolve(&[]).unwrap();
    let mut after = resolve(&["secret github to ghe.example.com:443"]).unwrap();
    assert!(after.egress.requires_inspection(&"ghe.example.com:443".parse().unwrap()));
    assert_eq!(
        after.egress.look_up_target(&"ghe.example.com:443".parse().unwrap()),
        TargetListing::Not,
        "to reach it is another power"
    );
    assert_eq!(after.egress.secrets[0].hosts.pop().unwrap().to_string(), "ghe.example.com:443");
    assert_eq!(after, before);
    assert_eq!(resolve(&["secret github to github.com:443"]).unwrap(), before);
    assert_eq!(
        resolve(&["secret gitlab to ghe.example.com:443"]).unwrap_err(),
        "`secret gitlab to ghe.example.com:443`: the profile `workspace` has no such secret\n\
         hint: its secrets are `github`"
    );
    let denied = resolve(&["secret github to a.evil.example:443"]).unwrap_err();
    assert!(denied.contains("the profile denies `**.evil.example`"), "{denied}");
    // L7: nothing that a workspace brings gives one.
    let rule = "[[rules]]\nprefix = [\"make\"]\neffect = \"ask\"\ngrants = [\"secret github to a.b:443\"]\njustification = \"j\"";
    for layer in [ConfigLayer::Project, ConfigLayer::Session] {
        let error = merge(&[(ConfigLayer::User, SECRET), (layer, rule)]).unwrap_err().to_string();
        assert!(error.contains("it would give more"), "{error}");
    }
}

#[test]
fn a_rule_gives_a_secret_where_it_names_it_and_denies_it_with_its_host() {
    let result = |rules: &str, power: &str| {
        let settings = merge(&[(ConfigLayer::User, &(rules.to_owned() + SECRET))]).unwrap();
        let (cwd, session, approval_mode) = (Path::new(WORKSPACE), None, ApprovalMode::OnFailure);
        let stage = ActContext { cwd, workspace: cwd, session, profile: "workspace", approval_mode };
        let decision = settings.decide_secret_by_rule(&power.parse().unwrap(), &stage, &RequestContext::default());
        decision.map(|decision| decision.verdict)
    };
    let rule = |effect: &str, grants: &str| {
        format!(
            "[[rules]]\nhosts = [\"ghe.example.com:443\"]\neffect = \"{effect}\"\n{grants}\njustification = \"j\"\n"
        )
    };
    let power = "github to ghe.example.com:443";
    let allow_rule = rule("allow", "grants = [\"secret github to ghe.example.com:443\"]");
    assert_eq!(result(&allow_rule, power), Some(PolicyVerdict::Allow));
    // Behind another that allows the host alone, too.
    assert_eq!(result(&(rule("allow", "") + &allow_rule), power), Some(PolicyVerdict::Allow));
    for (rules, power) in [
        (rule("allow", ""), power),
        (rule("allow", "grants = [\"secret gitlab to ghe.example.com:443\"]"), power),
        (rule("allow", "grants = [\"secret github to other.example:443\"]"), power),
        (allow_rule.clone(), "github to ghe.example.com:80"),
        (allow_rule.clone(), "github to other.example:443"),
    ] {
        assert_eq!(result(&rules, power), None, "{rules}");
    }
    for (effect, verdict) in [("deny", PolicyVerdict::Deny), ("ask", PolicyVerdict::Ask)] {
        assert_eq!(result(&rule(effect, ""), power), Some(verdict));
        assert_eq!(result(&(allow_rule.clone() + &rule(effect, "")), power), Some(verdict));
    }
}

const KEY: &str = "SHA256:n2Qkj1yQp3Q3nGkkNUnGhUBGTFkFrp1Bw0dmz6qYmNA";

#[test]
fn a_rule_gives_a_signature_where_it_names_it_and_denies_it_with_its_host() {
    let result = |rules: &str, power: &str| {
        let settings = merge(&[(ConfigLayer::User, rules)]).unwrap();
        let (cwd, session, approval_mode) = (Path::new(WORKSPACE), None, ApprovalMode::OnFailure);
        let stage = ActContext { cwd, workspace: cwd, session, profile: "workspace", approval_mode };
        let power = format!("{KEY} {power}").parse().unwrap();
        let decision = settings.decide_signing_by_rule(&power, &stage, &RequestContext::default());
        decision.map(|decision| decision.verdict)
    };
    let rule = |effect: &str, grants: &str| {
        format!("[[rules]]\nhosts = [\"a.example:22\"]\neffect = \"{effect}\"\n{grants}\njustification = \"j\"\n")
    };
    let allow_rule = rule("allow", &format!("grants = [\"sign {KEY} to a.example\"]"));
    assert_eq!(result(&allow_rule, "to a.example"), Some(PolicyVerdict::Allow));
    for (rules, power) in [
        (rule("allow", ""), "to a.example"),
        (allow_rule.clone(), "to a.example:2222"),
        (allow_rule.clone(), "to b.example"),
        (allow_rule.clone(), "for git"),
    ] {
        assert_eq!(result(&rules, power), None, "{rules} {power}");
    }
    for (effect, verdict) in [("deny", PolicyVerdict::Deny), ("ask", PolicyVerdict::Ask)] {
        assert_eq!(result(&rule(effect, ""), "to a.example"), Some(verdict));
        assert_eq!(result(&(allow_rule.clone() + &rule(effect, "")), "to a.example"), Some(verdict));
    }
    // L7: nothing that a workspace brings gives one.
    for purpose in ["for git", "to a.example"] {
        let rule = format!(
            "[[rules]]\nprefix = [\"make\"]\neffect = \"ask\"\ngrants = [\"sign {KEY} {purpose}\"]\njustification = \"j\""
        );
        for layer in [ConfigLayer::Project, ConfigLayer::Session] {
            let error = merge(&[(layer, &rule)]).unwrap_err().to_string();
            assert!(error.contains("it would give more"), "{error}");
        }
    }
}

/// The verdicts of rules about hosts, put into the lists of a run.
#[test]
fn rules_about_hosts_hold_against_lists_and_grants() {
    let grant: [Grant; 1] = ["connect a.example.com:443".parse().unwrap()];
    let around =
        RequestContext { user: Some("u".into()), tool: None, time_ms: Some(1_704_276_000_000), keeps_changes: None };
    let bound = |source: &str| {
        let allow = "[profiles.workspace.egress]\nallow = [\"**.example.com\"]";
        let settings = merge(&[(ConfigLayer::System, allow), (ConfigLayer::User, source)]).unwrap();
        let mut profile = resolve_profile(&settings, "workspace", Path::new(WORKSPACE), &grant).unwrap();
        let (cwd, session) = (Path::new(WORKSPACE), None);
        let approval_mode = ApprovalMode::OnFailure;
        let stage = ActContext { cwd, workspace: cwd, session, profile: "workspace", approval_mode };
        settings.bind_host_rules(&mut profile, &stage, &around);
        let target = |text: &str| text.parse::<NetworkTarget>().unwrap();
        let of = |text: &str, grants: &[Grant]| match profile.egress.listed_with(grants, &target(text)) {
            TargetListing::Allowed(_) => "allowed",
            TargetListing::Granted(_) => "granted",
            TargetListing::Not => "asked",
            TargetListing::Denied(_) => "denied",
        };
        (of("a.example.com:443", &[]), of("a.example.com:443", &grant))
    };
    let rule = |keys: &str, effect: &str| {
        format!("[[rules]]\nhosts = [\"a.example.com:443\"]\n{keys}\neffect = \"{effect}\"\njustification = \"j\"\n")
    };
    assert_eq!(bound(""), ("allowed", "allowed"));
    assert_eq!(bound(&rule("", "deny")), ("denied", "denied"));
    assert_eq!(bound(&rule("", "ask")), ("asked", "granted"));
    assert_eq!(bound(&rule("user = [\"u\"]", "deny")), ("denied", "denied"));
    assert_eq!(bound(&rule("user = [\"v\"]", "deny")), ("allowed", "allowed"));
    assert_eq!(bound(&rule("cwd = [\"/srv\"]", "deny")), ("allowed", "allowed"));
    assert_eq!(bound(&rule("time = [\"sat\"]", "deny")), ("allowed", "allowed"));
    assert_eq!(bound(&rule("tool = [\"x\"]", "deny")), ("allowed", "allowed"));
    // An earlier rule of the file may outweigh it: the rules are asked again.
    let first = "combining = \"first-applicable\"\n".to_owned() + &rule("", "allow") + &rule("", "deny");
    assert_eq!(bound(&first), ("asked", "granted"));
    // A rule that may apply, for a user who is not known, asks.
    let settings = merge(&[(ConfigLayer::User, &rule("user = [\"u\"]", "deny"))]).unwrap();
    let mut profile = resolve_profile(&settings, "workspace", Path::new(WORKSPACE), &[]).unwrap();
    let (cwd, approval_mode) = (Path::new(WORKSPACE), ApprovalMode::OnFailure);
    let stage = ActContext { cwd, workspace: cwd, session: None, profile: "workspace", approval_mode };
    settings.bind_host_rules(&mut profile, &stage, &RequestContext::default());
    assert_eq!((profile.egress.deny.len(), profile.egress.ask.len()), (0, 1));
}

/// A section made of small sets, so that its lists meet each other.
fn section(gives: bool) -> impl Strategy<Value = String> {
    let host = || {
        proptest::sample::select(vec![
            "a.example.com",
            "a.example.com:443",
            "*.example.com",
            "**.example.com:443",
            "b.other.org",
            "10.0.0.0/8",
            "10.0.0.1:443",
            "*",
            "@pypi",
        ])
    };
    let hosts = move || proptest::collection::vec(host(), 0..3);
    let limit = proptest::option::of(1..4u64);
    let request = proptest::sample::select(vec!["GET https://a.example.com/*", "* https://a.example.com/x"]);
    let requests = move || proptest::collection::vec(request.clone(), 0..2);
    (hosts(), hosts(), hosts(), limit, hosts(), requests(), requests()).prop_map(
        move |(allow, ask, deny, limit, opened, passes, refused)| {
            let (allow, passes) = if gives { (allow, passes) } else { Default::default() };
            let mut text = format!(
                "[profiles.workspace.egress]\nallow = {allow:?}\nask = {ask:?}\ndeny = {deny:?}\n\
                 inspect.hosts = {opened:?}\ninspect.allow = {passes:?}\ninspect.deny = {refused:?}\n"
            );
            if let Some(limit) = limit {
                let _ = writeln!(text, "limits.connections = {limit}");
            }
            text
        },
    )
}

const TARGETS: &[&str] = &[
    "a.example.com:443",
    "a.example.com:80",
    "x.y.example.com:443",
    "b.other.org:443",
    "10.0.0.1:443",
    "pypi.org:443",
    "other:1",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// L7: whatever a project or a session says, no target gets milder, no limit
    /// higher, and no request passes that did not.
    #[test]
    fn narrowing_never_widens(user in section(true), narrow in section(false), by_session: bool) {
        let layer = if by_session { ConfigLayer::Session } else { ConfigLayer::Project };
        let before = egress(&merge(&[(ConfigLayer::User, &user)]).unwrap(), "workspace");
        let after = merge(&[(ConfigLayer::User, &user), (layer, &narrow)]);
        if let Err(error) = &after {
            // Lists that only narrow are always accepted.
            prop_assert!(error.to_string().contains("higher than"), "{error}");
        }
        let Ok(after) = after else { return Ok(()) };
        let after = egress(&after, "workspace");
        for target in TARGETS.iter().map(|text| text.parse::<NetworkTarget>().unwrap()) {
            prop_assert!(strictness(&after, &target) >= strictness(&before, &target), "{target}");
            prop_assert!(after.requires_inspection(&target) || !before.requires_inspection(&target), "{target}");
            for path in ["/", "/x"] {
                let refused = |egress: &EgressRules| {
                    use stockade_model::RequestRuling::{Allowed, Unruled};
                    !matches!(egress.inspect.apply_rules(true, &target, "GET", path), Allowed(_) | Unruled)
                };
                prop_assert!(refused(&after) || !refused(&before), "{target}{path}");
            }
        }
        let limit = |egress: &EgressRules| egress.limits.connections.unwrap_or(u64::MAX);
        prop_assert!(limit(&after) <= limit(&before));
    }

    /// Merging the files of people: what one refuses, all refuse; what is asked
    /// about is not allowed.
    #[test]
    fn order_never_beats_deny(a in section(true), b in section(true)) {
        let one = |text: &str| egress(&merge(&[(ConfigLayer::User, text)]).unwrap(), "workspace");
        let both = |first: &str, second: &str| {
            egress(&merge(&[(ConfigLayer::System, first), (ConfigLayer::User, second)]).unwrap(), "workspace")
        };
        let (first, second, ab, ba) = (one(&a), one(&b), both(&a, &b), both(&b, &a));
        for target in TARGETS.iter().map(|text| text.parse::<NetworkTarget>().unwrap()) {
            let (x, y) = (strictness(&first, &target), strictness(&second, &target));
            prop_assert_eq!(strictness(&ab, &target), strictness(&ba, &target));
            prop_assert_eq!(strictness(&ab, &target) == 2, x == 2 || y == 2, "{}", target);
        }
    }
}
