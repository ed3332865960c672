//! The layers of one run: made ready before it starts, its own until it has ended.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{
    AtFlags, CWD, FlockOperation, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, flock, fstat, openat, utimensat,
};
use stockade_engine::workspace_identity;
use stockade_files::object::make_where_missing;
use stockade_model::{Digest, LayerReport, LayerState, Level, Plan, RawText, ToolCache};
use stockade_sys::Errno;
use tracing::debug_span;

use super::choice::{CacheMode, MergedCache, choose_modes};
use super::client::{BorrowedLayers, LayerServerProgram};
use super::seal::{create_home, seal, unseal};
use super::server::LayerRequest;
use super::set::{OverlaySet, ensure_directory, is_ready};
use super::{MERGED, PLAIN, WORKSPACE, open_directory, open_lock};
use crate::launch::{MAX_MERGED, MergedDirectory, Overlay};

/// How long a start waits for whoever has a workspace's directory alone, and between two
/// looks. Names are changed in that time, nothing more: a loaded machine, or a disk that
/// stands still for seconds, makes it long. Without, tools could write to no cache.
const EXCLUSIVE_TIMEOUT: Duration = Duration::from_secs(15);
const EXCLUSIVE_POLL_INTERVAL: Duration = Duration::from_millis(2);

/// The layers of one run.
#[derive(Debug, Default)]
pub(crate) struct CacheLease {
    pub merged: Vec<MergedDirectory>,
    /// Where all private directories of the workspace are.
    pub private: Option<PathBuf>,
    /// Files of the host's that cannot be written, without a question.
    pub read_only: Vec<PathBuf>,
    pub environment: BTreeMap<String, RawText>,
    tools: ToolNames,
    /// The directory of the workspace, and its lock. Absent where nothing of it is used.
    home: Option<(OwnedFd, OwnedFd)>,
    /// What the overlays are of, held as long as they are used.
    overlays: OverlaySource,
    is_sealed: bool,
}

/// Where overlays come from.
#[derive(Debug, Default)]
enum OverlaySource {
    /// There are none.
    #[default]
    Absent,
    /// The holder of the workspace.
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
        self.seal();
        let Some((home, _)) = &self.home else { return };
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let times = Timestamps { last_access: now, last_modification: now };
        let _ = utimensat(home, WORKSPACE, &times, AtFlags::SYMLINK_NOFOLLOW);
    }
}

impl CacheLease {
    /// Makes the layers of `plan` ready, in `place`. Where they cannot be had the run
    /// goes without: a tool then asks for what it writes. `hidden` is what of the plan's
    /// hidden paths is there, without links.
    pub fn of(
        plan: &Plan,
        hidden: &[PathBuf],
        place: Option<&Path>,
        holder: Option<&LayerServerProgram>,
    ) -> Option<Self> {
        let place = place.filter(|_| plan.level != Level::None && !plan.profile.filesystem.caches.is_empty())?;
        let mut lease = Self::default();
        if let Err(errno) = lease.fill((plan, hidden), place, holder) {
            let failed = Some(format!("the directory of the workspace's caches: {errno}"));
            let mut none = Self::default();
            none.tools.failed = failed;
            return Some(none);
        }
        lease.environment.retain(|name, _| !plan.environment.contains_key(name));
        Some(lease)
    }

    /// Waits for the layers that were asked for, in the order of their directories; none where
    /// nobody was asked.
    ///
    /// # Errors
    /// Where not all of them are lent: the run can mount its own.
    pub fn receive(&mut self) -> std::io::Result<Option<Vec<OwnedFd>>> {
        let OverlaySource::Borrowed(loan) = &mut self.overlays else { return Ok(None) };
        loan.receive().map(Some)
    }

    /// Lets go of the layers, and of the names that the run knows: once its processes have
    /// ended, and before anybody is told that it has, who would look where it left links. The
    /// last run of the workspace seals. Names are changed, nothing waits for the disk.
    /// `init` is the init of the run, if every other process that could use a layer has exited.
    pub fn end(&mut self, init: Option<BorrowedFd<'_>>) {
        if let (OverlaySource::Borrowed(loan), Some(init)) = (&self.overlays, init) {
            loan.end(init);
        }
        self.seal();
    }

    fn seal(&mut self) {
        if let Some((home, lock)) = &self.home
            && !std::mem::replace(&mut self.is_sealed, true)
            && flock(lock, FlockOperation::NonBlockingLockExclusive).is_ok()
        {
            let _ = seal(home.as_fd());
            // The next run waits for it.
            let _ = flock(lock, FlockOperation::Unlock);
        }
    }

    fn fill(
        &mut self,
        (plan, hidden): (&Plan, &[PathBuf]),
        place: &Path,
        holder: Option<&LayerServerProgram>,
    ) -> Result<(), Errno> {
        let mut modes = debug_span!("look at caches").in_scope(|| choose_modes(plan, true, hidden));
        if modes.iter().all(|(_, mode)| matches!(mode, CacheMode::ReadOnly(_))) {
            modes.into_iter().for_each(|(cache, mode)| self.use_read_only(cache, mode));
            return Ok(());
        }
        let key = key_of(plan.workspace.as_path());
        let path = place.join(&key);
        // Held before anything is created in it, so that it is sealed on every error.
        let (home, _) = self.home.insert(open_home(place, &key)?);
        let home = rustix::io::fcntl_dupfd_cloexec(home, 3)?;
        unseal(home.as_fd(), PLAIN)?;
        note_workspace(home.as_fd(), plan.workspace.as_bytes())?;
        let requests: Vec<LayerRequest> =
            modes.iter().filter_map(|(cache, mode)| layer_request(cache, mode)).take(MAX_MERGED).collect();
        if !requests.is_empty() {
            self.overlays =
                debug_span!("ask for layers").in_scope(|| overlays(home.as_fd(), &path, holder, &requests))?;
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
        if self.merged.len() >= MAX_MERGED {
            return Ok(());
        }
        let (directories, files) = data_of(cache);
        let overlay = match &mut self.overlays {
            OverlaySource::Absent => return Ok(()),
            OverlaySource::Borrowed(_) => None,
            OverlaySource::Own(set) => {
                set.prepare_tool(&cache.tool, found.mode, &directories)?;
                let at = path.join(MERGED).join(set.number.to_string()).join(&cache.tool);
                Some(Overlay::new(&at.join("upper"), &at.join("work")).map_err(|_| Errno::STALE)?)
            }
        };
        self.tools.merged.push(cache.tool.clone());
        let MergedCache { directory, shown, .. } = found;
        self.merged.push(MergedDirectory { directory, overlay, directories, files, shown });
        Ok(())
    }

    fn use_private_directory(&mut self, cache: &ToolCache, home: BorrowedFd<'_>, path: &Path) -> Result<(), Errno> {
        if !is_ready(home, format!("{PLAIN}/{}", cache.tool)) {
            let plain = ensure_directory(home, PLAIN, 0o700)?;
            ensure_directory(plain.as_fd(), &cache.tool, 0o700)?;
        }
        let plain = path.join(PLAIN);
        let directory = plain.join(&cache.tool);
        for (name, value) in &cache.set {
            let text = value.split("{}").map(str::as_bytes).collect::<Vec<_>>().join(directory.as_os_str().as_bytes());
            self.environment.insert(name.clone(), RawText::from(text));
        }
        self.tools.private.push(cache.tool.clone());
        self.private = Some(plain);
        Ok(())
    }

    /// The trees in which earlier runs may have written.
    pub fn layers(&self) -> impl Iterator<Item = PathBuf> {
        let of = |merged: &MergedDirectory| match merged.is_whole() {
            true => vec![merged.directory.clone()],
            false => merged.directories.iter().map(|name| merged.directory.join(name)).collect(),
        };
        self.merged.iter().flat_map(of).chain(self.private.clone())
    }

    /// What the report says of it. `is_unmerged` tells of each merged directory whether the
    /// kernel refused it.
    pub fn report(&self, is_unmerged: impl Fn(usize) -> bool) -> LayerReport {
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
        let said = [
            ("over the host's content", over.join(", ")),
            ("in private directories", texts(private)),
            ("with locks that cannot be written", texts(read_only)),
            ("read-only, because there could be no overlay", refused.join(", ")),
        ];
        let said: Vec<String> = said
            .into_iter()
            .filter(|(_, tools)| !tools.is_empty())
            .map(|(how, tools)| format!("{how}: {tools}"))
            .collect();
        let detail = if said.is_empty() { "none".to_owned() } else { said.join("; ") };
        LayerReport { state, detail }
    }
}

/// Overlays of a workspace: from the layer server, or without one a set of the run's own.
fn overlays(
    home: BorrowedFd<'_>,
    path: &Path,
    holder: Option<&LayerServerProgram>,
    requests: &[LayerRequest],
) -> Result<OverlaySource, Errno> {
    if let Some(holder) = holder
        && let Ok(loan) = holder.ask(home, path, requests)
    {
        return Ok(OverlaySource::Borrowed(loan));
    }
    let Some(set) = OverlaySet::take(home)? else { return Ok(OverlaySource::Absent) };
    // It is mounted by its path, the holder's is not.
    unseal(home, MERGED)?;
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

/// Names of the directories that are data of a cache, and of the files.
fn data_of(cache: &ToolCache) -> (Vec<String>, Vec<String>) {
    let (directories, files): (Vec<&String>, Vec<&String>) = cache.data.iter().partition(|name| name.ends_with('/'));
    let directories = directories.into_iter().map(|name| name.trim_end_matches('/').to_owned());
    (directories.collect(), files.into_iter().cloned().collect())
}

/// The name of a workspace's directory. Another directory that is later at the same path
/// is another workspace, as it is for approvals.
pub(super) fn key_of(workspace: &Path) -> String {
    let identity = workspace_identity(workspace);
    let fields = [workspace.as_os_str().as_bytes(), identity.as_str().as_bytes()];
    let digest = Digest::of_fields("stockade-caches-1", fields);
    digest.as_str().chars().filter(char::is_ascii_hexdigit).take(32).collect()
}

/// The directory of a workspace, with its lock held as runs hold it.
fn open_home(place: &Path, key: &str) -> Result<(OwnedFd, OwnedFd), Errno> {
    let place = match open_directory(CWD, place) {
        Err(Errno::NOENT) => {
            make_where_missing(CWD, place, Mode::RWXU)?;
            open_directory(CWD, place)?
        }
        other => other?,
    };
    let until = Instant::now() + EXCLUSIVE_TIMEOUT;
    loop {
        let home = create_home(place.as_fd(), key)?;
        let lock = match open_lock(home.as_fd()) {
            // It is just being cleared.
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

/// Notes which workspace it is, once.
fn note_workspace(home: BorrowedFd<'_>, workspace: &[u8]) -> Result<(), Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(home, WORKSPACE, flags, Mode::RUSR | Mode::WUSR)?;
    if usize::try_from(fstat(&file)?.st_size) == Ok(workspace.len()) {
        return Ok(());
    }
    rustix::io::write(&file, workspace).map(drop)
}
