//! Symbolic links that would lead git to a path other than the checked one. A `.git` file names a
//! path, and a link on that path leads to another repository. A remote's address names a path, and
//! a link leads to files that the run may not read. The check runs before a link is made or a
//! directory is moved. The check runs again afterwards on the actual state, because another run may
//! have written the text.

use std::os::fd::AsFd as _;

use rustix::fs::FileType;
use stockade_model::{DeniedOperation, IsolationLevel};
use stockade_permissions::guards::pointers::{
    MAX_POINTER_BYTES, has_link, leading_through, may_lead_elsewhere, target_of,
};
use stockade_permissions::guards::view::{LinkChain, ObjectPresence, join_relative, parent_path};
use stockade_permissions::guards::{RootView, open_host_root};
use stockade_permissions::powers::is_at_or_beneath;

use super::call_result::{CallResult, refuse_until_granted};
use super::service::BrokerService;

/// Returns whether a path is in the procfs directory of a process, named by its number.
fn is_in_process(path: &[u8]) -> bool {
    let number = path.strip_prefix(b"/proc/").and_then(|rest| rest.split(|byte| *byte == b'/').next());
    number.is_some_and(|number| !number.is_empty() && number.iter().all(u8::is_ascii_digit))
}

/// Suffixes with which git looks for a repository at an address (`enter_repo` in path.c).
const REPOSITORY_SUFFIXES: [&[u8]; 4] = [b"", b"/.git", b".git", b".git/.git"];

impl BrokerService {
    /// Checks whether a link with this text may have the name `path`.
    pub(super) fn permit_link_target(&self, path: &[u8], text: &[u8], operation: DeniedOperation) -> CallResult<()> {
        let Some(own) = self.root_view() else { return Ok(()) };
        if !self.checks_links_at(path) {
            return Ok(());
        }
        let refuse = |rule: &str| Err(refuse_until_granted(operation, path, rule));
        let host = open_host_root()?;
        // The user follows the link on the host, where for example `/tmp` is another directory than
        // in the run.
        let views = [Some(own), self.powers.renamed_workspace().is_none().then(|| RootView::new(host.as_fd()))];
        let (mut leads, mut shows) = (false, false);
        for (number, view) in views.into_iter().flatten().enumerate() {
            // A loop of links leads nowhere.
            let Some(LinkChain { end, missing, closed, .. }) =
                view.resolve_path(&join_relative(parent_path(path), text))
            else {
                continue;
            };
            if closed.is_some() {
                return refuse("a link whose target cannot be found");
            }
            // A later process of the user's or of Stockade may have this number.
            if is_in_process(&end) {
                return refuse("a link to an open file of a process");
            }
            if number > 0 && view.shows_as(own, &end) {
                continue;
            }
            if self.powers.hidden_refusal(&end).is_some() {
                return refuse("a link to a path that is hidden from runs");
            }
            let there = view.probe_object(&end);
            let may_be_directory = there != ObjectPresence::Nothing
                && matches!(there, ObjectPresence::Is(FileType::Directory) | ObjectPresence::Unknown);
            let is_private = self.powers.in_private_tree(&end);
            // Nothing is checked in a private tree, and the user sees that tree too while the run lasts.
            let known = missing.as_deref().map_or(&end[..], parent_path);
            let is_on_host = || self.level != IsolationLevel::Full || RootView::new(host.as_fd()).shows_as(own, known);
            if is_private && (may_be_directory || there == ObjectPresence::Nothing) && is_on_host() {
                return refuse("a link to a directory that ends with the run");
            }
            if may_be_directory && self.is_above_closed(&end) && self.completes_link(view, (path, &end)) {
                return refuse("a link by which another one leads to a path that is hidden from runs");
            }
            shows |= may_be_directory
                && (self.powers.hidden.paths().iter().any(|hidden| is_at_or_beneath(&end, hidden)) || is_private);
            leads |= may_be_directory && may_lead_elsewhere(view, &end, false);
        }
        match leads || shows {
            true => self.permit_git_route(own, path, shows, operation),
            false => Ok(()),
        }
    }

    /// Checks whether the directory at `now` may have the name `path`, with the links in it.
    pub(super) fn permit_links_within(&self, now: &[u8], path: &[u8]) -> CallResult<()> {
        let Some(view) = self.root_view() else { return Ok(()) };
        if !self.checks_links_at(path) {
            return Ok(());
        }
        // A relative link leads elsewhere after the move.
        let leads_to_closed = |link: &[u8]| {
            let (Some(within), Ok(text)) = (link.strip_prefix(now), view.link_text(link)) else { return true };
            let new = [path, within].concat();
            let Some(LinkChain { end, .. }) = view.resolve_path(&join_relative(parent_path(&new), &text)) else {
                return false;
            };
            let is_as_before = || view.resolve_path(link).is_some_and(|before| before.end == end);
            let completes = || self.is_above_closed(&end) && self.completes_link(view, (&new, &end));
            self.is_closed(&end) && !is_as_before() || completes()
        };
        // After the move its old target is unknown.
        if now != path && has_link(view, now, &leads_to_closed) {
            let rule = "a link in it would lead to a path that is hidden from runs";
            return Err(refuse_until_granted(DeniedOperation::Rename, path, rule));
        }
        match may_lead_elsewhere(view, now, true) {
            true => self.permit_git_route(view, path, true, DeniedOperation::Rename),
            false => Ok(()),
        }
    }

    /// Returns whether no link of a run may lead to `resolved`: it is hidden, private (where nothing
    /// is checked), or open in a process.
    fn is_closed(&self, resolved: &[u8]) -> bool {
        self.powers.hidden_refusal(resolved).is_some()
            || self.powers.in_private_tree(resolved)
            || is_in_process(resolved)
    }

    /// Returns whether a link to `end` could be a part of the way to such a path.
    fn is_above_closed(&self, end: &[u8]) -> bool {
        let is_above = |closed: &[u8]| end == b"/" || is_at_or_beneath(end, closed);
        self.powers.hidden.paths().iter().any(|hidden| is_above(hidden)) || is_above(b"/proc") || self.is_closed(end)
    }

    /// Returns whether an existing dangling link passes over `new`, and would lead to such a path
    /// if `new` led to `end`.
    fn completes_link(&self, view: RootView<'_>, (new, end): (&[u8], &[u8])) -> bool {
        let passes = |link: &[u8]| {
            let Some(LinkChain { end: link_end, missing: Some(_), .. }) = view.resolve_path(link) else { return false };
            let Some(rest) = link_end.strip_prefix(new).filter(|rest| rest.starts_with(b"/")) else { return false };
            let end = if end == b"/" { b"" } else { end };
            self.is_closed(&[end, rest].concat())
        };
        self.powers.writable.paths().iter().any(|root| has_link(view, root, &passes))
    }

    /// Returns whether the check applies to `path`: it is writable, not private, and no grant names it.
    fn checks_links_at(&self, path: &[u8]) -> bool {
        !self.powers.in_private_tree(path) && !self.powers.is_named(path) && self.powers.root_length(path).is_some()
    }

    /// Refuses if a text leads git along a way on which `path` is.
    fn permit_git_route(
        &self,
        view: RootView<'_>,
        path: &[u8],
        addresses: bool,
        operation: DeniedOperation,
    ) -> CallResult<()> {
        let passes = |resolved: &[u8]| {
            view.resolve_path(resolved).is_none_or(|chain| {
                chain.links.iter().any(|link| is_at_or_beneath(path, link))
                    || chain.missing.as_deref() == Some(path)
                    || chain.closed.is_some()
                    || is_at_or_beneath(path, &chain.end)
            })
        };
        for root in self.powers.writable.paths() {
            let rule = match leading_through(view, root, addresses, &passes) {
                Ok(None) => continue,
                Ok(Some(file)) => {
                    let file = String::from_utf8_lossy(&file).escape_debug().to_string();
                    format!("a link on the way on which {file} leads git")
                }
                Err(errno) => format!("a link where not all that leads git can be looked through: {errno}"),
            };
            return Err(refuse_until_granted(operation, path, rule));
        }
        Ok(())
    }

    /// Returns whether the run may read everything that git would fetch from the path of a remote, now
    /// and later. A text or a `.git` file written there afterwards could lead elsewhere. The
    /// content there must also be checked, because a push runs the hooks of such a repository.
    pub(super) fn may_fetch(&self, resolved: &[u8]) -> bool {
        let Some(view) = self.root_view() else { return false };
        let Ok(host) = open_host_root() else { return false };
        let views = (view, RootView::new(host.as_fd()));
        REPOSITORY_SUFFIXES.iter().all(|end| self.may_fetch_from(views, &[resolved, end].concat(), end.is_empty()))
    }

    /// Returns whether `.gitmodules` may name the path: as [`may_fetch`](Self::may_fetch), and if
    /// nothing is there, in the run and on the host. Git takes a relative address from that of the
    /// repository's remote, so the path is mostly a guess, and the file is shown in every review.
    pub(super) fn may_name_module(&self, resolved: &[u8]) -> bool {
        let Some(view) = self.root_view() else { return false };
        let Ok(host) = open_host_root() else { return false };
        let views = [view, RootView::new(host.as_fd())];
        let is_absent = |end: &[u8]| {
            views.iter().all(|view| view.probe_object(&[resolved, end].concat()) == ObjectPresence::Nothing)
        };
        self.may_fetch(resolved)
            || (self.powers.hidden_refusal(resolved).is_none() && REPOSITORY_SUFFIXES.iter().all(|end| is_absent(end)))
    }

    /// As [`may_fetch`](Self::may_fetch), for one path that git tries. `is_address` is true for the
    /// address itself.
    fn may_fetch_from(&self, (own, host): (RootView<'_>, RootView<'_>), path: &[u8], is_address: bool) -> bool {
        let Some(end) = self.readable_end((own, host), path) else { return false };
        let is_writable = self.powers.root_length(&end).is_some();
        match own.probe_object(&end) {
            ObjectPresence::Nothing => !is_address || !is_writable,
            ObjectPresence::Is(FileType::Directory) => true,
            // The file is a bundle, or may become a `.git` file later.
            ObjectPresence::Is(FileType::RegularFile) if is_address && is_writable => false,
            ObjectPresence::Is(FileType::RegularFile) => own.read_known(&end, MAX_POINTER_BYTES).is_ok_and(|text| {
                let text = text.unwrap_or_default();
                let target = target_of(parent_path(&end), &text);
                !text.starts_with(b"gitdir:") || target.is_some_and(|to| self.readable_end((own, host), &to).is_some())
            }),
            ObjectPresence::Is(_) | ObjectPresence::Unknown => false,
        }
    }

    /// Returns the end of `path`, if the run may read it and it means the same to the user.
    fn readable_end(&self, (own, host): (RootView<'_>, RootView<'_>), path: &[u8]) -> Option<Vec<u8>> {
        let end_in =
            |view: RootView<'_>| view.resolve_path(path).filter(|chain| chain.closed.is_none()).map(|chain| chain.end);
        let end = end_in(own)?;
        let differs_on_host = |path: &[u8]| {
            self.powers.hidden_refusal(path).is_some()
                || self.powers.is_only_in_run(path)
                || self.powers.layers.covers(path)
        };
        let is_same = match self.powers.renamed_workspace() {
            // The user has the workspace elsewhere, so nothing must exist at this path on the host.
            Some((inside, _)) => {
                let is_own = is_at_or_beneath(inside, &end) || own.probe_object(&end) == ObjectPresence::Nothing;
                is_own && host.probe_object(path) == ObjectPresence::Nothing
            }
            None => end_in(host)? == end && (own.probe_object(&end) == host.probe_object(&end)),
        };
        (is_same && !differs_on_host(path) && !differs_on_host(&end)).then_some(end)
    }
}
