//! A kind of sandbox that isolates nothing: it records its calls.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use stockade_backend_api::{
    Backend, Clock, ProviderCapabilities, Sandbox, SandboxError, SandboxEventSender, SandboxPlan, SandboxProvider,
    SandboxTree, StartError,
};
use stockade_model::SandboxUsage;
use stockade_model::{BackgroundPolicy, EnforcementReport, IsolationLevel, SandboxId};

/// What was asked of it, and what it refuses.
#[derive(Default)]
pub(crate) struct Noted {
    pub calls: Mutex<Vec<String>>,
    pub refuses: Mutex<Option<&'static str>>,
}

impl Noted {
    pub fn calls(&self) -> Vec<String> {
        std::mem::take(&mut *self.calls.lock().unwrap())
    }

    fn note(&self, what: &str) -> Result<(), SandboxError> {
        self.calls.lock().unwrap().push(what.to_owned());
        match *self.refuses.lock().unwrap() {
            Some(refused) if refused == what => {
                Err(StartError { what: format!("{what} was refused"), hint: None }.into())
            }
            _ => Ok(()),
        }
    }
}

pub(crate) struct FakeIsolation {
    pub name: &'static str,
    pub keeps_background: bool,
    pub stands: bool,
    pub noted: Arc<Noted>,
}

impl SandboxProvider for FakeIsolation {
    fn name(&self) -> &'static str {
        self.name
    }

    fn capabilities(&self) -> ProviderCapabilities {
        ProviderCapabilities {
            adopts: self.stands,
            pauses: true,
            snapshots: false,
            ends_background: true,
            keeps_background: self.keeps_background,
            holds: false,
            shows_files: true,
        }
    }

    fn check_plan(&self, plan: &SandboxPlan) -> Result<(), SandboxError> {
        let refused =
            |what, why: &str| Err(SandboxError::Unsupported { backend: self.name, what, why: why.to_owned() });
        match plan {
            plan if plan.background == BackgroundPolicy::Keep && !self.keeps_background => {
                refused("keeping", "it ends all")
            }
            plan if plan.runtime.is_some() && self.name == "native" => refused("a runtime", "it has none"),
            _ => Ok(()),
        }
    }

    fn create_sandbox(&self, plan: &SandboxPlan, _: SandboxEventSender) -> Result<Box<dyn Sandbox>, SandboxError> {
        assert!(plan.workspace.is_dir() && plan.home.is_dir(), "its directories exist");
        self.noted.note("create")?;
        Ok(Box::new(Wall { id: plan.id.clone(), noted: Arc::clone(&self.noted), report: report() }))
    }

    fn adopt_sandbox(&self, plan: &SandboxPlan, _: SandboxEventSender) -> Result<Box<dyn Sandbox>, SandboxError> {
        self.noted.note("adopt")?;
        if !self.stands {
            return Err(SandboxError::Gone(plan.id.clone()));
        }
        Ok(Box::new(Wall { id: plan.id.clone(), noted: Arc::clone(&self.noted), report: report() }))
    }

    fn clear(&self, _: &SandboxId) -> Result<(), SandboxError> {
        self.noted.note("clear")
    }
}

fn report() -> EnforcementReport {
    EnforcementReport { level: IsolationLevel::Full, layers: Default::default() }
}

struct Wall {
    id: SandboxId,
    noted: Arc<Noted>,
    report: EnforcementReport,
}

impl Sandbox for Wall {
    fn id(&self) -> &SandboxId {
        &self.id
    }

    fn enforcement_report(&self) -> &EnforcementReport {
        &self.report
    }

    fn backend(&self) -> Arc<dyn Backend> {
        unreachable!("nothing is run in it")
    }

    fn pause(&self) -> Result<(), SandboxError> {
        self.noted.note("pause")
    }

    fn resume(&self) -> Result<(), SandboxError> {
        self.noted.note("resume")
    }

    fn snapshot_files(&self, _: &Path) -> Result<(), SandboxError> {
        self.noted.note("snapshot")
    }

    fn read_usage(&self) -> Result<SandboxUsage, SandboxError> {
        Ok(SandboxUsage::default())
    }

    fn open_tree(&self, _: SandboxTree) -> Result<OwnedFd, SandboxError> {
        Err(SandboxError::Gone(self.id.clone()))
    }

    fn destroy(&self) -> Result<(), SandboxError> {
        self.noted.note("destroy")
    }
}

/// A clock that stands until it is set.
#[derive(Default)]
pub(crate) struct Hands(pub AtomicU64);

impl Clock for Hands {
    fn wall_ms(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn monotonic_ms(&self) -> u64 {
        self.wall_ms()
    }
}
