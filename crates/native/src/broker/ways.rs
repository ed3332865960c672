//! Links by which git, led by a text, would come to another place than was judged: a `.git`
//! file says a path, and a link on that path leads to another repository; a remote's address
//! says one, and a link leads to what the run may not read. Looked at before a link is made or
//! a directory is moved and once more afterwards, in what is there: another run may have
//! written the text.

use std::os::fd::AsFd as _;

use rustix::fs::FileType;
use stockade_model::{Grant, Level, Operation};
use stockade_sys::Errno;

use super::service::{Failure, Service, refused};
use crate::guards::pointers::{MAX_POINTER_BYTES, leading_through, may_lead_elsewhere, target_of};
use crate::guards::view::{at, join, parent};
use crate::guards::{View, open_host_root};
use crate::powers::{Refusal, covers, to_path};

/// As git looks for a repository at an address (`enter_repo` in path.c).
const ENDS: [&[u8]; 3] = [b"", b".git", b"/.git"];

impl Service {
    /// May a link with this text be called `path`?
    pub(super) fn permit_way(&self, path: &[u8], text: &[u8], operation: Operation) -> Result<(), Failure> {
        let Some(first) = &self.first else { return Ok(()) };
        if !self.judges_ways(path) {
            return Ok(());
        }
        let refuse =
            |rule: String| Err(refused(operation, path, Refusal { rule, grant: Some(Grant::Write(to_path(path))) }));
        let (own, host) = (View::new(first.root.as_fd()), open_host_root()?);
        // The person follows the link, where a run has another `/tmp`.
        let views = [Some(own), self.powers.renamed_workspace().is_none().then(|| View::new(host.as_fd()))];
        let (mut leads, mut shows) = (false, false);
        for (number, view) in views.into_iter().flatten().enumerate() {
            let Some(end) = view.resolve_end(&at(parent(path), text)) else { continue };
            if number > 0 && view.shows_as(own, &end) {
                continue;
            }
            let kind = view.stat(&end).map(|stat| FileType::from_raw_mode(stat.st_mode));
            if self.powers.hides(&end).is_some() {
                return refuse("a link to what is hidden from runs".to_owned());
            }
            // There nothing is judged, and at level full the person has no such place.
            let may_be_directory = matches!(kind, Ok(FileType::Directory) | Err(Errno::NOENT));
            if self.level != Level::Full && may_be_directory && self.powers.in_private_tree(&end) {
                return refuse("a link to a directory that ends with the run".to_owned());
            }
            let is_directory = kind == Ok(FileType::Directory);
            shows |= is_directory && self.powers.hidden().iter().any(|hidden| covers(&end, hidden));
            leads |= is_directory && may_lead_elsewhere(view, &end, false);
        }
        match leads || shows {
            true => self.permit_led(own, path, shows, operation),
            false => Ok(()),
        }
    }

    /// May the directory at `now` be called `path`, with the links in it?
    pub(super) fn permit_way_of_links(&self, now: &[u8], path: &[u8]) -> Result<(), Failure> {
        let Some(first) = &self.first else { return Ok(()) };
        if !self.judges_ways(path) {
            return Ok(());
        }
        let view = View::new(first.root.as_fd());
        match may_lead_elsewhere(view, now, true) {
            true => self.permit_led(view, path, true, Operation::Rename),
            false => Ok(()),
        }
    }

    /// Whether what is called `path` is looked at: nothing that a grant names, or lies elsewhere.
    fn judges_ways(&self, path: &[u8]) -> bool {
        !self.powers.in_private_tree(path) && !self.powers.is_named(path) && self.powers.root_length(path).is_some()
    }

    /// Refuses where a text leads git along a way on which `path` lies.
    fn permit_led(&self, view: View<'_>, path: &[u8], addresses: bool, operation: Operation) -> Result<(), Failure> {
        let passes = |place: &[u8]| {
            view.resolve(place).is_some_and(|chain| {
                chain.links.iter().any(|link| covers(path, link))
                    || chain.missing.as_deref() == Some(path)
                    || covers(path, &chain.end)
            })
        };
        for root in self.powers.writable() {
            let rule = match leading_through(view, root, addresses, &passes) {
                Ok(None) => continue,
                Ok(Some(file)) => {
                    let file = String::from_utf8_lossy(&file).escape_debug().to_string();
                    format!("a link on the way on which {file} leads git")
                }
                Err(errno) => format!("a link where not all that leads git can be looked through: {errno}"),
            };
            return Err(refused(operation, path, Refusal { rule, grant: Some(Grant::Write(to_path(path))) }));
        }
        Ok(())
    }

    /// Whether the run may read all that git would fetch from the place of a remote, now and
    /// later: what is written there afterwards, or a `.git` file, could lead elsewhere.
    pub(super) fn may_fetch(&self, place: &[u8]) -> bool {
        let Some(first) = &self.first else { return false };
        let view = View::new(first.root.as_fd());
        if !ENDS.iter().all(|end| self.may_read(&[place, end].concat())) {
            return false;
        }
        let Some(chain) = view.resolve(place) else { return false };
        let is_writable = self.powers.root_length(&chain.end).is_some();
        if chain.missing.is_some() {
            return !is_writable;
        }
        let kind = view.stat(&chain.end).map(|stat| FileType::from_raw_mode(stat.st_mode));
        let leads_on = |file: &[u8]| {
            let text = view.read(file, MAX_POINTER_BYTES).unwrap_or_default();
            !text.starts_with(b"gitdir:") || target_of(parent(file), &text).is_some_and(|target| self.may_read(&target))
        };
        match kind {
            Ok(FileType::Directory) => leads_on(&join(&chain.end, b".git")),
            // A bundle, or a file that becomes something else.
            _ => !is_writable && leads_on(&chain.end),
        }
    }
}
