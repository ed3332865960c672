//! What our rules say of a probe after an import.

use std::path::Path;

use stockade_model::{Assessment, Command, Level, RawText, Request, SandboxPreference, Tier, Verdict};
use stockade_policy::{
    Act, Circumstances, FileOperation, Imported, Layer, LayerText, OwnDirectories, Scope, Settings, Source, Stage,
    Tool, decide, decide_act,
};

use super::probes::{HOME, Probe, WORKSPACE};

/// A file where the tool usually reads it.
pub fn source(tool: Tool, name: &str, text: &str) -> Source {
    let scope = if tool == Tool::Claude { Scope::Project } else { Scope::User };
    Source { name: name.to_owned(), text: text.to_owned(), scope }
}

/// The configuration that an import makes.
pub fn settings_of(imported: &Imported) -> Settings {
    let mut source = imported.to_toml();
    // A mode that the import does not set is the reader's own.
    if !imported.settings.contains_key("approval_mode") {
        source.insert_str(0, "approval_mode = \"untrusted\"\n");
    }
    let layer = LayerText { layer: Layer::User, path: "/imported.toml".into(), source };
    Settings::from_layers(Path::new(HOME), OwnDirectories::default(), &[layer])
        .unwrap_or_else(|error| panic!("{error}\n{}", imported.to_toml()))
}

/// What the rules say, with everything else out of the way: a text that is
/// neither plainly safe nor harmful, a mode that asks unless the import sets one,
/// a workspace that may be written.
pub fn ours(settings: &Settings, probe: &Probe) -> Verdict {
    let workspace = Path::new(WORKSPACE);
    let mode = settings.approval_mode.value;
    let stage = Stage { cwd: workspace, workspace, session: None, profile: "workspace", approval_mode: mode };
    let around = Circumstances::default();
    let act = |act| {
        let ruling = decide_act(settings, act, &stage, &around);
        // Powers that every profile has are no word of a rule: reading, and
        // changes in the workspace.
        let usual = match act {
            Act::File { path, operation } => operation == FileOperation::Read || path.starts_with(WORKSPACE),
            _ => true,
        };
        let by_profile = ruling.decision.verdict == Verdict::Allow && ruling.decision.rule.starts_with("profile ");
        if by_profile && usual { Verdict::Ask } else { ruling.decision.verdict }
    };
    match probe {
        Probe::Command(script) => {
            let request = Request {
                id: "req_00000000000000000000000000".parse().unwrap(),
                session: None,
                command: Command::Script(RawText::from(script.as_ref())),
                cwd: WORKSPACE.into(),
                workspace: WORKSPACE.into(),
                environment: Default::default(),
                profile: "workspace".into(),
                grants: Vec::new(),
                requested: Vec::new(),
                level: Level::Full,
                approval_mode: mode,
                sandbox: SandboxPreference::Auto,
                timeout_ms: None,
                limits: Default::default(),
                caller_approval: None,
            };
            let context = stockade_shell::Context {
                cwd: RawText::from(WORKSPACE),
                home: RawText::from(HOME),
                workspace: RawText::from(WORKSPACE),
                neutralised: true,
            };
            let found = stockade_shell::assess_script(script.as_bytes(), &context);
            let assessment = Assessment { capabilities: found.capabilities, ..Assessment::bare(Tier::Ask) };
            decide(settings, &request, &assessment, true).verdict
        }
        Probe::Tool(name, arguments) => {
            let arguments = serde_json::from_str(arguments).unwrap();
            act(Act::Tool { name, arguments: &arguments })
        }
        Probe::File(operation, path) => act(Act::File { path: Path::new(path.as_ref()), operation: *operation }),
        Probe::Host(host, port) => act(Act::Network { host: &host.parse().unwrap(), port: Some(*port) }),
    }
}
