//! Archives unpacked into a tree. All objects are first prepared in a separate directory and then
//! renamed into place. If a rename fails, the earlier ones are undone, so a refused archive changes
//! nothing. Only a kill between two of the last renames leaves a part of the archive in place.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::fd::AsFd;

use rustix::fs::{RenameFlags, Stat, renameat_with, symlinkat};
use stockade_sys::Errno;

use crate::archive::{ArchiveMember, ArchiveReader, MemberBody, archive_error};
use crate::error::{errno_error, failed_io};
use crate::object::{ObjectKind, TreeObject, to_os_str};
use crate::tree::{FileTree, make_directory, new_file, require_kind, set_owner, set_owner_and_mode};
use crate::{ContentLimits, FilesError, TreePath};

/// Bytes moved at once.
const CHUNK_BYTES: usize = 64 * 1024;

/// Target of an unpacked archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UploadTarget {
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
pub struct UploadReport {
    /// Files, directories and links.
    pub entries: u64,
    /// Bytes of the files.
    pub bytes: u64,
}

impl FileTree {
    /// Unpacks a tar archive. Refuses members that are absolute, contain `..`, pass a symbolic link
    /// or are special, and symbolic links that lead out of the target directory. Ignores owners and
    /// set-ID bits.
    ///
    /// # Errors
    /// An error if the archive is refused, a limit is exceeded, or an object is in the way. Then
    /// nothing has changed.
    pub fn upload_archive(
        &self,
        path: &TreePath,
        input: &mut dyn Read,
        target: UploadTarget,
        bounds: ContentLimits,
    ) -> Result<UploadReport, FilesError> {
        if target == UploadTarget::New {
            let (parent, name) = self.open_parent(path, ObjectKind::Directory)?;
            if TreeObject::open_entry(parent.fd.as_fd(), name).map_err(errno_error("examine", path))?.is_some() {
                return Err(FilesError::Exists(path.clone()));
            }
        }
        let owner = match target {
            UploadTarget::New => self.open_parent(path, ObjectKind::Directory)?.0.stat,
            UploadTarget::Into { .. } => self.open_directory(path)?.stat,
        };
        let incoming = self.create_incoming()?;
        make_directory(incoming.directory(), OsStr::new("tree"), &owner).map_err(errno_error("make", path))?;
        let fresh = TreeObject::require_entry(incoming.directory(), "tree").map_err(errno_error("make", path))?;
        let mut unpacking = ArchiveUnpacker {
            fresh: FileTree::from_fd(fresh.fd),
            tree: self,
            at: path,
            owner,
            bounds,
            entries: 0,
            directories: Vec::new(),
        };
        let uploaded = unpacking.unpack_all(&mut ArchiveReader::new(input, bounds))?;
        match target {
            UploadTarget::New => {
                let (parent, name) = self.open_parent(path, ObjectKind::Directory)?;
                let flags = RenameFlags::NOREPLACE;
                renameat_with(incoming.directory(), "tree", &parent.fd, name, flags)
                    .map_err(errno_error("make", path))?;
                self.may_stay(path, ObjectKind::Directory).inspect_err(|_| {
                    let _ = renameat_with(&parent.fd, name, incoming.directory(), "tree", flags);
                })?;
            }
            UploadTarget::Into { replace } => TreeMerge::new(&unpacking.fresh, self, path, replace).merge_all()?,
        }
        Ok(uploaded)
    }
}

/// An archive that is being unpacked into a new directory.
struct ArchiveUnpacker<'t> {
    fresh: FileTree,
    tree: &'t FileTree,
    at: &'t TreePath,
    owner: Stat,
    bounds: ContentLimits,
    entries: u64,
    /// Modes that are set last, because a mode may forbid new entries in the directory.
    directories: Vec<(TreePath, u32)>,
}

impl ArchiveUnpacker<'_> {
    fn unpack_all(&mut self, archive: &mut ArchiveReader<'_>) -> Result<UploadReport, FilesError> {
        while let Some(member) = archive.next()? {
            self.unpack_member(&member, archive)?;
        }
        self.may_be_placed()?;
        for (path, mode) in self.directories.iter().rev() {
            let directory = self.fresh.open_directory(path)?;
            directory.set_mode(mode & 0o777).map_err(errno_error("make", path))?;
        }
        Ok(UploadReport { entries: self.entries, bytes: archive.total_bytes() })
    }

    fn unpack_member(&mut self, member: &ArchiveMember, archive: &mut ArchiveReader<'_>) -> Result<(), FilesError> {
        let Some((above, name)) = member.path.split_name() else {
            // The root itself, as `tar -c .` packs it.
            return match member.body {
                MemberBody::Directory => Ok(()),
                _ => Err(archive_error(None, "its root is not a directory")),
            };
        };
        let parent = self.open_parents(&above)?;
        self.bounds.add_entry(&mut self.entries)?;
        let explain_error = |error: FilesError| match error {
            FilesError::Exists(path) => archive_error(Some(path_bytes(&path)), "it is in the archive twice"),
            other => other,
        };
        match &member.body {
            MemberBody::Directory => self.unpack_directory(member, (&parent, name)),
            MemberBody::File => self.unpack_file(member, (&parent, name), archive),
            MemberBody::Link(text) => self.unpack_link(member, (&parent, name), text),
            MemberBody::Same(other) => self.unpack_hard_link(other, (&parent, name)),
        }
        .map_err(explain_error)
    }

    /// Returns the directory of a member. Makes it if the archive does not contain it.
    fn open_parents(&mut self, path: &TreePath) -> Result<TreeObject, FilesError> {
        let there = self.fresh.open_directory(path);
        match (there, path.split_name()) {
            (Err(FilesError::NotFound(_)), Some((above, name))) => {
                let parent = self.open_parents(&above)?;
                self.bounds.add_entry(&mut self.entries)?;
                make_directory(parent.fd.as_fd(), name, &self.owner).map_err(errno_error("make", path))?;
                self.fresh.open_directory(path)
            }
            (Err(FilesError::ByLink(_) | FilesError::Kind { .. }), _) => {
                Err(archive_error(Some(path_bytes(path)), "an earlier member, which is no directory, is on its path"))
            }
            (there, _) => there,
        }
    }

    /// Checks whether each object may be at its path, after all objects are known. The meaning of
    /// an object can depend on the objects beside it.
    fn may_be_placed(&self) -> Result<(), FilesError> {
        let exists = |target: &TreePath| {
            target.relative_to(self.at).is_some_and(|inner| self.fresh.open_object(&inner).is_ok())
                || self.tree.open_object(target).is_ok()
        };
        let mut waiting = vec![TreePath::root()];
        while let Some(path) = waiting.pop() {
            let directory = self.fresh.open_directory(&path)?;
            for (name, object) in directory.entries().map_err(errno_error("list", &path))? {
                let inner = path.join(&name);
                let object = object.map_err(errno_error("open", &inner))?;
                self.tree.may_become(&self.at.join_path(&inner), object.kind(), &exists)?;
                if object.is_directory() {
                    waiting.push(inner);
                }
            }
        }
        Ok(())
    }

    fn unpack_directory(
        &mut self,
        member: &ArchiveMember,
        (parent, name): (&TreeObject, &OsStr),
    ) -> Result<(), FilesError> {
        let path = &member.path;
        self.directories.push((path.clone(), member.mode | 0o700));
        match self.fresh.open_object(path) {
            // Present earlier in the archive, or made for an earlier member.
            Ok(there) => require_kind(&there, ObjectKind::Directory, path),
            Err(FilesError::NotFound(_)) => {
                make_directory(parent.fd.as_fd(), name, &self.owner).map_err(errno_error("make", path))
            }
            Err(error) => Err(error),
        }
    }

    fn unpack_file(
        &self,
        member: &ArchiveMember,
        (parent, name): (&TreeObject, &OsStr),
        archive: &mut ArchiveReader<'_>,
    ) -> Result<(), FilesError> {
        let path = &member.path;
        let mut file = new_file(parent.fd.as_fd(), name).map_err(errno_error("write", path))?;
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            match archive.read_content(&mut chunk)? {
                0 => break,
                length => file.write_all(&chunk[..length]).map_err(failed_io("write", path))?,
            }
        }
        let made = TreeObject::from_fd(file.into()).map_err(errno_error("write", path))?;
        set_owner_and_mode(&made, &self.owner, member.mode).map_err(errno_error("write", path))?;
        made.set_modified(member.modified).map_err(errno_error("write", path))
    }

    /// Makes a symbolic link. The target may lead up to the root of the archive at most, and then
    /// down. All parents of the link are directories and not links, so this check covers its real
    /// target.
    fn unpack_link(
        &self,
        member: &ArchiveMember,
        (parent, name): (&TreeObject, &OsStr),
        text: &[u8],
    ) -> Result<(), FilesError> {
        let path = &member.path;
        if !leads_inside(path.depth() - 1, text) {
            return Err(archive_error(Some(path_bytes(path)), "it is a link that leads out of the archive"));
        }
        symlinkat(to_os_str(text), &parent.fd, name).map_err(errno_error("make", path))?;
        let made = TreeObject::require_entry(&parent.fd, name);
        made.and_then(|made| set_owner(&made, &self.owner)).map_err(errno_error("make", path))
    }

    fn unpack_hard_link(&self, other: &TreePath, (parent, name): (&TreeObject, &OsStr)) -> Result<(), FilesError> {
        let known = self.fresh.open_object(other).ok().filter(|object| object.kind() == ObjectKind::File);
        let known = known.ok_or_else(|| {
            archive_error(Some(path_bytes(other)), "the link comes before its target, or it is not a file")
        })?;
        // By descriptor, so that no process can replace the file meanwhile.
        known.link_at(&parent.fd, name).map_err(errno_error("make", other))
    }
}

/// Returns whether a link target stays inside, for a link `depth` levels deep: first at most
/// `depth` times `..`, then names.
fn leads_inside(depth: usize, text: &[u8]) -> bool {
    let mut parts = text.split(|b| *b == b'/').filter(|part| !matches!(*part, b"" | b"."));
    let ups = parts.clone().take_while(|part| *part == b"..").count();
    !text.starts_with(b"/") && ups <= depth && parts.by_ref().skip(ups).all(|part| part != b"..")
}

fn path_bytes(path: &TreePath) -> &[u8] {
    path.as_path().as_os_str().as_encoded_bytes()
}

/// The unpacked objects, being moved beside the existing ones.
struct TreeMerge<'t> {
    fresh: &'t FileTree,
    tree: &'t FileTree,
    at: &'t TreePath,
    replace: bool,
    /// Each moved name, and whether it was exchanged with an existing object.
    done: Vec<(TreePath, RenameFlags)>,
}

impl<'t> TreeMerge<'t> {
    fn new(fresh: &'t FileTree, tree: &'t FileTree, at: &'t TreePath, replace: bool) -> Self {
        Self { fresh, tree, at, replace, done: Vec::new() }
    }

    fn merge_all(mut self) -> Result<(), FilesError> {
        let mut waiting = vec![TreePath::root()];
        while let Some(directory) = waiting.pop() {
            if let Err(error) = self.merge_directory(&directory, &mut waiting) {
                self.undo_moves()?;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Moves the content of one directory. Directories that exist on both sides are processed
    /// later.
    fn merge_directory(&mut self, path: &TreePath, waiting: &mut Vec<TreePath>) -> Result<(), FilesError> {
        let (from, to) = self.open_both(path)?;
        for (name, ours) in from.entries().map_err(errno_error("list", path))? {
            let inner = path.join(&name);
            let ours = ours.map_err(errno_error("examine", &inner))?;
            let theirs = TreeObject::open_entry(to.fd.as_fd(), &name).map_err(errno_error("examine", &inner))?;
            let flags = match theirs {
                Some(theirs) if ours.is_directory() && theirs.is_directory() => {
                    waiting.push(inner);
                    continue;
                }
                Some(theirs) if self.replace && !ours.is_directory() && !theirs.is_directory() => RenameFlags::EXCHANGE,
                Some(_) => return Err(FilesError::Exists(self.at.join_path(&inner))),
                None => RenameFlags::NOREPLACE,
            };
            renameat_with(&from.fd, &name, &to.fd, &name, flags).map_err(errno_error("place", &inner))?;
            let placed = self.at.join_path(&inner);
            self.done.push((inner, flags));
            if flags == RenameFlags::NOREPLACE {
                self.tree.may_stay(&placed, ours.kind())?;
            }
        }
        Ok(())
    }

    fn undo_moves(&mut self) -> Result<(), FilesError> {
        while let Some((path, flags)) = self.done.pop() {
            let Some((above, name)) = path.split_name() else { continue };
            let (from, to) = self.open_both(&above)?;
            match renameat_with(&to.fd, name, &from.fd, name, flags) {
                // Another process removed the object before.
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno_error("take back", &path)(errno)),
            }
        }
        Ok(())
    }

    /// Opens the same directory on both sides.
    fn open_both(&self, path: &TreePath) -> Result<(TreeObject, TreeObject), FilesError> {
        Ok((self.fresh.open_directory(path)?, self.tree.open_directory(&self.at.join_path(path))?))
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
