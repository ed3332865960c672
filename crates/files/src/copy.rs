//! A tree copied into another: files and symbolic links, but no special files.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::fd::AsFd;

use rustix::fs::{AtFlags, Stat, ioctl_ficlone, symlinkat, unlinkat};

use crate::error::{failed, failed_io};
use crate::object::{Kind, Object, entries, os};
use crate::tree::{Tree, make_directory, new_file, own, settle};
use crate::{Bounds, Downloaded, FilesError, TreePath};

/// Bytes moved at once.
const BLOCK_BYTES: usize = 64 * 1024;

impl Tree {
    /// Copies the content of `from` into this tree, which must be empty. Copies symbolic links
    /// unchanged, whatever their targets are. If `from` withholds an object, or this tree's guard
    /// refuses it, leaves it out with everything beneath it.
    ///
    /// # Errors
    /// An error if a limit is exceeded, or a file cannot be read or written. The copies made so far
    /// stay.
    pub fn copy_from(&self, from: &Self, bounds: Bounds) -> Result<Downloaded, FilesError> {
        let owner = self.directory(&TreePath::root())?.stat;
        let mut copying = Copying { from, to: self, owner, bounds, done: Downloaded::default(), modes: Vec::new() };
        let mut waiting = vec![TreePath::root()];
        while let Some(path) = waiting.pop() {
            copying.directory(&path, &mut waiting)?;
        }
        for (path, mode) in copying.modes.iter().rev() {
            self.directory(path)?.set_mode(mode & 0o777).map_err(failed("make", path))?;
        }
        Ok(copying.done)
    }
}

struct Copying<'t> {
    from: &'t Tree,
    to: &'t Tree,
    owner: Stat,
    bounds: Bounds,
    done: Downloaded,
    /// Modes of directories, which are set last.
    modes: Vec<(TreePath, u32)>,
}

impl Copying<'_> {
    fn directory(&mut self, path: &TreePath, waiting: &mut Vec<TreePath>) -> Result<(), FilesError> {
        let (from, to) = (self.from.directory(path)?, self.to.directory(path)?);
        for (name, _) in entries(from.fd.as_fd()).map_err(failed("list", path))? {
            let (name, inner) = (os(&name), path.join(os(&name)));
            let Some(object) = Object::find(from.fd.as_fd(), name).map_err(failed("examine", &inner))? else {
                continue;
            };
            if matches!(object.kind(), Kind::Pipe | Kind::Socket | Kind::Device) {
                self.done.leave_out(inner);
                continue;
            }
            if let Some(why) = self.refusal(&inner, &object) {
                self.done.withhold(inner, why);
                continue;
            }
            self.done.count(&object, self.bounds)?;
            match object.kind() {
                Kind::Directory => {
                    make_directory(to.fd.as_fd(), name, &self.owner).map_err(failed("make", &inner))?;
                }
                Kind::Link => self.link(&object, &to, name, &inner)?,
                _ => self.file(&object, &to, name, &inner)?,
            }
            if let Err(FilesError::Guarded { why, .. }) = self.to.may_stay(&inner, object.kind()) {
                let flags = if object.is_directory() { AtFlags::REMOVEDIR } else { AtFlags::empty() };
                unlinkat(&to.fd, name, flags).map_err(failed("remove", &inner))?;
                self.done.withhold(inner, why);
            } else if object.is_directory() {
                self.modes.push((inner.clone(), object.mode() | 0o700));
                waiting.push(inner);
            }
        }
        Ok(())
    }

    /// Returns the reason for leaving an object out, or `None`.
    fn refusal(&self, path: &TreePath, object: &Object) -> Option<String> {
        let exists = |other: &TreePath| self.to.find(other).is_ok() || other != path && self.from.find(other).is_ok();
        match self.to.may_become(path, object.kind(), &exists) {
            Err(FilesError::Guarded { why, .. }) => Some(why),
            _ => self.from.withheld(path, object),
        }
    }

    fn link(&self, object: &Object, to: &Object, name: &OsStr, path: &TreePath) -> Result<(), FilesError> {
        let text = object.link_text().map_err(failed("read", path))?;
        symlinkat(os(&text), &to.fd, name).map_err(failed("make", path))?;
        match Object::find(to.fd.as_fd(), name).map_err(failed("make", path))? {
            Some(made) => own(&made, &self.owner).map_err(failed("make", path)),
            None => Err(FilesError::NotFound(path.clone())),
        }
    }

    fn file(&self, object: &Object, to: &Object, name: &OsStr, path: &TreePath) -> Result<(), FilesError> {
        let content = object.open().map_err(failed("open", path))?;
        let mut made = new_file(to.fd.as_fd(), name).map_err(failed("write", path))?;
        if ioctl_ficlone(&made, &content).is_err() {
            // Not more than was counted, even if the file grows meanwhile.
            let mut content = content.take(object.size());
            let mut block = vec![0; BLOCK_BYTES];
            loop {
                match content.read(&mut block).map_err(failed_io("read", path))? {
                    0 => break,
                    length => made.write_all(&block[..length]).map_err(failed_io("write", path))?,
                }
            }
        }
        let made = Object::of(made.into()).map_err(failed("write", path))?;
        settle(&made, &self.owner, object.mode()).map_err(failed("write", path))?;
        made.set_modified(object.modified()).map_err(failed("write", path))
    }
}
