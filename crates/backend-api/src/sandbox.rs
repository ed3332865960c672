//! Persistent sandboxes, from the view of the engine: an isolated environment that is made once,
//! runs many commands, and is destroyed.
//!
//! Whatever isolates it, a command in a sandbox passes all phases of a request. A sandbox returns a
//! [`Backend`], which gets a plan like any other. The paths of such a plan (`cwd`, `workspace`,
//! writable paths) are paths *inside*: see [`INSIDE_WORKSPACE`] and [`INSIDE_HOME`].
//!
//! A kind of sandbox must not depend on rules, approvers, the audit log or the store. It makes,
//! pauses, stops and removes sandboxes; the caller keeps their list.

use std::fmt;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use stockade_model::{
    BackgroundPolicy, ConnectionRecord, Denial, EnforcementReport, ImageDigest, IsolationLevel, Profile, RequestId,
    RuntimeName, SandboxId, SandboxUsage,
};

use crate::{Backend, StartError};

/// The workspace of a sandbox, as its commands see it.
pub const INSIDE_WORKSPACE: &str = "/workspace";
/// The home directory of a sandbox.
pub const INSIDE_HOME: &str = "/home/agent";

/// Port that makes and finds sandboxes of one kind. An implementation declares its features in
/// [`capabilities`](Self::capabilities). It refuses other operations with
/// [`SandboxError::Unsupported`].
pub trait SandboxProvider: Send + Sync {
    /// Returns its name as plans, records and reports contain it: `native`, `docker`.
    fn name(&self) -> &'static str;

    /// Returns the features of its sandboxes on this machine. Must be cheap, because every command
    /// line calls it.
    fn capabilities(&self) -> ProviderCapabilities;

    /// Checks whether a sandbox of this plan is available here, as far as possible without making
    /// one. The caller chooses the kind by the result. The plan's directories need not exist yet.
    ///
    /// # Errors
    /// [`SandboxError`] with the reason if it is not available.
    fn check_plan(&self, plan: &SandboxPlan) -> Result<(), SandboxError>;

    /// Makes a sandbox. When this returns, a command can run in it.
    ///
    /// # Errors
    /// [`SandboxError`] if a layer that the plan requires is unavailable. Nothing of it is left
    /// then, except the directories of the plan, which belong to the caller.
    fn create_sandbox(&self, plan: &SandboxPlan, events: SandboxEventSender) -> Result<Box<dyn Sandbox>, SandboxError>;

    /// Finds a sandbox that an earlier engine made from the same plan.
    ///
    /// # Errors
    /// [`SandboxError::Gone`] if its processes are gone. Only its directories are left, and
    /// [`create_sandbox`](Self::create_sandbox) may reuse them.
    fn adopt_sandbox(&self, plan: &SandboxPlan, events: SandboxEventSender) -> Result<Box<dyn Sandbox>, SandboxError>;

    /// Removes all that is left of a sandbox that no process holds any more: its processes, mounts,
    /// control groups, containers, networks. Does nothing if nothing is left. The directories of
    /// its plan stay.
    ///
    /// # Errors
    /// [`SandboxError`] with the part that could not be removed, and the reason; the caller may try
    /// again.
    fn clear(&self, id: &SandboxId) -> Result<(), SandboxError>;
}

/// Port for a sandbox. All methods may be called from any thread. The effect of a drop depends on
/// the kind: a sandbox that [`adopts`](ProviderCapabilities::adopts) continues, every other ends (L8).
pub trait Sandbox: Send + Sync {
    /// Returns its identifier.
    fn id(&self) -> &SandboxId;

    /// Returns the protection that the kernel or the container engine enforces for all of its
    /// commands together. Each attempt also has its own report.
    fn enforcement_report(&self) -> &EnforcementReport;

    /// Returns the backend that runs commands in it. A plan that asks for more than the sandbox was
    /// made with is a [`StartError`]. Powers that can be given while it runs ([`Backend::supports_grant`])
    /// are grants as in any attempt, and end with it.
    ///
    /// The end of an attempt is the end of its command. Processes left behind
    /// ([`BackgroundPolicy::Keep`]) keep their powers and get no more. Calls that lack a power are
    /// refused and reported as [`SandboxEvent::Denied`].
    fn backend(&self) -> Arc<dyn Backend>;

    /// Stops every process of it. Its connections stay open as long as the other ends allow it.
    ///
    /// # Errors
    /// [`SandboxError`] if this is not supported, or does not happen in time; nothing is stopped
    /// then.
    fn pause(&self) -> Result<(), SandboxError>;

    /// Continues the processes. Does nothing if it is not paused.
    ///
    /// # Errors
    /// As for [`pause`](Self::pause).
    fn resume(&self) -> Result<(), SandboxError>;

    /// Copies its current files to this directory, which must be empty: the workspace to
    /// `workspace`, the home to `home`. Its processes are stopped meanwhile, and are not part of
    /// the snapshot.
    ///
    /// # Errors
    /// [`SandboxError`] if this is not supported or fails; the directory is emptied then.
    fn snapshot_files(&self, to: &Path) -> Result<(), SandboxError>;

    /// Returns the current and past resource use of all its processes.
    ///
    /// # Errors
    /// [`SandboxError`] if it is gone.
    fn read_usage(&self) -> Result<SandboxUsage, SandboxError>;

    /// Returns a directory of it as a descriptor for path resolution (`O_PATH`). Its processes are
    /// not needed to reach its files. A caller that resolves a path beneath it must not follow a
    /// symbolic link out of it, because its commands write there.
    ///
    /// # Errors
    /// [`SandboxError::Unsupported`] if its files are not on this machine.
    fn open_tree(&self, which: SandboxTree) -> Result<OwnedFd, SandboxError>;

    /// Ends every process, and removes everything except the directories of its plan. Attempts that
    /// run in it end as lost. A second call does nothing.
    ///
    /// # Errors
    /// [`SandboxError`] with the part that could not be removed, and the reason; the caller may try
    /// again.
    fn destroy(&self) -> Result<(), SandboxError>;
}

/// Plan of a sandbox. The caller makes it from the request and resolves it, so that a kind of
/// sandbox adds nothing to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxPlan {
    /// Identifier of the sandbox. Everything made for it outside the process has this name.
    pub id: SandboxId,
    /// The read-only system that its commands see; the host's own if absent.
    pub system: Option<GuestSystem>,
    /// The directory of the host for [`INSIDE_WORKSPACE`]. It exists and belongs to this user.
    pub workspace: PathBuf,
    /// The directory for [`INSIDE_HOME`]. It exists and belongs to this user.
    pub home: PathBuf,
    /// The powers that its isolation is built for, with the limits for all of its commands
    /// together. The plan of a command may have less of either.
    pub profile: Profile,
    /// The level to enforce; a lower level is refused (L6).
    pub level: IsolationLevel,
    /// Treatment of processes that a command leaves behind.
    pub background: BackgroundPolicy,
    /// The container engine's runtime, if it is not the engine's default.
    pub runtime: Option<RuntimeName>,
}

/// System other than the host's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GuestSystem {
    /// A root tree: a directory with `usr`, `etc` and the rest of a system.
    Tree(PathBuf),
    /// An image that the container engine has, by its digest.
    Image(ImageDigest),
}

/// Directory of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SandboxTree {
    /// [`INSIDE_WORKSPACE`].
    Workspace,
    /// [`INSIDE_HOME`].
    Home,
}

/// Features of a kind of sandbox on this machine. If one is false, operations that need it are
/// refused with [`SandboxError::Unsupported`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProviderCapabilities {
    /// The sandboxes continue without the process that made them, and can be found again.
    pub adopts: bool,
    /// All of their processes can be stopped and continued.
    pub pauses: bool,
    /// Their files can be copied to a snapshot.
    pub snapshots: bool,
    /// A process that a command leaves behind can continue.
    pub keeps_background: bool,
    /// Such a process can be ended with the command.
    pub ends_background: bool,
    /// A call that lacks a power can wait for an answer.
    pub holds: bool,
    /// [`SandboxTree`]s are available.
    pub shows_files: bool,
}

/// Event of a sandbox that no attempt can report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SandboxEvent {
    /// An operation of a process left behind was refused.
    Denied {
        /// The request of the command that left it.
        request: RequestId,
        /// The refusal.
        denial: Denial,
    },
    /// A connection of it through the egress proxy was closed.
    Connection {
        /// The request of the command that made it.
        request: RequestId,
        /// Record of the connection.
        record: Box<ConnectionRecord>,
    },
    /// All of them together exceeded a limit. Running attempts get this event too.
    Breached(Denial),
    /// The processes are gone without a call of `destroy`. The last event.
    Lost(String),
}

/// Sink for the events of a sandbox; any thread may use it.
#[derive(Clone)]
pub struct SandboxEventSender(Arc<dyn Fn(SandboxEvent) + Send + Sync>);

impl SandboxEventSender {
    /// Creates a sink. `tell` must not block, because the reported process waits meanwhile.
    pub fn new(tell: impl Fn(SandboxEvent) + Send + Sync + 'static) -> Self {
        Self(Arc::new(tell))
    }

    /// Sends one event.
    pub fn send_event(&self, event: SandboxEvent) {
        (self.0)(event);
    }
}

impl fmt::Debug for SandboxEventSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SandboxEvents").finish_non_exhaustive()
    }
}

/// Error of an operation on a sandbox, shown to the user.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SandboxError {
    /// This kind of sandbox does not support the operation, or not on this machine.
    #[error("{what} is not supported by a {backend} sandbox: {why}")]
    Unsupported {
        /// The kind.
        backend: &'static str,
        /// The requested operation.
        what: &'static str,
        /// The reason.
        why: String,
    },
    /// The processes of the sandbox are gone.
    #[error("the sandbox {0} is gone")]
    Gone(SandboxId),
    /// An operation failed.
    #[error(transparent)]
    Failed(#[from] StartError),
}

impl SandboxError {
    /// Returns the one remedy.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Unsupported { .. } | Self::Gone(_) => None,
            Self::Failed(error) => error.hint.clone(),
        }
    }
}
