//! The layers of one run: prepared before it starts, and reserved until it has ended.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{
    AtFlags, CWD, FlockOperation, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, flock, fstat, openat, utimensat,
};
use stockade_backend_api::identity::workspace_identity;
use stockade_files::object::make_where_missing;
use stockade_launch::{MAX_MERGED_DIRECTORIES, MergedDirectory, OverlayWriteLayer};
use stockade_model::{AttemptPlan, Digest, IsolationLevel, LayerReport, LayerState, RawText, ToolCache};
use stockade_sys::Errno;
use tracing::debug_span;

use super::choice::{CacheMode, MergedCache, choose_modes};
use super::client::{BorrowedLayers, LayerServerProgram};
use super::seal::{create_home, seal_directories, unseal_directory};
use super::server::LayerRequest;
use super::set::{OverlaySet, ensure_directory, is_ready};
use super::{MERGED_DIR_NAME, PLAIN_DIR_NAME, WORKSPACE_FILE_NAME, open_directory, open_lock};

/// Time-out for a start that waits for the holder of the exclusive lock of a workspace's directory,
/// and the interval between two attempts. The holder only renames. A loaded machine, or a disk that
/// blocks for seconds, can make that slow. Without the lock no tool could write to a cache.
const EXCLUSIVE_TIMEOUT: Duration = Duration::from_secs(15);
const EXCLUSIVE_POLL_INTERVAL: Duration = Duration::from_millis(2);

/// The layers of one run.
#[derive(Debug, Default)]
pub(crate) struct CacheLease {
    pub merged: Vec<MergedDirectory>,
    /// Directory with all private directories of the workspace.
    pub private: Option<PathBuf>,
    /// Files of the host that are read-only; a write raises no question.
    pub read_only: Vec<PathBuf>,
    pub environment: BTreeMap<String, RawText>,
    tools: ToolNames,
    /// The directory of the workspace and its lock; `None` if no layer uses them.
    home: Option<(OwnedFd, OwnedFd)>,
    /// Source of the overlays, held as long as they are used.
    overlays: OverlaySource,
    is_sealed: bool,
}

/// Source of overlays.
#[derive(Debug, Default)]
enum OverlaySource {
    /// There are no overlays.
    #[default]
    Absent,
    /// The layer server of the workspace.
    Borrowed(BorrowedLayers),
    /// A set of the run's own.
    Own(OverlaySet),
}

/// Names of tools, for the report.
#[derive(Debug, Default)]
struct ToolNames {
    merged: Vec<String>,
    private: Vec<String>,
    read_only: Vec<String>,
    failed: Option<String>,
}

impl Drop for CacheLease {
    fn drop(&mut self) {
        self.seal_home();
        let Some((home, _)) = &self.home else { return };
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let times = Timestamps { last_access: now, last_modification: now };
        let _ = utimensat(home, WORKSPACE_FILE_NAME, &times, AtFlags::SYMLINK_NOFOLLOW);
    }
}

impl CacheLease {
    /// Prepares the layers of `plan` in `store_directory`. On an error the run continues without layers: a
    /// write of a tool then raises a question. `hidden` has the plan's hidden paths that exist,
    /// without links.
    pub fn prepare_layers(
        plan: &AttemptPlan,
        hidden: &[PathBuf],
        store_directory: Option<&Path>,
        layer_server: Option<&LayerServerProgram>,
    ) -> Option<Self> {
        let store_directory = store_directory
            .filter(|_| plan.level != IsolationLevel::None && !plan.profile.filesystem.caches.is_empty())?;
        let mut lease = Self::default();
        if let Err(errno) = lease.choose_layers((plan, hidden), store_directory, layer_server) {
            let failed = Some(format!("the directory of the workspace's caches: {errno}"));
            let mut none = Self::default();
            none.tools.failed = failed;
            return Some(none);
        }
        lease.environment.retain(|name, _| !plan.environment.contains_key(name));
        Some(lease)
    }

    /// Waits for the requested layers, in the order of their directories; `None` if no server was asked.
    ///
    /// # Errors
    /// If not all of them are lent. The run can mount its own then.
    pub fn receive_layers(&mut self) -> std::io::Result<Option<Vec<OwnedFd>>> {
        let OverlaySource::Borrowed(loan) = &mut self.overlays else { return Ok(None) };
        loan.receive_layers().map(Some)
    }

    /// Releases the layers and their fixed names. Called once the run's processes have ended, and
    /// before its end is reported, because a reader of that report might follow the run's links.
    /// The last run of the workspace seals the names. Renames only, without waiting for the disk.
    /// `init` is the init of the run, if every other process that could use a layer has exited.
    pub fn release_layers(&mut self, init: Option<BorrowedFd<'_>>) {
        if let (OverlaySource::Borrowed(loan), Some(init)) = (&self.overlays, init) {
            loan.report_end(init);
        }
        self.seal_home();
    }

    fn seal_home(&mut self) {
        if let Some((home, lock)) = &self.home
            && !std::mem::replace(&mut self.is_sealed, true)
            && flock(lock, FlockOperation::NonBlockingLockExclusive).is_ok()
        {
            let _ = seal_directories(home.as_fd());
            // The next run waits for the lock.
            let _ = flock(lock, FlockOperation::Unlock);
        }
    }

    fn choose_layers(
        &mut self,
        (plan, hidden): (&AttemptPlan, &[PathBuf]),
        store_directory: &Path,
        layer_server: Option<&LayerServerProgram>,
    ) -> Result<(), Errno> {
        let mut modes = debug_span!("look at caches").in_scope(|| choose_modes(plan, true, hidden));
        if modes.iter().all(|(_, mode)| matches!(mode, CacheMode::ReadOnly(_))) {
            modes.into_iter().for_each(|(cache, mode)| self.use_read_only(cache, mode));
            return Ok(());
        }
        let key = key_of(plan.workspace.as_path());
        let path = store_directory.join(&key);
        // Stored before the first creation in it, so that it is sealed on every error.
        let (home, _) = self.home.insert(open_home(store_directory, &key)?);
        let home = rustix::io::fcntl_dupfd_cloexec(home, 3)?;
        unseal_directory(home.as_fd(), PLAIN_DIR_NAME)?;
        note_workspace(home.as_fd(), plan.workspace.as_bytes())?;
        let requests: Vec<LayerRequest> =
            modes.iter().filter_map(|(cache, mode)| layer_request(cache, mode)).take(MAX_MERGED_DIRECTORIES).collect();
        if !requests.is_empty() {
            self.overlays = debug_span!("ask for layers")
                .in_scope(|| acquire_overlays(home.as_fd(), &path, layer_server, &requests))?;
            if matches!(self.overlays, OverlaySource::Absent) {
                modes = choose_modes(plan, false, hidden);
            }
        }
        for (cache, mode) in modes {
            match mode {
                CacheMode::Merged(found) => self.use_overlay(cache, found, &path)?,
                CacheMode::Private => self.use_private_directory(cache, home.as_fd(), &path)?,
                CacheMode::ReadOnly(_) => self.use_read_only(cache, mode),
            }
        }
        Ok(())
    }

    fn use_read_only(&mut self, cache: &ToolCache, mode: CacheMode) {
        let CacheMode::ReadOnly(files) = mode else { return };
        self.tools.read_only.push(cache.tool.clone());
        self.read_only.extend(files);
    }

    fn use_overlay(&mut self, cache: &ToolCache, found: MergedCache, path: &Path) -> Result<(), Errno> {
        if self.merged.len() >= MAX_MERGED_DIRECTORIES {
            return Ok(());
        }
        let (directories, files) = data_of(cache);
        let overlay = match &mut self.overlays {
            OverlaySource::Absent => return Ok(()),
            OverlaySource::Borrowed(_) => None,
            OverlaySource::Own(set) => {
                set.prepare_tool(&cache.tool, found.mode, &directories)?;
                let at = path.join(MERGED_DIR_NAME).join(set.number.to_string()).join(&cache.tool);
                Some(OverlayWriteLayer::new(&at.join("upper"), &at.join("work")).map_err(|_| Errno::STALE)?)
            }
        };
        self.tools.merged.push(cache.tool.clone());
        let MergedCache { directory, shown, .. } = found;
        self.merged.push(MergedDirectory { directory, overlay, directories, files, shown });
        Ok(())
    }

    fn use_private_directory(&mut self, cache: &ToolCache, home: BorrowedFd<'_>, path: &Path) -> Result<(), Errno> {
        if !is_ready(home, format!("{PLAIN_DIR_NAME}/{}", cache.tool)) {
            let plain = ensure_directory(home, PLAIN_DIR_NAME, 0o700)?;
            ensure_directory(plain.as_fd(), &cache.tool, 0o700)?;
        }
        let plain = path.join(PLAIN_DIR_NAME);
        let directory = plain.join(&cache.tool);
        for (name, value) in &cache.set {
            let text = value.split("{}").map(str::as_bytes).collect::<Vec<_>>().join(directory.as_os_str().as_bytes());
            self.environment.insert(name.clone(), RawText::from(text));
        }
        self.tools.private.push(cache.tool.clone());
        self.private = Some(plain);
        Ok(())
    }

    /// Returns the trees that earlier runs may have written.
    pub fn layer_paths(&self) -> impl Iterator<Item = PathBuf> {
        let of = |merged: &MergedDirectory| match merged.is_whole() {
            true => vec![merged.directory.clone()],
            false => merged.directories.iter().map(|name| merged.directory.join(name)).collect(),
        };
        self.merged.iter().flat_map(of).chain(self.private.clone())
    }

    /// Returns the layer's entry in the enforcement report. `is_unmerged` returns whether the
    /// kernel refused a merged directory, by index.
    pub fn build_report(&self, is_unmerged: impl Fn(usize) -> bool) -> LayerReport {
        let ToolNames { merged, private, read_only, failed } = &self.tools;
        if let Some(why) = failed {
            return LayerReport { state: LayerState::Absent, detail: format!("none, {why}") };
        }
        let numbered = || merged.iter().enumerate();
        let of =
            |refused: bool| numbered().filter(|(i, _)| is_unmerged(*i) == refused).map(|(_, t)| t.as_str()).collect();
        let [over, refused]: [Vec<&str>; 2] = [of(false), of(true)];
        let state = if refused.is_empty() { LayerState::Enforced } else { LayerState::Partial };
        let texts = |tools: &[String]| tools.join(", ");
        let parts = [
            ("over the host's content", over.join(", ")),
            ("in private directories", texts(private)),
            ("with locks that cannot be written", texts(read_only)),
            ("read-only, because there could be no overlay", refused.join(", ")),
        ];
        let parts: Vec<String> = parts
            .into_iter()
            .filter(|(_, tools)| !tools.is_empty())
            .map(|(how, tools)| format!("{how}: {tools}"))
            .collect();
        let detail = if parts.is_empty() { "none".to_owned() } else { parts.join("; ") };
        LayerReport { state, detail }
    }
}

/// Returns overlays of a workspace: from the layer server, or without one a set of the run's own.
fn acquire_overlays(
    home: BorrowedFd<'_>,
    path: &Path,
    layer_server: Option<&LayerServerProgram>,
    requests: &[LayerRequest],
) -> Result<OverlaySource, Errno> {
    if let Some(layer_server) = layer_server
        && let Ok(loan) = layer_server.request_layers(home, path, requests)
    {
        return Ok(OverlaySource::Borrowed(loan));
    }
    let Some(set) = OverlaySet::take_unused(home)? else { return Ok(OverlaySource::Absent) };
    // An own set is mounted by its path, a set of the server is not.
    unseal_directory(home, MERGED_DIR_NAME)?;
    Ok(OverlaySource::Own(set))
}

fn layer_request(cache: &ToolCache, mode: &CacheMode) -> Option<LayerRequest> {
    let CacheMode::Merged(found) = mode else { return None };
    Some(LayerRequest {
        tool: cache.tool.clone(),
        directory: RawText::from(found.directory.as_os_str().as_bytes()),
        identity: found.identity,
        mode: found.mode,
        directories: data_of(cache).0,
        hidden: found.hidden.iter().map(|(path, object)| (path.clone().into(), *object)).collect(),
    })
}

/// Returns the names of a cache's data: the directories, and the files.
fn data_of(cache: &ToolCache) -> (Vec<String>, Vec<String>) {
    let (directories, files): (Vec<&String>, Vec<&String>) = cache.data.iter().partition(|name| name.ends_with('/'));
    let directories = directories.into_iter().map(|name| name.trim_end_matches('/').to_owned());
    (directories.collect(), files.into_iter().cloned().collect())
}

/// Returns the name of a workspace's directory. A later directory at the same path is another
/// workspace, as it is for approvals.
pub(super) fn key_of(workspace: &Path) -> String {
    let identity = workspace_identity(workspace);
    let fields = [workspace.as_os_str().as_bytes(), identity.as_str().as_bytes()];
    let digest = Digest::of_fields("stockade-caches-1", fields);
    digest.as_str().chars().filter(char::is_ascii_hexdigit).take(32).collect()
}

/// Opens the directory of a workspace and takes its shared lock.
fn open_home(store_directory: &Path, key: &str) -> Result<(OwnedFd, OwnedFd), Errno> {
    let store_directory = match open_directory(CWD, store_directory) {
        Err(Errno::NOENT) => {
            make_where_missing(CWD, store_directory, Mode::RWXU)?;
            open_directory(CWD, store_directory)?
        }
        other => other?,
    };
    let until = Instant::now() + EXCLUSIVE_TIMEOUT;
    loop {
        let home = create_home(store_directory.as_fd(), key)?;
        let lock = match open_lock(home.as_fd()) {
            // The directory is being cleared.
            Err(Errno::NOENT) => None,
            other => Some(other?),
        };
        let held = lock.as_ref().map(|lock| flock(lock, FlockOperation::NonBlockingLockShared));
        match (lock, held) {
            (Some(lock), Some(Ok(()))) if fstat(&lock)?.st_nlink > 0 => {
                return Ok((home, lock));
            }
            (_, Some(Err(errno))) if errno != Errno::WOULDBLOCK => return Err(errno),
            _ if Instant::now() >= until => return Err(Errno::BUSY),
            _ => std::thread::sleep(EXCLUSIVE_POLL_INTERVAL),
        }
    }
}

/// Writes the path of the workspace to its file, once.
fn note_workspace(home: BorrowedFd<'_>, workspace: &[u8]) -> Result<(), Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(home, WORKSPACE_FILE_NAME, flags, Mode::RUSR | Mode::WUSR)?;
    if usize::try_from(fstat(&file)?.st_size) == Ok(workspace.len()) {
        return Ok(());
    }
    rustix::io::write(&file, workspace).map(drop)
}
