//! How a workflow is run: without a sandbox, in ours, in one of ours that Docker makes, or in a neighbour's with what is the
//! closest to our profile that its own command line offers.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use stockade_tests::Level;

const TEMPORARY_OF_SRT: &str = "/tmp/claude";

/// One way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Bare,
    Sandboxed(Level),
    Docker,
    Peer(Peer),
}

/// A neighbour that a package manager installs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    Bubblewrap,
    Codex,
    SandboxRuntime,
}

impl Peer {
    pub const ALL: [Self; 3] = [Self::Bubblewrap, Self::Codex, Self::SandboxRuntime];

    pub fn word(self) -> &'static str {
        match self {
            Self::Bubblewrap => "bwrap",
            Self::Codex => "codex",
            Self::SandboxRuntime => "srt",
        }
    }

    /// Where it is installed: by the system, or by npm beneath the directory that
    /// `STOCKADE_PEERS` names (`bench/startup.py --install` makes one).
    pub fn program(self) -> Option<PathBuf> {
        if self == Self::Bubblewrap {
            return Some(PathBuf::from("/usr/bin/bwrap")).filter(|path| path.exists());
        }
        let installed = PathBuf::from(std::env::var_os("STOCKADE_PEERS")?).join("node_modules/.bin").join(self.word());
        installed.exists().then_some(installed)
    }

    /// The words that run a shell script there, with the workspace writable and without a network.
    pub fn command(self, workspace: &Path, script: &str) -> Result<Vec<String>> {
        let Some(program) = self.program() else { bail!("{} is not installed", self.word()) };
        let (program, place) = (program.display().to_string(), workspace.display().to_string());
        let words: Vec<&str> = match self {
            Self::Bubblewrap => {
                let view = [
                    "--ro-bind",
                    "/",
                    "/",
                    "--bind",
                    &place,
                    &place,
                    "--dev",
                    "/dev",
                    "--proc",
                    "/proc",
                    "--tmpfs",
                    "/tmp",
                ];
                let rest = ["--unshare-all", "--new-session", "--die-with-parent", "--", "sh", "-c", script];
                [&view[..], &rest].concat()
            }
            Self::Codex => vec!["sandbox", "-c", "sandbox_mode=\"workspace-write\"", "--", "sh", "-c", script],
            Self::SandboxRuntime => {
                // It leads `TMPDIR` there and does not make it.
                fs::create_dir_all(TEMPORARY_OF_SRT)?;
                fs::set_permissions(TEMPORARY_OF_SRT, fs::Permissions::from_mode(0o1777))?;
                let settings = workspace.with_file_name("srt.json");
                let rules = serde_json::json!({
                    "network": {"allowedDomains": [], "deniedDomains": []},
                    "filesystem": {"denyRead": [], "allowWrite": [place, TEMPORARY_OF_SRT], "denyWrite": []},
                });
                fs::write(&settings, rules.to_string())?;
                let settings = settings.display().to_string();
                return Ok([&program, "--settings", &settings, "-c", script].map(str::to_owned).to_vec());
            }
        };
        Ok([program].into_iter().chain(words.into_iter().map(str::to_owned)).collect())
    }
}
