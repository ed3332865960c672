//! Did the workspace change meanwhile, where a stage would change it?
//!
//! The kernel gives no hook for an overlay's copies, so there are two sources,
//! and neither costs anything for what is not touched:
//!
//! 1. **The time of the stage.** Whatever was changed in the workspace since the
//!    stage was made has a later change time (`ctime`), which no program can
//!    set; making a stage waits until the clock that files get their times from
//!    has passed it. What is older is unchanged.
//! 2. **The witness.** Every change that a run makes in its workspace passes
//!    through the broker. Before the first change of a path, the broker's witness
//!    notes what lies below: its mark and the digest of its content. What has a
//!    later time but still the noted content (it was touched, or changed and
//!    changed back) is no conflict; what was there and is gone is one.
//!
//! An index of the whole workspace at the start would say the same, at the cost
//! of a walk before every run. A later time without a note is a conflict, and so
//! is everything that cannot be told: what is reported wrongly costs a question,
//! what is overwritten wrongly costs somebody's work. Two trees that agree
//! already are none.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, openat};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use stockade_model::RawText;
use stockade_sys::Errno;

use super::change::{Change, How};
use super::error::{At, PathError, StageError};
use super::place::Stage;
use stockade_files::object::{Kind, Mark, Object, Time, names, os, same_content};

const TOUCHED: &str = "touched";
/// Files up to this size are digested before their first change, while their
/// writer waits. Of larger ones only the mark is noted.
const DIGEST_LIMIT_BYTES: u64 = 1 << 20;
/// Paths that are noted; what comes later is judged by its time alone.
const NOTES_MAX: usize = 200_000;
/// Levels of a directory that is to be removed which are looked into.
const DEPTH_MAX: usize = 400;

/// A path where the workspace and the stage changed both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// Relative to the workspace.
    pub path: PathBuf,
    /// How the stage would change it.
    pub how: How,
    /// What happened in the workspace.
    pub meanwhile: Meanwhile,
}

/// What happened in the workspace since the stage was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Meanwhile {
    /// Something was put there.
    Created,
    /// It was changed.
    Changed,
    /// It was removed.
    Removed,
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let meanwhile = match self.meanwhile {
            Meanwhile::Created => "created",
            Meanwhile::Changed => "changed",
            Meanwhile::Removed => "removed",
        };
        write!(f, "{} was {meanwhile} in the workspace", RawText::from(self.path.as_path()).escaped())
    }
}

/// What lay below when a path was first changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Note {
    path: RawText,
    /// Absent where there was nothing.
    mark: Option<Mark>,
    /// Of a file's bytes or a link's text.
    digest: Option<String>,
}

/// Notes what lies in the workspace before it is first changed in the stage.
#[derive(Debug)]
pub struct Witness {
    workspace: OwnedFd,
    root: PathBuf,
    seen: HashSet<PathBuf>,
    out: BufWriter<File>,
}

impl Witness {
    /// A witness for the run that writes to `stage`.
    ///
    /// # Errors
    /// Where the workspace or the notes cannot be opened.
    pub fn new(stage: &Stage) -> Result<Self, StageError> {
        let workspace = stage.open_workspace()?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&stage.directory, TOUCHED, flags, Mode::RUSR | Mode::WUSR).at(Path::new(TOUCHED))?;
        Ok(Self {
            workspace,
            root: stage.workspace().to_owned(),
            seen: HashSet::new(),
            out: BufWriter::new(File::from(file)),
        })
    }

    /// To be called before the object at the absolute `path` is changed. Paths
    /// outside the workspace are not its matter.
    ///
    /// # Errors
    /// Where the note cannot be written: the change must not be made then.
    pub fn before_change(&mut self, path: &Path) -> Result<(), PathError> {
        let Ok(path) = path.strip_prefix(&self.root) else { return Ok(()) };
        if path.as_os_str().is_empty() || self.seen.len() >= NOTES_MAX || self.seen.contains(path) {
            return Ok(());
        }
        let note = note(self.workspace.as_fd(), path).at(path)?;
        serde_json::to_writer(&mut self.out, &note).map_err(std::io::Error::from).at(path)?;
        self.out.write_all(b"\n").at(path)?;
        // The process may be killed: what was noted must not be lost with it.
        self.out.flush().at(path)?;
        self.seen.insert(path.to_owned());
        Ok(())
    }
}

fn note(workspace: rustix::fd::BorrowedFd<'_>, path: &Path) -> Result<Note, Errno> {
    let object = match Object::beneath(workspace, path) {
        // What cannot be looked at from outside cannot be told later either.
        Err(Errno::ACCESS) => None,
        other => other?,
    };
    let digest = object.as_ref().map(digest).transpose()?.flatten();
    Ok(Note { path: path.into(), mark: object.map(|o| o.mark()), digest })
}

/// The digest of what an object holds, where it is not too large or closed.
fn digest(object: &Object) -> Result<Option<String>, Errno> {
    let mut state = Sha256::new();
    match object.kind() {
        Kind::Link => state.update(object.link_text()?),
        Kind::File if object.size() <= DIGEST_LIMIT_BYTES => {
            let Ok(file) = object.open() else { return Ok(None) };
            let mut file = file.take(DIGEST_LIMIT_BYTES + 1);
            let mut block = vec![0; 64 * 1024];
            loop {
                match file.read(&mut block) {
                    Ok(0) => break,
                    Ok(length) => state.update(&block[..length]),
                    Err(e) => return Err(Errno::from_io_error(&e).unwrap_or(Errno::IO)),
                }
            }
        }
        _ => return Ok(None),
    }
    Ok(Some(state.finalize().iter().map(|byte| format!("{byte:02x}")).collect()))
}

/// Finds conflicts of one stage.
pub(super) struct Judge {
    began: Time,
    notes: HashMap<PathBuf, Note>,
}

impl Judge {
    /// Reads what the witness noted. A last line that was cut off is not there:
    /// its change was never made.
    pub fn new(stage: &Stage) -> Result<Self, PathError> {
        let text = stage.read_whole(TOUCHED)?.unwrap_or_default();
        let mut notes = HashMap::new();
        let lines: Vec<&[u8]> = text.split(|b| *b == b'\n').collect();
        for (at, line) in lines.iter().enumerate() {
            match serde_json::from_slice::<Note>(line) {
                Ok(note) => {
                    notes.entry(note.path.as_path().to_owned()).or_insert(note);
                }
                Err(_) if at + 1 == lines.len() => {}
                Err(e) => return Err(PathError::because(Path::new(TOUCHED), &e.to_string())),
            }
        }
        Ok(Self { began: stage.meta.compared.unwrap_or(stage.meta.began), notes })
    }

    /// What stands against `change`, with both objects as they are now.
    pub fn conflict(
        &self,
        change: &Change,
        staged: Option<&Object>,
        present: Option<&Object>,
    ) -> Result<Option<Conflict>, PathError> {
        let found = match present {
            None => self.absent(change),
            Some(present) if self.agree(change, staged, present)? => None,
            Some(present) if change.how == How::Metadata && present.is_directory() => {
                self.mode_changed(change, present)
            }
            Some(present) => self.present(&change.path, present, goes_with_all(change, present), 0)?,
        };
        Ok(found.map(|(path, meanwhile)| Conflict { path, how: change.how, meanwhile }))
    }

    fn absent(&self, change: &Change) -> Option<(PathBuf, Meanwhile)> {
        let was_there = self.notes.get(&change.path).is_some_and(|note| note.mark.is_some());
        let matters = change.staged.is_some() && (was_there || change.below.is_some());
        matters.then(|| (change.path.clone(), Meanwhile::Removed))
    }

    /// Both changed to the same.
    fn agree(&self, change: &Change, staged: Option<&Object>, present: &Object) -> Result<bool, PathError> {
        let Some(staged) = staged else { return Ok(false) };
        if staged.is_directory() || staged.mode() != present.mode() {
            return Ok(false);
        }
        staged.opened_up(|| same_content(staged, present)).at(&change.path)
    }

    /// Directories change all the time by what is in them: only their mode
    /// speaks.
    fn mode_changed(&self, change: &Change, present: &Object) -> Option<(PathBuf, Meanwhile)> {
        let mark = self.notes.get(&change.path)?.mark?;
        (mark.mode != present.mode()).then(|| (change.path.clone(), Meanwhile::Changed))
    }

    fn present(
        &self,
        path: &Path,
        present: &Object,
        with_all: bool,
        depth: usize,
    ) -> Result<Option<(PathBuf, Meanwhile)>, PathError> {
        let own = self.changed(path, present)?.map(|meanwhile| (path.to_owned(), meanwhile));
        if !with_all {
            return Ok(own);
        }
        if depth > DEPTH_MAX {
            return Err(PathError::because(path, "it lies too deep to be looked at"));
        }
        for name in names(present.fd.as_fd()).at(path)? {
            let path = path.join(os(&name));
            if let Some(inner) = Object::find(present.fd.as_fd(), os(&name)).at(&path)?
                && let Some(found) = self.present(&path, &inner, inner.is_directory(), depth + 1)?
            {
                return Ok(Some(found));
            }
        }
        // Said of the directory only where nothing in it tells more.
        Ok(own)
    }

    fn changed(&self, path: &Path, present: &Object) -> Result<Option<Meanwhile>, PathError> {
        let note = self.notes.get(path);
        let older = present.changed() <= self.began;
        let Some(note) = note else {
            return Ok((!older).then_some(Meanwhile::Changed));
        };
        let Some(mark) = note.mark else { return Ok(Some(Meanwhile::Created)) };
        if present.is_directory() {
            // Its times tell of what is in it, which is looked at by itself.
            let same = mark.inode == present.inode() && mark.mode == present.mode();
            return Ok((!same).then_some(Meanwhile::Changed));
        }
        if mark == present.mark() && mark.changed <= self.began {
            return Ok(None);
        }
        // Changed before the run first looked: it may have acted on what was.
        let was_late = mark.changed > self.began;
        let same_kind = mark.kind == present.kind() && mark.mode == present.mode();
        let same = same_kind
            && match present.kind() {
                Kind::Pipe | Kind::Socket => true,
                _ => note.digest.is_some() && digest(present).at(path)? == note.digest,
            };
        Ok((was_late || !same).then_some(Meanwhile::Changed))
    }
}

/// A directory that goes, and everything in it.
fn goes_with_all(change: &Change, present: &Object) -> bool {
    present.is_directory() && matches!(change.how, How::Removed | How::Replaced)
}
