//! In which ways a row is played.

use stockade_testkit::{EngineKind, TestUser};
use stockade_tests::Level;

/// What the attempt is behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// A run of this machine's own kernel.
    Native(Level),
    /// A sandbox that a container engine makes.
    Container(&'static Kind),
}

/// A kind of containers.
#[derive(Debug, PartialEq, Eq)]
pub struct Kind {
    /// Its name in tasks.
    pub name: &'static str,
    /// Who makes them.
    pub engine: EngineKind,
    /// The runtime where it is not the engine's own choice: gVisor, whose kernel has no
    /// Landlock.
    pub runtime: Option<&'static str>,
    /// Who attacks from within: whose the workspace is.
    pub attacker: TestUser,
}

/// All of them.
pub const KINDS: &[Kind] = &[
    Kind { name: "docker", engine: EngineKind::Docker, runtime: None, attacker: TestUser::Root },
    Kind { name: "docker-runsc", engine: EngineKind::Docker, runtime: Some("runsc"), attacker: TestUser::Root },
    Kind { name: "podman", engine: EngineKind::Podman, runtime: None, attacker: TestUser::Ordinary },
];

impl Kind {
    /// Whether the command has isolation of its own within that of the container.
    pub fn has_native_isolation(&self) -> bool {
        self.runtime.is_none()
    }

    /// The level that its sandboxes are made at, and say that they have.
    pub fn level(&self) -> Level {
        if self.has_native_isolation() { Level::Full } else { Level::Restricted }
    }
}

impl Way {
    /// The word used in the names of tasks.
    pub fn word(self) -> &'static str {
        match self {
            Self::Native(level) => level.word(),
            Self::Container(kind) => kind.name,
        }
    }

    /// The way of this word.
    pub fn named(word: &str) -> Option<Self> {
        Self::all().find(|way| way.word() == word)
    }

    fn all() -> impl Iterator<Item = Self> {
        let native = [Level::Full, Level::Restricted].map(Self::Native);
        native.into_iter().chain(KINDS.iter().map(Self::Container))
    }

    /// Who attacks in which way: in each kind of containers one of both, for the time it
    /// takes.
    pub fn all_of_users() -> impl Iterator<Item = (TestUser, Self)> {
        let plays = |user, way| !matches!(way, Self::Container(kind) if kind.attacker != user);
        Self::all().flat_map(move |way| {
            [TestUser::Root, TestUser::Ordinary]
                .into_iter()
                .filter(move |user| plays(*user, way))
                .map(move |user| (user, way))
        })
    }

    /// Whether the harness has to be root: an engine of its own is.
    pub fn needs_root(self) -> bool {
        matches!(self, Self::Container(_))
    }
}
