//! Files of git that are written in their place: those that lead it from one directory to
//! another, `.git` in a work tree or a module and `commondir`, and what is judged and new, which
//! a checkout and other programs than git itself make so. The program gets a file without a name
//! instead; once nobody writes to it any more, which is looked at before each further call,
//! what it says is judged, and a file that the broker wrote takes the place.

use std::cell::{Cell, RefCell};
use std::ffi::CString;
use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, ResolveFlags, fstat, openat, openat2, unlinkat};
use stockade_model::{Grant, Operation};
use stockade_sys::{Errno, actor, resolve};

use super::deed::Step;
use super::judged::{carries_code, content, max_bytes};
use super::ledger::Actor;
use super::opens::{Wish, finish};
use super::service::{Failure, Service, native_access, refused};
use super::walk::{Directory, Place};
use crate::guards::View;
use crate::guards::git_part::{GitPart, Judged};
use crate::guards::pointers::{MAX_POINTER_BYTES, place_of, target_of, work_trees_of};
use crate::guards::settings_judge::{Judgement, work_tree_of_module};
use crate::guards::view::{join, parent};
use crate::powers::{Refusal, covers, to_path};

/// How soon, and how late, it is looked whether one is written.
const SOON: Duration = Duration::from_millis(1);
const LATER: Duration = Duration::from_millis(200);
/// How many may be written at once.
const MAX_WRITTEN: usize = 64;

/// What a file is that is written in its place.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Judged as those that git renames.
    Judged(Judged),
    /// `.git`, a file.
    WorkTree,
    CommonDirectory,
    Number,
}

/// One that is still written.
struct Written {
    kind: Kind,
    /// What is written, open for reading.
    text: File,
    place: Place,
    mode: u32,
    /// Nothing was there: what is there now is empty, and the broker's.
    is_new: bool,
}

/// Those that are still written, and when the last of them was begun.
#[derive(Default)]
pub(super) struct WrittenInPlace(RefCell<Vec<Written>>, Cell<Option<Instant>>);

impl WrittenInPlace {
    fn push(&self, file: Written) {
        self.0.borrow_mut().push(file);
        self.1.set(Some(Instant::now()));
    }

    /// Within what time to look whether one is written: at first soon, as its program may read
    /// it next.
    pub fn look_within(&self) -> Option<Duration> {
        let begun = self.1.get().filter(|_| !self.0.borrow().is_empty())?;
        Some((begun.elapsed() / 8).clamp(SOON, LATER))
    }
}

impl Written {
    /// What it says, one byte more than `max_bytes` at most.
    fn text(&self, max_bytes: u64) -> Result<Vec<u8>, Errno> {
        let mut text = Vec::new();
        (&self.text).take(max_bytes + 1).read_to_end(&mut text).map_err(|_| Errno::IO)?;
        Ok(text)
    }
}

/// What a program begins with that writes a file in its place.
struct Begun {
    mode: u32,
    /// Nothing is there, and the program is to find an empty file.
    is_new: bool,
    text: Vec<u8>,
}

/// None where such a file is not written in its place.
fn begun(kind: Kind, place: &Place, wish: Wish) -> Result<Option<Begun>, Errno> {
    // Those that are there are replaced as a whole, see `judged`.
    let is_whole = matches!(kind, Kind::Judged(Judged::Settings | Judged::Modules | Judged::Index));
    let is_of_project = matches!(kind, Kind::Judged(Judged::Project(_)));
    let held = match place.step() {
        Err(Errno::NOENT) if wish.creates() => {
            let mode = wish.mode_of_new().bits() & 0o777;
            return Ok(Some(Begun { mode, is_new: is_whole || is_of_project, text: Vec::new() }));
        }
        Err(_) => return Ok(None),
        Ok(held) => held,
    };
    let stat = fstat(&held)?;
    if is_whole || FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || stat.st_nlink != 1 {
        return Ok(None);
    }
    if wish.must_be_new() {
        return Err(Errno::EXIST);
    }
    // What is there keeps its mode.
    let begun = |text| Ok(Some(Begun { mode: stat.st_mode & 0o777, is_new: false, text }));
    let Kind::Judged(judged @ Judged::Project(_)) = kind else {
        return if wish.creates() && wish.replaces() { begun(Vec::new()) } else { Ok(None) };
    };
    if !wish.writes() {
        return Ok(None);
    }
    native_access(&held, wish.access())?;
    // What a project has may be written further.
    let text = if wish.replaces() { Some(Vec::new()) } else { content(&held, max_bytes(judged))? };
    text.map_or(Ok(None), begun)
}

impl Service {
    /// Opens a file that is judged once it is written, where this one may be made or replaced
    /// then.
    pub(super) fn open_in_place(&self, place: &Place, path: &[u8], wish: Wish) -> Result<Option<Step>, Failure> {
        let Some(kind) = self.kind_in_place(path) else { return Ok(None) };
        let is_hidden = self.powers.hides(path).is_some();
        if place.on_proc || is_hidden || self.in_place.0.borrow().len() >= MAX_WRITTEN {
            return Ok(None);
        }
        let Some(Begun { mode, is_new, text }) = begun(kind, place, wish)? else { return Ok(None) };
        if self.refusal_of_place(Operation::Create, path).is_some() {
            return Ok(None);
        }
        let directory = self.through(place, path);
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let written = File::from(openat(&directory, c".", flags, Mode::from_raw_mode(0o600))?);
        // Its program begins at the beginning.
        written.write_all_at(&text, 0).map_err(|_| Errno::IO)?;
        let by_descriptor = resolve::DescriptorPath::new(written.as_fd());
        let text = openat(CWD, by_descriptor.as_c_str(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        if is_new {
            // The program finds at once what it has made.
            self.put_text((place, directory.as_fd(), path), b"", (mode, RenameFlags::NOREPLACE))?;
        }
        let held = Directory {
            fd: place.directory.fd.try_clone().map_err(|_| Errno::MFILE)?,
            path: place.directory.path.clone(),
        };
        let place = Place { directory: held, name: place.name.clone(), slash: false, special: false, on_proc: false };
        self.in_place.push(Written { kind, text: File::from(text), place, mode, is_new });
        Ok(Some(Step::Done(finish(OwnedFd::from(written), wish)?)))
    }

    fn kind_in_place(&self, path: &[u8]) -> Option<Kind> {
        match (self.judged(path), self.powers.git_part(path)) {
            (Some(judged), _) => Some(Kind::Judged(judged)),
            (_, Some(GitPart::Top)) => Some(Kind::WorkTree),
            (_, Some(GitPart::CommonDirectory)) => Some(Kind::CommonDirectory),
            (_, Some(GitPart::Number)) => Some(Kind::Number),
            _ => None,
        }
    }

    /// Puts those in their place that are written.
    pub(super) fn settle_in_place(&self) {
        self.settle(|file| !matches!(actor::has_writer(file.text.as_fd()), Ok(true)));
    }

    /// The same with all of them, at the end: as far as they are written.
    pub(super) fn settle_rest(&self) {
        self.settle(|_| true);
    }

    fn settle(&self, is_written: impl Fn(&Written) -> bool) {
        if self.in_place.0.borrow().is_empty() {
            return;
        }
        let mut waiting = self.in_place.0.borrow_mut();
        let all = std::mem::take(&mut *waiting);
        let (written, open): (Vec<_>, Vec<_>) = all.into_iter().partition(is_written);
        *waiting = open;
        drop(waiting);
        for file in written {
            let put = match file.kind {
                Kind::Judged(judged) => self.settle_judged(&file, judged),
                kind => self.put_pointer(&file, kind),
            };
            if let Err(Failure::Refused(denied)) = put {
                self.ledger().record(denied, Actor::default);
            }
        }
    }

    /// Puts what is judged in its place, without what carries code.
    fn settle_judged(&self, file: &Written, judged: Judged) -> Result<(), Failure> {
        let (place, path) = (&file.place, file.place.path());
        let max_bytes = max_bytes(judged);
        let text = file.text(max_bytes)?;
        let now = match place.step() {
            Err(Errno::NOENT) => Vec::new(),
            there => content(&there?, max_bytes)?.ok_or(Errno::FBIG)?,
        };
        let judgement = match text.len() as u64 > max_bytes {
            true => Judgement::Carries { what: "more text than is judged".to_owned(), without: None },
            false => self.judgement(judged, place, &now, &text)?,
        };
        let (harmless, carried) = match judgement {
            Judgement::Harmless => (Some(text), None),
            Judgement::HarmlessWith(text) => (Some(text), None),
            Judgement::Carries { what, without } => (without, Some(what)),
        };
        let (is_missing, is_left_out) = (|| place.step().is_err(), harmless.is_none());
        if let Some(text) = harmless.filter(|text| *text != now || is_missing()) {
            let directory = self.through(place, &path);
            let put = (file.mode, RenameFlags::empty());
            self.put_judged((place, directory.as_fd(), &path), (judged, &now, &text), put)?;
        }
        let Some(what) = carried else { return Ok(()) };
        // What was put there for it is empty.
        if is_left_out && file.is_new && now.is_empty() && matches!(judged, Judged::Project(_)) {
            let _ = unlinkat(self.through(place, &path), &place.name, AtFlags::empty());
        }
        Err(refused(Operation::Create, &path, carries_code(&path, &what)))
    }

    /// Puts what leads git, or counts, in its place, where it says one of the few things that
    /// git itself writes there.
    fn put_pointer(&self, file: &Written, kind: Kind) -> Result<(), Failure> {
        let path = file.place.path();
        let text = file.text(MAX_POINTER_BYTES)?;
        let is_known = match kind {
            Kind::CommonDirectory => {
                // `.git/worktrees/NAME`
                let (kept, repository) = (parent(&path), parent(parent(parent(&path))));
                text.strip_suffix(b"\n").unwrap_or(&text) == b"../.."
                    && !self.names_in_any_work_tree(kept)
                    && !self.has_relative_addresses(repository)
            }
            Kind::Number => text.trim_ascii_end().iter().all(u8::is_ascii_digit),
            Kind::WorkTree => self.permit_work_tree_of(&file.place, &path, &text)?,
            Kind::Judged(_) => false,
        };
        if !is_known {
            let shown = String::from_utf8_lossy(&text[..text.len().min(100)]).trim_end().escape_debug().to_string();
            let what = match kind {
                Kind::Number => "a step of a rebase that is no number",
                _ => "a file that leads git to a directory that is not its own",
            };
            let refusal = Refusal { rule: format!("{what}: {shown}"), grant: Some(Grant::Write(to_path(&path))) };
            return Err(refused(Operation::Create, &path, refusal));
        }
        let directory = self.through(&file.place, &path);
        self.put_text((&file.place, directory.as_fd(), &path), &text, (file.mode, RenameFlags::empty()))?;
        if kind != Kind::WorkTree {
            return Ok(());
        }
        // As for a directory of this name, and as before: another run may have been quicker.
        let is_moved = || resolve::path_of(file.place.directory.fd.as_fd()) != Ok(file.place.directory.path.clone());
        let again = self.permit_work_tree(&path, Operation::Create);
        let again = again.and_then(|()| if is_moved() { Err(Errno::STALE.into()) } else { Ok(()) });
        let again = again.and_then(|()| self.permit_work_tree_of(&file.place, &path, &text));
        let again = again.and_then(|is_known| if is_known { Ok(()) } else { Err(Errno::STALE.into()) });
        if let Err(failure) = again {
            let _ = unlinkat(&directory, &file.place.name, AtFlags::empty());
            return Err(failure);
        }
        // What it says was judged for this place.
        self.surveys.borrow_mut().pin(&path);
        Ok(())
    }

    /// Whether the settings of a repository name files from the top of each work tree: what is
    /// there would be run or obeyed once `kept`, which it keeps of one, is complete.
    fn names_in_any_work_tree(&self, kept: &[u8]) -> bool {
        let Some(first) = &self.first else { return true };
        let anywhere = join(kept, b"top");
        self.surveys.borrow().names_in_work_tree(View::new(first.root.as_fd()), kept, &anywhere)
    }

    /// Whether the text of a `.git` file leads to what git keeps of another work tree or of a
    /// module, in a `.git` that the run may write.
    fn permit_work_tree_of(&self, place: &Place, path: &[u8], text: &[u8]) -> Result<bool, Failure> {
        let top = &place.directory.path[..];
        let Some(target) = target_of(top, text) else { return Ok(false) };
        let Some((end, GitPart::Directory)) = GitPart::of(&target, 0) else { return Ok(false) };
        let (repository, beneath) = target.split_at(end);
        let is_own = self.powers.git_part(&target) == Some(GitPart::Directory);
        let above = repository.strip_suffix(b"/.git").unwrap_or(b"");
        // Another work tree may lie beside, where a grant lets it be written.
        let is_kept = beneath.starts_with(b"/worktrees/")
            || beneath.starts_with(b"/modules/")
                && covers(above, top)
                && self.powers.root_length(&target) == self.powers.root_length(path);
        if !is_own || !is_kept || above == top || !self.holds_no_link(repository, beneath) {
            return Ok(false);
        }
        if beneath.starts_with(b"/modules/") && !self.may_lead_from(&target, top)? {
            return Ok(false);
        }
        // Another place than before is no work of git's.
        if let Ok(there) = place.step()
            && content(&there, MAX_POINTER_BYTES)?.and_then(|text| target_of(top, &text)).as_ref() != Some(&target)
        {
            return Ok(false);
        }
        self.permit_work_tree(path, Operation::Create)?;
        let Some(first) = &self.first else { return Ok(false) };
        let view = View::new(first.root.as_fd());
        let surveys = self.surveys.borrow();
        let names = [repository, &target].iter().any(|from| surveys.names_in_work_tree(view, from, top));
        Ok(!names)
    }

    /// Whether a `.git` file in the directory `top` may lead to the repository `module`: git
    /// writes to the work tree that the settings of a module name, whatever led it there.
    fn may_lead_from(&self, module: &[u8], top: &[u8]) -> Result<bool, Failure> {
        let Some(first) = &self.first else { return Ok(false) };
        let view = View::new(first.root.as_fd());
        let settings = join(module, b"config");
        let Some(text) = view.read(&settings, max_bytes(Judged::Settings)) else {
            return Ok(!self.exists(&to_path(&settings)) && self.is_alone(module, top)?);
        };
        match work_tree_of_module(&settings, &text) {
            Some(named) => Ok(named == top),
            None => self.is_alone(module, top).map_err(Failure::from),
        }
    }

    /// Whether no other directory than `top` leads to the repository `module`.
    fn is_alone(&self, module: &[u8], top: &[u8]) -> Result<bool, Errno> {
        let (Some(first), Some(length)) = (&self.first, self.powers.root_length(module)) else { return Ok(false) };
        let all = work_trees_of(View::new(first.root.as_fd()), &module[..length], module)?;
        Ok(all.iter().all(|directory| directory == top))
    }

    /// Whether the `.git` file in the directory `top` leads to the repository `module`, no
    /// link is on the way, and it is the only one that does.
    pub(super) fn is_only_way(&self, top: &[u8], module: &[u8]) -> Result<bool, Errno> {
        let Some(first) = &self.first else { return Ok(false) };
        let text = View::new(first.root.as_fd()).read(&join(top, b".git"), MAX_POINTER_BYTES);
        let leads = text.and_then(|text| target_of(top, &text)).as_deref() == Some(module);
        Ok(leads && self.is_alone(module, top)?)
    }

    /// Whether `text`, in the file `gitdir` at `path`, names the `.git` of a directory that the
    /// run may write.
    pub(super) fn is_place_of_work_tree(&self, path: &[u8], text: &[u8]) -> bool {
        let text = text.strip_suffix(b"\n").unwrap_or(text);
        let Some(git) = place_of(parent(path), text) else { return false };
        let top = parent(&git);
        self.powers.git_part(&git) == Some(GitPart::Top) && self.holds_no_link(top, b"")
    }

    /// Whether a directory `.git` is there, and nothing that lies beneath on the way is a link.
    fn holds_no_link(&self, repository: &[u8], beneath: &[u8]) -> bool {
        let Some(first) = &self.first else { return false };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let how = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
        let open = |path: &[u8]| -> Result<OwnedFd, Errno> {
            let path = CString::new(path).map_err(|_| Errno::INVAL)?;
            openat2(&first.root, &path, flags, Mode::empty(), how)
        };
        let whole = [repository, beneath].concat();
        open(repository).is_ok() && matches!(open(&whole).map(drop), Ok(()) | Err(Errno::NOENT))
    }

    /// May `git`, a name `.git`, be made? What the person's settings name in every work tree
    /// must not be there yet.
    pub(super) fn permit_work_tree(&self, git: &[u8], operation: Operation) -> Result<(), Failure> {
        let (Some(first), Some(end)) = (&self.first, git.iter().rposition(|b| *b == b'/')) else {
            return Err(Errno::ACCESS.into());
        };
        match self.surveys.borrow().refusal_of_work_tree(View::new(first.root.as_fd()), &git[..end]) {
            Some(refusal) => {
                Err(refused(operation, git, Refusal { grant: Some(Grant::Write(to_path(git))), ..refusal }))
            }
            None => Ok(()),
        }
    }
}
