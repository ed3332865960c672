//! What a remembered answer is bound to (L5).
//!
//! An approval is bound narrowly: to everything the person saw and everything
//! that could change what they saw. A refusal is bound widely, so that a change
//! of environment, profile or policy does not wear a "never" away.
//!
//! There is no namespace for runs without a sandbox: that consent cannot be
//! remembered, so no remembered answer can ever stand in for it (L1).

use stockade_model::{Command, Digest, Grant, Level, Plan, RawText, Request};

/// Which kind of question an answer belongs to. An approval in one never
/// answers a question of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Namespace {
    /// May this command run, in its sandbox?
    Run,
    /// May a command have this power from the start?
    Grant,
    /// May a command that was refused this power have it and run again?
    Escalate,
}

impl Namespace {
    /// Its name in the store.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Grant => "grant",
            Self::Escalate => "escalate",
        }
    }
}

/// Finds one remembered answer. Sessions are not part of the digest: the
/// memory compares the session itself where the answer's scope asks for it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Which kind of question.
    pub namespace: Namespace,
    /// What it is bound to.
    pub digest: Digest,
    /// Whether this key finds refusals; the others find approvals.
    pub refusal: bool,
}

/// What approvals of a run are bound to, beside the plan.
#[derive(Clone, Copy, Debug)]
pub struct RunBinding<'a> {
    /// Version of the policy that asked.
    pub policy: &'a Digest,
    /// Who runs Stockade, e.g. `uid 1000`.
    pub user: &'a str,
    /// The whole profile.
    pub profile: &'a Digest,
    /// Identity of the program and of a script named to it.
    pub identity: &'a Digest,
}

/// The key of an approval to run `plan`.
///
/// Bound to the command's bytes, argv, working directory, effective
/// environment, workspace, whole profile, grants, level, backend, program
/// identity, policy and user.
pub fn run_approval(request: &Request, plan: &Plan, binding: RunBinding<'_>) -> Key {
    let mut fields = command_fields(&request.command);
    fields.push(counted(plan.argv.iter().map(RawText::as_bytes)));
    fields.push(plan.cwd.as_bytes().to_vec());
    fields.push(plan.workspace.as_bytes().to_vec());
    fields.push(counted(plan.environment.iter().flat_map(|(name, value)| [name.as_bytes(), value.as_bytes()])));
    fields.push(binding.profile.as_str().as_bytes().to_vec());
    fields.push(grants_field(&plan.grants));
    fields.push(plan.level.to_string().into_bytes());
    fields.push(plan.backend.clone().into_bytes());
    fields.push(binding.identity.as_str().as_bytes().to_vec());
    fields.push(binding.policy.as_str().as_bytes().to_vec());
    fields.push(binding.user.as_bytes().to_vec());
    key(Namespace::Run, false, &fields)
}

/// The key of a refusal to run a command in a workspace: bound to its bytes,
/// the workspace and the user alone.
pub fn run_refusal(request: &Request, user: &str) -> Key {
    let mut fields = command_fields(&request.command);
    fields.push(request.workspace.as_bytes().to_vec());
    fields.push(user.as_bytes().to_vec());
    key(Namespace::Run, true, &fields)
}

/// What a remembered power is bound to, beside the power itself. The command
/// is not part of it: a power agreed to for a session serves every command of
/// that session in the same workspace, profile and level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantContext {
    /// Root of the workspace.
    pub workspace: RawText,
    /// Which directory that is; see [`workspace_identity`](crate::workspace_identity).
    pub directory: Digest,
    /// Name of the profile.
    pub profile: String,
    /// Level enforced.
    pub level: Level,
    /// Version of the policy.
    pub policy: Digest,
    /// Who runs Stockade.
    pub user: String,
}

impl GrantContext {
    /// The key of an approval of one power.
    pub fn approval(&self, namespace: Namespace, grant: &Grant) -> Key {
        let fields = [
            grants_field(std::slice::from_ref(grant)),
            self.workspace.as_bytes().to_vec(),
            self.directory.as_str().as_bytes().to_vec(),
            self.profile.clone().into_bytes(),
            self.level.to_string().into_bytes(),
            self.policy.as_str().as_bytes().to_vec(),
            self.user.clone().into_bytes(),
        ];
        key(namespace, false, &fields)
    }

    /// The key of a refusal of exactly these powers together.
    pub fn refusal(&self, namespace: Namespace, grants: &[Grant]) -> Key {
        let fields = [grants_field(grants), self.workspace.as_bytes().to_vec(), self.user.clone().into_bytes()];
        key(namespace, true, &fields)
    }
}

fn key(namespace: Namespace, refusal: bool, fields: &[Vec<u8>]) -> Key {
    let domain = format!("stockade-consent-1 {} {}", namespace.as_str(), if refusal { "refuse" } else { "approve" });
    Key { namespace, refusal, digest: Digest::of_fields(&domain, fields.iter().map(Vec::as_slice)) }
}

fn command_fields(command: &Command) -> Vec<Vec<u8>> {
    match command {
        Command::Argv(argv) => vec![b"argv".to_vec(), counted(argv.iter().map(RawText::as_bytes))],
        Command::Script(script) => vec![b"script".to_vec(), script.as_bytes().to_vec()],
    }
}

fn grants_field(grants: &[Grant]) -> Vec<u8> {
    let mut texts: Vec<String> = grants.iter().map(Grant::to_string).collect();
    texts.sort();
    texts.dedup();
    counted(texts.iter().map(String::as_bytes))
}

/// A list as one field: each item with its length, so that borders count.
fn counted<'a>(items: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut out = Vec::new();
    for item in items {
        out.extend_from_slice(&(item.len() as u64).to_le_bytes());
        out.extend_from_slice(item);
    }
    out
}
