//! The kinds of sandboxes that are judged. A case knows none of them: it asks what
//! the kind itself declares.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use stockade_backend_api::{GuestSystem, SandboxProvider};
use stockade_container::{ContainerSandboxes, ContainerSettings};
use stockade_egress::{NameLookupError, NameResolver};
use stockade_model::{HostName, IsolationLevel, RuntimeName};
use stockade_native::NativeSandboxes;
use stockade_testkit::{EngineKind, TestUser};
use stockade_tests::engines;

/// A kind.
pub struct Kind {
    /// Its name in tasks.
    pub name: &'static str,
    /// What makes its sandboxes.
    pub made: Made,
}

/// What makes sandboxes.
pub enum Made {
    /// This machine's own kernel, for whoever asks.
    Native,
    /// The same, each kept by a process of its own.
    Kept,
    /// A container engine that runs as root, with a runtime.
    Container { engine: EngineKind, runtime: Option<&'static str> },
}

/// All of them.
pub const KINDS: &[Kind] = &[
    Kind { name: "native", made: Made::Native },
    Kind { name: "kept", made: Made::Kept },
    container("docker", EngineKind::Docker, None),
    container("docker-runsc", EngineKind::Docker, Some("runsc")),
    container("podman", EngineKind::Podman, None),
];

const fn container(name: &'static str, engine: EngineKind, runtime: Option<&'static str>) -> Kind {
    Kind { name, made: Made::Container { engine, runtime } }
}

/// A kind as a case has it.
pub struct Ready {
    pub sandboxes: Arc<dyn SandboxProvider>,
    pub system: Option<GuestSystem>,
    pub runtime: Option<RuntimeName>,
    /// The level that can be had of it.
    pub level: IsolationLevel,
    /// Where each sandbox has a private directory.
    pub root: Option<PathBuf>,
    /// Whether its doors know the names beneath `.test`; others ask the host.
    pub knows_names: bool,
    /// Whether its commands are processes of a kernel of their own, which the host does
    /// not see.
    pub own_kernel: bool,
}

impl Kind {
    /// Why this user's sandboxes of the kind are not judged.
    pub fn not_for(&self, user: TestUser) -> Option<&'static str> {
        match (&self.made, user) {
            (Made::Container { engine: EngineKind::Docker, .. }, TestUser::Ordinary) => {
                Some("the engine is root's, and its socket is root's alone")
            }
            // Where it may make none it says "Resource limits are not supported and ignored on
            // cgroups V1 rootless systems", and every sandbox is refused.
            (Made::Container { engine: EngineKind::Podman, .. }, TestUser::Ordinary) => {
                Some("the suite's is root's; an ordinary user's own holds no limits without a delegated control group")
            }
            _ => None,
        }
    }

    /// The engine of its containers.
    pub fn engine(&self) -> Option<EngineKind> {
        match self.made {
            Made::Container { engine, .. } => Some(engine),
            Made::Native | Made::Kept => None,
        }
    }

    /// Gets it ready; what was begun for all tasks is in the directory of the session.
    pub fn ready(&self, session: &Path, top: &Path) -> Result<Ready> {
        match &self.made {
            Made::Native => {
                let sandboxes = Arc::new(NativeSandboxes::default().with_resolver(Arc::new(Table)));
                let level = IsolationLevel::Full;
                Ok(Ready {
                    sandboxes,
                    system: None,
                    runtime: None,
                    level,
                    root: None,
                    knows_names: true,
                    own_kernel: false,
                })
            }
            Made::Kept => {
                let (supervisor_program, root) = (session.join("suite"), top.join("kept"));
                let sandboxes =
                    NativeSandboxes::default().with_supervisor(supervisor_program, vec!["--keep".into()], root.clone());
                Ok(Ready {
                    sandboxes: Arc::new(sandboxes),
                    system: None,
                    runtime: None,
                    level: IsolationLevel::Full,
                    root: Some(root),
                    knows_names: false,
                    own_kernel: false,
                })
            }
            Made::Container { engine, runtime } => Self::container(session, top, *engine, *runtime),
        }
    }

    fn container(session: &Path, top: &Path, engine: EngineKind, runtime: Option<&str>) -> Result<Ready> {
        let kind = match engine {
            EngineKind::Docker => stockade_container::ContainerEngineKind::Docker,
            EngineKind::Podman => stockade_container::ContainerEngineKind::Podman,
        };
        let settings = ContainerSettings {
            socket: Some(engines::socket_path(session, engine)),
            launcher: session.join("suite"),
            accounts: session.join("accounts"),
            owner: top.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        };
        let image = fs::read_to_string(engines::image_file(session, engine)).context("reading the image's digest")?;
        let own_kernel = runtime == Some("runsc");
        Ok(Ready {
            sandboxes: Arc::new(ContainerSandboxes::new(kind, settings).with_resolver(Arc::new(Table))),
            system: Some(GuestSystem::Image(image.parse().context("the image's digest")?)),
            // That has no Landlock: the lower level has to be named.
            level: if own_kernel { IsolationLevel::Restricted } else { IsolationLevel::Full },
            runtime: runtime.map(str::parse).transpose().context("the runtime's name")?,
            root: None,
            knows_names: true,
            own_kernel,
        })
    }
}

/// Every name beneath `.test` but one is this machine.
struct Table;

impl NameResolver for Table {
    fn resolve_name(&self, name: &HostName) -> Result<Vec<IpAddr>, NameLookupError> {
        match name.as_str() {
            "nobody.test" => Err(NameLookupError::NoSuchName),
            name if name.ends_with(".test") => Ok(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]),
            _ => Err(NameLookupError::NoSuchName),
        }
    }
}
