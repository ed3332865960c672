//! A persistent sandbox: its specification, its state and its record.
//!
//! The type of each value limits it once: a value of these types fits a file name, a column or an argument
//! of `git`.

mod parts;
mod source;
mod state;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use parts::{ImageDigest, RuntimeName, SandboxLabels, SandboxLifetime};
pub use source::{GitRevision, HostDirectory, RepositoryUrl, WorkspaceSource};
pub use state::{SandboxRecord, SandboxState, SandboxUsage};

use crate::text_form::display_as_serialised;
use crate::{IsolationLevel, Limits};

/// Longest name of a profile, in bytes.
const MAX_PROFILE_NAME_BYTES: usize = 64;

/// Reason why a text or a value is not a part of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {why}")]
pub struct SpecError {
    /// The part, by its key.
    what: &'static str,
    /// The reason, for the user.
    why: &'static str,
}

impl SpecError {
    fn new(what: &'static str, why: &'static str) -> Self {
        Self { what, why }
    }
}

/// Backend that isolates a sandbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum BackendChoice {
    /// The backend that supports the profile on this machine.
    #[default]
    Auto,
    /// Kernel features, without a container engine.
    Native,
    /// The Docker Engine.
    Docker,
    /// Podman.
    Podman,
}

display_as_serialised!(BackendChoice);

/// Treatment of a sandbox whose engine ended unexpectedly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum AfterRestart {
    /// The sandbox is adopted in its current state.
    #[default]
    Adopt,
    /// The sandbox is destroyed.
    Destroy,
}

/// Treatment of processes that a command leaves behind in its sandbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum BackgroundPolicy {
    /// The processes end with the command, as those of a run do.
    #[default]
    End,
    /// The processes live as long as the sandbox.
    Keep,
}

/// Specification of a sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SandboxSpec {
    /// Backend that isolates the sandbox.
    #[serde(default)]
    pub backend: BackendChoice,
    /// The container engine's runtime, if it is not the engine's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime: Option<RuntimeName>,
    /// The image of a container engine that is the read-only system inside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageDigest>,
    /// The directory of the host that is the read-only system inside: a root tree, with `usr`, `etc` and
    /// everything else that a system has. Without an image and a root, the host's system is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<HostDirectory>,
    /// Initial content of the workspace.
    #[serde(default)]
    pub workspace: WorkspaceSource,
    /// Name of the profile whose powers its commands have.
    pub profile: String,
    /// Required strength of the isolation.
    #[serde(default)]
    pub level: IsolationLevel,
    /// Limits for all commands of the sandbox together. `disk` and `inodes` are the quotas of its stored
    /// files.
    #[serde(default, skip_serializing_if = "Limits::is_empty")]
    pub limits: Limits,
    /// Labels that the creator gave the sandbox.
    #[serde(default, skip_serializing_if = "SandboxLabels::is_empty")]
    pub labels: SandboxLabels,
    /// The sandbox is destroyed this long after its creation; may be extended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<SandboxLifetime>,
    /// The sandbox is destroyed this long after its last use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_ms: Option<SandboxLifetime>,
    /// Treatment of the sandbox if its engine ended unexpectedly.
    #[serde(default)]
    pub after_restart: AfterRestart,
    /// Treatment of processes that a command leaves behind.
    #[serde(default)]
    pub background: BackgroundPolicy,
}

impl SandboxSpec {
    /// Returns an empty sandbox of this profile.
    pub fn of_profile(profile: &str) -> Self {
        Self { profile: profile.to_owned(), ..Self::default() }
    }

    /// Checks whether the parts fit together.
    ///
    /// # Errors
    /// The first part that does not fit, and the reason.
    pub fn check_consistency(&self) -> Result<(), SpecError> {
        let fits = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
        if !(1..=MAX_PROFILE_NAME_BYTES).contains(&self.profile.len()) || !self.profile.bytes().all(fits) {
            return Err(SpecError::new("profile", "a name is 1 to 64 letters, digits, `-`, `_` and `.`"));
        }
        if self.backend == BackendChoice::Native && self.runtime.is_some() {
            return Err(SpecError::new(
                "runtime",
                "the native backend does not support this; use `docker` or `podman`",
            ));
        }
        if self.image.is_some() && self.root.is_some() {
            return Err(SpecError::new("root", "give an image or a root tree, not both"));
        }
        if self.level == IsolationLevel::None {
            return Err(SpecError::new("level", "a sandbox needs isolation: `full` or `restricted`"));
        }
        if self.limits.iter_limits().any(|(_, amount)| amount == 0) {
            return Err(SpecError::new("limits", "an amount must be greater than zero"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LimitKind, RawText};

    #[test]
    fn missing_options_have_defaults_and_unknown_ones_are_refused() {
        let least: SandboxSpec = serde_json::from_str(r#"{"profile":"workspace"}"#).unwrap();
        assert_eq!(least, SandboxSpec::of_profile("workspace"));
        assert_eq!(least.check_consistency(), Ok(()));
        let text = serde_json::to_string(&least).unwrap();
        assert_eq!(serde_json::from_str::<SandboxSpec>(&text).unwrap(), least);
        for bad in [
            r#"{}"#,
            r#"{"profile":"workspace","privileged":true}"#,
            r#"{"profile":"workspace","backend":"host"}"#,
            r#"{"profile":"workspace","ttl_ms":0}"#,
            r#"{"profile":"workspace","workspace":{"clone":{"url":"ext::sh -c id"}}}"#,
            r#"{"profile":"workspace","workspace":{"bind":{"directory":"../x"}}}"#,
            r#"{"profile":"workspace","image":"debian:latest"}"#,
        ] {
            assert!(serde_json::from_str::<SandboxSpec>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn parts_that_do_not_go_together_are_refused() {
        let good = SandboxSpec::of_profile("workspace");
        let long = "p".repeat(MAX_PROFILE_NAME_BYTES + 1);
        for profile in ["", "a b", "../x", long.as_str()] {
            assert!(
                SandboxSpec { profile: profile.to_owned(), ..good.clone() }.check_consistency().is_err(),
                "{profile}"
            );
        }
        let runtime = Some("runsc".parse().unwrap());
        let native = SandboxSpec { backend: BackendChoice::Native, runtime: runtime.clone(), ..good.clone() };
        assert!(native.check_consistency().is_err());
        let docker = SandboxSpec { backend: BackendChoice::Docker, runtime, ..good.clone() };
        assert_eq!(docker.check_consistency(), Ok(()));
        assert!(SandboxSpec { level: IsolationLevel::None, ..good.clone() }.check_consistency().is_err());
        let image = Some(format!("sha256:{}", "a".repeat(64)).parse().unwrap());
        let root = Some(RawText::from("/srv/root").try_into().unwrap());
        assert_eq!(SandboxSpec { root: root.clone(), ..good.clone() }.check_consistency(), Ok(()));
        assert!(SandboxSpec { image, root, ..good.clone() }.check_consistency().is_err());
        let mut limited = good;
        limited.limits.set_limit(LimitKind::Disk, 1 << 30);
        assert_eq!(limited.check_consistency(), Ok(()));
        limited.limits.set_limit(LimitKind::Inodes, 0);
        assert!(limited.check_consistency().is_err());
    }
}
