//! Keys that remembered answers are bound to (L5).
//!
//! An approval is bound narrowly: to everything the person saw, and everything that could change
//! the displayed text. A refusal is bound widely, so that a change of environment, profile or
//! policy does not cancel it.
//!
//! There is no namespace for runs without a sandbox. That consent cannot be remembered, so that no
//! remembered answer can replace it (L1).

use stockade_model::{AttemptPlan, Digest, Grant, IsolationLevel, RawText, RequestCommand, RunRequest};

/// Kind of question that an answer belongs to. An approval of one kind never answers a question of
/// another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum QuestionNamespace {
    /// May this command run in its sandbox?
    Run,
    /// May a command have this power from the start?
    Grant,
    /// May a command that was refused this power have it and run again?
    Escalate,
}

impl QuestionNamespace {
    /// Returns its name in the store.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Grant => "grant",
            Self::Escalate => "escalate",
        }
    }
}

/// Key of one remembered answer. The digest does not contain the session: the memory compares the
/// session itself if the answer's scope requires it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemoryKey {
    /// The kind of question.
    pub namespace: QuestionNamespace,
    /// Digest of the bound data.
    pub digest: Digest,
    /// True if this key finds refusals, false if it finds approvals.
    pub refusal: bool,
}

/// Data that approvals of a run are bound to, besides the plan.
#[derive(Clone, Copy, Debug)]
pub struct RunBinding<'a> {
    /// Version of the policy that required the question.
    pub policy: &'a Digest,
    /// User that runs Stockade, e.g. `uid 1000`.
    pub user: &'a str,
    /// The whole profile.
    pub profile: &'a Digest,
    /// Identity of the program and of a script in its arguments.
    pub identity: &'a Digest,
}

/// Returns the key of an approval to run `plan`.
///
/// The key is bound to the command's bytes, argv, working directory, effective environment,
/// workspace, whole profile, grants, level, backend, program identity, policy and user.
pub fn run_approval(request: &RunRequest, plan: &AttemptPlan, binding: RunBinding<'_>) -> MemoryKey {
    let mut fields = command_fields(&request.command);
    fields.push(encode_list(plan.argv.iter().map(RawText::as_bytes)));
    fields.push(plan.cwd.as_bytes().to_vec());
    fields.push(plan.workspace.as_bytes().to_vec());
    fields.push(encode_list(plan.environment.iter().flat_map(|(name, value)| [name.as_bytes(), value.as_bytes()])));
    fields.push(binding.profile.as_str().as_bytes().to_vec());
    fields.push(grants_field(&plan.grants));
    fields.push(plan.level.to_string().into_bytes());
    fields.push(plan.backend.clone().into_bytes());
    fields.push(binding.identity.as_str().as_bytes().to_vec());
    fields.push(binding.policy.as_str().as_bytes().to_vec());
    fields.push(binding.user.as_bytes().to_vec());
    build_key(QuestionNamespace::Run, false, &fields)
}

/// Returns the key of a refusal to run a command in a workspace. The key is bound only to its
/// bytes, the workspace and the user.
pub fn run_refusal(request: &RunRequest, user: &str) -> MemoryKey {
    let mut fields = command_fields(&request.command);
    fields.push(request.workspace.as_bytes().to_vec());
    fields.push(user.as_bytes().to_vec());
    build_key(QuestionNamespace::Run, true, &fields)
}

/// Data that a remembered power is bound to, besides the power itself. The command is not included.
/// A power approved for a session applies to every command of that session in the same workspace,
/// profile and level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantContext {
    /// Root of the workspace.
    pub workspace: RawText,
    /// Identity of that directory; see [`workspace_identity`](stockade_backend_api::identity::workspace_identity).
    pub directory: Digest,
    /// Name of the profile.
    pub profile: String,
    /// Enforced level.
    pub level: IsolationLevel,
    /// Version of the policy.
    pub policy: Digest,
    /// User that runs Stockade.
    pub user: String,
}

impl GrantContext {
    /// Returns the key of an approval of one power.
    pub fn approval_key(&self, namespace: QuestionNamespace, grant: &Grant) -> MemoryKey {
        let fields = [
            grants_field(std::slice::from_ref(grant)),
            self.workspace.as_bytes().to_vec(),
            self.directory.as_str().as_bytes().to_vec(),
            self.profile.clone().into_bytes(),
            self.level.to_string().into_bytes(),
            self.policy.as_str().as_bytes().to_vec(),
            self.user.clone().into_bytes(),
        ];
        build_key(namespace, false, &fields)
    }

    /// Returns the key of a refusal of exactly these powers together.
    pub fn refusal_key(&self, namespace: QuestionNamespace, grants: &[Grant]) -> MemoryKey {
        let fields = [grants_field(grants), self.workspace.as_bytes().to_vec(), self.user.clone().into_bytes()];
        build_key(namespace, true, &fields)
    }
}

fn build_key(namespace: QuestionNamespace, refusal: bool, fields: &[Vec<u8>]) -> MemoryKey {
    let domain = format!("stockade-consent-1 {} {}", namespace.as_str(), if refusal { "refuse" } else { "approve" });
    MemoryKey { namespace, refusal, digest: Digest::of_fields(&domain, fields.iter().map(Vec::as_slice)) }
}

fn command_fields(command: &RequestCommand) -> Vec<Vec<u8>> {
    match command {
        RequestCommand::Argv(argv) => vec![b"argv".to_vec(), encode_list(argv.iter().map(RawText::as_bytes))],
        RequestCommand::Script(script) => vec![b"script".to_vec(), script.as_bytes().to_vec()],
    }
}

fn grants_field(grants: &[Grant]) -> Vec<u8> {
    let mut texts: Vec<String> = grants.iter().map(Grant::to_string).collect();
    texts.sort();
    texts.dedup();
    encode_list(texts.iter().map(String::as_bytes))
}

/// Encodes a list as one field. Each item has its length in front, so that the boundaries count.
fn encode_list<'a>(items: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut out = Vec::new();
    for item in items {
        out.extend_from_slice(&(item.len() as u64).to_le_bytes());
        out.extend_from_slice(item);
    }
    out
}
