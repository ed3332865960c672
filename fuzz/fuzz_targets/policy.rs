//! Any text as a configuration file: no panic, `fmt` changes nothing and is
//! stable, and a project's file never widens (L7). The same text is read as a
//! patch too.
#![no_main]

use std::path::Path;
use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use stockade_model::{
    ApprovalMode, Assessment, IsolationLevel, PolicyVerdict, RawText, RequestCommand, RunRequest, SandboxPreference,
    Tier,
};
use stockade_policy::{
    ConfigLayer, LayerText, OwnDirectories, PolicySettings, changes_of_patch, decide_request, format_config,
};

const HOME: &str = "/home/dev";

/// What holds where nothing is configured.
static BUILT_IN: OnceLock<Vec<PolicyVerdict>> = OnceLock::new();

fn load(layer: ConfigLayer, source: &str) -> Option<PolicySettings> {
    let layer = LayerText { layer, path: "/p/stockade.toml".into(), source: source.to_owned() };
    PolicySettings::from_layers(Path::new(HOME), OwnDirectories::default(), &[layer]).ok()
}

/// What the settings say of a few commands, each judged harmless.
fn verdicts(settings: &PolicySettings) -> Vec<PolicyVerdict> {
    let request = |script: &str| RunRequest {
        id: "req_00000000000000000000000000".parse().expect("an id"),
        session: None,
        command: RequestCommand::Script(RawText::from(script)),
        cwd: "/home/dev/proj".into(),
        workspace: "/home/dev/proj".into(),
        environment: Default::default(),
        profile: "workspace".into(),
        grants: Vec::new(),
        requested: Vec::new(),
        level: IsolationLevel::Full,
        approval_mode: ApprovalMode::Untrusted,
        sandbox: SandboxPreference::Auto,
        timeout_ms: None,
        limits: Default::default(),
        caller_approval: None,
    };
    let of = |tier| Assessment::without_findings(tier);
    let cases = [("ls", Tier::Allow), ("git push", Tier::Ask), ("rm -rf /", Tier::Deny)];
    cases.iter().map(|(script, tier)| decide_request(settings, &request(script), &of(*tier), true).verdict).collect()
}

fuzz_target!(|text: &str| {
    let _ = changes_of_patch(text);
    let path = Path::new("/p/stockade.toml");
    // What is no configuration file for `fmt` is none for anything else: they read
    // it by the same function.
    let Ok(once) = format_config(path, text) else { return };
    assert_eq!(format_config(path, &once).ok().as_ref(), Some(&once));
    assert_eq!(load(ConfigLayer::User, &once).is_some(), load(ConfigLayer::User, text).is_some());
    let Some(project) = load(ConfigLayer::Project, text) else { return };
    let built_in = BUILT_IN.get_or_init(|| verdicts(&load(ConfigLayer::User, "").expect("the built-in policy")));
    for (with, without) in verdicts(&project).iter().zip(built_in) {
        assert!(with >= without, "a project's file widens\n{text}");
    }
});
