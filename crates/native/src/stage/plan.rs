//! Turns the selected changes into the steps of a journal: objects to prepare, names to exchange in
//! order, and metadata to set afterwards.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use stockade_model::RawText;

use super::build::{Builder, later, settings_of};
use super::change::{Change, Changes, How};
use super::depot::Depot;
use super::error::{At, PathError};
use super::journal::{Settings, Step};
use super::select::{Chosen, covers, with_new_parents};
use super::watch::Watch;
use stockade_files::object::{Kind, Object, Time};

/// Computes the steps, and prepares the objects that they need.
///
/// # Errors
/// [`PathError`] if an object cannot be read or made; the workspace is untouched.
pub(super) fn prepare(
    (chosen, all): (&Chosen<'_>, &Changes),
    (upper, lower): (&OwnedFd, &OwnedFd),
    depot: &Depot,
    (paths, began): (&[PathBuf], Time),
    watch: &mut dyn Watch,
) -> Result<Vec<Step>, PathError> {
    let wanted = with_new_parents(&chosen.changes, all);
    let trees = (upper.as_fd(), lower.as_fd(), depot.directory.as_fd());
    let mut builder = Builder::new(trees, (depot.links, chosen.are_all(all)), &wanted, &all.unchanged_names, watch);
    let mut plan = Plan::new(lower);
    let hows: BTreeMap<&Path, &Change> = all.list.iter().map(|change| (change.path.as_path(), change)).collect();
    for path in &wanted {
        let Some(change) = hows.get(path.as_path()) else { continue };
        let is_inside = path.ancestors().skip(1).any(|above| {
            wanted.contains(above)
                && hows.get(above).is_some_and(|change| matches!(change.how, How::Added | How::Replaced))
        });
        match change.how {
            _ if is_inside => {}
            How::Metadata => plan.set(change)?,
            How::Removed => {
                let slot = builder.reserve();
                plan.remove(change, slot)?;
            }
            How::Added | How::Modified | How::Replaced => {
                let slot = builder.build(path)?;
                plan.put(change, slot.number, slot.inode, slot.settings)?;
            }
        }
    }
    builder.flush()?;
    plan.parents(all, paths, began)?;
    Ok(plan.steps())
}

/// Steps by kind, collected during planning.
struct Plan<'a> {
    lower: &'a OwnedFd,
    opens: Vec<Step>,
    moves: Vec<Step>,
    settings: BTreeMap<PathBuf, Step>,
    /// Directories in which names are added or removed.
    parents: BTreeSet<PathBuf>,
}

impl<'a> Plan<'a> {
    fn new(lower: &'a OwnedFd) -> Self {
        let (opens, moves) = (Vec::new(), Vec::new());
        Self { lower, opens, moves, settings: BTreeMap::new(), parents: BTreeSet::new() }
    }

    fn present(&self, path: &Path) -> Result<Object, PathError> {
        let object = Object::beneath(self.lower.as_fd(), path).at(path)?;
        object.ok_or_else(|| PathError::because(path, "it changed in the workspace at this moment"))
    }

    fn set(&mut self, change: &Change) -> Result<(), PathError> {
        let Some(staged) = &change.staged else { return Ok(()) };
        let present = self.present(&change.path)?;
        // The time of a directory changes with its entries, in both trees.
        let modified = if change.is_incidental { later(staged.modified, present.modified()) } else { staged.modified };
        let before = Settings { attributes: Some(present.attributes().at(&change.path)?), ..settings_of(&present) };
        let mode = (present.kind() != Kind::Link).then_some(staged.mode);
        let after = Settings { mode, modified: Some(modified), attributes: change.attributes.clone() };
        let path = change.path.as_path().into();
        let step = Step::Attributes { path, inode: present.inode(), before, after };
        self.settings.insert(change.path.clone(), step);
        Ok(())
    }

    fn remove(&mut self, change: &Change, slot: u32) -> Result<(), PathError> {
        let present = self.present(&change.path)?;
        self.open(&change.path, &present);
        self.moves.push(Step::Remove { path: change.path.as_path().into(), slot, old: present.mark() });
        self.note_parent(&change.path);
        Ok(())
    }

    fn put(&mut self, change: &Change, slot: u32, new: u64, settings: Option<Settings>) -> Result<(), PathError> {
        let path: RawText = change.path.as_path().into();
        let old = match change.present {
            Some(_) => {
                let present = self.present(&change.path)?;
                self.open(&change.path, &present);
                Some(present.mark())
            }
            None => None,
        };
        self.moves.push(Step::Put { path: path.clone(), slot, new, old });
        self.note_parent(&change.path);
        if let Some(after) = settings {
            let before = Settings { mode: after.mode.map(|mode| mode | 0o700), ..Settings::default() };
            let step = Step::Attributes { path, inode: new, before, after };
            self.settings.insert(change.path.clone(), step);
        }
        Ok(())
    }

    /// Adds a step that gives the owner access to a directory. Without write access, a directory
    /// cannot be moved, nor can names be moved in it.
    fn open(&mut self, path: &Path, directory: &Object) {
        if directory.is_directory() && directory.mode() & 0o700 != 0o700 && !rustix::process::geteuid().is_root() {
            self.opens.push(Step::Open { path: path.into(), before: directory.mode() });
        }
    }

    fn note_parent(&mut self, path: &Path) {
        if let Some(parent) = path.parent() {
            self.parents.insert(parent.to_owned());
        }
    }

    /// Adds steps that correct the metadata of directories around moved names.
    fn parents(&mut self, all: &Changes, paths: &[PathBuf], began: Time) -> Result<(), PathError> {
        for parent in std::mem::take(&mut self.parents) {
            let present = self.present(&parent)?;
            self.open(&parent, &present);
            if self.settings.contains_key(&parent) {
                continue;
            }
            let merged = all.merged.get(&parent);
            let is_meant = covers(paths, &parent) && merged.is_some_and(|m| m.changed_below <= began);
            let is_listed = all.list.iter().any(|change| change.path == parent);
            let before = settings_of(&present);
            // If the stage's directory has the same time as before, no name was added or removed in
            // it: a file was written in place.
            let modified = match merged {
                Some(merged) if is_meant => Some(merged.modified),
                Some(_) if !is_listed => before.modified,
                _ => None,
            };
            let after = Settings { mode: before.mode, modified, attributes: None };
            let step = Step::Attributes { path: parent.as_path().into(), inode: present.inode(), before, after };
            self.settings.insert(parent, step);
        }
        Ok(())
    }

    /// Returns the steps in the order of execution: metadata of the deepest paths first.
    fn steps(self) -> Vec<Step> {
        let mut steps = self.opens;
        let (removes, puts) = self.moves.into_iter().partition::<Vec<_>, _>(|step| matches!(step, Step::Remove { .. }));
        steps.extend(removes);
        steps.extend(puts);
        steps.extend(self.settings.into_values().rev());
        steps
    }
}
