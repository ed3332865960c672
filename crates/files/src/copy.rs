//! A tree copied into another: files and symbolic links, but no special files.

use std::ffi::OsStr;
use std::os::fd::AsFd;

use rustix::fs::{AtFlags, Stat, symlinkat, unlinkat};

use crate::content::copy_content;
use crate::error::errno_error;
use crate::object::{ObjectKind, TreeObject, to_os_str};
use crate::tree::{FileTree, make_directory, new_file, set_owner, set_owner_and_mode};
use crate::{ContentLimits, DownloadReport, FilesError, TreePath};

impl FileTree {
    /// Copies the content of `from` into this tree, which must be empty. Copies symbolic links
    /// unchanged, whatever their targets are. If `from` withholds an object, or this tree's guard
    /// refuses it, leaves it out with everything beneath it.
    ///
    /// # Errors
    /// An error if a limit is exceeded, or a file cannot be read or written. The copies made so far
    /// stay.
    pub fn copy_from(&self, from: &Self, bounds: ContentLimits) -> Result<DownloadReport, FilesError> {
        let owner = self.open_directory(&TreePath::root())?.stat;
        let mut copying =
            TreeCopy { from, to: self, owner, bounds, done: DownloadReport::default(), modes: Vec::new() };
        let mut waiting = vec![TreePath::root()];
        while let Some(path) = waiting.pop() {
            copying.copy_directory(&path, &mut waiting)?;
        }
        for (path, mode) in copying.modes.iter().rev() {
            self.open_directory(path)?.set_mode(mode & 0o777).map_err(errno_error("make", path))?;
        }
        Ok(copying.done)
    }
}

struct TreeCopy<'t> {
    from: &'t FileTree,
    to: &'t FileTree,
    owner: Stat,
    bounds: ContentLimits,
    done: DownloadReport,
    /// Modes of directories, which are set last.
    modes: Vec<(TreePath, u32)>,
}

impl TreeCopy<'_> {
    fn copy_directory(&mut self, path: &TreePath, waiting: &mut Vec<TreePath>) -> Result<(), FilesError> {
        let (from, to) = (self.from.open_directory(path)?, self.to.open_directory(path)?);
        for (name, object) in from.entries().map_err(errno_error("list", path))? {
            let (name, inner) = (name.as_os_str(), path.join(&name));
            let object = object.map_err(errno_error("examine", &inner))?;
            if matches!(object.kind(), ObjectKind::Pipe | ObjectKind::Socket | ObjectKind::Device) {
                self.done.leave_out(inner);
                continue;
            }
            if let Some(why) = self.omission_reason(&inner, &object) {
                self.done.report_withheld(inner, why);
                continue;
            }
            self.done.count_object(&object, self.bounds)?;
            match object.kind() {
                ObjectKind::Directory => {
                    make_directory(to.fd.as_fd(), name, &self.owner).map_err(errno_error("make", &inner))?;
                }
                ObjectKind::Link => self.copy_link(&object, &to, name, &inner)?,
                _ => self.copy_file(&object, &to, name, &inner)?,
            }
            if let Err(FilesError::Guarded { why, .. }) = self.to.may_stay(&inner, object.kind()) {
                let flags = if object.is_directory() { AtFlags::REMOVEDIR } else { AtFlags::empty() };
                unlinkat(&to.fd, name, flags).map_err(errno_error("remove", &inner))?;
                self.done.report_withheld(inner, why);
            } else if object.is_directory() {
                self.modes.push((inner.clone(), object.mode() | 0o700));
                waiting.push(inner);
            }
        }
        Ok(())
    }

    /// Returns the reason for leaving an object out, or `None`.
    fn omission_reason(&self, path: &TreePath, object: &TreeObject) -> Option<String> {
        let exists = |other: &TreePath| {
            self.to.open_object(other).is_ok() || other != path && self.from.open_object(other).is_ok()
        };
        match self.to.may_become(path, object.kind(), &exists) {
            Err(FilesError::Guarded { why, .. }) => Some(why),
            _ => self.from.withhold_reason(path, object),
        }
    }

    fn copy_link(&self, object: &TreeObject, to: &TreeObject, name: &OsStr, path: &TreePath) -> Result<(), FilesError> {
        let text = object.link_text().map_err(errno_error("read", path))?;
        symlinkat(to_os_str(&text), &to.fd, name).map_err(errno_error("make", path))?;
        let made = TreeObject::require_entry(&to.fd, name);
        made.and_then(|made| set_owner(&made, &self.owner)).map_err(errno_error("make", path))
    }

    fn copy_file(&self, object: &TreeObject, to: &TreeObject, name: &OsStr, path: &TreePath) -> Result<(), FilesError> {
        let content = object.open_file().map_err(errno_error("open", path))?;
        let made = new_file(to.fd.as_fd(), name).map_err(errno_error("write", path))?;
        // Not more than was counted, even if the file grows meanwhile.
        copy_content(&content, &made, object.size(), u64::MAX).map_err(errno_error("write", path))?;
        let made = TreeObject::from_fd(made.into()).map_err(errno_error("write", path))?;
        set_owner_and_mode(&made, &self.owner, object.mode()).map_err(errno_error("write", path))?;
        made.set_modified(object.modified_time()).map_err(errno_error("write", path))
    }
}
