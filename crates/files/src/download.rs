//! A tree packed as a tar archive. Links are packed as links. Pipes, sockets and devices are left
//! out and reported.

use std::io::{Read, Write};
use std::os::fd::AsFd;

use tar::{Builder, EntryType, Header};

use crate::error::failed;
use crate::incoming::is_passing;
use crate::object::{Kind, Object, entries, os};
use crate::tree::Tree;
use crate::{Bounds, FilesError, TreePath};

/// Most paths that are reported as left out.
const LEFT_OUT_MAX: usize = 1_000;

/// Reason for an object that is not a file, directory or link.
pub(crate) const SPECIAL: &str = "it is no file, directory or link";

/// An object that was not packed or copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// Path of the object.
    pub path: TreePath,
    /// Reason.
    pub why: String,
    /// True if a rule left it out; false if its kind did.
    pub is_withheld: bool,
}

/// Result of packing or copying.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Downloaded {
    /// Files, directories and links.
    pub entries: u64,
    /// Bytes of the files.
    pub bytes: u64,
    /// The first objects that were left out.
    pub left_out: Vec<LeftOut>,
    /// Number of objects that a rule left out, each with everything beneath it.
    pub withheld: u64,
}

impl Downloaded {
    /// Counts one more object, if it is within the limits.
    pub(crate) fn count(&mut self, object: &Object, bounds: Bounds) -> Result<(), FilesError> {
        self.entries += 1;
        if self.entries > bounds.entries {
            return Err(FilesError::TooMuch { limit: bounds.entries, unit: "entries" });
        }
        let size = if object.kind() == Kind::File { object.size() } else { 0 };
        let bytes = self.bytes.checked_add(size).filter(|bytes| *bytes <= bounds.bytes);
        self.bytes = bytes.ok_or(FilesError::TooMuch { limit: bounds.bytes, unit: "bytes" })?;
        Ok(())
    }

    /// Reports an object of a kind that cannot be packed.
    pub(crate) fn leave_out(&mut self, path: TreePath) {
        self.tell(LeftOut { path, why: SPECIAL.to_owned(), is_withheld: false });
    }

    /// Reports an object that a rule leaves out.
    pub(crate) fn withhold(&mut self, path: TreePath, why: String) {
        self.withheld += 1;
        self.tell(LeftOut { path, why, is_withheld: true });
    }

    fn tell(&mut self, left_out: LeftOut) {
        // Objects left out by a rule are more important than special files.
        let known = if left_out.is_withheld { self.withheld } else { self.left_out.len() as u64 };
        if known <= LEFT_OUT_MAX as u64 {
            self.left_out.push(left_out);
        }
    }
}

impl Tree {
    /// Packs the content of a directory, or one file by its name.
    ///
    /// # Errors
    /// An error if there is no object, a rule withholds the file, a limit is exceeded, a file
    /// shrinks meanwhile, or `output` fails. The archive is then incomplete.
    pub fn download(&self, path: &TreePath, output: &mut dyn Write, bounds: Bounds) -> Result<Downloaded, FilesError> {
        let top = self.find(path)?;
        let mut packing = Packing { tree: self, archive: Builder::new(output), bounds, done: Downloaded::default() };
        match (top.kind(), path.split()) {
            (Kind::Directory, _) => packing.directory(path)?,
            (_, Some((_, name))) => {
                if let Some(why) = self.withheld(path, &top) {
                    return Err(FilesError::Withheld { path: path.clone(), why });
                }
                let name = TreePath::root().join(name);
                packing.one(path, &name, &top)?;
            }
            (_, None) => return Err(FilesError::NotFound(path.clone())),
        }
        packing.archive.finish().map_err(output_failed)?;
        Ok(packing.done)
    }
}

struct Packing<'t, 'o> {
    tree: &'t Tree,
    archive: Builder<&'o mut dyn Write>,
    bounds: Bounds,
    done: Downloaded,
}

impl Packing<'_, '_> {
    fn directory(&mut self, top: &TreePath) -> Result<(), FilesError> {
        let mut waiting = vec![(top.clone(), TreePath::root())];
        while let Some((path, name)) = waiting.pop() {
            let object = match self.tree.find(&path) {
                // Removed or replaced meanwhile.
                Err(FilesError::NotFound(_) | FilesError::Led(_)) if !name.is_root() => continue,
                other => other?,
            };
            if !name.is_root() {
                if let Some(why) = self.tree.withheld(&path, &object) {
                    self.done.withhold(path, why);
                    continue;
                }
                self.one(&path, &name, &object)?;
            }
            if object.is_directory() {
                let mut inner = entries(object.fd.as_fd()).map_err(failed("list", &path))?;
                // The last one is taken first.
                inner.sort_unstable_by(|one, other| other.0.cmp(&one.0));
                let inner = inner.iter().filter(|(inner, _)| !is_passing(&path, inner));
                waiting.extend(inner.map(|(inner, _)| (path.join(os(inner)), name.join(os(inner)))));
            }
        }
        Ok(())
    }

    fn one(&mut self, path: &TreePath, name: &TreePath, object: &Object) -> Result<(), FilesError> {
        let kind = match object.kind() {
            Kind::File => EntryType::Regular,
            Kind::Directory => EntryType::Directory,
            Kind::Link => EntryType::Symlink,
            Kind::Pipe | Kind::Socket | Kind::Device => {
                self.done.leave_out(path.clone());
                return Ok(());
            }
        };
        self.done.count(object, self.bounds)?;
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(object.mode() & 0o777);
        header.set_mtime(u64::try_from(object.modified().seconds).unwrap_or(0));
        header.set_size(0);
        match kind {
            EntryType::Regular => self.file(path, name, object, &mut header),
            EntryType::Symlink => {
                let text = object.link_text().map_err(failed("read", path))?;
                self.archive.append_link(&mut header, name.as_path(), os(&text)).map_err(output_failed)
            }
            _ => self.archive.append_data(&mut header, name.as_path(), std::io::empty()).map_err(output_failed),
        }
    }

    fn file(
        &mut self,
        path: &TreePath,
        name: &TreePath,
        object: &Object,
        header: &mut Header,
    ) -> Result<(), FilesError> {
        let size = object.size();
        header.set_size(size);
        let mut content =
            Exactly { file: object.open().map_err(failed("open", path))?, left: size, ended_early: false };
        let packed = self.archive.append_data(header, name.as_path(), &mut content);
        if content.ended_early {
            return Err(FilesError::Changed(path.clone()));
        }
        packed.map_err(output_failed)
    }
}

fn output_failed(error: std::io::Error) -> FilesError {
    FilesError::Stream { what: "output", why: error.to_string() }
}

/// Reads exactly as many bytes of a file as its header states, even if the file grows meanwhile.
struct Exactly {
    file: std::fs::File,
    left: u64,
    ended_early: bool,
}

impl Read for Exactly {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let wanted = usize::try_from(self.left).unwrap_or(usize::MAX).min(into.len());
        if wanted == 0 {
            return Ok(0);
        }
        let length = self.file.read(&mut into[..wanted])?;
        if length == 0 {
            self.ended_early = true;
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        self.left -= length as u64;
        Ok(length)
    }
}
