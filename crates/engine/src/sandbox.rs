//! Sandboxes that last, seen from the engine: an isolated place that is made
//! once, runs many commands, and is destroyed.
//!
//! Whatever makes the walls, a command in a sandbox goes the whole way of a
//! request: a sandbox gives a [`Backend`], and that is given a plan as any other.
//! The paths of such a plan (`cwd`, `workspace`, what may be written) are paths
//! *inside*: see [`INSIDE_WORKSPACE`] and [`INSIDE_HOME`].
//!
//! A kind of sandbox must not know rules, approvers, the log or the store: it
//! makes, holds, stops and removes; who keeps the list of them is the caller.

use std::fmt;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use stockade_model::{
    Background, ConnectionRecord, Denial, EnforcementReport, ImageDigest, Level, Profile, RequestId, RuntimeName,
    SandboxId, Usage,
};

use crate::{Backend, StartError};

/// Where a sandbox has its workspace, as its commands see it.
pub const INSIDE_WORKSPACE: &str = "/workspace";
/// Where it has its home directory.
pub const INSIDE_HOME: &str = "/home/agent";

/// Makes and finds sandboxes of one kind. What it cannot do it declares in
/// [`capabilities`](Self::capabilities), and refuses with
/// [`SandboxError::Unsupported`] where it is asked to all the same.
pub trait Sandboxes: Send + Sync {
    /// Its name, as it stands in plans, records and reports: `native`, `docker`.
    fn name(&self) -> &'static str;

    /// What its sandboxes can do on this machine. Cheap: it is asked for each
    /// command line.
    fn capabilities(&self) -> Capabilities;

    /// Whether a sandbox of this plan can be had here, as far as that is known without
    /// making one: kinds are chosen by it. Its directories need not be there yet.
    ///
    /// # Errors
    /// Why not.
    fn serves(&self, plan: &SandboxPlan) -> Result<(), SandboxError>;

    /// Makes a sandbox. When this returns, a command can be run in it.
    ///
    /// # Errors
    /// Where a layer cannot be had that the plan asks for: nothing of it is left
    /// then, the directories of the plan excepted, which are the caller's.
    fn create(&self, plan: &SandboxPlan, events: SandboxEvents) -> Result<Box<dyn Sandbox>, SandboxError>;

    /// Finds a sandbox again that an engine before this one made of the same plan.
    ///
    /// # Errors
    /// [`SandboxError::Gone`] where its processes are: its directories are what
    /// is left, and [`create`](Self::create) may go on with them.
    fn adopt(&self, plan: &SandboxPlan, events: SandboxEvents) -> Result<Box<dyn Sandbox>, SandboxError>;

    /// Removes whatever is left of a sandbox that nobody holds any more: its
    /// processes, mounts, control groups, containers, networks. Nothing where
    /// there is nothing. The directories of its plan stay.
    ///
    /// # Errors
    /// What could not be removed, and why; to be tried again.
    fn clear(&self, id: &SandboxId) -> Result<(), SandboxError>;
}

/// One sandbox. All methods may be called from any thread. Dropping it leaves
/// what it was at drop to its kind: one that [`adopts`](Capabilities::adopts)
/// goes on, every other ends (L8).
pub trait Sandbox: Send + Sync {
    /// Which one.
    fn id(&self) -> &SandboxId;

    /// What the kernel, or the container engine, really enforces for all of its
    /// commands together. Each attempt has besides a report of its own.
    fn enforced(&self) -> &EnforcementReport;

    /// What runs commands in it. A plan that asks for more than the sandbox was
    /// made with is a [`StartError`]; powers that can be given while it runs
    /// ([`Backend::honours`]) are grants as in any attempt, and end with it.
    ///
    /// The end of an attempt is that of its command. What it left behind
    /// ([`Background::Keep`]) runs on with the powers it had, and can be given
    /// no more: calls that lack one are refused, and told as
    /// [`SandboxEvent::Denied`].
    fn backend(&self) -> Arc<dyn Backend>;

    /// Stops every process of it. Its connections stay open as long as the other
    /// ends let them.
    ///
    /// # Errors
    /// Where that cannot be had, or does not happen in time: nothing is stopped
    /// then.
    fn pause(&self) -> Result<(), SandboxError>;

    /// Lets it go on. Nothing where it is not paused.
    ///
    /// # Errors
    /// As [`pause`](Self::pause).
    fn resume(&self) -> Result<(), SandboxError>;

    /// Keeps what its files are now in this directory, which must be empty: the
    /// workspace in `workspace`, the home in `home`. Its processes are stopped
    /// meanwhile, and are no part of it.
    ///
    /// # Errors
    /// Where that cannot be had or kept; the directory is emptied then.
    fn snapshot(&self, to: &Path) -> Result<(), SandboxError>;

    /// What all of its processes use now, and used so far.
    ///
    /// # Errors
    /// Where it is gone.
    fn usage(&self) -> Result<SandboxUsage, SandboxError>;

    /// A directory of it, open for looking up names beneath (`O_PATH`): nothing
    /// of its processes is needed to reach its files. Whoever resolves a path
    /// beneath it must follow no link out of it: its commands write there.
    ///
    /// # Errors
    /// [`SandboxError::Unsupported`] where its files are nowhere on this machine.
    fn tree(&self, which: Tree) -> Result<OwnedFd, SandboxError>;

    /// Ends every process, and removes all of it but the directories of its plan.
    /// Attempts that run in it end as lost. Once it is done, doing it again is
    /// nothing.
    ///
    /// # Errors
    /// What could not be removed, and why; to be tried again.
    fn destroy(&self) -> Result<(), SandboxError>;
}

/// What a sandbox is made of. Made by the caller from what was asked for;
/// resolved, so that a kind of sandbox adds nothing to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxPlan {
    /// Which one. Whatever is made for it outside the process carries this name.
    pub id: SandboxId,
    /// The read-only system that its commands see; the host's own where absent.
    pub system: Option<System>,
    /// The directory of the host that is [`INSIDE_WORKSPACE`]. It exists, and
    /// belongs to this user.
    pub workspace: PathBuf,
    /// The one that is [`INSIDE_HOME`]. It exists, and belongs to this user.
    pub home: PathBuf,
    /// The powers that its walls are built for, with the limits that hold for all
    /// of its commands together. The plan of a command may have less of either.
    pub profile: Profile,
    /// The level to enforce; less is a refusal (L6).
    pub level: Level,
    /// What becomes of processes that a command leaves behind.
    pub background: Background,
    /// The container engine's runtime, where it is not its own choice.
    pub runtime: Option<RuntimeName>,
}

/// A system other than the host's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum System {
    /// A root tree: a directory with `usr`, `etc` and all else a system has.
    Tree(PathBuf),
    /// An image that the container engine has, by its digest.
    Image(ImageDigest),
}

/// A directory of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tree {
    /// [`INSIDE_WORKSPACE`].
    Workspace,
    /// [`INSIDE_HOME`].
    Home,
}

/// What sandboxes of a kind can do on this machine. Where one of these is false,
/// what needs it is refused with [`SandboxError::Unsupported`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// They go on without whoever made them, and can be found again.
    pub adopts: bool,
    /// All of their processes can be stopped and let go on.
    pub pauses: bool,
    /// Their files can be kept as they are.
    pub snapshots: bool,
    /// A process that a command leaves behind can live on.
    pub keeps_background: bool,
    /// It can be ended with the command.
    pub ends_background: bool,
    /// A call that lacks a power can wait for an answer.
    pub holds: bool,
    /// [`Tree`]s can be had.
    pub shows_files: bool,
}

/// What a sandbox uses, all of its processes together. Absent is what nothing
/// counts here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxUsage {
    /// Used so far, peaks among it.
    pub total: Usage,
    /// Memory in use now, in bytes.
    pub memory_bytes: Option<u64>,
    /// Processes and threads there are now.
    pub processes: Option<u64>,
}

/// Something that happens in a sandbox while no attempt is there to tell it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SandboxEvent {
    /// Something was refused to what a command left behind.
    Denied {
        /// The request whose command did.
        request: RequestId,
        /// What.
        denial: Denial,
    },
    /// A connection of it through the door is over.
    Connection {
        /// The request whose command made it.
        request: RequestId,
        /// What is known of it.
        record: Box<ConnectionRecord>,
    },
    /// All of them together went beyond a limit. Attempts that run are told too.
    Breached(Denial),
    /// Its processes are gone, and nobody destroyed it. The last.
    Lost(String),
}

/// Where a sandbox tells what happens, from any of its threads.
#[derive(Clone)]
pub struct SandboxEvents(Arc<dyn Fn(SandboxEvent) + Send + Sync>);

impl SandboxEvents {
    /// `tell` must not block: what is told of waits meanwhile.
    pub fn new(tell: impl Fn(SandboxEvent) + Send + Sync + 'static) -> Self {
        Self(Arc::new(tell))
    }

    /// Tells one event.
    pub fn tell(&self, event: SandboxEvent) {
        (self.0)(event);
    }
}

impl fmt::Debug for SandboxEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SandboxEvents").finish_non_exhaustive()
    }
}

/// Why something could not be done with a sandbox. Shown to a person.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SandboxError {
    /// This kind of sandbox cannot do that, or not on this machine.
    #[error("{what} cannot be had of a {backend} sandbox: {why}")]
    Unsupported {
        /// The kind.
        backend: &'static str,
        /// What was asked for.
        what: &'static str,
        /// Why not.
        why: String,
    },
    /// Its processes are gone.
    #[error("the sandbox {0} is gone")]
    Gone(SandboxId),
    /// Something failed.
    #[error(transparent)]
    Failed(#[from] StartError),
}

impl SandboxError {
    /// The one thing to do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Unsupported { .. } | Self::Gone(_) => None,
            Self::Failed(error) => error.hint.clone(),
        }
    }
}
