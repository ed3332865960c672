//! The container engines of one run of a suite: each starts once, with one image, and ends with
//! the run. This module must not depend on what runs in containers.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use stockade_testkit::{ContainerEngine, EngineKind, TestUser, slowness_factor, small_image};

/// Time that the removal of a container may take whose maker was killed.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(10);

/// Running engines, and the reason of each that this machine does not have.
pub struct SuiteEngines {
    running: Vec<ContainerEngine>,
    missing: Vec<(EngineKind, String)>,
}

impl SuiteEngines {
    /// Starts those that are needed, in the directory of the suite's session.
    pub fn start(session: &Path, needed: &[EngineKind]) -> Self {
        let mut engines = Self { running: Vec::new(), missing: Vec::new() };
        for kind in [EngineKind::Docker, EngineKind::Podman] {
            if needed.contains(&kind)
                && let Err(error) = engines.add(kind, session)
            {
                engines.missing.push((kind, format!("{error:#}")));
            }
        }
        engines
    }

    fn add(&mut self, kind: EngineKind, session: &Path) -> Result<()> {
        ensure!(TestUser::available_users().contains(&TestUser::Root), "an engine of the suite's own needs root");
        let made = session.join("image.tar");
        let archive = if made.exists() { made } else { small_image(session)? };
        let engine = ContainerEngine::start(kind, &session.join(engine_name(kind)))?;
        fs::write(image_file(session, kind), engine.import_image(&archive)?)?;
        self.running.push(engine);
        Ok(())
    }

    /// Why an engine did not start.
    pub fn why_missing(&self, kind: EngineKind) -> Option<&str> {
        self.missing.iter().find(|(missing, _)| *missing == kind).map(|(_, why)| why.as_str())
    }

    /// Checks that no container is left.
    ///
    /// # Errors
    /// The containers that are left after the time-out.
    pub fn require_empty(&self) -> Result<()> {
        let give_up = Instant::now() + REMOVAL_TIMEOUT * slowness_factor();
        for engine in &self.running {
            loop {
                let container_list = engine.run_client(&["ps", "--all", "--quiet"])?;
                if container_list.trim().is_empty() {
                    break;
                }
                ensure!(Instant::now() < give_up, "containers are left: {container_list}");
                sleep(Duration::from_millis(100));
            }
        }
        Ok(())
    }
}

/// The name of an engine: that of its backend, and of its directory in a session.
pub fn engine_name(kind: EngineKind) -> &'static str {
    match kind {
        EngineKind::Docker => "docker",
        EngineKind::Podman => "podman",
    }
}

/// The socket of a session's engine.
pub fn socket_path(session: &Path, kind: EngineKind) -> PathBuf {
    session.join(engine_name(kind)).join("socket")
}

/// The address of that socket, for clients of the engine.
pub fn socket_address(session: &Path, kind: EngineKind) -> String {
    format!("unix://{}", socket_path(session, kind).display())
}

/// The file with the digest of the image that a session's engine has.
pub fn image_file(session: &Path, kind: EngineKind) -> PathBuf {
    session.join(format!("{}.image", engine_name(kind)))
}
