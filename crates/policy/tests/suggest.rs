//! From a session's record to the smallest policy.

#![allow(clippy::unwrap_used, reason = "what cannot be had fails the test")]

use std::path::Path;

use stockade_model::{
    ApprovalAnswer, ApprovalMode, ApprovalScope, Denial, DenialLayer, DenialResolution, DeniedOperation, Event,
    EventKind, Grant, IsolationLevel, ReadAccess, RequestCommand, RunRequest, SandboxPreference,
};
use stockade_policy::suggest::{SuggestionData, suggest_policy};
use stockade_policy::{ConfigLayer, LayerText, OwnDirectories, PolicySettings, resolve_profile};

const WORKSPACE: &str = "/home/u/work";

fn settings(source: &str) -> PolicySettings {
    let own = OwnDirectories {
        configuration: vec!["/home/u/.config/stockade".into()],
        state: vec!["/home/u/.local/state/stockade".into()],
        ..OwnDirectories::default()
    };
    let layer = LayerText { layer: ConfigLayer::User, path: "/u".into(), source: source.to_owned() };
    PolicySettings::from_layers(Path::new("/home/u"), own, &[layer]).unwrap()
}

fn request(script: &str) -> RunRequest {
    RunRequest {
        id: "req_00000000000000000000000000".parse().unwrap(),
        session: None,
        command: RequestCommand::Script(script.into()),
        cwd: WORKSPACE.into(),
        workspace: WORKSPACE.into(),
        environment: Default::default(),
        profile: "workspace".into(),
        grants: Vec::new(),
        requested: Vec::new(),
        level: IsolationLevel::Full,
        approval_mode: ApprovalMode::OnFailure,
        sandbox: SandboxPreference::Auto,
        timeout_ms: None,
        limits: Default::default(),
        caller_approval: None,
    }
}

/// A session: a command, what was granted, what was refused.
fn learned(script: &str, granted: &[&str], refused: &[&str]) -> SuggestionData {
    let grant = |text: &str| text.parse::<Grant>().unwrap();
    let mut kinds = vec![
        EventKind::Requested { request: Box::new(request(script)), environment_names: Vec::new() },
        EventKind::Answered {
            answer: ApprovalAnswer::Approved(ApprovalScope::Once),
            by: "terminal".into(),
            digest: stockade_model::Digest::of_fields("test", std::iter::empty()),
            waited_ms: 1,
            warnings: Vec::new(),
        },
    ];
    // First each was refused and noted, then agreed to.
    for (text, resolution) in granted
        .iter()
        .map(|text| (text, DenialResolution::Recorded))
        .chain(refused.iter().map(|text| (text, DenialResolution::Refused)))
    {
        let denial = Denial {
            operation: DeniedOperation::Write,
            object: "x".into(),
            pid: None,
            program: None,
            layer: DenialLayer::Broker,
            rule: "r".into(),
            grant: Some(grant(text)),
            resolution,
            count: 1,
        };
        kinds.push(EventKind::Denied { denial });
    }
    let grants = granted.iter().map(|text| grant(text)).collect();
    kinds.push(EventKind::Granted { grants, holds: Vec::new() });
    let mut learned = SuggestionData::default();
    for kind in kinds {
        let id = "req_00000000000000000000000000".parse().unwrap();
        learned.add_event(&Event { time_ms: 1, request: id, session: None, kind });
    }
    learned
}

#[test]
fn exactly_the_approved_access() {
    let settings = settings("");
    let learned = learned(
        "pip install numpy",
        &["write /home/u/.cache/pip", "connect pypi.org:443", "write /home/u/work/a", "env MY_FLAVOUR"],
        &["connect evil.example:443", "write /etc/x"],
    );
    let found = suggest_policy(&settings, &learned, "workspace", Path::new(WORKSPACE), (true, &[]));
    insta::assert_snapshot!(found.to_toml("learned", "workspace", &learned), @r#"
    [profiles.learned]
    extends = "workspace"
    env.pass = [
        "MY_FLAVOUR", # terminal, req_00000000000000000000000000
    ]
    write = [
        "~/.cache/pip", # terminal, req_00000000000000000000000000
    ]

    [[rules]]
    glob = ["pip install numpy"]
    effect = "allow"
    grants = ["connect pypi.org:443"]
    justification = "agreed to in a session"
    provenance = { by = "suggested, agreed to by terminal", request = "req_00000000000000000000000000" }
    "#);
    assert_eq!(found.refused.len(), 2);
    assert!(found.left_out.is_empty() && found.generalised.is_empty());
    // It would have let the approved part pass, and nothing of the rest.
    let text = found.to_toml("learned", "workspace", &learned);
    let with = self::settings(&text);
    let profile = resolve_profile(&with, "learned", Path::new(WORKSPACE), &[]).unwrap();
    assert!(profile.filesystem.write.contains(&"/home/u/.cache/pip".into()));
    assert_eq!(profile.filesystem.write.len(), 2);
}

#[test]
fn never_credentials_protected_names_or_policy_files() {
    let settings = settings("");
    for grant in [
        "read /home/u/.ssh",
        "read /home/u/.ssh/known_hosts",
        "write /home/u/.npmrc",
        "write /home/u/work/.git/hooks",
        "write /srv/other/.git/config",
        "write /home/u/.config/stockade/config.toml",
        "write /home/u/work/.stockade.toml",
        "read /home/u/.local/state/stockade",
        "write /",
        "env GITHUB_TOKEN",
        "connect pypi.org",
        "socket /run/docker.sock",
        "exec /bin/x",
    ] {
        let learned = learned("tool", &[grant], &[]);
        let found = suggest_policy(&settings, &learned, "workspace", Path::new(WORKSPACE), (true, &[]));
        assert!(found.is_empty(), "{grant}: {}", found.to_toml("x", "workspace", &learned));
        assert_eq!(found.left_out.len(), 1, "{grant}");
    }
}

#[test]
fn interpreters_get_no_rule_but_the_host_does() {
    let learned = learned("python3 fetch.py", &["connect pypi.org:443"], &[]);
    let found = suggest_policy(&settings(""), &learned, "workspace", Path::new(WORKSPACE), (false, &[]));
    assert!(found.rules.is_empty());
    let text = found.to_toml("learned", "workspace", &learned);
    insta::assert_snapshot!(text, @r#"
    [profiles.learned]
    extends = "workspace"
    egress.allow = [
        "pypi.org:443", # terminal, req_00000000000000000000000000
    ]
    "#);
    let profile = resolve_profile(&settings(&text), "learned", Path::new(WORKSPACE), &[]).unwrap();
    let listed = |target: &str| profile.egress.look_up_target(&target.parse().unwrap());
    assert!(matches!(listed("pypi.org:443"), stockade_model::TargetListing::Allowed(_)));
    assert_eq!(listed("pypi.org:80"), stockade_model::TargetListing::Not);
}

#[test]
fn a_directory_only_where_it_is_asked_for() {
    let files = ["write /srv/out/a", "write /srv/out/b", "write /srv/out/c", "write /srv/lone/a"];
    let settings = settings("");
    let suggested = |generalise, refused: &[&str]| {
        let learned = learned("tool", &files, refused);
        let found = suggest_policy(&settings, &learned, "workspace", Path::new(WORKSPACE), (generalise, &[]));
        (found.profile["write"].clone(), found.generalised)
    };
    let exact = ["/srv/lone/a", "/srv/out/a", "/srv/out/b", "/srv/out/c"];
    assert_eq!(suggested(false, &[]), (exact.map(str::to_owned).into(), vec![]));
    let (write, generalised) = suggested(true, &[]);
    assert_eq!(write, ["/srv/lone/a", "/srv/out"]);
    assert_eq!((generalised.len(), generalised[0].from.len()), (1, 3));
    // Not over what was refused.
    assert_eq!(suggested(true, &["write /srv/out/secret"]).0, exact);
}

/// What a request asks for, and did not get, was agreed to by nobody.
#[test]
fn asking_is_not_getting() {
    let run_request = RunRequest { grants: vec!["write /srv/x".parse().unwrap()], ..request("tool") };
    let mut learned = SuggestionData::default();
    learned.add_event(&Event {
        time_ms: 1,
        request: run_request.id.clone(),
        session: None,
        kind: EventKind::Requested { request: Box::new(run_request), environment_names: Vec::new() },
    });
    assert!(suggest_policy(&settings(""), &learned, "workspace", Path::new(WORKSPACE), (false, &[])).is_empty());
}

#[test]
fn the_later_word_holds() {
    let settings = settings("");
    let learned = learned("tool", &["write /srv/x"], &["write /srv/x"]);
    // Refused, then granted.
    let found = suggest_policy(&settings, &learned, "workspace", Path::new(WORKSPACE), (false, &[]));
    assert_eq!(found.profile["write"], ["/srv/x"]);
}

/// A session with a traced run: what it read, and how many files a directory
/// stands for.
fn traced(reads: &[(&str, u64)]) -> SuggestionData {
    let mut learned = learned("tool", &[], &[]);
    let reads = reads.iter().map(|(path, files)| ReadAccess {
        object: path.trim_end_matches('/').into(),
        directory: path.ends_with('/') || *files > 0,
        files: *files,
        pid: None,
        program: Some("/usr/bin/tool".into()),
        count: 1,
    });
    let kind = EventKind::Traced { attempt: 1, reads: reads.collect() };
    let id = "req_00000000000000000000000000".parse().unwrap();
    learned.add_event(&Event { time_ms: 1, request: id, session: None, kind });
    learned
}

#[test]
fn a_traced_run_hides_unread_files() {
    let read = [
        ("/etc/passwd", 0),
        ("/home/u/", 0),
        ("/home/u/lib/a", 0),
        ("/home/u/lib/b", 0),
        ("/home/u/work/x", 0),
        ("/home/u/.gitconfig", 0),
        ("/home/u/.ssh/config", 0),
        ("/home/u/.cargo/registry", 700),
        ("/srv/data", 0),
    ];
    let learned = traced(&read);
    let directories = ["/home".into(), "/srv".into()];
    let base = settings("");
    let found = suggest_policy(&base, &learned, "workspace", Path::new(WORKSPACE), (false, &directories));
    let text = found.to_toml("learned", "workspace", &learned);
    insta::assert_snapshot!(text, @r#"
    [profiles.learned]
    extends = "workspace"
    hide = [
        "/home",
        "/srv",
    ]
    reveal = [
        "./",
        "~/lib/a", # read by /usr/bin/tool, req_00000000000000000000000000
        "~/lib/b", # read by /usr/bin/tool, req_00000000000000000000000000
        "/srv/data", # read by /usr/bin/tool, req_00000000000000000000000000
    ]
    "#);
    let reasons: Vec<String> = found.left_out.iter().map(|(grant, why)| format!("{grant}: {why}")).collect();
    insta::assert_snapshot!(reasons.join("\n"), @"
    read /home/u/.cargo/registry: too many files to list: with --generalise the directory covers them
    read /home/u/.gitconfig: it is a protected name: agree each time
    read /home/u/.ssh/config: it is among credentials: agree each time, or reveal it by hand
    ");
    // It is a configuration, which shows what was read and hides the rest.
    let profile = resolve_profile(&settings(&text), "learned", Path::new(WORKSPACE), &[]).unwrap();
    let hidden = |path: &str| {
        let grant = Grant::Read(path.into());
        stockade_policy::complete_grants(&profile, &[Grant::Write(path.into())]).contains(&grant)
    };
    for (path, _) in read.iter().filter(|(path, files)| !path.ends_with('/') && !path.contains("/.") && *files == 0) {
        assert!(!hidden(path), "{path}");
    }
    for path in
        ["/home/u/other", "/home/u/lib/c", "/home/v", "/srv/x", "/home/u/.ssh/config", "/home/u/.cargo/registry/a"]
    {
        assert!(hidden(path), "{path}");
    }
}

#[test]
fn a_directory_of_read_files_only_on_request_and_never_over_a_credential() {
    let many = traced(&[
        ("/home/u/lib/a", 0),
        ("/home/u/lib/b", 0),
        ("/home/u/lib/c", 0),
        ("/home/u/.cargo/registry", 700),
        ("/home/u/conf/x", 0),
        ("/home/u/conf/y", 0),
        ("/home/u/conf/.npmrc", 0),
        ("/home/u/conf/z", 0),
        ("/home/u/a", 0),
        ("/home/u/b", 0),
        ("/home/u/c", 0),
    ]);
    let found = suggest_policy(&settings(""), &many, "workspace", Path::new(WORKSPACE), (true, &[]));
    let revealed = &found.profile["reveal"];
    let expected = ["./", "~/.cargo/registry", "~/a", "~/b", "~/c", "~/conf/x", "~/conf/y", "~/conf/z", "~/lib"]
        .map(str::to_owned);
    assert_eq!(*revealed, expected);
    let made: Vec<_> = found.generalised.iter().map(|made| (made.directory.to_str().unwrap(), made.reads)).collect();
    assert_eq!(made, [("/home/u/.cargo/registry", true), ("/home/u/lib", true)]);
    let above = traced(&[("/home/u", 900), ("/home", 2000)]);
    let found = suggest_policy(&settings(""), &above, "workspace", Path::new(WORKSPACE), (true, &[]));
    assert_eq!((found.profile["reveal"].len(), found.left_out.len()), (1, 1), "{:?}", found.left_out);
}

#[test]
fn a_secret_is_suggested_for_its_host_whatever_took_it_there() {
    let source = "[profiles.workspace.egress.secrets.github]\nfrom = \"env T\"\nhosts = [\"github.com:443\"]\nkind = \"bearer\"\n";
    let settings = settings(source);
    let learned = learned("python3 x", &["secret github to ghe.example.com:443", "secret github to a.b"], &[]);
    let suggestion = suggest_policy(&settings, &learned, "workspace", Path::new(WORKSPACE), (false, &[]));
    let text = suggestion.to_toml("learned", "workspace", &learned);
    let rule = "[[rules]]\nhosts = [\"ghe.example.com:443\"]\neffect = \"allow\"\ngrants = [\"secret github to ghe.example.com:443\"]\n";
    assert!(text.starts_with(rule), "{text}");
    assert_eq!(suggestion.left_out.len(), 1, "{:?}", suggestion.left_out);
    assert_eq!(text.matches("[[rules]]").count(), 1);
}
