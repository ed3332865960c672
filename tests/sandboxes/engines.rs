//! The container engines of a run of the suite: started once, with one image, and
//! gone with it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use stockade_testkit::{ContainerEngine, EngineKind, TestUser, slowness_factor, small_image};

use crate::kinds::{KINDS, Made};

/// How long a container that is being removed may take.
const GOES_WITHIN: Duration = Duration::from_secs(10);

/// What there is of engines, and why there is no more.
pub struct Engines {
    /// They end with this.
    running: Vec<ContainerEngine>,
    /// Why a kind cannot be had here.
    pub missing: BTreeMap<&'static str, String>,
}

impl Engines {
    /// Starts what these kinds need, in the directory of the session.
    pub fn start(session: &Path, wanted: &[&'static str]) -> Result<Self> {
        let mut engines = Self { running: Vec::new(), missing: BTreeMap::new() };
        let mut image = None;
        for engine in [EngineKind::Docker, EngineKind::Podman] {
            let of_it = |made: &Made| matches!(made, Made::Container { engine: its, .. } if *its == engine);
            let kinds = KINDS.iter().filter(|kind| of_it(&kind.made) && wanted.contains(&kind.name));
            let kinds: Vec<&'static str> = kinds.map(|kind| kind.name).collect();
            if kinds.is_empty() {
                continue;
            }
            if let Err(error) = engines.add(engine, session, &mut image) {
                engines.missing.extend(kinds.iter().map(|kind| (*kind, format!("{error:#}"))));
            }
        }
        Ok(engines)
    }

    /// That no container is left, after the time that those may take whose maker was
    /// killed while it made them.
    ///
    /// # Errors
    /// Which are left.
    pub fn demand_empty(&self) -> Result<()> {
        let give_up = Instant::now() + GOES_WITHIN * slowness_factor();
        for engine in &self.running {
            loop {
                let left = engine.run_client(&["ps", "--all", "--quiet"])?;
                if left.trim().is_empty() {
                    break;
                }
                ensure!(Instant::now() < give_up, "containers are left: {left}");
                sleep(Duration::from_millis(100));
            }
        }
        Ok(())
    }

    fn add(&mut self, kind: EngineKind, session: &Path, image: &mut Option<PathBuf>) -> Result<()> {
        ensure!(TestUser::available_users().contains(&TestUser::Root), "an engine of the suite's own needs root");
        let archive = match image {
            Some(archive) => archive.clone(),
            None => image.insert(small_image(session)?).clone(),
        };
        let engine = ContainerEngine::start(kind, &session.join(directory(kind)))?;
        fs::write(image_file(session, kind), engine.import_image(&archive)?)?;
        self.running.push(engine);
        Ok(())
    }
}

fn directory(kind: EngineKind) -> &'static str {
    match kind {
        EngineKind::Docker => "docker",
        EngineKind::Podman => "podman",
    }
}

/// Where an engine of this session listens.
pub fn socket(session: &Path, kind: EngineKind) -> PathBuf {
    session.join(directory(kind)).join("socket")
}

/// The file that says which image it has.
pub fn image_file(session: &Path, kind: EngineKind) -> PathBuf {
    session.join(format!("{}.image", directory(kind)))
}
