//! Archives unpacked into a tree. All objects are first prepared in a separate directory and then
//! renamed into place. If a rename fails, the earlier ones are undone, so a refused archive changes
//! nothing. Only a kill between two of the last renames leaves a part of the archive in place.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::fd::AsFd;

use rustix::fs::{AtFlags, RenameFlags, Stat, linkat, renameat_with, symlinkat};
use stockade_sys::Errno;
use stockade_sys::resolve::DescriptorPath;

use crate::archive::{Body, Member, Reader, refused};
use crate::error::{failed, failed_io};
use crate::object::{Kind, Object, entries, os};
use crate::tree::{Tree, demand, make_directory, new_file, own, settle};
use crate::{Bounds, FilesError, TreePath};

/// Bytes moved at once.
const CHUNK_BYTES: usize = 64 * 1024;

/// Target of an unpacked archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Where {
    /// A new directory, which appears complete.
    New,
    /// An existing directory, beside its content.
    Into {
        /// True if a file of the same name is replaced; false if it is a conflict.
        replace: bool,
    },
}

/// Result of unpacking.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Uploaded {
    /// Files, directories and links.
    pub entries: u64,
    /// Bytes of the files.
    pub bytes: u64,
}

impl Tree {
    /// Unpacks a tar archive. Refuses members that are absolute, contain `..`, pass a symbolic link
    /// or are special, and symbolic links that lead out of the target directory. Ignores owners and
    /// set-ID bits.
    ///
    /// # Errors
    /// An error if the archive is refused, a limit is exceeded, or an object is in the way. Then
    /// nothing has changed.
    pub fn upload(
        &self,
        path: &TreePath,
        input: &mut dyn Read,
        place: Where,
        bounds: Bounds,
    ) -> Result<Uploaded, FilesError> {
        if place == Where::New {
            let (parent, name) = self.place(path, Kind::Directory)?;
            if Object::find(parent.fd.as_fd(), name).map_err(failed("examine", path))?.is_some() {
                return Err(FilesError::Exists(path.clone()));
            }
        }
        let owner = match place {
            Where::New => self.place(path, Kind::Directory)?.0.stat,
            Where::Into { .. } => self.directory(path)?.stat,
        };
        let incoming = self.incoming()?;
        make_directory(incoming.directory(), OsStr::new("tree"), &owner).map_err(failed("make", path))?;
        let fresh = Object::find(incoming.directory(), OsStr::new("tree"))
            .map_err(failed("make", path))?
            .ok_or_else(|| FilesError::NotFound(path.clone()))?;
        let mut unpacking = Unpacking {
            fresh: Tree::of(fresh.fd),
            tree: self,
            at: path,
            owner,
            bounds,
            entries: 0,
            directories: Vec::new(),
        };
        let uploaded = unpacking.all(&mut Reader::new(input, bounds))?;
        match place {
            Where::New => {
                let (parent, name) = self.place(path, Kind::Directory)?;
                let flags = RenameFlags::NOREPLACE;
                renameat_with(incoming.directory(), "tree", &parent.fd, name, flags).map_err(failed("make", path))?;
                self.may_stay(path, Kind::Directory).inspect_err(|_| {
                    let _ = renameat_with(&parent.fd, name, incoming.directory(), "tree", flags);
                })?;
            }
            Where::Into { replace } => Placing::new(&unpacking.fresh, self, path, replace).all()?,
        }
        Ok(uploaded)
    }
}

/// An archive that is being unpacked into a new directory.
struct Unpacking<'t> {
    fresh: Tree,
    tree: &'t Tree,
    at: &'t TreePath,
    owner: Stat,
    bounds: Bounds,
    entries: u64,
    /// Modes that are set last, because a mode may forbid new entries in the directory.
    directories: Vec<(TreePath, u32)>,
}

impl Unpacking<'_> {
    fn all(&mut self, archive: &mut Reader<'_>) -> Result<Uploaded, FilesError> {
        while let Some(member) = archive.next()? {
            self.one(&member, archive)?;
        }
        self.may_be_placed()?;
        for (path, mode) in self.directories.iter().rev() {
            let directory = self.fresh.directory(path)?;
            directory.set_mode(mode & 0o777).map_err(failed("make", path))?;
        }
        Ok(Uploaded { entries: self.entries, bytes: archive.bytes() })
    }

    fn one(&mut self, member: &Member, archive: &mut Reader<'_>) -> Result<(), FilesError> {
        let Some((above, name)) = member.path.split() else {
            // The root itself, as `tar -c .` packs it.
            return match member.body {
                Body::Directory => Ok(()),
                _ => Err(refused(None, "its root is no directory")),
            };
        };
        let parent = self.parents(&above)?;
        self.count()?;
        let said = |error: FilesError| match error {
            FilesError::Exists(path) => refused(Some(bytes(&path)), "it is in the archive twice"),
            other => other,
        };
        match &member.body {
            Body::Directory => self.directory(member, &parent),
            Body::File => self.file(member, &parent, archive),
            Body::Link(text) => self.link(member, &parent, text),
            Body::Same(other) => self.same(other, &parent, name),
        }
        .map_err(said)
    }

    /// Returns the directory of a member. Makes it if the archive does not contain it.
    fn parents(&mut self, path: &TreePath) -> Result<Object, FilesError> {
        let there = self.fresh.directory(path);
        match (there, path.split()) {
            (Err(FilesError::NotFound(_)), Some((above, name))) => {
                let parent = self.parents(&above)?;
                self.count()?;
                make_directory(parent.fd.as_fd(), name, &self.owner).map_err(failed("make", path))?;
                self.fresh.directory(path)
            }
            (Err(FilesError::Led(_) | FilesError::Kind { .. }), _) => {
                Err(refused(Some(bytes(path)), "a member before it, which is no directory, would lead there"))
            }
            (there, _) => there,
        }
    }

    /// Checks whether each object may be at its path, after all objects are known. The meaning of
    /// an object can depend on the objects beside it.
    fn may_be_placed(&self) -> Result<(), FilesError> {
        let exists = |place: &TreePath| {
            place.within(self.at).is_some_and(|inner| self.fresh.find(&inner).is_ok()) || self.tree.find(place).is_ok()
        };
        let mut waiting = vec![TreePath::root()];
        while let Some(path) = waiting.pop() {
            let directory = self.fresh.directory(&path)?;
            for (name, _) in entries(directory.fd.as_fd()).map_err(failed("list", &path))? {
                let inner = path.join(os(&name));
                let object = self.fresh.find(&inner)?;
                self.tree.may_become(&self.at.beneath(&inner), object.kind(), &exists)?;
                if object.is_directory() {
                    waiting.push(inner);
                }
            }
        }
        Ok(())
    }

    fn count(&mut self) -> Result<(), FilesError> {
        self.entries += 1;
        if self.entries > self.bounds.entries {
            return Err(FilesError::TooMuch { limit: self.bounds.entries, unit: "entries" });
        }
        Ok(())
    }

    fn directory(&mut self, member: &Member, parent: &Object) -> Result<(), FilesError> {
        let path = &member.path;
        self.directories.push((path.clone(), member.mode | 0o700));
        match self.fresh.find(path) {
            // Present earlier in the archive, or made for an earlier member.
            Ok(there) => demand(&there, Kind::Directory, path),
            Err(FilesError::NotFound(_)) => {
                let name = path.split().map(|(_, name)| name).unwrap_or_default();
                make_directory(parent.fd.as_fd(), name, &self.owner).map_err(failed("make", path))
            }
            Err(error) => Err(error),
        }
    }

    fn file(&self, member: &Member, parent: &Object, archive: &mut Reader<'_>) -> Result<(), FilesError> {
        let path = &member.path;
        let name = path.split().map(|(_, name)| name).unwrap_or_default();
        let mut file = new_file(parent.fd.as_fd(), name).map_err(failed("write", path))?;
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            match archive.read(&mut chunk)? {
                0 => break,
                length => file.write_all(&chunk[..length]).map_err(failed_io("write", path))?,
            }
        }
        let made = Object::of(file.into()).map_err(failed("write", path))?;
        settle(&made, &self.owner, member.mode).map_err(failed("write", path))?;
        made.set_modified(member.modified).map_err(failed("write", path))
    }

    /// Makes a symbolic link. The target may lead up to the root of the archive at most, and then
    /// down. All parents of the link are directories and not links, so this check covers its real
    /// target.
    fn link(&self, member: &Member, parent: &Object, text: &[u8]) -> Result<(), FilesError> {
        let path = &member.path;
        let name = path.split().map(|(_, name)| name).unwrap_or_default();
        if !leads_inside(path.depth() - 1, text) {
            return Err(refused(Some(bytes(path)), "it is a link that leads out of the archive"));
        }
        symlinkat(os(text), &parent.fd, name).map_err(failed("make", path))?;
        let made = Object::find(parent.fd.as_fd(), name).map_err(failed("make", path))?;
        let made = made.ok_or_else(|| FilesError::NotFound(path.clone()))?;
        own(&made, &self.owner).map_err(failed("make", path))
    }

    fn same(&self, other: &TreePath, parent: &Object, name: &OsStr) -> Result<(), FilesError> {
        let known = self.fresh.find(other).ok().filter(|object| object.kind() == Kind::File);
        let known =
            known.ok_or_else(|| refused(Some(bytes(other)), "a link to it comes before it, or it is no file"))?;
        // By descriptor, so that no process can replace the file meanwhile.
        let held = DescriptorPath::new(known.fd.as_fd());
        linkat(rustix::fs::CWD, held.as_c_str(), &parent.fd, name, AtFlags::SYMLINK_FOLLOW)
            .map_err(failed("make", other))
    }
}

/// Returns whether a link target stays inside, for a link `depth` levels deep: first at most
/// `depth` times `..`, then names.
fn leads_inside(depth: usize, text: &[u8]) -> bool {
    let mut parts = text.split(|b| *b == b'/').filter(|part| !matches!(*part, b"" | b"."));
    let ups = parts.clone().take_while(|part| *part == b"..").count();
    !text.starts_with(b"/") && ups <= depth && parts.by_ref().skip(ups).all(|part| part != b"..")
}

fn bytes(path: &TreePath) -> &[u8] {
    path.as_path().as_os_str().as_encoded_bytes()
}

/// The unpacked objects, being moved beside the existing ones.
struct Placing<'t> {
    fresh: &'t Tree,
    tree: &'t Tree,
    at: &'t TreePath,
    replace: bool,
    /// Each moved name, and whether it was exchanged with an existing object.
    done: Vec<(TreePath, RenameFlags)>,
}

impl<'t> Placing<'t> {
    fn new(fresh: &'t Tree, tree: &'t Tree, at: &'t TreePath, replace: bool) -> Self {
        Self { fresh, tree, at, replace, done: Vec::new() }
    }

    fn all(mut self) -> Result<(), FilesError> {
        let mut waiting = vec![TreePath::root()];
        while let Some(directory) = waiting.pop() {
            if let Err(error) = self.directory(&directory, &mut waiting) {
                self.undo()?;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Moves the content of one directory. Directories that exist on both sides are processed
    /// later.
    fn directory(&mut self, path: &TreePath, waiting: &mut Vec<TreePath>) -> Result<(), FilesError> {
        let (from, to) = self.both(path)?;
        let mut names = entries(from.fd.as_fd()).map_err(failed("list", path))?;
        names.sort_unstable_by(|one, other| one.0.cmp(&other.0));
        for (name, _) in names {
            let inner = path.join(os(&name));
            let ours = Object::find(from.fd.as_fd(), os(&name)).map_err(failed("examine", &inner))?;
            let theirs = Object::find(to.fd.as_fd(), os(&name)).map_err(failed("examine", &inner))?;
            let kind = ours.as_ref().map(Object::kind);
            let flags = match (ours, theirs) {
                (Some(ours), Some(theirs)) if ours.is_directory() && theirs.is_directory() => {
                    waiting.push(inner);
                    continue;
                }
                (Some(ours), Some(theirs)) if self.replace && !ours.is_directory() && !theirs.is_directory() => {
                    RenameFlags::EXCHANGE
                }
                (_, Some(_)) => return Err(FilesError::Exists(self.at.beneath(&inner))),
                (_, None) => RenameFlags::NOREPLACE,
            };
            renameat_with(&from.fd, os(&name), &to.fd, os(&name), flags).map_err(failed("place", &inner))?;
            let placed = self.at.beneath(&inner);
            self.done.push((inner, flags));
            if let (RenameFlags::NOREPLACE, Some(kind)) = (flags, kind) {
                self.tree.may_stay(&placed, kind)?;
            }
        }
        Ok(())
    }

    fn undo(&mut self) -> Result<(), FilesError> {
        while let Some((path, flags)) = self.done.pop() {
            let Some((above, name)) = path.split() else { continue };
            let (from, to) = self.both(&above)?;
            match renameat_with(&to.fd, name, &from.fd, name, flags) {
                // Another process removed the object before.
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(failed("take back", &path)(errno)),
            }
        }
        Ok(())
    }

    /// Opens the same directory on both sides.
    fn both(&self, path: &TreePath) -> Result<(Object, Object), FilesError> {
        Ok((self.fresh.directory(path)?, self.tree.directory(&self.at.beneath(path))?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_inside_or_are_refused() {
        for (depth, text) in [(0, "a"), (0, "./a/b"), (1, "../a"), (2, ".././../a"), (0, "."), (0, "...")] {
            assert!(leads_inside(depth, text.as_bytes()), "{depth} {text}");
        }
        for (depth, text) in
            [(0, "/"), (0, "/etc/passwd"), (0, ".."), (1, "../../a"), (2, "a/.."), (1, "../a/../.."), (1, ".//..//..")]
        {
            assert!(!leads_inside(depth, text.as_bytes()), "{depth} {text}");
        }
    }
}
