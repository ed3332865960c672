//! Reads configuration files: the one module of this crate that reads files.
//!
//! A file that exists but cannot be used is an error, never "no configuration" (L6). The project's file is
//! untrusted: it is opened beneath the workspace without following symbolic links, must be a regular file,
//! and is read up to a limit.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, fstat, openat};
use rustix::io::Errno;
use stockade_model::RawText;

use crate::error::ConfigError;
use crate::merge::LayerText;
use crate::mounts::MountSnapshot;
use crate::review::ReviewSettings;
use crate::settings::{OwnDirectories, OwnPathStep, PolicySettings};
use crate::spec::ConfigLayer;
use crate::trust::{
    PathStep, StepObject, TrustError, mode_for_others, require_one_name, require_trusted_object, require_trusted_path,
    trace_path,
};

/// Largest configuration file, in bytes.
pub const MAX_FILE_BYTES: u64 = 256 * 1024;

/// Most symbolic links that are followed in one of Stockade's own directories; Stockade creates none.
const MAX_OWN_LINKS: usize = 64;

/// Locations of the configuration. Every path is absolute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigSources {
    /// The user's home directory.
    pub home: PathBuf,
    /// Other home directories of the same user: paths hidden in `home` are hidden in these too.
    pub other_homes: Vec<PathBuf>,
    /// The user who must own the managed and the system's file: root.
    pub system_owner: u32,
    /// Mandatory configuration of the machine's administrator.
    pub managed_file: PathBuf,
    /// The system's file.
    pub system_file: PathBuf,
    /// The user's file.
    pub user_file: PathBuf,
    /// The workspace whose project file counts; without one, no project file is read.
    pub workspace: Option<PathBuf>,
    /// Directory of approvals and the audit log.
    pub state_directory: PathBuf,
}

impl ConfigSources {
    /// Returns the standard locations. The two variables are used if they are absolute paths, as the XDG
    /// base directory specification (0.8) requires.
    pub fn at_standard_paths(
        home: &Path,
        xdg_config_home: Option<&Path>,
        xdg_state_home: Option<&Path>,
        workspace: Option<&Path>,
    ) -> Self {
        let base = |variable: Option<&Path>, default: &str| {
            variable.filter(|path| path.is_absolute()).map_or_else(|| home.join(default), Path::to_owned)
        };
        Self {
            home: home.to_owned(),
            other_homes: Vec::new(),
            system_owner: 0,
            managed_file: PathBuf::from("/etc/stockade/managed.toml"),
            system_file: PathBuf::from("/etc/stockade/config.toml"),
            user_file: base(xdg_config_home, ".config").join("stockade/config.toml"),
            workspace: workspace.map(Path::to_owned),
            state_directory: base(xdg_state_home, ".local/state").join("stockade"),
        }
    }

    /// Returns Stockade's own directories, with symbolic links resolved in the existing part.
    fn own_directories(&self) -> OwnDirectories {
        let both = |path: &Path| {
            let mut paths = vec![path.to_owned()];
            paths.extend(canonicalize_existing(path).filter(|resolved| resolved != path));
            paths
        };
        let files = [&self.managed_file, &self.system_file, &self.user_file];
        let mut own = OwnDirectories {
            configuration: files.iter().filter_map(|file| file.parent()).flat_map(both).collect(),
            state: both(&self.state_directory),
            ..OwnDirectories::default()
        };
        for path in files.into_iter().chain([&self.state_directory]) {
            own.add_link_path(path);
        }
        for directory in files.iter().filter_map(|file| file.parent()).chain([self.state_directory.as_path()]) {
            links_in(directory).iter().for_each(|link| own.add_link_path(link));
        }
        own.passed.dedup();
        own
    }
}

impl OwnDirectories {
    /// Adds the names that symbolic links on the way to one of the own files lead through, and the end of
    /// the way.
    fn add_link_path(&mut self, target: &Path) {
        let trace = trace_path(target);
        if !trace.steps.iter().any(|step| matches!(step.object, StepObject::Link { .. })) {
            return;
        }
        let is_link_step = |step: &&PathStep| step.link.is_some() || matches!(step.object, StepObject::Link { .. });
        for step in trace.steps.iter().filter(is_link_step) {
            let link = step.link.clone().unwrap_or_else(|| step.location.clone());
            self.passed.push(OwnPathStep { location: step.location.clone(), link, target: target.to_owned() });
        }
    }
}

/// Returns the symbolic links in one of Stockade's own directories.
fn links_in(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let is_link = |entry: &std::fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_symlink());
    entries.filter_map(Result::ok).filter(is_link).take(MAX_OWN_LINKS).map(|entry| entry.path()).collect()
}

/// Reason why configuration could not be loaded. No command runs then.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A file contains an invalid value.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A file could not be read.
    #[error("{}: cannot be read: {source}\nhint: make it readable, or remove it", escape_path(.path))]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// A file is of the wrong kind.
    #[error("{}: {why}\nhint: {hint}", escape_path(.path))]
    Unsuitable {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: &'static str,
        /// Advice.
        hint: &'static str,
    },
    /// A file could be changed by another user.
    #[error("{}: it is not used, because {source}", escape_path(.path))]
    Untrusted {
        /// The file.
        path: PathBuf,
        /// The reason, and the object on the path.
        source: TrustError,
    },
}

/// Reads and merges the existing files.
///
/// # Errors
/// An error if a file exists and cannot be used.
pub fn load_settings(sources: &ConfigSources) -> Result<PolicySettings, LoadError> {
    merge_layers(sources, &read_layers(sources)?)
}

/// Reads and merges the existing files, with other texts instead of some of them and in addition: the
/// result is the configuration that would apply if these texts were written.
///
/// # Errors
/// As [`load_settings`].
pub fn load_with(sources: &ConfigSources, instead: Vec<LayerText>) -> Result<PolicySettings, LoadError> {
    let mut layers = read_layers(sources)?;
    layers.retain(|layer| !instead.iter().any(|other| other.layer == layer.layer));
    layers.extend(instead);
    merge_layers(sources, &layers)
}

fn merge_layers(sources: &ConfigSources, layers: &[LayerText]) -> Result<PolicySettings, LoadError> {
    let mut settings = PolicySettings::from_layers(&sources.home, sources.own_directories(), layers)?;
    settings.other_homes = sources.other_homes.iter().filter(|home| **home != sources.home).cloned().collect();
    // The target of a link must be as unreadable as the link.
    let key = settings.review.value.as_ref().and_then(ReviewSettings::secret_file).and_then(canonicalize_existing);
    settings.own.state.extend(key);
    Ok(settings.with_mounts(MountSnapshot::of_this_process()))
}

/// Reads one file as a layer; `None` if it does not exist. The file and every directory and link on the way
/// to it must belong to `owner` or root, and no other user may write them.
fn read_layer(layer: ConfigLayer, path: &Path, owner: u32) -> Result<Option<LayerText>, LoadError> {
    let Some(file) = open_file(CWD, path, path, OFlags::empty())? else { return Ok(None) };
    let untrusted = |source| LoadError::Untrusted { path: path.to_owned(), source };
    require_trusted_path(path, owner).map_err(untrusted)?;
    // Checks the opened file, because another file may have had this name a moment ago.
    let stat = fstat(&file).map_err(|e| LoadError::Read { path: path.to_owned(), source: e.into() })?;
    let mode = mode_for_others(stat.st_uid, stat.st_gid, stat.st_mode);
    require_trusted_object(path, stat.st_uid, mode, owner).map_err(untrusted)?;
    require_one_name(path, stat.st_nlink).map_err(untrusted)?;
    Ok(Some(LayerText { layer, path: path.to_owned(), source: read_file(file, path)? }))
}

/// Reads the existing files without merging them.
///
/// # Errors
/// An error if a file exists and cannot be read.
pub fn read_layers(sources: &ConfigSources) -> Result<Vec<LayerText>, LoadError> {
    let mut layers = Vec::new();
    let user = rustix::process::geteuid().as_raw();
    let files = [
        (ConfigLayer::Managed, &sources.managed_file, sources.system_owner),
        (ConfigLayer::System, &sources.system_file, sources.system_owner),
        (ConfigLayer::User, &sources.user_file, user),
    ];
    for (layer, path, owner) in files {
        layers.extend(read_layer(layer, path, owner)?);
    }
    if let Some(workspace) = &sources.workspace {
        layers.extend(read_project_file(workspace)?);
    }
    Ok(layers)
}

/// Reads the project's file: `.stockade.toml` or `.stockade/config.toml`, not both.
fn read_project_file(workspace: &Path) -> Result<Option<LayerText>, LoadError> {
    let Some(root) = open_file(CWD, workspace, workspace, OFlags::DIRECTORY)? else { return Ok(None) };
    let plain = workspace.join(".stockade.toml");
    let nested = workspace.join(".stockade/config.toml");
    let plain_file = open_file(&root, Path::new(".stockade.toml"), &plain, OFlags::NOFOLLOW)?;
    let folder = workspace.join(".stockade");
    let nested_file = match open_file(&root, Path::new(".stockade"), &folder, OFlags::NOFOLLOW | OFlags::DIRECTORY)? {
        Some(folder) => open_file(folder, Path::new("config.toml"), &nested, OFlags::NOFOLLOW)?,
        None => None,
    };
    let (path, file) = match (plain_file, nested_file) {
        (None, None) => return Ok(None),
        (Some(file), None) => (plain, file),
        (None, Some(file)) => (nested, file),
        (Some(_), Some(_)) => {
            let why = "the workspace has both `.stockade.toml` and `.stockade/config.toml`";
            return Err(LoadError::Unsuitable { path: plain, why, hint: "keep one of them" });
        }
    };
    // The project's file may only tighten, so its owner does not matter.
    let source = read_file(file, &path)?;
    Ok(Some(LayerText { layer: ConfigLayer::Project, path, source }))
}

/// Opens a file for reading; `None` if it does not exist. Never blocks on a fifo.
fn open_file(
    directory: impl std::os::fd::AsFd,
    name: &Path,
    shown_path: &Path,
    flags: OFlags,
) -> Result<Option<OwnedFd>, LoadError> {
    let all = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY | flags;
    let unsuitable = |why, hint| Err(LoadError::Unsuitable { path: shown_path.to_owned(), why, hint });
    match openat(directory, name, all, Mode::empty()) {
        Ok(file) => Ok(Some(file)),
        Err(Errno::NOENT) => Ok(None),
        // open(2): ELOOP with O_NOFOLLOW; ENOTDIR if O_DIRECTORY is given too.
        Err(Errno::LOOP) if flags.contains(OFlags::NOFOLLOW) => {
            unsuitable("it is a symbolic link", "put the file itself there")
        }
        Err(Errno::NOTDIR) if flags.contains(OFlags::DIRECTORY) => {
            unsuitable("it is not a directory, or it is a symbolic link to one", "put a directory there, or remove it")
        }
        Err(error) => Err(LoadError::Read { path: shown_path.to_owned(), source: error.into() }),
    }
}

fn read_file(file: OwnedFd, path: &Path) -> Result<String, LoadError> {
    let fail = |source| LoadError::Read { path: path.to_owned(), source };
    let unsuitable = |why, hint| Err(LoadError::Unsuitable { path: path.to_owned(), why, hint });
    let file = File::from(file);
    let metadata = file.metadata().map_err(fail)?;
    if !metadata.is_file() {
        return unsuitable("it is not a regular file", "put a file there, or remove it");
    }
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(fail)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return unsuitable("it is larger than 256 KiB", "shorten it");
    }
    String::from_utf8(bytes).or_else(|_| unsuitable("it is not UTF-8", "write it as UTF-8"))
}

/// Returns the path with symbolic links resolved in the existing part.
fn canonicalize_existing(path: &Path) -> Option<PathBuf> {
    let mut missing = Vec::new();
    let mut existing = path;
    loop {
        match existing.canonicalize() {
            Ok(resolved) => return Some(missing.iter().rev().fold(resolved, |path, name| path.join(name))),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                missing.push(existing.file_name()?.to_owned());
                existing = existing.parent()?;
            }
            Err(_) => return None,
        }
    }
}

fn escape_path(path: &Path) -> String {
    RawText::from(path).to_escaped()
}
