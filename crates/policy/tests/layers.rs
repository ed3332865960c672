//! Layers: what each may say, what wins, and that a project only tightens.

#![allow(clippy::unwrap_used, reason = "what cannot be had fails the test")]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use stockade_model::{ApprovalMode, GranularMode, IsolationLevel, Profile, RawText, SandboxPreference};
use stockade_policy::{
    ConfigError, ConfigLayer, LayerText, ModeAnswers, OwnDirectories, PolicySettings, TextPosition, ValueOrigin,
    effective_environment, resolve_profile,
};

const HOME: &str = "/home/u";
const WORKSPACE: &str = "/home/u/work";

fn path_of(layer: ConfigLayer) -> PathBuf {
    PathBuf::from(match layer {
        ConfigLayer::Managed => "/etc/stockade/managed.toml",
        ConfigLayer::System => "/etc/stockade/config.toml",
        ConfigLayer::User => "/home/u/.config/stockade/config.toml",
        ConfigLayer::Project => "/home/u/work/.stockade.toml",
        ConfigLayer::Session => "/session",
    })
}

fn merge(layers: &[(ConfigLayer, &str)]) -> Result<PolicySettings, ConfigError> {
    let layers: Vec<LayerText> = layers
        .iter()
        .map(|(layer, source)| LayerText { layer: *layer, path: path_of(*layer), source: (*source).to_owned() })
        .collect();
    PolicySettings::from_layers(Path::new(HOME), OwnDirectories::default(), &layers)
}

fn resolved(settings: &PolicySettings, name: &str) -> Profile {
    resolve_profile(settings, name, Path::new(WORKSPACE), &[]).unwrap()
}

#[test]
fn a_pattern_of_a_file_drops_every_equivalent_name() {
    let passing = |source: &str, name: &str, value: &str| {
        let settings = merge(&[(ConfigLayer::User, source)]).unwrap();
        let caller = [(name.to_owned(), RawText::from(value))].into();
        effective_environment(&resolved(&settings, "own"), &caller).contains_key(name)
    };
    let profile = |env: &str| format!("[profiles.own]\nextends = \"workspace\"\n[profiles.own.env]\n{env}\n");
    let (uv, cargo) = ("UV_INDEX_URL", "CARGO_REGISTRIES_OWN_INDEX");
    for (env, name, passes) in [
        ("", uv, true),
        ("drop = [\"UV_*\"]", uv, false),
        ("drop = [\"UV_I*\"]", uv, false),
        ("drop = [\"UV_INDEX_URL\"]", uv, false),
        ("drop = [\"PIP_*\"]", uv, true),
        ("drop = [\"UV_*\"]\npass = [\"UV_INDEX_URL\"]", uv, false),
        ("", cargo, true),
        ("drop = [\"CARGO_*\"]", cargo, false),
        ("drop = [\"CARGO_REGISTR*\"]", cargo, false),
        ("drop = [\"CARGO_REGISTRIES_OWN_*\"]", cargo, false),
        ("drop = [\"CARGO_REGISTRIES_OTHER_*\"]", cargo, true),
        ("drop = [\"*OWN*\"]", cargo, false),
    ] {
        assert_eq!(passing(&profile(env), name, "https://packages.example/simple"), passes, "{env}: {name}");
    }
    assert!(passing(&profile(""), "EDITOR", "nano") && !passing(&profile("drop = [\"*EDITOR\"]"), "EDITOR", "nano"));
    // A later file that names it outweighs; so does a grant.
    let layers = [
        (ConfigLayer::System, "[profiles.workspace.env]\ndrop = [\"UV_*\"]"),
        (ConfigLayer::User, "[profiles.workspace.env]\npass = [\"UV_INDEX_URL\"]"),
    ];
    let caller = [(uv.to_owned(), RawText::from("https://packages.example/simple"))].into();
    assert!(effective_environment(&resolved(&merge(&layers).unwrap(), "workspace"), &caller).contains_key(uv));
    let settings = merge(&layers[..1]).unwrap();
    assert!(!effective_environment(&resolved(&settings, "workspace"), &caller).contains_key(uv));
    let grants = ["env UV_INDEX_URL".parse().unwrap()];
    let granted = resolve_profile(&settings, "workspace", Path::new(WORKSPACE), &grants).unwrap();
    assert!(effective_environment(&granted, &caller).contains_key(uv));
}

/// Every way a file can be wrong, as a person reads it.
#[test]
fn errors_name_the_position() {
    use ConfigLayer::{Project, System, User};
    let before = "level = \"restricted\"\n[profiles.web]\nwrite = [\"~/web\"]\nlimits.wall = \"10m\"\n";
    let cases = [
        (User, "\n\nprofil = \"workspace\"\n"),
        (User, "wibble = 1"),
        (User, "profile = 3"),
        (User, "profile = \"workspac\""),
        (User, "profile = \"Work Space\""),
        (User, "approval_mode = \"on-failur\""),
        (User, "approval_mode = \"granular\""),
        (User, "[approval.granular]\nrum = true"),
        (User, "approval_timeout = \"120\""),
        (User, "approval_timeout = 120"),
        (User, "approval_timeout = \"0s\""),
        (User, "level = \"none\""),
        (User, "a = [\n"),
        (User, "level = \"full\"\nlevel = \"full\""),
        (User, "[profiles.x]\nwrite = [\"~/a\", \"b\"]"),
        (User, "[profiles.x]\nhide = [\"/a/../b\"]"),
        (User, "[profiles.x]\nhide = [\"~/.ssh/*\"]"),
        (User, "[profiles.x]\nhid = []"),
        (User, "[profiles.x.env]\npass = [\"A-B\"]"),
        (User, "[profiles.x.env]\npas = [\"AB\"]"),
        (User, "[profiles.x]\nenv.set.\"A B\" = \"c\""),
        (User, "[profiles.x]\nlimits.temp = \"2GB\""),
        (User, "[profiles.x]\nlimits.memory = \"100TiB\""),
        (User, "[profiles.x]\nlimits.open_files = 2"),
        (User, "[profiles.x]\nlimits.open_files = -2"),
        (User, "[profiles.x]\nprotect = [\"/etc\"]"),
        (User, "[profiles.X]\nhide = []"),
        (User, "[profiles.host]\nhide = [\"/x\"]"),
        (User, "[profiles.x]\nextends = \"host\""),
        (User, "[profiles.x]\nextends = \"reed-only\""),
        (User, "[profiles.workspace]\nextends = \"read-only\""),
        (User, "[profiles.a]\nextends = \"b\"\n[profiles.b]\nextends = \"a\""),
        (User, "[[rules]]\nprefix = []\neffect = \"deny\"\njustification = \"x\""),
        (User, "[[rules]]\nprefix = [\"a\"]\neffect = \"forbid\"\njustification = \"x\""),
        (User, "[[rules]]\nprefix = [\"a\"]\neffect = \"deny\""),
        (User, "[[rules]]\nprefix = [\"a\"]\neffect = \"deny\"\njustification = \" \""),
        (User, "[[rules]]\nprefix = [\"a\"]\neffect = \"deny\"\njustification = \"x\"\nmatch = [\"a b\", \"b a\"]"),
        (User, "[[rules]]\nprefix = [\"a\"]\neffect = \"deny\"\njustification = \"x\"\nnot_match = [\"sudo a\"]"),
        (User, "[[rules]]\nhosts = [\"a.example\"]\neffect = \"allow\"\njustification = \"x\"\ngrants = [\"read /a\"]"),
        (User, "[profiles.x.exec]\nask = [\"bin/git\"]"),
        (User, "[profiles.x.exec]\ndeny = [\"/usr/*/git\"]"),
        (User, "[profiles.x.exec]\nallow = [\"git\"]"),
        (Project, "\u{1b}[31m = 1"),
        (Project, "\"\\u001b[31mprofile\" = 1"),
        (Project, "allow_host = true"),
        (Project, "sandbox = \"forbid\""),
        (Project, "approval_mode = \"on-failure\""),
        (Project, "approval_timeout = \"121s\""),
        (Project, "profile = \"web\""),
        (Project, "profile = \"host\""),
        (Project, "[profiles.workspace]\nhide = [\"/x\"]\nwrite = [\"~\"]"),
        (Project, "[profiles.workspace]\nreveal = [\"~/.ssh\"]"),
        (Project, "[profiles.workspace]\nsockets = [\"/run/docker.sock\"]"),
        (Project, "[profiles.workspace.env]\npass = [\"GITHUB_TOKEN\"]"),
        (Project, "[profiles.workspace]\nenv.set.PATH = \"/x\""),
        (Project, "[profiles.web]\nlimits.wall = \"11m\""),
        (Project, "[profiles.mine]\nextends = \"web\"\nlimits.wall = \"11m\""),
        (Project, "[profiles.a]\nlimits.wall=\"1m\"\n[profiles.b]\nextends = \"a\"\nlimits.wall = \"2m\""),
        (Project, "[[rules]]\nprefix = [\"a\"]\neffect = \"allow\"\njustification = \"x\""),
    ];
    let mut text = String::new();
    for (layer, source) in cases {
        let error = merge(&[(System, before), (User, "approval_mode = \"on-request\""), (layer, source)]);
        let shown = error.map_or_else(|error| format!("error: {error}"), |_| "ACCEPTED".to_owned());
        let _ = writeln!(text, "{}\n{shown}\n", source.trim().escape_debug());
    }
    assert!(!text.contains("ACCEPTED"), "{text}");
    assert!(!text.contains('\u{1b}'));
    insta::assert_snapshot!(text);
}

/// A stranger's file cannot make every run slow.
#[test]
fn lists_are_bounded() {
    let list = |length: usize| (0..length).map(|i| format!("\"/x{i}\"")).collect::<Vec<_>>().join(",");
    let hide = |length| format!("[profiles.workspace]\nhide = [{}]", list(length));
    assert!(merge(&[(ConfigLayer::Project, &hide(1024))]).is_ok());
    let error = merge(&[(ConfigLayer::Project, &hide(1025))]).unwrap_err().to_string();
    assert_eq!(error, "/home/u/work/.stockade.toml:2:1: at most 1024 entries in one list");
    let profiles = |count| (0..count).map(|i| format!("[profiles.p{i}]\n")).collect::<String>();
    assert!(merge(&[(ConfigLayer::Project, &profiles(64))]).is_ok());
    assert!(merge(&[(ConfigLayer::Project, &profiles(65))]).is_err());
    let rule = "[[rules]]\nprefix = [\"a\"]\neffect = \"ask\"\njustification = \"x\"\n";
    assert!(merge(&[(ConfigLayer::Project, &rule.repeat(1024))]).is_ok());
    assert!(merge(&[(ConfigLayer::Project, &rule.repeat(1025))]).is_err());
}

#[test]
fn later_layers_override_and_every_value_has_its_source() {
    let settings = merge(&[
        (ConfigLayer::Project, "approval_timeout = \"10s\"\nsandbox = \"require\"\n"),
        (ConfigLayer::User, "\napproval_mode = \"untrusted\"\napproval_timeout = \"60s\""),
        (ConfigLayer::System, "approval_mode = \"never\"\nallow_host = true\nlevel = \"restricted\""),
    ])
    .unwrap();
    assert_eq!(settings.approval_mode.value, ApprovalMode::Untrusted);
    let position = Some(TextPosition { line: 2, column: 1 });
    let origin = ValueOrigin::File { layer: ConfigLayer::User, path: path_of(ConfigLayer::User), position };
    assert_eq!(settings.approval_mode.origin, origin);
    assert_eq!(settings.approval_timeout_ms.value, 10_000);
    assert_eq!(settings.sandbox.value, SandboxPreference::Require);
    assert_eq!(settings.level.value, IsolationLevel::Restricted);
    assert!(settings.allow_host.value);
    assert_eq!(settings.profile.origin, ValueOrigin::Default);
    let explained = settings.explain_profile("workspace");
    let ssh = explained.iter().find(|line| line.value == "/home/u/.ssh").unwrap();
    assert_eq!(ssh.key, "profiles.workspace.hide");
    assert!(ssh.origin.to_string().starts_with("built in, policies/credentials.toml: SSH keys"), "{}", ssh.origin);
}

#[test]
fn the_digest_is_of_the_values() {
    let digest = |source: &str| merge(&[(ConfigLayer::User, source)]).unwrap().compute_digest();
    assert_eq!(digest("level = \"full\""), digest("\n\napproval_timeout = \"9s\""));
    let rule = "[[rules]]\nprefix = [\"a\"]\neffect = \"ask\"\njustification = \"x\"";
    let granular = "approval_mode = \"granular\"\n[approval.granular]\nrun = ";
    let (yes, no) = (format!("{granular}true"), format!("{granular}false"));
    let all =
        ["", "level = \"restricted\"", "[profiles.workspace]\nhide = [\"/x\"]", rule, &yes, &no, "allow_host = true"];
    let digests: std::collections::BTreeSet<_> = all.iter().map(|source| digest(source)).collect();
    assert_eq!(digests.len(), all.len());
    // A yes that became a rule takes back no other answer; a no does.
    let answer = |effect: &str| {
        let by = "provenance = { by = \"terminal\" }";
        format!("[[rules]]\nglob = [\"a b\"]\neffect = \"{effect}\"\njustification = \"x\"\n{by}")
    };
    assert_eq!(digest(&answer("allow")), digest(""));
    assert_ne!(digest(&answer("deny")), digest(""));
}

#[test]
fn granular_classes_come_from_any_layer() {
    let settings = merge(&[
        (ConfigLayer::System, "[approval.granular]\nrun = true\nfilesystem = true"),
        (ConfigLayer::User, "approval_mode = \"granular\""),
        (ConfigLayer::Project, "[approval.granular]\nrun = true"),
    ])
    .unwrap();
    let classes = GranularMode { run: true, ..GranularMode::default() };
    assert_eq!(settings.approval_mode.value, ApprovalMode::Granular(classes));
    let project = (ConfigLayer::Project, "[approval.granular]\nrun = true\nnetwork = true");
    assert!(merge(&[(ConfigLayer::User, "approval_mode = \"never\""), project]).is_ok());
    let user = "approval_mode = \"granular\"\n[approval.granular]\nrun = true";
    assert!(merge(&[(ConfigLayer::User, user), project]).is_err());
}

#[test]
fn heirs_inherit_whatever_the_order() {
    let settings = merge(&[
        (ConfigLayer::User, "[profiles.a]\nextends = \"b\"\nwrite = [\"/a\"]\n[profiles.b]\nwrite = [\"/b\"]"),
        (ConfigLayer::Project, "[profiles.workspace]\nhide = [\"./secret\"]\nlimits.wall = \"1m\"\nprotect = [\"x\"]"),
    ])
    .unwrap();
    for name in ["workspace", "a", "b"] {
        let profile = resolved(&settings, name);
        assert!(profile.filesystem.hide.contains(&"/home/u/work/secret".into()), "{name}");
        assert_eq!(profile.limits.wall_ms, Some(60_000), "{name}");
        assert!(profile.filesystem.protect.contains(&"x".to_owned()), "{name}");
    }
    let write: Vec<RawText> = ["/a", "/b", WORKSPACE].map(RawText::from).into();
    assert_eq!(resolved(&settings, "a").filesystem.write, write);
    assert!(!resolved(&settings, "read-only").filesystem.hide.contains(&"/home/u/work/secret".into()));
}

/// Programs that are asked about or refused come together from every layer, the
/// project's included, and no layer takes one back.
#[test]
fn rules_about_programs_only_add_up() {
    let settings = merge(&[
        (ConfigLayer::Managed, "[profiles.workspace.exec]\ndeny = [\"nc\"]"),
        (ConfigLayer::User, "[profiles.web]\nexec.ask = [\"git  push\"]\n[profiles.workspace]\nexec.ask = [\"ssh\"]"),
        (ConfigLayer::Project, "[profiles.workspace.exec]\nask = [\"ssh\", \"curl\"]\ndeny = [\"ssh\"]"),
    ])
    .unwrap();
    let shown = |name: &str| {
        let exec = resolved(&settings, name).exec;
        [exec.ask, exec.deny].map(|list| list.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))
    };
    assert_eq!(shown("workspace"), ["ssh, curl", "nc, ssh"]);
    assert_eq!(shown("web"), ["ssh, git push, curl", "nc, ssh"]);
    assert_eq!(shown("read-only"), ["", ""]);
    // A profile with fewer rules gives more.
    let chosen = merge(&[
        (ConfigLayer::User, "profile = \"careful\"\n[profiles.careful]\nexec.ask = [\"git push\"]\n[profiles.other]"),
        (ConfigLayer::Project, "profile = \"other\""),
    ]);
    assert!(chosen.unwrap_err().to_string().contains("exec.ask"), "wider");
}

#[test]
fn revealing_and_hiding() {
    let user = "[profiles.workspace]\nreveal = [\"~/.kube\", \"~/.ssh/known_hosts\"]";
    let settings = merge(&[(ConfigLayer::User, user)]).unwrap();
    let filesystem = resolved(&settings, "workspace").filesystem;
    assert!(!filesystem.hide.contains(&"/home/u/.kube".into()));
    assert!(filesystem.hide.contains(&"/home/u/.ssh".into()));
    assert!(filesystem.reveal.contains(&"/home/u/.ssh/known_hosts".into()));
    let project = "[profiles.workspace]\nhide = [\"~/.kube\", \"~/.ssh\"]";
    let settings = merge(&[(ConfigLayer::User, user), (ConfigLayer::Project, project)]).unwrap();
    let filesystem = resolved(&settings, "workspace").filesystem;
    assert!(filesystem.hide.contains(&"/home/u/.kube".into()));
    assert_eq!(filesystem.reveal, []);
}

fn environment(settings: &PolicySettings) -> Vec<String> {
    let caller = [
        "PATH",
        "LC_ALL",
        "GITHUB_TOKEN",
        "AWS_REGION",
        "LD_PRELOAD",
        "MY_FLAVOUR",
        "MY_SECRET",
        "TMPDIR",
        "BASH_ENV",
        "BASH_FUNC_x%%",
        "SSH_AUTH_SOCK",
        "GIT_SSH_COMMAND",
        "NODE_OPTIONS",
        "XDG_RUNTIME_DIR",
        "EDITOR",
    ];
    let caller = caller.map(|name| (name.to_owned(), RawText::from("v"))).into();
    effective_environment(&resolved(settings, "workspace"), &caller).into_keys().collect()
}

/// What a shipped profile sets for npm.
const NOTIFIER: &str = "npm_config_update_notifier";

#[test]
fn variables_pass_by_name_only() {
    assert_eq!(environment(&merge(&[]).unwrap()), ["LC_ALL", "PATH", "TMPDIR", NOTIFIER]);
    let user = "[profiles.workspace.env]\npass = [\"*\"]";
    let settings = merge(&[(ConfigLayer::User, user)]).unwrap();
    assert_eq!(environment(&settings), ["LC_ALL", "MY_FLAVOUR", "PATH", "TMPDIR", NOTIFIER]);
    let user = "[profiles.workspace.env]\npass = [\"GITHUB_TOKEN\", \"MY_*\"]\nset.TMPDIR = \"/x\"";
    let settings = merge(&[(ConfigLayer::User, user)]).unwrap();
    assert_eq!(environment(&settings), ["GITHUB_TOKEN", "LC_ALL", "MY_FLAVOUR", "PATH", "TMPDIR", NOTIFIER]);
    let project = "[profiles.workspace.env]\ndrop = [\"*TOKEN\", \"TMPDIR\"]";
    let settings = merge(&[(ConfigLayer::User, user), (ConfigLayer::Project, project)]).unwrap();
    assert_eq!(environment(&settings), ["LC_ALL", "MY_FLAVOUR", "PATH", NOTIFIER]);
}

/// Lines a project might write, tightening and widening alike.
fn project_lines() -> impl Strategy<Value = String> {
    let scalar = prop_oneof![
        Just("profile = \"read-only\""),
        Just("profile = \"workspace\""),
        Just("profile = \"web\""),
        Just("approval_mode = \"untrusted\""),
        Just("approval_mode = \"on-failure\""),
        Just("approval_mode = \"on-request\""),
        Just("approval_mode = \"never\""),
        Just("approval_timeout = \"1s\""),
        Just("approval_timeout = \"300s\""),
        Just("sandbox = \"require\""),
        Just("sandbox = \"auto\""),
        Just("level = \"full\""),
        Just("level = \"restricted\""),
        Just("allow_host = false"),
        Just("allow_host = true"),
    ];
    let key = prop_oneof![
        4 => Just("hide = [\"./a\"]"),
        4 => Just("hide = [\"~/.kube\", \"/\"]"),
        4 => Just("protect = [\"b\"]"),
        4 => Just("env.drop = [\"*TOKEN*\", \"PATH\"]"),
        4 => Just("exec.ask = [\"curl\", \"git push\"]"),
        4 => Just("exec.deny = [\"ssh\"]"),
        4 => Just("limits.wall = \"1m\""),
        2 => Just("limits.wall = \"1h\""),
        4 => Just("limits.temp = \"1MiB\""),
        1 => Just("limits.temp = \"1TiB\""),
        1 => Just("write = [\"~/w\"]"),
        1 => Just("reveal = [\"~/.ssh\"]"),
        1 => Just("env.pass = [\"X\"]"),
    ];
    let profile = prop_oneof![Just("workspace"), Just("read-only"), Just("web"), Just("new"), Just("host")];
    let sections = proptest::collection::btree_map(profile, proptest::collection::btree_set(key, 0..4), 0..3);
    (proptest::collection::vec(scalar, 0..3), sections).prop_map(|(scalars, sections)| {
        let mut text = scalars.join("\n");
        for (name, keys) in sections {
            let _ = write!(text, "\n[profiles.{name}]\n");
            text.push_str(&keys.into_iter().collect::<Vec<_>>().join("\n"));
        }
        text
    })
}

const USER: [&str; 3] = [
    "",
    "approval_mode = \"on-request\"\nprofile = \"web\"\n[profiles.web]\nwrite = [\"~/web\"]\nreveal = [\"~/.kube\"]\n\
     env.pass = [\"GITHUB_TOKEN\"]\nenv.set.A = \"b\"\nlimits.wall = \"10m\"\nsockets = [\"/run/x\"]\n\
     exec.ask = [\"git push\", \"ssh\"]\nexec.deny = [\"nc\"]",
    "approval_mode = \"untrusted\"\nallow_host = true\nlevel = \"restricted\"\nsandbox = \"forbid\"",
];

/// The powers of a profile that a project could have touched, one by one.
fn assert_no_wider(new: &Profile, old: &Profile) {
    let subset =
        |a: &[RawText], b: &[RawText]| a.iter().all(|x| b.iter().any(|y| x.as_path().starts_with(y.as_path())));
    let (f, g) = (&new.filesystem, &old.filesystem);
    assert!(subset(&f.write, &g.write) && subset(&f.sockets, &g.sockets));
    for probe in ["/home/u/.ssh/id", "/home/u/.kube/config", "/home/u/work/a", "/etc/shadow", "/usr/bin/env"] {
        assert!(is_hidden(f, probe) || !is_hidden(g, probe), "{probe} came to light");
    }
    assert!(g.protect.iter().all(|name| f.protect.contains(name)));
    assert!(old.exec.deny.iter().all(|program| new.exec.deny.contains(program)));
    assert!(old.exec.ask.iter().all(|program| new.exec.ask.contains(program)));
    let caller = ["PATH", "GITHUB_TOKEN", "X", "A", "TMPDIR", "LC_ALL", "LD_PRELOAD"];
    let caller = caller.map(|name| (name.to_owned(), RawText::from("v"))).into();
    let (mine, theirs) = (effective_environment(new, &caller), effective_environment(old, &caller));
    // What the caller has may pass where a value was set before, never more.
    // The one variable a built-in profile sets for itself is known.
    assert!(mine.keys().all(|name| theirs.contains_key(name) || name == "GIT_OPTIONAL_LOCKS"));
    let higher = |a: Option<u64>, b: Option<u64>| b.is_some_and(|b| a.is_none_or(|a| a > b));
    assert!(!higher(new.limits.wall_ms, old.limits.wall_ms) && !higher(new.limits.temp_bytes, old.limits.temp_bytes));
    assert!(new.sandboxed || !old.sandboxed);
}

fn is_hidden(filesystem: &stockade_model::FilesystemAccess, path: &str) -> bool {
    let nearest = |list: &[RawText]| {
        let above = list.iter().filter(|entry| Path::new(path).starts_with(entry.as_path()));
        above.map(|entry| entry.as_path().components().count()).max()
    };
    nearest(&filesystem.hide).is_some_and(|hidden| nearest(&filesystem.reveal).is_none_or(|shown| hidden >= shown))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// L7: whatever a project says, it is refused or nothing becomes wider.
    #[test]
    fn a_project_never_widens(user in 0..USER.len(), project in project_lines()) {
        let before = merge(&[(ConfigLayer::User, USER[user])]).unwrap();
        let Ok(after) = merge(&[(ConfigLayer::User, USER[user]), (ConfigLayer::Project, &project)]) else { return Ok(()) };
        let (new, old) = (ModeAnswers::from_mode(after.approval_mode.value), ModeAnswers::from_mode(before.approval_mode.value));
        prop_assert!(new.is_as_strict_as(&old));
        prop_assert!(after.approval_timeout_ms.value <= before.approval_timeout_ms.value);
        prop_assert!(!after.allow_host.value || before.allow_host.value);
        prop_assert!(after.level.value == before.level.value || after.level.value == IsolationLevel::Full);
        prop_assert!(after.sandbox.value == before.sandbox.value || after.sandbox.value == SandboxPreference::Require);
        // Where everything is hidden nothing can run, which is no widening.
        let profile = |settings: &PolicySettings, name: &str| resolve_profile(settings, name, Path::new(WORKSPACE), &[]);
        for (name, _) in before.profiles() {
            if let (Ok(new), Ok(old)) = (profile(&after, name), profile(&before, name)) {
                assert_no_wider(&new, &old);
            }
        }
        if let (Ok(new), Ok(old)) = (profile(&after, &after.profile.value), profile(&before, &before.profile.value)) {
            assert_no_wider(&new, &old);
        }
    }

    /// Whatever a file holds, reading it ends in settings or an error.
    #[test]
    fn any_text_is_answered(text in "[a-z_\\[\\]=\"'{}.,# \n0-9~/\\\\*é]{0,80}") {
        let _ = merge(&[(ConfigLayer::Project, &text)]);
    }
}
