//! State and record of a sandbox.

use std::str::FromStr;

use schemars::JsonSchema;
use serde::de::IntoDeserializer as _;
use serde::de::value::Error as ValueError;
use serde::{Deserialize, Serialize};

use super::SandboxSpec;
use crate::text_form::display_as_serialised;
use crate::{ResourceUsage, SandboxId};

/// State of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SandboxState {
    /// The sandbox is being created.
    Creating,
    /// The sandbox accepts commands.
    Ready,
    /// The processes of the sandbox are stopped.
    Paused,
    /// Creation failed; the created parts must still be removed.
    Failed,
    /// The processes of the sandbox ended unexpectedly; its files remain.
    Lost,
    /// The sandbox is being removed.
    Destroying,
    /// Nothing of the sandbox is left.
    Destroyed,
}

impl SandboxState {
    /// Returns whether the state may change to `next`. Every state but `Destroyed` may change to
    /// `Destroying`. There is no return from it, and an interrupted removal is repeated.
    pub fn may_become(self, next: Self) -> bool {
        match self {
            Self::Creating => matches!(next, Self::Ready | Self::Failed | Self::Destroying),
            Self::Ready => matches!(next, Self::Paused | Self::Lost | Self::Destroying),
            Self::Paused => matches!(next, Self::Ready | Self::Lost | Self::Destroying),
            Self::Lost => matches!(next, Self::Ready | Self::Destroying),
            Self::Failed => next == Self::Destroying,
            Self::Destroying => matches!(next, Self::Destroying | Self::Destroyed),
            Self::Destroyed => false,
        }
    }

    /// Returns whether the sandbox is destroyed or being destroyed.
    pub fn is_ending(self) -> bool {
        matches!(self, Self::Destroying | Self::Destroyed)
    }
}

display_as_serialised!(SandboxState);

/// Error for a text that names no state.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a sandbox state")]
pub struct StateError(String);

impl FromStr for SandboxState {
    type Err = StateError;
    fn from_str(text: &str) -> Result<Self, StateError> {
        let named = Self::deserialize(text.into_deserializer());
        named.map_err(|_: ValueError| StateError(text.escape_default().take(40).collect()))
    }
}

/// Record of a sandbox. Times are milliseconds since the epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SandboxRecord {
    /// Identifier of the sandbox.
    pub id: SandboxId,
    /// Specification of the sandbox.
    pub spec: SandboxSpec,
    /// Backend that isolates the sandbox; absent until it is chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,
    /// State of the sandbox.
    pub state: SandboxState,
    /// Reason for the state, if it is not the requested one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Time of creation.
    pub created_ms: u64,
    /// Time of the last change of state.
    pub changed_ms: u64,
    /// Time of the last use.
    pub used_ms: u64,
    /// Time when the lifetime ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_ms: Option<u64>,
}

impl SandboxRecord {
    /// Returns the record of a sandbox that is being created.
    pub fn for_creation(id: SandboxId, spec: SandboxSpec, now_ms: u64) -> Self {
        let expires_ms = spec.ttl_ms.map(|ttl| now_ms.saturating_add(ttl.as_millis()));
        Self {
            id,
            spec,
            backend: None,
            state: SandboxState::Creating,
            why: None,
            created_ms: now_ms,
            changed_ms: now_ms,
            used_ms: now_ms,
            expires_ms,
        }
    }

    /// Returns the time of destruction if no client uses or extends the sandbox.
    pub fn ends_ms(&self) -> Option<u64> {
        let idle = self.spec.idle_ms.map(|idle| self.used_ms.saturating_add(idle.as_millis()));
        [self.expires_ms, idle].into_iter().flatten().min()
    }
}

/// Resource use of all processes of a sandbox. A value that is not counted here is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxUsage {
    /// Total use so far, including peaks.
    pub total: ResourceUsage,
    /// Memory in use now, in bytes.
    pub memory_bytes: Option<u64>,
    /// Current number of processes and threads.
    pub processes: Option<u64>,
}

#[cfg(test)]
mod tests {
    use SandboxState::{Creating, Destroyed, Destroying, Failed, Lost, Paused, Ready};

    use super::*;

    const ALL_STATES: [SandboxState; 7] = [Creating, Ready, Paused, Failed, Lost, Destroying, Destroyed];

    #[test]
    fn every_transition_that_may_be_is_listed_here() {
        let mut may = Vec::new();
        for from in ALL_STATES {
            may.extend(ALL_STATES.into_iter().filter(|to| from.may_become(*to)).map(|to| (from, to)));
        }
        let listed = [
            (Creating, Ready),
            (Creating, Failed),
            (Creating, Destroying),
            (Ready, Paused),
            (Ready, Lost),
            (Ready, Destroying),
            (Paused, Ready),
            (Paused, Lost),
            (Paused, Destroying),
            (Failed, Destroying),
            (Lost, Ready),
            (Lost, Destroying),
            (Destroying, Destroying),
            (Destroying, Destroyed),
        ];
        assert_eq!(may, listed);
    }

    #[test]
    fn states_are_read_as_they_are_written() {
        for state in ALL_STATES {
            assert_eq!(state.to_string().parse(), Ok(state));
            assert_eq!(serde_json::to_value(state).unwrap(), state.to_string());
        }
        assert!("gone".parse::<SandboxState>().is_err());
    }

    #[test]
    fn it_ends_after_its_lifetime_or_when_idle() {
        let mut spec = SandboxSpec::of_profile("workspace");
        let ends = |spec: &SandboxSpec, used_ms: u64| {
            let begun = SandboxRecord::for_creation(SandboxId::from_random([1; 16]), spec.clone(), 10_000);
            SandboxRecord { used_ms, ..begun }.ends_ms()
        };
        assert_eq!(ends(&spec, 10_000), None);
        spec.ttl_ms = Some(60_000.try_into().unwrap());
        assert_eq!(ends(&spec, 50_000), Some(70_000));
        spec.idle_ms = Some(15_000.try_into().unwrap());
        assert_eq!((ends(&spec, 50_000), ends(&spec, 60_000)), (Some(65_000), Some(70_000)));
    }
}
