//! Reading configuration files: the one module of this crate with I/O.
//!
//! A file that is there but cannot be used is an error, never "no
//! configuration" (L6). The project's file is a stranger's: it is opened beneath
//! the workspace without following links, must be a regular file, and is read
//! only so far.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use stockade_model::RawText;

use crate::error::ConfigError;
use crate::merge::LayerText;
use crate::review::ReviewSettings;
use crate::settings::{OwnDirectories, Settings};
use crate::spec::Layer;

/// Largest configuration file, in bytes.
pub const MAX_FILE_BYTES: u64 = 256 * 1024;

/// Where to look. Every path is absolute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sources {
    /// The person's home directory.
    pub home: PathBuf,
    /// What the machine's administrator insists on.
    pub managed_file: PathBuf,
    /// The system's file.
    pub system_file: PathBuf,
    /// The person's file.
    pub user_file: PathBuf,
    /// The workspace whose project file counts; none is read without one.
    pub workspace: Option<PathBuf>,
    /// Where approvals and the audit log lie.
    pub state_directory: PathBuf,
}

impl Sources {
    /// The usual places. The two variables are used where they are absolute
    /// paths, as the XDG base directory specification (0.8) says.
    pub fn standard(
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
            managed_file: PathBuf::from("/etc/stockade/managed.toml"),
            system_file: PathBuf::from("/etc/stockade/config.toml"),
            user_file: base(xdg_config_home, ".config").join("stockade/config.toml"),
            workspace: workspace.map(Path::to_owned),
            state_directory: base(xdg_state_home, ".local/state").join("stockade"),
        }
    }

    /// Stockade's own directories, with links resolved as far as they exist.
    fn own_directories(&self) -> OwnDirectories {
        let both = |path: &Path| {
            let mut paths = vec![path.to_owned()];
            paths.extend(canonical(path).filter(|resolved| resolved != path));
            paths
        };
        let files = [self.managed_file.parent(), self.system_file.parent(), self.user_file.parent()];
        OwnDirectories {
            configuration: files.into_iter().flatten().flat_map(both).collect(),
            state: both(&self.state_directory),
        }
    }
}

/// Why configuration could not be loaded. Nothing may run then.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A file says something that it cannot mean.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A file could not be read.
    #[error("{}: cannot be read: {source}\nhint: make it readable, or remove it", shown(.path))]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file is of the wrong kind.
    #[error("{}: {why}\nhint: {hint}", shown(.path))]
    Unsuitable {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: &'static str,
        /// What to do.
        hint: &'static str,
    },
}

/// Reads and merges the files there are.
///
/// # Errors
/// When a file is there and cannot be used.
pub fn load(sources: &Sources) -> Result<Settings, LoadError> {
    merged(sources, &read_layers(sources)?)
}

/// Reads and merges the files there are, with other texts in the place of some
/// of them and beside them: what would hold if they were written.
///
/// # Errors
/// As [`load`].
pub fn load_with(sources: &Sources, instead: Vec<LayerText>) -> Result<Settings, LoadError> {
    let mut layers = read_layers(sources)?;
    layers.retain(|layer| !instead.iter().any(|other| other.layer == layer.layer));
    layers.extend(instead);
    merged(sources, &layers)
}

fn merged(sources: &Sources, layers: &[LayerText]) -> Result<Settings, LoadError> {
    let mut settings = Settings::from_layers(&sources.home, sources.own_directories(), layers)?;
    // What a link leads to is no more to be read than the link.
    let key = settings.review.value.as_ref().and_then(ReviewSettings::secret_file).and_then(canonical);
    settings.own.state.extend(key);
    Ok(settings)
}

/// Reads one file as a layer, whatever its place; `None` where there is none.
///
/// # Errors
/// When it is there and cannot be used.
pub fn read_layer(layer: Layer, path: &Path) -> Result<Option<LayerText>, LoadError> {
    match open(CWD, path, path, OFlags::empty())? {
        Some(file) => Ok(Some(LayerText { layer, path: path.to_owned(), source: read(file, path, layer)? })),
        None => Ok(None),
    }
}

/// The files there are, unmerged.
///
/// # Errors
/// When a file is there and cannot be read.
pub fn read_layers(sources: &Sources) -> Result<Vec<LayerText>, LoadError> {
    let mut layers = Vec::new();
    let files = [
        (Layer::Managed, &sources.managed_file),
        (Layer::System, &sources.system_file),
        (Layer::User, &sources.user_file),
    ];
    for (layer, path) in files {
        layers.extend(read_layer(layer, path)?);
    }
    if let Some(workspace) = &sources.workspace {
        layers.extend(project(workspace)?);
    }
    Ok(layers)
}

/// The project's file: `.stockade.toml` or `.stockade/config.toml`, not both.
fn project(workspace: &Path) -> Result<Option<LayerText>, LoadError> {
    let Some(root) = open(CWD, workspace, workspace, OFlags::DIRECTORY)? else { return Ok(None) };
    let plain = workspace.join(".stockade.toml");
    let nested = workspace.join(".stockade/config.toml");
    let plain_file = open(&root, Path::new(".stockade.toml"), &plain, OFlags::NOFOLLOW)?;
    let folder = workspace.join(".stockade");
    let nested_file = match open(&root, Path::new(".stockade"), &folder, OFlags::NOFOLLOW | OFlags::DIRECTORY)? {
        Some(folder) => open(folder, Path::new("config.toml"), &nested, OFlags::NOFOLLOW)?,
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
    let source = read(file, &path, Layer::Project)?;
    Ok(Some(LayerText { layer: Layer::Project, path, source }))
}

/// Opens for reading; `None` where there is nothing. Never blocks on a fifo.
fn open(
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
        // open(2): ELOOP with O_NOFOLLOW; ENOTDIR where O_DIRECTORY is given too.
        Err(Errno::LOOP) if flags.contains(OFlags::NOFOLLOW) => {
            unsuitable("it is a symbolic link", "put the file itself there")
        }
        Err(Errno::NOTDIR) if flags.contains(OFlags::DIRECTORY) => {
            unsuitable("it is no directory, or a symbolic link to one", "put a directory there, or remove it")
        }
        Err(error) => Err(LoadError::Read { path: shown_path.to_owned(), source: error.into() }),
    }
}

fn read(file: OwnedFd, path: &Path, layer: Layer) -> Result<String, LoadError> {
    let fail = |source| LoadError::Read { path: path.to_owned(), source };
    let unsuitable = |why, hint| Err(LoadError::Unsuitable { path: path.to_owned(), why, hint });
    let file = File::from(file);
    let metadata = file.metadata().map_err(fail)?;
    if !metadata.is_file() {
        return unsuitable("it is no regular file", "put a file there, or remove it");
    }
    // 0o002: others may write, so anybody could loosen the rules. The project's
    // file may only tighten and needs no owner.
    if !layer.only_narrows() && metadata.mode() & 0o002 != 0 {
        return unsuitable("everybody may write to it", "take that away: `chmod o-w`");
    }
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(fail)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return unsuitable("it is larger than 256 KiB", "shorten it");
    }
    String::from_utf8(bytes).or_else(|_| unsuitable("it is not UTF-8", "write it as UTF-8"))
}

/// The path with links resolved in the part that exists.
fn canonical(path: &Path) -> Option<PathBuf> {
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

fn shown(path: &Path) -> String {
    RawText::from(path).escaped()
}
