//! Turns the selected changes into the steps of a journal: objects to prepare, names to exchange in
//! order, and metadata to set afterwards.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use stockade_files::object::{FileTime, ObjectKind, TreeObject};
use stockade_model::RawText;

use super::build::{BuildProgress, ObjectBuilder, settings_of};
use super::change::{ChangeKind, StageChange, StageChanges};
use super::commit_area::CommitArea;
use super::error::{PathContext, PathError};
use super::journal::{CommitStep, ObjectMetadata};
use super::select::{ChangeSelection, is_named, with_new_parents};
use super::watch::CommitObserver;

/// Computes the steps, and prepares the objects that they need.
///
/// # Errors
/// [`PathError`] if an object cannot be read or made; the workspace is untouched.
pub(super) fn prepare_steps(
    (chosen, all): (&ChangeSelection<'_>, &StageChanges),
    (upper, lower): (&OwnedFd, &OwnedFd),
    area: &CommitArea,
    (paths, began): (&[PathBuf], FileTime),
    watch: &mut dyn CommitObserver,
) -> Result<Vec<CommitStep>, PathError> {
    let target_paths = with_new_parents(&chosen.changes, all);
    let mut builder = ObjectBuilder {
        upper: upper.as_fd(),
        workspace: lower.as_fd(),
        commit_area: area.directory.as_fd(),
        links: area.links,
        is_whole: chosen.are_all(all),
        target_paths: &target_paths,
        unchanged_names: &all.unchanged_names,
        watch,
        progress: BuildProgress::default(),
    };
    let mut plan = StepPlan::new(lower);
    let hows: BTreeMap<&Path, &StageChange> = all.list.iter().map(|change| (change.path.as_path(), change)).collect();
    for path in &target_paths {
        let Some(change) = hows.get(path.as_path()) else { continue };
        let is_inside = path.ancestors().skip(1).any(|above| {
            target_paths.contains(above)
                && hows.get(above).is_some_and(|change| matches!(change.how, ChangeKind::Added | ChangeKind::Replaced))
        });
        match change.how {
            _ if is_inside => {}
            ChangeKind::Metadata => plan.add_metadata_step(change)?,
            ChangeKind::Removed => {
                let slot = builder.reserve_slot();
                plan.remove(change, slot)?;
            }
            ChangeKind::Added | ChangeKind::Modified | ChangeKind::Replaced => {
                let slot = builder.build_object(path)?;
                plan.add_put_step(change, slot.number, slot.inode, slot.settings)?;
            }
        }
    }
    builder.flush()?;
    plan.add_parent_steps(all, paths, began)?;
    Ok(plan.into_steps())
}

/// Steps by kind, collected during planning.
struct StepPlan<'a> {
    lower: &'a OwnedFd,
    opens: Vec<CommitStep>,
    moves: Vec<CommitStep>,
    settings: BTreeMap<PathBuf, CommitStep>,
    /// Directories in which names are added or removed.
    parents: BTreeSet<PathBuf>,
}

impl<'a> StepPlan<'a> {
    fn new(lower: &'a OwnedFd) -> Self {
        let (opens, moves) = (Vec::new(), Vec::new());
        Self { lower, opens, moves, settings: BTreeMap::new(), parents: BTreeSet::new() }
    }

    fn open_present(&self, path: &Path) -> Result<TreeObject, PathError> {
        let object = TreeObject::open_beneath(self.lower.as_fd(), path).at_path(path)?;
        object.ok_or_else(|| PathError::from_reason(path, "it changed in the workspace during the operation"))
    }

    fn add_metadata_step(&mut self, change: &StageChange) -> Result<(), PathError> {
        let Some(staged) = &change.staged else { return Ok(()) };
        let present = self.open_present(&change.path)?;
        // The time of a directory changes with its entries, in both trees.
        let modified =
            if change.is_incidental { staged.modified.max(present.modified_time()) } else { staged.modified };
        let before = ObjectMetadata {
            attributes: Some(present.read_attributes().at_path(&change.path)?),
            ..settings_of(&present)
        };
        let mode = (present.kind() != ObjectKind::Link).then_some(staged.mode);
        let after = ObjectMetadata { mode, modified: Some(modified), attributes: change.attributes.clone() };
        let path = change.path.as_path().into();
        let step = CommitStep::Attributes { path, inode: present.inode(), before, after };
        self.settings.insert(change.path.clone(), step);
        Ok(())
    }

    fn remove(&mut self, change: &StageChange, slot: u32) -> Result<(), PathError> {
        let present = self.open_present(&change.path)?;
        self.add_open_step(&change.path, &present);
        self.moves.push(CommitStep::Remove { path: change.path.as_path().into(), slot, old: present.change_mark() });
        self.note_parent(&change.path);
        Ok(())
    }

    fn add_put_step(
        &mut self,
        change: &StageChange,
        slot: u32,
        new: u64,
        settings: Option<ObjectMetadata>,
    ) -> Result<(), PathError> {
        let path: RawText = change.path.as_path().into();
        let old = match change.present {
            Some(_) => {
                let present = self.open_present(&change.path)?;
                self.add_open_step(&change.path, &present);
                Some(present.change_mark())
            }
            None => None,
        };
        self.moves.push(CommitStep::Put { path: path.clone(), slot, new, old });
        self.note_parent(&change.path);
        if let Some(after) = settings {
            let before = ObjectMetadata { mode: after.mode.map(|mode| mode | 0o700), ..ObjectMetadata::default() };
            let step = CommitStep::Attributes { path, inode: new, before, after };
            self.settings.insert(change.path.clone(), step);
        }
        Ok(())
    }

    /// Adds a step that gives the owner access to a directory. Without write access, a directory
    /// cannot be moved, nor can names be moved in it.
    fn add_open_step(&mut self, path: &Path, directory: &TreeObject) {
        if directory.is_directory() && directory.mode() & 0o700 != 0o700 && !rustix::process::geteuid().is_root() {
            self.opens.push(CommitStep::Open { path: path.into(), before: directory.mode() });
        }
    }

    fn note_parent(&mut self, path: &Path) {
        if let Some(parent) = path.parent() {
            self.parents.insert(parent.to_owned());
        }
    }

    /// Adds steps that correct the metadata of directories around moved names.
    fn add_parent_steps(&mut self, all: &StageChanges, paths: &[PathBuf], began: FileTime) -> Result<(), PathError> {
        for parent in std::mem::take(&mut self.parents) {
            let present = self.open_present(&parent)?;
            self.add_open_step(&parent, &present);
            if self.settings.contains_key(&parent) {
                continue;
            }
            let merged = all.merged.get(&parent);
            let is_selected = is_named(paths, &parent) && merged.is_some_and(|m| m.changed_below <= began);
            let is_listed = all.list.iter().any(|change| change.path == parent);
            let before = settings_of(&present);
            // If the stage's directory has the same time as before, no name was added or removed in
            // it: a file was written in place.
            let modified = match merged {
                Some(merged) if is_selected => Some(merged.modified),
                Some(_) if !is_listed => before.modified,
                _ => None,
            };
            let after = ObjectMetadata { mode: before.mode, modified, attributes: None };
            let step = CommitStep::Attributes { path: parent.as_path().into(), inode: present.inode(), before, after };
            self.settings.insert(parent, step);
        }
        Ok(())
    }

    /// Returns the steps in the order of execution: metadata of the deepest paths first.
    fn into_steps(self) -> Vec<CommitStep> {
        let mut steps = self.opens;
        let (removes, puts) =
            self.moves.into_iter().partition::<Vec<_>, _>(|step| matches!(step, CommitStep::Remove { .. }));
        steps.extend(removes);
        steps.extend(puts);
        steps.extend(self.settings.into_values().rev());
        steps
    }
}
