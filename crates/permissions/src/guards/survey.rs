//! Survey of a writable tree, in one walk. It finds the objects that give ordinary paths a guarded
//! meaning. These are links with guarded names or above them, repositories with settings that name
//! files, and files with a guarded name and another name.

use std::collections::HashSet;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::FileType;
use stockade_sys::Errno;

use super::git::{self, GlobalSettings, ReferencedPaths};
use super::git_part::{GitPathKind, GuardedContent};
use super::names::{GuardedNames, fold_name};
use super::pointers::{MAX_POINTER_BYTES, settings_of};
use super::repository::{RepositoryState, TrustedParts};
use super::settings_allow_list::local_addresses;
use super::settings_cache::SettingsCache;
use super::survey_results::{GuardedPaths, with_end};
use super::view::{LinkChain, ObjectPresence, RootView, join_name, join_relative, last_component, parent_path};
use crate::powers::is_at_or_beneath;

/// Most names that are examined in one tree.
const MAX_EXAMINED_NAMES: usize = 4_000_000;
/// Most guarded paths of one tree.
const MAX_GUARDED_PATHS: usize = 10_000;
/// Time-out for one tree.
const SURVEY_TIMEOUT: Duration = Duration::from_secs(30);
/// Most links of guarded links that are followed, one within the other.
const MAX_LINK_DEPTH: usize = 8;

/// Levels of directories above a tree, and of the home directory, that are searched if they have
/// guarded names.
const LEVELS_ABOVE: usize = 4;

/// Selects the subdirectories of a directory to examine.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SurveyDepth {
    /// All.
    Whole,
    /// This number of levels, of directories with a guarded name or with a name above a guarded
    /// one.
    Guarded(usize),
}

/// A directory to examine.
struct PendingDirectory {
    path: Vec<u8>,
    /// True if it is within a guarded object.
    guarded: bool,
    depth: SurveyDepth,
}

/// Reason why a tree cannot be surveyed. Then nothing is written in it without a grant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SurveyError {
    /// The tree contains too many names.
    #[error("more than {MAX_EXAMINED_NAMES} names in one writable tree: links to protected names cannot be looked for")]
    TooLarge,
    /// The survey took too long.
    #[error(
        "links to protected names could not be looked for within {timeout} s in a writable tree; the survey had reached {0} (hint: move large git settings and large trees out of the workspace)",
        timeout = SURVEY_TIMEOUT.as_secs()
    )]
    TimedOut(String),
    /// The survey found more paths than it keeps.
    #[error("more than {MAX_GUARDED_PATHS} targets of protected links in one writable tree")]
    TooManyPaths,
    /// The root directory of the view cannot be opened.
    #[error("a writable tree cannot be read: links to protected names cannot be looked for")]
    Unreadable,
    /// A directory or a repository in the tree cannot be read.
    #[error(
        "{0} cannot be read: {1}, so links to protected names in it cannot be looked for (hint: chmod -R u+rX, or move it out of the workspace)"
    )]
    Unlisted(String, Errno),
    /// A directory of the user's own cannot be searched.
    #[error(
        "the directory {0} cannot be searched, so links to protected names in it cannot be looked for (hint: chmod u+rx, which a run may do)"
    )]
    Closed(String),
    /// A file of the user's own that may lead git elsewhere cannot be read.
    #[error("{0} cannot be read, so the files to which it leads cannot be found (hint: chmod u+r, which a run may do)")]
    Locked(String),
    /// Settings of git that cannot be read whole.
    #[error(
        "git's settings in {0} cannot be read whole, so the files that they name cannot be looked for (hint: remove what is not needed; at most {max} MiB are read)",
        max = git::MAX_SETTINGS_BYTES >> 20
    )]
    Unread(String),
    /// A guarded link leads to the tree itself.
    #[error("the protected link {0} leads to the writable tree itself")]
    Covers(String),
}

/// The entries of a directory by which git recognizes a repository.
#[derive(Clone, Copy, Default)]
struct RepositoryMarks {
    head: bool,
    objects: bool,
    refs: bool,
    common: bool,
    settings: bool,
}

impl RepositoryMarks {
    fn add_name(&mut self, name: &[u8]) {
        match &*fold_name(name) {
            b"head" => self.head = true,
            b"objects" => self.objects = true,
            b"refs" => self.refs = true,
            b"commondir" => self.common = true,
            b"config" | b"config.worktree" => self.settings = true,
            _ => {}
        }
    }

    fn make_repository(self) -> bool {
        self.head && (self.common || self.objects && self.refs)
    }
}

struct TreeSurvey<'a> {
    view: RootView<'a>,
    names: &'a GuardedNames,
    tree: &'a [u8],
    /// Every writable tree of the run.
    writable: &'a [Vec<u8>],
    settings: &'a GlobalSettings,
    parts: &'a TrustedParts,
    found: GuardedPaths,
    rest: Vec<PendingDirectory>,
    seen: usize,
    settings_cache: SettingsCache,
    /// Repositories and tops of their work trees, with paths that were added.
    known_repositories: HashSet<Vec<u8>>,
    /// Repositories with addresses that were added.
    known_remotes: HashSet<Vec<u8>>,
    /// Guarded paths that are followed already.
    known_paths: HashSet<Vec<u8>>,
    deadline: Instant,
}

/// Entries of one directory that need examination.
#[derive(Default)]
struct SurveyListing {
    marks: RepositoryMarks,
    directories: Vec<Vec<u8>>,
    links: Vec<Vec<u8>>,
    files: Vec<Vec<u8>>,
    count: usize,
}

/// Surveys the tree at `tree`, which may be a file or missing. `writable` are all trees that the
/// run may write; `settings` are those of the user.
pub(super) fn survey_tree(
    view: RootView<'_>,
    (tree, writable): (&[u8], &[Vec<u8>]),
    names: &GuardedNames,
    (settings, parts): (&GlobalSettings, &TrustedParts),
) -> Result<GuardedPaths, SurveyError> {
    let mut survey = TreeSurvey::new(view, (tree, writable), names, (settings, parts));
    survey.rest.push(survey.pending_directory(tree, SurveyDepth::Whole));
    survey.add_settings((ReferencedPaths::of_any(settings.files.clone()), b"/"), b"/etc/gitconfig")?;
    survey.add_work_tree(tree)?;
    // A link above the tree, or in the home directory, may lead into it.
    let above = std::iter::successors(Some(parent_path(tree)), |at| (!at.is_empty()).then(|| parent_path(at)));
    for directory in above.chain(settings.home.as_deref()) {
        let path = if directory.is_empty() { b"/" } else { directory };
        survey.rest.push(PendingDirectory {
            path: path.to_vec(),
            guarded: false,
            depth: SurveyDepth::Guarded(LEVELS_ABOVE),
        });
    }
    while let Some(directory) = survey.rest.pop() {
        survey.look_at(&directory)?;
    }
    Ok(survey.found)
}

/// Surveys one directory and the directories with guarded names beneath it, for the meaning of
/// those names on the host. `host` is the root directory.
pub fn survey_directory(
    host: RootView<'_>,
    directory: &[u8],
    names: &GuardedNames,
) -> Result<GuardedPaths, SurveyError> {
    let everywhere = [b"/".to_vec()];
    let settings = GlobalSettings::of_caller();
    let parts = TrustedParts::default();
    let mut survey = TreeSurvey::new(host, (&[], &everywhere), names, (&settings, &parts));
    survey.rest.push(survey.pending_directory(directory, SurveyDepth::Guarded(LEVELS_ABOVE)));
    while let Some(directory) = survey.rest.pop() {
        // The target of a guarded link is not searched, because its path is enough.
        if directory.depth != SurveyDepth::Whole {
            survey.look_at(&directory)?;
        }
    }
    Ok(survey.found)
}

/// Returns whether a directory is called `.git`, or contains the settings of a module or work tree
/// in one. Git may take it for a repository again once a missing part is restored, for example by
/// `git init`.
fn is_of_git(directory: &[u8], marks: RepositoryMarks) -> bool {
    let part = || GitPathKind::classify_path(&join_name(directory, b"config.worktree"), 0).map(|(_, part)| part);
    fold_name(last_component(directory)).as_ref() == b".git"
        || marks.settings && part() == Some(GitPathKind::Checked(GuardedContent::Settings))
}

fn shown(path: &[u8]) -> String {
    String::from_utf8_lossy(path).escape_debug().to_string()
}

fn unlisted(path: &[u8], errno: Errno) -> SurveyError {
    SurveyError::Unlisted(shown(path), errno)
}

fn unread(file: &[u8]) -> SurveyError {
    SurveyError::Unread(shown(file))
}

impl<'a> TreeSurvey<'a> {
    fn new(
        view: RootView<'a>,
        (tree, writable): (&'a [u8], &'a [Vec<u8>]),
        names: &'a GuardedNames,
        (settings, parts): (&'a GlobalSettings, &'a TrustedParts),
    ) -> Self {
        Self {
            view,
            names,
            tree,
            writable,
            settings,
            parts,
            found: GuardedPaths::default(),
            rest: Vec::new(),
            seen: 0,
            settings_cache: SettingsCache::new(settings.home.clone()),
            known_repositories: HashSet::new(),
            known_remotes: HashSet::new(),
            known_paths: HashSet::new(),
            deadline: Instant::now() + SURVEY_TIMEOUT,
        }
    }

    fn pending_directory(&self, path: &[u8], depth: SurveyDepth) -> PendingDirectory {
        PendingDirectory { path: path.to_vec(), guarded: self.names.find_match(path).is_some(), depth }
    }

    fn look_at(&mut self, waiting: &PendingDirectory) -> Result<(), SurveyError> {
        let PendingDirectory { path: directory, guarded, depth } = waiting;
        let (directory, guarded) = (&directory[..], *guarded);
        let listing = match self.list_directory(directory, guarded) {
            Ok(listing) => listing,
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(()),
            // A run cannot have closed a directory that it may not write, so the directory is
            // closed for the user too.
            Err(_) if *depth != SurveyDepth::Whole || !self.is_writable(directory) => return Ok(()),
            // A run may have closed it and may open it again, so its content is unknown.
            Err(Errno::ACCESS) if self.view.is_own(directory) => return Err(SurveyError::Closed(shown(directory))),
            Err(errno) if directory == self.tree || self.view.is_own(directory) => {
                return Err(unlisted(directory, errno));
            }
            Err(_) => return self.add_target(directory.to_vec(), directory),
        };
        let may_be_closed = *depth == SurveyDepth::Whole && self.is_writable(directory);
        if may_be_closed && listing.count > 0 && self.view.is_own(directory) && !self.is_searchable(directory) {
            return Err(SurveyError::Closed(shown(directory)));
        }
        self.seen += listing.count;
        if self.seen > MAX_EXAMINED_NAMES {
            return Err(SurveyError::TooLarge);
        }
        if Instant::now() > self.deadline {
            return Err(SurveyError::TimedOut(shown(directory)));
        }
        if listing.marks.make_repository() {
            self.add_state(directory);
        }
        if listing.marks.make_repository() || is_of_git(directory, listing.marks) {
            self.add_repository(directory)?;
        }
        for link in listing.links {
            self.add_link(&link, guarded || self.names.find_match(&link).is_some(), 0)?;
        }
        for file in listing.files {
            self.look_at_file(&file, guarded)?;
        }
        self.add_directories(listing.directories, waiting, listing.marks);
        Ok(())
    }

    /// Adds the subdirectories that are to be examined to the list.
    fn add_directories(&mut self, directories: Vec<Vec<u8>>, above: &PendingDirectory, marks: RepositoryMarks) {
        // Git's objects are data, and most of its files.
        let holds_objects = fold_name(last_component(&above.path)).as_ref() == b".git"
            || marks.make_repository() && !self.is_writable(&above.path);
        for path in directories {
            if holds_objects && last_component(&path) == b"objects"
                || above.depth != SurveyDepth::Whole && path == self.tree
            {
                continue;
            }
            let guarded = above.guarded || self.names.find_match(&path).is_some();
            let depth = match above.depth {
                SurveyDepth::Whole => SurveyDepth::Whole,
                SurveyDepth::Guarded(0) => continue,
                SurveyDepth::Guarded(_) if !guarded && !self.names.has_component(last_component(&path)) => continue,
                SurveyDepth::Guarded(levels) => SurveyDepth::Guarded(levels - 1),
            };
            self.rest.push(PendingDirectory { path, guarded, depth });
        }
    }

    /// Returns whether the entries of a directory can be examined.
    fn is_searchable(&self, directory: &[u8]) -> bool {
        self.view.stat_path(&join_name(directory, b".")).is_ok()
    }

    /// Records the existing parts of a repository.
    fn add_state(&mut self, directory: &[u8]) {
        let exists = |path: &Path| self.view.stat_path(path.as_os_str().as_bytes()).is_ok();
        if let Some(state) = RepositoryState::containing_path(&join_name(directory, b"HEAD"), self.parts, &exists)
            && let Ok(stat) = self.view.stat_path(directory)
        {
            self.found.repositories.insert((stat.st_dev, stat.st_ino), state);
            // The content of a `.git` directory is checked by its name.
            let is_in_git = directory.split(|b| *b == b'/').any(|part| fold_name(part).as_ref() == b".git");
            if state.is_repository() && !is_in_git {
                self.found.bare.insert(directory.to_vec());
                // The repository stays in place.
                self.found.pins.insert(join_name(directory, b"HEAD"));
            }
            self.found.directories.insert(directory.to_vec());
        }
    }

    fn add_repository(&mut self, directory: &[u8]) -> Result<(), SurveyError> {
        let top =
            if fold_name(last_component(directory)).as_ref() == b".git" { parent_path(directory) } else { directory };
        self.add_repository_of(directory, top)?;
        // The user can restore the `.git` file of a work tree that git keeps here.
        // A longer file leads nowhere.
        match self.view.read_settings(&join_name(directory, b"gitdir"), MAX_POINTER_BYTES) {
            Ok(Some(text)) if !text.trim_ascii().is_empty() => {
                let pointer = join_relative(directory, text.trim_ascii());
                self.add_repository_of(directory, parent_path(&pointer))
            }
            _ => Ok(()),
        }
    }

    /// Adds the paths that the repository in `directory` names; its work tree has the top `top`.
    fn add_repository_of(&mut self, directory: &[u8], top: &[u8]) -> Result<(), SurveyError> {
        if !self.known_repositories.insert(join_name(directory, top)) {
            return Ok(());
        }
        for name in [&b"config"[..], b"config.worktree", b"commondir"] {
            self.require_readable(&join_name(directory, name))?;
        }
        let named = git::named_by_repository(self.view, directory, top, &self.settings_cache);
        let referenced_paths = named.map_err(|file| unread(&file))?;
        self.add_remotes(directory)?;
        self.add_settings((referenced_paths, top), &join_name(directory, b"config"))?;
        self.add_work_tree(top)
    }

    /// Adds the local addresses of the remotes of a repository and of its modules.
    fn add_remotes(&mut self, directory: &[u8]) -> Result<(), SurveyError> {
        let end = self.view.resolve_path(directory).map_or_else(|| directory.to_vec(), |chain| chain.end);
        if !self.known_remotes.insert(end.clone()) {
            return Ok(());
        }
        let all = match settings_of(self.view, &end) {
            // The repository belongs to another user, so that no run can open it, or does not exist.
            Err(_) if self.view.probe_object(&end) == ObjectPresence::Nothing || !self.view.is_own(&end) => Vec::new(),
            all => all.map_err(|errno| unlisted(&end, errno))?,
        };
        let local = all.iter().flat_map(|(file, text)| local_addresses(file, text));
        let local = local.flat_map(|referenced_path| with_end(self.view, &referenced_path));
        self.found.addresses.extend(local.filter(|referenced_path| is_at_or_beneath(self.tree, referenced_path)));
        Ok(())
    }

    /// Fails if a file cannot be read. A run can close a file of its user and open it again, so an
    /// unreadable file may lead anywhere.
    fn require_readable(&self, file: &[u8]) -> Result<(), SurveyError> {
        let Some(chain) = self.view.resolve_path(file) else { return Ok(()) };
        let is_closed = chain.closed.is_some()
            || self.view.probe_object(&chain.end) == ObjectPresence::Is(FileType::RegularFile)
                && !self.view.is_readable(&chain.end)
                && self.view.is_own(&chain.end);
        match is_closed {
            true => Err(SurveyError::Locked(shown(file))),
            false => Ok(()),
        }
    }

    fn list_directory(&self, directory: &[u8], guarded: bool) -> Result<SurveyListing, Errno> {
        let mut listing = SurveyListing::default();
        self.view.for_each_name(directory, |entry, kind| {
            listing.count += 1;
            listing.marks.add_name(entry);
            let of_interest = guarded || self.names.has_component(entry);
            let kind = match kind {
                FileType::Unknown => self.kind_of(&join_name(directory, entry)),
                kind => kind,
            };
            match kind {
                FileType::Directory => listing.directories.push(join_name(directory, entry)),
                FileType::Symlink if of_interest => listing.links.push(join_name(directory, entry)),
                FileType::RegularFile if of_interest => listing.files.push(join_name(directory, entry)),
                _ => {}
            }
        })?;
        Ok(listing)
    }

    fn kind_of(&self, path: &[u8]) -> FileType {
        self.view.stat_path(path).map_or(FileType::Unknown, |stat| FileType::from_raw_mode(stat.st_mode))
    }

    /// Examines a guarded regular file: whether it has other names, and whether it names a
    /// repository.
    fn look_at_file(&mut self, path: &[u8], guarded: bool) -> Result<(), SurveyError> {
        if !guarded && self.names.find_match(path).is_none() {
            return Ok(());
        }
        if let Ok(stat) = self.view.stat_path(path)
            && stat.st_nlink > 1
        {
            self.found.linked.insert((stat.st_dev, stat.st_ino));
        }
        if fold_name(last_component(path)).as_ref() == b".git" {
            self.require_readable(path)?;
            let named = git::named_by_pointer(self.view, path);
            self.add_settings((ReferencedPaths::of_any(named.clone()), parent_path(path)), path)?;
            // The repository may be outside all writable trees.
            named.iter().try_for_each(|directory| self.add_repository_of(directory, parent_path(path)))?;
        }
        Ok(())
    }

    /// Adds the paths that the user's settings name in a work tree with the top `top`.
    fn add_work_tree(&mut self, top: &[u8]) -> Result<(), SurveyError> {
        self.add_settings((self.settings.from_top.beneath_top(top), top), top)
    }

    /// Adds the paths that the settings in the file `by` name, for the work tree with the top
    /// `top`.
    fn add_settings(
        &mut self,
        (referenced_paths, top): (ReferencedPaths, &[u8]),
        by: &[u8],
    ) -> Result<(), SurveyError> {
        let ReferencedPaths { any, files } = referenced_paths;
        let files = files.into_iter().filter(|file| !self.leads_to_directory(file)).collect::<Vec<_>>();
        // If a directory above is moved, a relative path leads elsewhere.
        let leaves = |referenced_path: &[u8]| {
            !is_at_or_beneath(top, referenced_path) || referenced_path.split(|b| *b == b'/').any(|part| part == b"..")
        };
        if any.iter().chain(&files).any(|referenced_path| leaves(referenced_path)) {
            self.found.pins.insert(by.to_vec());
        }
        any.into_iter().chain(files).try_for_each(|referenced_path| self.add_path(referenced_path, by, 0))
    }

    fn leads_to_directory(&self, referenced_path: &[u8]) -> bool {
        self.view.resolve_path(referenced_path).is_some_and(|chain| self.kind_of(&chain.end) == FileType::Directory)
    }

    /// Adds a link with a guarded name or, if not `whole`, with a name above a guarded one.
    fn add_link(&mut self, link: &[u8], whole: bool, depth: usize) -> Result<(), SurveyError> {
        let below: Vec<PathBuf> = self.names.carried_by(link);
        if !whole && below.is_empty() || depth > MAX_LINK_DEPTH {
            return Ok(());
        }
        self.found.pins.insert(link.to_vec());
        let Some(LinkChain { links, end, missing, closed }) = self.view.follow_link(link) else { return Ok(()) };
        for referenced_path in links.into_iter().chain(missing).chain(closed) {
            self.add_target(referenced_path, link)?;
        }
        if fold_name(last_component(link)).as_ref() == b".git" {
            self.add_repository_of(&end, parent_path(link))?;
        }
        if whole {
            return self.add_path(end, link, depth);
        }
        for rest in below {
            self.add_path(join_name(&end, rest.as_os_str().as_encoded_bytes()), link, depth)?;
        }
        Ok(())
    }

    /// Adds a guarded path, and every link on the way to it.
    fn add_path(&mut self, referenced_path: Vec<u8>, by: &[u8], depth: usize) -> Result<(), SurveyError> {
        // A path that leads nowhere is guarded by its text.
        let Some(LinkChain { links, end, missing, closed }) = self.view.resolve_path(&referenced_path) else {
            return self.add_target(referenced_path, by);
        };
        // The run may make a tree that does not exist yet.
        let missing = missing.filter(|missing| !is_at_or_beneath(missing, self.tree));
        for target in links.into_iter().chain(missing).chain(closed) {
            self.add_target(target, by)?;
        }
        if !self.is_git_own(&end) {
            self.add_target(end.clone(), by)?;
        }
        if depth > MAX_LINK_DEPTH || !self.known_paths.insert(end.clone()) {
            return Ok(());
        }
        match self.kind_of(&end) {
            // Also if the run may not write there: a link in it may lead back.
            FileType::Directory => {
                self.rest.push(PendingDirectory { path: end, guarded: true, depth: SurveyDepth::Whole });
                Ok(())
            }
            FileType::RegularFile => self.look_at_file(&end, true),
            _ => Ok(()),
        }
    }

    fn add_target(&mut self, referenced_path: Vec<u8>, by: &[u8]) -> Result<(), SurveyError> {
        // If a file is granted by its name, the user has agreed to this file.
        if referenced_path == self.tree && self.kind_of(&referenced_path) == FileType::RegularFile {
            return Ok(());
        }
        if is_at_or_beneath(&referenced_path, self.tree) {
            return Err(SurveyError::Covers(shown(by)));
        }
        if self.found.targets.len() >= MAX_GUARDED_PATHS {
            return Err(SurveyError::TooManyPaths);
        }
        if self.is_writable(&referenced_path) {
            self.found.targets.insert(referenced_path);
        }
        Ok(())
    }

    /// Returns whether a path is in the directory of a repository and its name decides on its
    /// changes. Such paths are the settings, and the directory of a module or another work tree.
    fn is_git_own(&self, end: &[u8]) -> bool {
        let part = GitPathKind::classify_path(end, 0).map(|(top, part)| (&end[top..], part));
        let is_own =
            |beneath: &[u8]| [&b"/modules/"[..], b"/worktrees/"].iter().any(|segment| beneath.starts_with(segment));
        self.is_writable(end)
            && part.is_some_and(|(beneath, part)| match part {
                GitPathKind::Checked(GuardedContent::Settings) => true,
                GitPathKind::Directory => is_own(beneath),
                _ => false,
            })
    }

    /// Returns whether the run may write there at all. Other paths need no guard.
    fn is_writable(&self, referenced_path: &[u8]) -> bool {
        self.writable.iter().any(|root| is_at_or_beneath(root, referenced_path))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{create_dir_all, write};
    use std::os::fd::AsFd;

    use rustix::fs::{Mode, OFlags, mkdirat, openat};

    use super::*;

    const HOOKS: &str = "[core]\nhooksPath = tools/hooks\n";

    /// Surveys `/ws` in a root with these files, and returns the result.
    fn survey_of(files: &[(&str, &str)]) -> Result<GuardedPaths, SurveyError> {
        let scratch = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = scratch.path().join(path);
            create_dir_all(path.parent().unwrap()).unwrap();
            write(path, text).unwrap();
        }
        let root = std::fs::File::open(scratch.path()).unwrap();
        survey_in(RootView::new(root.as_fd()))
    }

    fn survey_in(view: RootView<'_>) -> Result<GuardedPaths, SurveyError> {
        let (names, tree) = (GuardedNames::new(&[".git".to_owned()]), b"/ws".to_vec());
        let known = (&GlobalSettings::default(), &TrustedParts::default());
        survey_tree(view, (&tree, std::slice::from_ref(&tree)), &names, known)
    }

    #[track_caller]
    fn assert_guarded(files: &[(&str, &str)], referenced_path: &str) {
        let found = survey_of(files).unwrap();
        assert!(found.targets.contains(referenced_path.as_bytes()), "{referenced_path}: {:?}", found.targets);
    }

    #[test]
    fn settings_count_without_the_other_parts_of_a_repository() {
        assert_guarded(&[("ws/.git/config", HOOKS)], "/ws/tools/hooks");
        assert_guarded(&[("ws/a/.git/config.worktree", HOOKS)], "/ws/a/tools/hooks");
        let module = format!("{HOOKS}worktree = ../../../m\n");
        assert_guarded(&[("ws/.git/modules/m/config", &module)], "/ws/m/tools/hooks");
        let settings_files = [("ws/.git/config", HOOKS), ("ws/.git/worktrees/w/config.worktree", HOOKS)];
        let pointer = ("ws/.git/worktrees/w/gitdir", "/ws/w/.git\n");
        assert_guarded(&[settings_files[0], settings_files[1], pointer], "/ws/w/tools/hooks");
        // A branch and a directory of any other name.
        let found = survey_of(&[("ws/.git/refs/heads/config", HOOKS), ("ws/b/config", HOOKS)]).unwrap();
        assert!(found.targets.is_empty(), "{:?}", found.targets);
    }

    #[test]
    fn settings_are_found_by_a_path_longer_than_one_call_takes() {
        let scratch = tempfile::tempdir().unwrap();
        let root = std::fs::File::open(scratch.path()).unwrap();
        let (mut held, mut top) = (rustix::fd::OwnedFd::from(root.try_clone().unwrap()), Vec::new());
        let names = std::iter::once(&b"ws"[..]).chain(std::iter::repeat_n(&[b'd'; 200][..], 40));
        for name in names.chain([&b".git"[..]]) {
            mkdirat(&held, name, Mode::RWXU).unwrap();
            held = openat(&held, name, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
            top = join_name(&top, name);
        }
        let config = openat(&held, "config", OFlags::CREATE | OFlags::WRONLY, Mode::RUSR | Mode::WUSR).unwrap();
        rustix::io::write(&config, HOOKS.as_bytes()).unwrap();
        let found = survey_in(RootView::new(root.as_fd())).unwrap();
        assert!(found.targets.contains(&join_name(parent_path(&top), b"tools/hooks")));
    }

    #[test]
    fn an_error_names_the_path_and_a_remedy() {
        let long = format!("[color]\n{}", "ui\n".repeat(3_000_000));
        let error = survey_of(&[("ws/a/.git/config", &long)]).unwrap_err().to_string();
        assert!(error.starts_with("git's settings in /ws/a/.git/config cannot be read whole"), "{error}");
        assert!(error.contains("(hint: remove"), "{error}");
        assert!(SurveyError::TimedOut(shown(b"/ws/n1")).to_string().contains("had reached /ws/n1"));
    }
}
