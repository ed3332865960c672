//! The directory of stages: one private directory, with one directory for each stage. Makes, lists,
//! finds and removes stages. Does not depend on the content of a stage.
//!
//! ```text
//! stages/stg_…/meta.json   record of the stage
//!              upper/      upper directory of the overlay: the writes of the run
//!              work/       work directory of the overlay
//!              touched     the lower object at the first change of each path
//!              settled     paths that were committed or discarded
//!              journal     a commit that was decided and is not yet done
//!              depot/      commit area: new objects before, old objects after the exchange
//! ```
//!
//! A process that changes a stage holds its lock: the run that writes to it, a commit, a discard.
//! The lock is flock(2), so the kernel releases it when the process ends.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{
    AtFlags, CWD, FlockOperation, Mode, OFlags, ResolveFlags, fchmod, flock, fstat, fsync, mkdirat, openat, openat2,
    renameat, syncfs, unlinkat,
};
use rustix::time::{ClockId, clock_gettime};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use stockade_files::object::{FileTime, MODE_BITS, TreeObject, list_entry_names, make_where_missing, random_bytes};
use stockade_files::removal::{REMOVAL_PREFIX, remove_tree, sweep_removals};
use stockade_model::mountinfo;
use stockade_model::{RawText, RequestId, StageId};
use stockade_sys::Errno;

use super::error::{PathContext, PathError, StageError};
use super::state_files::{
    Durability, MAX_LIST_BYTES, open_directory, open_workspace, parse_json, read_file, write_json,
};

pub(super) const META_FILE: &str = "meta.json";
pub(super) const UPPER_DIRECTORY: &str = "upper";
pub(super) const WORK_DIRECTORY: &str = "work";
/// Largest record of a stage that is read, in bytes.
const MAX_META_BYTES: u64 = 1 << 20;
/// Attribute that is set and removed to check whether the filesystem keeps attributes.
const PROBE_ATTRIBUTE: &str = "user.stockade.probe";
/// Time-out for the lock of a stage.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);
/// Most stages that are listed.
const MAX_STAGES: usize = 10_000;

/// Record of a stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StageMeta {
    /// Id of the stage.
    pub id: StageId,
    /// Creation time, in milliseconds since the epoch.
    pub created_ms: u64,
    /// The run that wrote to the stage.
    pub request: RequestId,
    /// Command of the run, for display.
    pub command: RawText,
    /// Absolute, canonical path of the workspace.
    pub workspace: RawText,
    /// Names that need a separate approval at commit.
    pub protect: Vec<String>,
    /// How the run ended; absent while it runs, and if it was interrupted.
    pub ended: Option<String>,
    device: u64,
    inode: u64,
    pub(super) began: FileTime,
    /// Time at which the workspace was restored after a run without an overlay. Later changes in
    /// the workspace are conflicts for a commit.
    #[serde(default)]
    pub(super) compared: Option<FileTime>,
    /// Boot id of the machine at creation.
    boot: String,
}

/// Parameters of a new stage.
#[derive(Clone, Debug)]
pub struct NewStage {
    /// The run.
    pub request: RequestId,
    /// Command of the run.
    pub command: RawText,
    /// Absolute, canonical path of the workspace.
    pub workspace: PathBuf,
    /// Names that need a separate approval at commit.
    pub protect: Vec<String>,
}

/// The directory of all stages of one user.
#[derive(Debug)]
pub struct StageDirectory {
    path: PathBuf,
    directory: OwnedFd,
}

/// An open stage.
#[derive(Debug)]
pub struct OpenStage {
    /// Record of the stage.
    pub meta: StageMeta,
    pub(super) directory: OwnedFd,
    path: PathBuf,
    stages: OwnedFd,
}

/// A stage in a list.
#[derive(Clone, Debug)]
pub struct StageListEntry {
    /// Id of the stage.
    pub id: StageId,
    /// Record of the stage; absent if it cannot be read.
    pub meta: Option<StageMeta>,
    /// Another process holds the lock of the stage.
    pub busy: bool,
    /// A commit was interrupted.
    pub cut_off: bool,
}

impl StageDirectory {
    /// Opens the directory at `path`. Makes it if it is missing.
    ///
    /// # Errors
    /// [`StageError::Place`] if the directory cannot be made, belongs to another user or is open to
    /// other users.
    pub fn open(path: &Path) -> Result<Self, StageError> {
        let directory_failed = |errno| StageError::Directory(PathError::new(path, errno));
        make_where_missing(CWD, path, Mode::RWXU).map_err(directory_failed)?;
        let directory = openat2(
            CWD,
            path,
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
            ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS,
        )
        .map_err(directory_failed)?;
        let stat = fstat(&directory).map_err(directory_failed)?;
        if stat.st_uid != rustix::process::geteuid().as_raw() {
            return Err(StageError::Directory(PathError::from_reason(path, "it belongs to another user")));
        }
        if stat.st_mode & 0o077 != 0 {
            return Err(StageError::Directory(PathError::from_reason(path, "it is open to other users")));
        }
        Ok(Self { path: path.to_owned(), directory })
    }

    /// Makes a stage, locked for the run that will write to it.
    ///
    /// # Errors
    /// [`StageError::Unfit`] if the workspace cannot be staged; other errors if the stage cannot be
    /// made.
    pub fn create_stage(&self, new: NewStage) -> Result<OpenStage, StageError> {
        let id = StageId::from_random(random_bytes().map_err(|e| self.directory_error(e))?);
        let workspace = open_workspace(&new.workspace).map_err(StageError::Unfit)?;
        self.refuse_unfit(&new.workspace)?;
        let root = TreeObject::from_fd(workspace).at_path(&new.workspace).map_err(StageError::Unfit)?;
        let meta = StageMeta {
            id,
            created_ms: created_ms(),
            request: new.request,
            command: new.command,
            workspace: new.workspace.into(),
            protect: new.protect,
            ended: None,
            device: root.stat.st_dev,
            inode: root.inode(),
            began: system_time_now(),
            compared: None,
            boot: read_boot_id(),
        };
        let stage = self.lay_out(meta, &root).map_err(StageError::Directory)?;
        match stage.keeps_attributes() {
            Ok(()) => Ok(stage),
            Err(errno) => {
                // A failed removal is repeated later; the stage is empty.
                let _ = stage.remove();
                let error = PathError::new(&self.path, errno);
                Err(if errno == Errno::OPNOTSUPP { StageError::Bare(error) } else { StageError::Directory(error) })
            }
        }
    }

    fn lay_out(&self, meta: StageMeta, workspace: &TreeObject) -> Result<OpenStage, PathError> {
        let path = self.path.join(meta.id.as_str());
        mkdirat(&self.directory, meta.id.as_str(), Mode::RWXU).at_path(&path)?;
        let directory = open_directory(self.directory.as_fd(), meta.id.as_str()).at_path(&path)?;
        lock_directory(directory.as_fd()).at_path(&path)?;
        mkdirat(&directory, WORK_DIRECTORY, Mode::RWXU).at_path(&path)?;
        mkdirat(&directory, UPPER_DIRECTORY, Mode::RWXU).at_path(&path)?;
        let upper = TreeObject::require_entry(&directory, UPPER_DIRECTORY).at_path(&path)?;
        mirror_metadata(workspace, &upper).at_path(workspace_path(&meta))?;
        let stages = rustix::io::fcntl_dupfd_cloexec(&self.directory, 3).at_path(&path)?;
        let stage = OpenStage { meta, directory, path, stages };
        // After a power failure it is not needed.
        let written = write_json(&stage.directory, META_FILE, &stage.meta, Durability::Unflushed);
        written.at_path(Path::new(META_FILE))?;
        // From here on, every change of the workspace has a later time than the stage. The clock of
        // file times moves in ticks, so the call waits for the next tick.
        wait_until_past(stage.meta.began);
        Ok(stage)
    }

    /// Refuses a workspace that an overlay cannot show: an overlay covers one filesystem, and its
    /// upper directory cannot be inside the workspace.
    fn refuse_unfit(&self, workspace: &Path) -> Result<(), StageError> {
        if self.path.starts_with(workspace) {
            return Err(StageError::Unfit(PathError::from_reason(workspace, "it holds the directory of stages")));
        }
        let read = File::open(mountinfo::OWN_MOUNTINFO).and_then(mountinfo::read_mountinfo);
        let read = read.at_path(Path::new(mountinfo::OWN_MOUNTINFO));
        let text = read.map_err(StageError::Unfit)?;
        let mut points = mountinfo::parse_mount_points(&text).map(|(point, _)| point);
        match points.find(|mount| mount != workspace && mount.starts_with(workspace)) {
            Some(mount) => Err(StageError::Unfit(PathError::from_reason(&mount, "it is mounted inside the workspace"))),
            None => Ok(()),
        }
    }

    /// Lists all stages, newest first.
    ///
    /// # Errors
    /// [`StageError::Place`] if the directory cannot be read.
    pub fn list_stages(&self) -> Result<Vec<StageListEntry>, StageError> {
        let mut found: Vec<StageListEntry> = self.list_ids()?.filter_map(|id| self.read_list_entry(id)).collect();
        found.sort_by_key(|listed| std::cmp::Reverse(listed.meta.as_ref().map_or(0, |meta| meta.created_ms)));
        Ok(found)
    }

    fn list_ids(&self) -> Result<impl Iterator<Item = StageId>, StageError> {
        let names = list_entry_names(self.directory.as_fd()).map_err(|e| self.directory_error(e))?;
        Ok(names.into_iter().filter_map(|name| String::from_utf8(name).ok()?.parse().ok()).take(MAX_STAGES))
    }

    /// Lists the stages with remains of a commit, even if another process has locked them.
    pub(super) fn list_unfinished(&self) -> Result<Vec<StageId>, StageError> {
        let has_leftovers = |id: &StageId| {
            let Ok(directory) = open_directory(&self.directory, id.as_str()) else { return false };
            is_cut_off(directory.as_fd()) || super::commit_area::is_there(directory.as_fd())
        };
        Ok(self.list_ids()?.filter(has_leftovers).collect())
    }

    fn read_list_entry(&self, id: StageId) -> Option<StageListEntry> {
        let directory = open_directory(&self.directory, id.as_str()).ok()?;
        let busy = flock(&directory, FlockOperation::NonBlockingLockExclusive).is_err();
        let cut_off = !busy && is_cut_off(directory.as_fd());
        Some(StageListEntry { meta: read_meta(directory.as_fd(), &id).ok(), id, busy, cut_off })
    }

    /// Opens a stage for reading.
    ///
    /// # Errors
    /// [`StageError::Absent`], [`StageError::Damaged`].
    pub fn open_for_reading(&self, id: &StageId) -> Result<OpenStage, StageError> {
        let directory = self.open_stage_directory(id)?;
        let meta = read_meta(directory.as_fd(), id)
            .map_err(|why| StageError::Damaged { id: id.clone(), why: why.to_string() })?;
        let stages = rustix::io::fcntl_dupfd_cloexec(&self.directory, 3).map_err(|e| self.directory_error(e))?;
        Ok(OpenStage { meta, directory, path: self.path.join(id.as_str()), stages })
    }

    /// Opens a stage for changes, and locks it.
    ///
    /// # Errors
    /// As [`open_for_reading`](Self::open_for_reading), and [`StageError::Busy`].
    pub fn open_for_changes(&self, id: &StageId) -> Result<OpenStage, StageError> {
        let stage = self.open_for_reading(id)?;
        lock_directory(stage.directory.as_fd()).map_err(|_| StageError::Busy(id.clone()))?;
        // The last holder of the lock may have removed the stage.
        match fstat(&stage.directory) {
            Ok(stat) if stat.st_nlink > 0 => Ok(stage),
            _ => Err(StageError::Absent(id.clone())),
        }
    }

    /// Removes a stage whose record cannot be read.
    ///
    /// # Errors
    /// As [`open_for_changes`](Self::open_for_changes).
    pub fn remove_damaged(&self, id: &StageId) -> Result<(), StageError> {
        let directory = self.open_stage_directory(id)?;
        lock_directory(directory.as_fd()).map_err(|_| StageError::Busy(id.clone()))?;
        remove(self.directory.as_fd(), id).map_err(StageError::Directory)
    }

    /// Removes the remains of an interrupted removal.
    pub fn remove_leftovers(&self) {
        // The next call repeats a failed removal.
        let _ = sweep_removals(self.directory.as_fd());
    }

    fn open_stage_directory(&self, id: &StageId) -> Result<OwnedFd, StageError> {
        open_directory(&self.directory, id.as_str()).map_err(|errno| match errno {
            Errno::NOENT => StageError::Absent(id.clone()),
            errno => self.directory_error(errno),
        })
    }

    fn directory_error(&self, errno: Errno) -> StageError {
        StageError::Directory(PathError::new(&self.path, errno))
    }
}

impl OpenStage {
    /// Returns the id of the stage.
    pub fn id(&self) -> &StageId {
        &self.meta.id
    }

    /// Returns the path of the workspace.
    pub fn workspace(&self) -> &Path {
        workspace_path(&self.meta)
    }

    /// Opens the workspace, if it is still the directory for which the stage was made.
    pub(super) fn open_workspace(&self) -> Result<OwnedFd, StageError> {
        let wrong = |why| StageError::Workspace { id: self.meta.id.clone(), why };
        let workspace = open_workspace(self.workspace()).map_err(wrong)?;
        let stat = fstat(&workspace).at_path(self.workspace()).map_err(wrong)?;
        if (stat.st_dev, stat.st_ino) != (self.meta.device, self.meta.inode) {
            return Err(wrong(PathError::from_reason(self.workspace(), "another directory has its name")));
        }
        Ok(workspace)
    }

    /// Opens a directory of the stage by name.
    ///
    /// # Errors
    /// [`PathError`] if the directory does not exist.
    pub fn open_part(&self, name: &str) -> Result<OwnedFd, PathError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        openat(&self.directory, name, flags, Mode::empty()).at_path(Path::new(name))
    }

    /// Records how the run ended. Flushes the run's writes to the disk first.
    ///
    /// # Errors
    /// [`PathError`] if the record cannot be written.
    pub fn record_end(&mut self, how: &str) -> Result<(), PathError> {
        syncfs(&self.directory).at_path(Path::new(UPPER_DIRECTORY))?;
        self.meta.ended = Some(how.to_owned());
        self.write_meta()
    }

    /// After a run without an overlay: moves the run's changes out of the workspace and restores
    /// the workspace. Returns false if there is no backup tree.
    ///
    /// # Errors
    /// [`PathError`] if an object cannot be moved; the call can be repeated.
    pub fn put_back(&mut self) -> Result<bool, PathError> {
        if !super::backup_tree::is_there(self.directory.as_fd()) {
            return Ok(false);
        }
        super::backup_tree::put_back(self)?;
        let compared = system_time_now();
        self.meta.compared = Some(compared);
        // Must precede the removal of the backup tree, the only sign that the run had no overlay.
        self.write_meta()?;
        wait_until_past(compared);
        super::backup_tree::clear(self)?;
        Ok(true)
    }

    /// Returns whether the stage may lack a part of the writes, because the machine went down
    /// before the run's end.
    pub fn may_be_torn(&self) -> bool {
        self.meta.ended.is_none() && self.meta.boot != read_boot_id()
    }

    /// Removes the stage with its content.
    ///
    /// # Errors
    /// [`PathError`] if a part of it cannot be removed.
    pub fn remove(self) -> Result<(), PathError> {
        remove(self.stages.as_fd(), &self.meta.id)
    }

    fn write_meta(&self) -> Result<(), PathError> {
        self.write_whole(META_FILE, &self.meta)
    }

    /// Checks that the filesystem keeps extended attributes, because overlays and backup trees use
    /// them. Some filesystems keep none: tmpfs before Linux 6.6, ramfs.
    fn keeps_attributes(&self) -> Result<(), Errno> {
        rustix::fs::fsetxattr(&self.directory, PROBE_ATTRIBUTE, b"", rustix::fs::XattrFlags::empty())?;
        rustix::fs::fremovexattr(&self.directory, PROBE_ATTRIBUTE)
    }

    /// Returns the upper directory and the work directory of the overlay.
    pub fn overlay_directories(&self) -> (PathBuf, PathBuf) {
        (self.path.join(UPPER_DIRECTORY), self.path.join(WORK_DIRECTORY))
    }

    /// Writes a file of the stage atomically and durably.
    pub(super) fn write_whole(&self, name: &str, content: &impl Serialize) -> Result<(), PathError> {
        write_json(&self.directory, name, content, Durability::Flushed).at_path(Path::new(name))
    }

    /// Reads a file of the stage; `None` if it does not exist.
    pub(super) fn read_whole<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, PathError> {
        let text = read_file(&self.directory, name, MAX_LIST_BYTES)?;
        text.map(|text| parse_json(name, &text)).transpose()
    }

    pub(super) fn remove_file(&self, name: &str) -> Result<(), PathError> {
        match unlinkat(&self.directory, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => fsync(&self.directory).at_path(Path::new(name)),
            Err(errno) => Err(PathError::new(Path::new(name), errno)),
        }
    }
}

fn workspace_path(meta: &StageMeta) -> &Path {
    meta.workspace.as_path()
}

/// Returns whether a commit, or a run without an overlay, was interrupted.
fn is_cut_off(directory: BorrowedFd<'_>) -> bool {
    super::journal::is_there(directory) || super::backup_tree::is_there(directory)
}

fn lock_directory(directory: BorrowedFd<'_>) -> Result<(), Errno> {
    let give_up = Instant::now() + LOCK_TIMEOUT;
    loop {
        match flock(directory, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) if Instant::now() < give_up => thread::sleep(Duration::from_millis(20)),
            other => return other,
        }
    }
}

fn read_meta(directory: BorrowedFd<'_>, id: &StageId) -> Result<StageMeta, PathError> {
    let path = Path::new(META_FILE);
    let text = read_file(directory, META_FILE, MAX_META_BYTES)?
        .ok_or_else(|| PathError::from_reason(path, "it is not there"))?;
    let meta: StageMeta = parse_json(META_FILE, &text)?;
    if &meta.id == id { Ok(meta) } else { Err(PathError::from_reason(path, "it belongs to another stage")) }
}

/// Copies owner, mode, times and attributes of the workspace: the overlay's root shows those of its
/// upper directory.
fn mirror_metadata(workspace: &TreeObject, upper: &TreeObject) -> Result<(), Errno> {
    upper.replace_attributes(&workspace.read_attributes()?)?;
    // An ordinary user cannot change the owner of a file; the root then belongs to that user.
    let _ = upper.set_owner(workspace.owner());
    upper.set_mode(workspace.mode())?;
    upper.set_modified(workspace.modified_time())
}

/// Removes the stage from the list atomically, then deletes its content.
fn remove(stages: BorrowedFd<'_>, id: &StageId) -> Result<(), PathError> {
    let directory = open_directory(stages, id.as_str()).at_path(Path::new(id.as_str()))?;
    if super::backup_tree::is_there(directory.as_fd()) {
        let why = "it contains backups of a run that are not yet back in the workspace";
        return Err(PathError::from_reason(Path::new(id.as_str()), why));
    }
    let leaving = format!("{REMOVAL_PREFIX}{id}");
    renameat(stages, id.as_str(), stages, &leaving).at_path(Path::new(id.as_str()))?;
    remove_tree(stages, leaving.as_bytes())
}

/// Makes a private directory of this name if it is missing.
pub(super) fn make_private(parent: BorrowedFd<'_>, name: &str) -> Result<OwnedFd, Errno> {
    make_where_missing(parent, name, Mode::RWXU)?;
    let directory = open_directory(parent, name)?;
    if fstat(&directory)?.st_mode & MODE_BITS != 0o700 {
        fchmod(&directory, Mode::RWXU)?;
    }
    Ok(directory)
}

/// Returns the boot id of the machine (random(4)).
fn read_boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

fn created_ms() -> u64 {
    let now = system_time_now();
    u64::try_from(now.seconds).unwrap_or(0) * 1000 + u64::from(now.nanoseconds / 1_000_000)
}

pub(super) fn system_time_now() -> FileTime {
    read_clock(ClockId::Realtime)
}

/// Waits until the clock of file times is past `time`.
fn wait_until_past(time: FileTime) {
    while file_time_now() <= time {
        thread::sleep(Duration::from_micros(200));
    }
}

/// Reads the clock of file times.
pub(super) fn file_time_now() -> FileTime {
    read_clock(ClockId::RealtimeCoarse)
}

fn read_clock(clock: ClockId) -> FileTime {
    let time = clock_gettime(clock);
    FileTime { seconds: time.tv_sec, nanoseconds: u32::try_from(time.tv_nsec).unwrap_or(0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_are_private_and_found_again() {
        let scratch = tempfile::tempdir().unwrap();
        let root = scratch.path().canonicalize().unwrap();
        std::fs::create_dir(root.join("w")).unwrap();
        let stages = StageDirectory::open(&root.join("stages")).unwrap();
        let new = |workspace: PathBuf| NewStage {
            request: RequestId::from_random([1; 16]),
            command: "make".into(),
            workspace,
            protect: vec![".git".to_owned()],
        };
        let stage = stages.create_stage(new(root.join("w"))).unwrap();
        let id = stage.id().clone();
        assert!(stages.list_stages().unwrap()[0].busy);
        assert!(matches!(stages.create_stage(new(root.clone())), Err(StageError::Unfit(_))));
        assert!(matches!(stages.open_for_changes(&id), Err(StageError::Busy(_))));
        drop(stage);
        let mut stage = stages.open_for_changes(&id).unwrap();
        stage.record_end("exited 0").unwrap();
        assert_eq!(stages.open_for_reading(&id).unwrap().meta, stage.meta);
        stage.remove().unwrap();
        assert!(matches!(stages.open_for_reading(&id), Err(StageError::Absent(_))));
        assert!(stages.list_stages().unwrap().is_empty());
        std::fs::set_permissions(root.join("stages"), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        assert!(matches!(StageDirectory::open(&root.join("stages")), Err(StageError::Directory(_))));
    }
}
