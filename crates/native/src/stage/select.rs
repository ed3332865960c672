//! Selects the changes at the named paths, and finds those that need a separate approval. Reads
//! only.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use stockade_model::Operation;

use super::change::{Change, Changes, How};
use super::error::{At, CommitError, PathError};
use super::place::Stage;
use crate::guards::{Surveys, View, open_host_root};
use crate::powers::{Powers, Verdict, creates_name};
use stockade_files::object::{Kind, Object, names, os};

/// Most levels of a directory to be removed that are scanned.
const DEPTH_MAX: usize = 400;
const SET_ID: u32 = 0o6000;

/// A change that a commit leaves in the stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Path relative to the workspace.
    pub path: PathBuf,
    /// Type of the change.
    pub how: How,
    /// Reason for leaving it.
    pub why: Why,
}

/// Reason why a change is left in the stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// The change needs a separate approval.
    Protected {
        /// Rule that protects the path, in words.
        rule: String,
        /// Path that the user must name for the approval, relative to the workspace.
        unit: PathBuf,
    },
    /// The object is of a kind that a commit never puts into a workspace.
    Special(&'static str),
}

/// The changes at the named paths.
pub(super) struct Chosen<'c> {
    pub changes: Vec<&'c Change>,
    pub held: Vec<Held>,
}

impl Chosen<'_> {
    /// Returns whether these are all changes, so that nothing stays staged.
    pub fn are_all(&self, changes: &Changes) -> bool {
        self.held.is_empty() && self.changes.len() == changes.list.len()
    }
}

/// Returns whether `path` or a directory above it was named. An empty list names all paths.
pub(super) fn covers(named: &[PathBuf], path: &Path) -> bool {
    named.is_empty() || named.iter().any(|name| path.starts_with(name))
}

/// Returns the changes at and beneath the named paths.
///
/// # Errors
/// [`CommitError::Nothing`] for a path at which nothing is staged.
pub(super) fn named<'c>(changes: &'c Changes, named: &[PathBuf]) -> Result<Vec<&'c Change>, CommitError> {
    for name in named {
        let is_met = |change: &Change| change.path.starts_with(name) && !change.is_incidental;
        if !changes.list.iter().any(is_met) {
            let above =
                |change: &&Change| matches!(change.how, How::Removed | How::Replaced) && name.starts_with(&change.path);
            let within = changes.list.iter().find(above).map(|change| change.path.clone());
            return Err(CommitError::Nothing { path: name.clone(), within });
        }
        // Entries of a directory that replaces a file are committed together with the directory.
        let replaced =
            |change: &&Change| change.how == How::Replaced && change.path != *name && name.starts_with(&change.path);
        if let Some(change) = changes.list.iter().find(replaced)
            && !covers(named, &change.path)
        {
            return Err(CommitError::Nothing { path: name.clone(), within: Some(change.path.clone()) });
        }
    }
    Ok(changes.list.iter().filter(|change| covers(named, &change.path)).collect())
}

/// Time at which a change is checked.
#[derive(Clone, Copy)]
enum Moment {
    /// Before the commit, against the content that the workspace will have.
    Before,
    /// After the object was put at a name that was free before.
    After,
}

/// Protection of names at a commit: the rules of a run, without its grants, and the approvals of
/// this commit.
pub(super) struct Guard<'a> {
    powers: Powers,
    surveys: Surveys,
    root: PathBuf,
    upper: BorrowedFd<'a>,
    lower: BorrowedFd<'a>,
}

impl<'a> Guard<'a> {
    /// Makes the check for one commit.
    ///
    /// # Errors
    /// [`PathError`] if the root directory cannot be opened.
    pub fn new(
        stage: &Stage,
        agreed: &[PathBuf],
        upper: BorrowedFd<'a>,
        lower: BorrowedFd<'a>,
    ) -> Result<Self, PathError> {
        let root = stage.workspace().to_owned();
        let mut powers = Powers::over(&root, &stage.meta.protect);
        let mut surveys = Surveys::default();
        let host = open_host_root().at(&root)?;
        surveys.complete(|_| View::new(host.as_fd()), powers.names(), powers.writable());
        powers.agree(agreed.iter().map(|path| root.join(path)));
        Ok(Self { powers, surveys, root, upper, lower })
    }

    /// Returns the reason why `change` must wait, or `None`.
    pub fn holds(&self, change: &Change) -> Result<Option<Why>, PathError> {
        if let Some(staged) = &change.staged {
            match staged.kind {
                Kind::Device => return Ok(Some(Why::Special("a device"))),
                Kind::File if staged.mode & SET_ID != 0 => {
                    return Ok(Some(Why::Special("it would run with its owner's powers (set-user-ID)")));
                }
                _ => {}
            }
        }
        let operation = match change.how {
            How::Added | How::Replaced => Operation::Create,
            How::Removed => Operation::Remove,
            How::Modified => Operation::Write,
            How::Metadata => Operation::Metadata,
        };
        if let Some(why) = self.protects(operation, &change.path).or_else(|| self.stands_above(change)) {
            return Ok(Some(why));
        }
        let goes = matches!(change.how, How::Removed | How::Replaced);
        if goes && change.present.is_some_and(|facts| facts.kind == Kind::Directory) {
            let directory = Object::beneath(self.lower, &change.path).at(&change.path)?;
            return directory.map_or(Ok(None), |directory| self.protects_beneath(&change.path, &directory, 0));
        }
        Ok(None)
    }

    /// Checks again an object that was just put at a new name. Together with files that another
    /// process made beside it meanwhile, the object may be protected.
    pub fn look_again(&self, path: &Path) -> Result<(), PathError> {
        let Some(why) = self.protects_at(Moment::After, Operation::Create, path) else { return Ok(()) };
        let rule = match why {
            Why::Protected { rule, .. } => rule,
            Why::Special(rule) => rule.to_owned(),
        };
        let why = format!("with what was made beside it at this moment it is protected: {rule}");
        Err(PathError::because(path, &why))
    }

    fn protects(&self, operation: Operation, path: &Path) -> Option<Why> {
        self.protects_at(Moment::Before, operation, path)
    }

    fn protects_at(&self, moment: Moment, operation: Operation, path: &Path) -> Option<Why> {
        let whole = self.root.join(path);
        let exists = |asked: &Path| {
            // A path that is about to be made counts as existing only if it existed before.
            let trees = match moment {
                Moment::Before if asked == whole => &[self.lower][..],
                Moment::Before => &[self.upper, self.lower],
                Moment::After if asked == whole => &[],
                Moment::After => &[self.lower],
            };
            let Ok(asked) = asked.strip_prefix(&self.root) else { return false };
            trees.iter().any(|tree| matches!(Object::beneath(*tree, asked), Ok(Some(_))))
        };
        let bytes = whole.as_os_str().as_encoded_bytes();
        let makes_file = !matches!(operation, Operation::Mkdir | Operation::Remove | Operation::Metadata);
        let of_place = || {
            let root_length = self.powers.root_length(bytes)?;
            let of_place = self.surveys.refusal_of(creates_name(operation), root_length, bytes, (&|_| false, &exists));
            of_place.or_else(|| self.surveys.refusal_at_address(bytes, false).filter(|_| makes_file))
        };
        let verdict = match self.powers.decide(operation, &whole, &exists) {
            Verdict::Allow => of_place().map_or(Verdict::Allow, Verdict::Refuse),
            other => other,
        };
        match verdict {
            Verdict::Allow | Verdict::Private => None,
            Verdict::Refuse(refusal) => {
                let unit = match &refusal.grant {
                    Some(stockade_model::Grant::Write(unit)) => unit.strip_prefix(&self.root).ok().map(Path::to_owned),
                    _ => None,
                };
                Some(Why::Protected { rule: refusal.rule, unit: unit.unwrap_or_else(|| path.to_owned()) })
            }
        }
    }

    /// Refuses a symbolic link that would replace a directory with protected names.
    fn stands_above(&self, change: &Change) -> Option<Why> {
        let whole = self.root.join(&change.path);
        let is_agreed = self.powers.is_named(whole.as_os_str().as_encoded_bytes());
        let is_link = change.staged.is_some_and(|staged| staged.kind == Kind::Link);
        (is_link && !is_agreed && !self.powers.units_carried_by(&whole).is_empty()).then(|| Why::Protected {
            rule: "a link would stand for a directory with protected names".to_owned(),
            unit: change.path.clone(),
        })
    }

    fn protects_beneath(&self, path: &Path, directory: &Object, depth: usize) -> Result<Option<Why>, PathError> {
        if depth > DEPTH_MAX {
            return Err(PathError::because(path, "it lies too deep to be looked at"));
        }
        for name in names(directory.fd.as_fd()).at(path)? {
            let path = path.join(os(&name));
            if let Some(why) = self.protects(Operation::Remove, &path) {
                return Ok(Some(why));
            }
            let inner = Object::find(directory.fd.as_fd(), os(&name)).at(&path)?;
            if let Some(inner) = inner.filter(Object::is_directory)
                && let Some(why) = self.protects_beneath(&path, &inner, depth + 1)?
            {
                return Ok(Some(why));
            }
        }
        Ok(None)
    }
}

/// Returns the named changes without those that wait. Entries of a new directory that waits, wait
/// with it.
pub(super) fn choose<'c>(
    changes: &'c Changes,
    paths: &[PathBuf],
    guard: &Guard<'_>,
) -> Result<Chosen<'c>, CommitError> {
    let mut chosen = Chosen { changes: Vec::new(), held: Vec::new() };
    let mut above: Option<Held> = None;
    for change in named(changes, paths)? {
        let with = above.as_ref().filter(|held| change.path.starts_with(&held.path));
        let why = match with {
            Some(held) => Some(held.why.clone()),
            None => guard.holds(change)?,
        };
        let Some(why) = why else {
            chosen.changes.push(change);
            continue;
        };
        let held = Held { path: change.path.clone(), how: change.how, why };
        if with.is_none() && matches!(change.how, How::Added | How::Replaced) {
            above = Some(held.clone());
        }
        if !change.is_incidental {
            chosen.held.push(held);
        }
    }
    Ok(chosen)
}

/// Returns the paths of `changes` and of the new directories above them.
pub(super) fn with_new_parents(changes: &[&Change], all: &Changes) -> BTreeSet<PathBuf> {
    let new: BTreeSet<&Path> =
        all.list.iter().filter(|change| change.how == How::Added).map(|change| change.path.as_path()).collect();
    let mut wanted = BTreeSet::new();
    for change in changes {
        let parents = change.path.ancestors().skip(1).filter(|parent| new.contains(parent));
        wanted.extend(parents.map(Path::to_owned));
        wanted.insert(change.path.clone());
    }
    wanted
}
