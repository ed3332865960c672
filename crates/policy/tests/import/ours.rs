//! What our rules say of a probe after an import.

use std::path::Path;

use stockade_model::{
    Assessment, IsolationLevel, PolicyVerdict, RawText, RequestCommand, RunRequest, SandboxPreference, Tier,
};
use stockade_policy::{
    Act, ActContext, ConfigLayer, FileOperation, ImportSource, ImportTool, ImportedPolicy, LayerText, OwnDirectories,
    PolicySettings, RequestContext, SourceScope, decide_act, decide_request,
};

use super::probes::{HOME, Probe, WORKSPACE};

/// A file where the tool usually reads it.
pub fn source(tool: ImportTool, name: &str, text: &str) -> ImportSource {
    let scope = if tool == ImportTool::Claude { SourceScope::Project } else { SourceScope::User };
    ImportSource { name: name.to_owned(), text: text.to_owned(), scope }
}

/// The configuration that an import makes.
pub fn settings_of(imported: &ImportedPolicy) -> PolicySettings {
    let mut source = imported.to_toml();
    // A mode that the import does not set is the reader's own.
    if !imported.settings.contains_key("approval_mode") {
        source.insert_str(0, "approval_mode = \"untrusted\"\n");
    }
    let layer = LayerText { layer: ConfigLayer::User, path: "/imported.toml".into(), source };
    PolicySettings::from_layers(Path::new(HOME), OwnDirectories::default(), &[layer])
        .unwrap_or_else(|error| panic!("{error}\n{}", imported.to_toml()))
}

/// What the rules say, with everything else out of the way: a text that is
/// neither plainly safe nor harmful, a mode that asks unless the import sets one,
/// a workspace that may be written.
pub fn ours(settings: &PolicySettings, probe: &Probe) -> PolicyVerdict {
    let workspace = Path::new(WORKSPACE);
    let mode = settings.approval_mode.value;
    let stage = ActContext { cwd: workspace, workspace, session: None, profile: "workspace", approval_mode: mode };
    let around = RequestContext::default();
    let act = |act| {
        let ruling = decide_act(settings, act, &stage, &around);
        // Powers that every profile has are no word of a rule: reading, and
        // changes in the workspace.
        let usual = match act {
            Act::File { path, operation } => operation == FileOperation::Read || path.starts_with(WORKSPACE),
            _ => true,
        };
        let by_profile =
            ruling.decision.verdict == PolicyVerdict::Allow && ruling.decision.rule.starts_with("profile ");
        if by_profile && usual { PolicyVerdict::Ask } else { ruling.decision.verdict }
    };
    match probe {
        Probe::Command(script) => {
            let request = RunRequest {
                id: "req_00000000000000000000000000".parse().unwrap(),
                session: None,
                command: RequestCommand::Script(RawText::from(script.as_ref())),
                cwd: WORKSPACE.into(),
                workspace: WORKSPACE.into(),
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
            };
            let context = stockade_shell::CommandContext {
                cwd: RawText::from(WORKSPACE),
                home: RawText::from(HOME),
                workspace: RawText::from(WORKSPACE),
                sanitized: true,
            };
            let found = stockade_shell::assess_script(script.as_bytes(), &context);
            let assessment = Assessment { capabilities: found.capabilities, ..Assessment::without_findings(Tier::Ask) };
            decide_request(settings, &request, &assessment, true).verdict
        }
        Probe::Tool(name, arguments) => {
            let arguments = serde_json::from_str(arguments).unwrap();
            act(Act::Tool { name, arguments: &arguments })
        }
        Probe::File(operation, path) => act(Act::File { path: Path::new(path.as_ref()), operation: *operation }),
        Probe::Host(host, port) => act(Act::Network { host: &host.parse().unwrap(), port: Some(*port) }),
    }
}
