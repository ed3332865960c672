//! The types of Stockade's domain: requests, powers, denials, approvals and outcomes.
//!
//! Absent on purpose: no I/O, no clock, no randomness, no async, no policy. A function here fails only
//! because of its arguments, so every other crate may use it. The serialised forms are public API: programs
//! of users read outcomes, events and configuration.

#![forbid(unsafe_code)]

mod approval;
mod assessment;
mod bytes;
mod data;
mod denial;
mod digest;
mod effect;
mod egress;
mod endpoint;
mod event;
mod grant;
mod id;
mod inspection;
mod limit;
pub mod mountinfo;
mod network;
mod outcome;
mod plan;
mod profile;
mod program;
mod project_files;
mod protected_names;
pub mod quantity;
mod reading;
mod report;
mod request;
mod review;
mod sandbox;
mod secret_use;
mod signing;
mod special;
mod targets;
mod text_form;
mod text_pattern;

pub use approval::{
    Approval, ApprovalAnswer, ApprovalMode, ApprovalQuestion, ApprovalScope, GranularMode, GroupOffer, QuestionKind,
};
pub use assessment::{Assessment, Capability, Finding, Impact, TextSpan, Tier};
pub use bytes::{RawText, is_deceptive, shell_quoted};
pub use data::{CharacterRanges, NameList, table_rows};
pub use denial::{Denial, DenialLayer, DenialResolution, DeniedOperation};
pub use digest::Digest;
pub use effect::EffectUse;
pub use egress::{
    EgressLimits, EgressRules, EgressSecret, SecretKind, SecretSource, TargetListing, UpstreamKind, UpstreamProxy,
};
pub use endpoint::{EndpointError, HttpEndpoint};
pub use event::{EVENT_TYPES, Event, EventKind};
pub use grant::{Grant, GrantError};
pub use id::{ApprovalId, IdError, RequestId, SandboxId, SessionId, StageId};
pub use inspection::{InspectionRules, RequestPattern, RequestRuling};
pub use limit::{LimitKind, Limits};
pub use network::{ConnectionEnd, ConnectionRecord, Host, HostError, HostName, HostUse, NetworkTarget};
pub use outcome::{
    AttemptRecord, Decision, FinalStatus, PolicyVerdict, RequestedGrant, ResourceUsage, RunOutcome, StagedChanges,
};
pub use plan::{AttemptPlan, PRIVATE_TREES};
pub use profile::{
    CacheSharing, DEFAULT_UNDO_BYTES, DroppedVariables, EnvironmentRules, FilesystemAccess, NetworkAccess, Profile,
    ToolCache,
};
pub use program::{ExecRules, ProgramPattern, ProgramPatternError};
pub use project_files::{PROJECT_FILES, is_project_file};
pub use protected_names::{DEFAULT_PROTECTED_NAMES, NameClass, PROTECTED_NAMES, list_checked_names};
pub use reading::ReadAccess;
pub use report::{EnforcementReport, IsolationLevel, LayerReport, LayerState};
pub use request::{CallerApproval, RequestCommand, RunRequest, SandboxPreference};
pub use review::{ReviewOpinion, ReviewResult, RiskCategory, RiskLevel};
pub use sandbox::{
    AfterRestart, BackendChoice, BackgroundPolicy, GitRevision, HostDirectory, ImageDigest, RepositoryUrl, RuntimeName,
    SandboxLabels, SandboxLifetime, SandboxRecord, SandboxSpec, SandboxState, SandboxUsage, SpecError, WorkspaceSource,
};
pub use secret_use::{SecretUse, is_secret_name};
pub use signing::{KeyFingerprint, SSH_PORT, SignPurpose, SignUse, ssh_target, ssh_target_text};
pub use special::special_address;
pub use targets::{HostPattern, TargetPattern, is_localhost};
pub use text_pattern::{text_matches, wildcard_matches};
