//! A tree packed as a tar archive. Links are packed as links. Pipes, sockets and devices are left
//! out and reported.

use std::io::{Read, Write};
use std::os::fd::AsFd;

use tar::{Builder, EntryType, Header};

use crate::error::errno_error;
use crate::incoming::is_passing;
use crate::object::{ObjectKind, TreeObject, list_entries, to_os_str};
use crate::tree::FileTree;
use crate::{ContentLimits, FilesError, TreePath};

/// Most paths that are reported as left out.
const MAX_OMITTED_PATHS: usize = 1_000;

/// Reason for an object that is not a file, directory or link.
pub(crate) const SPECIAL_FILE_REASON: &str = "it is not a file, directory or link";

/// An object that was not packed or copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OmittedObject {
    /// Path of the object.
    pub path: TreePath,
    /// Reason.
    pub why: String,
    /// True if a rule left it out; false if its kind did.
    pub is_withheld: bool,
}

/// Result of packing or copying.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DownloadReport {
    /// Files, directories and links.
    pub entries: u64,
    /// Bytes of the files.
    pub bytes: u64,
    /// The first objects that were left out.
    pub left_out: Vec<OmittedObject>,
    /// Number of objects that a rule left out, each with everything beneath it.
    pub withheld: u64,
}

impl DownloadReport {
    /// Counts one more object, if it is within the limits.
    pub(crate) fn count_object(&mut self, object: &TreeObject, bounds: ContentLimits) -> Result<(), FilesError> {
        bounds.add_entry(&mut self.entries)?;
        let size = if object.kind() == ObjectKind::File { object.size() } else { 0 };
        bounds.add_bytes(&mut self.bytes, size)
    }

    /// Reports an object of a kind that cannot be packed.
    pub(crate) fn leave_out(&mut self, path: TreePath) {
        self.add_omitted(OmittedObject { path, why: SPECIAL_FILE_REASON.to_owned(), is_withheld: false });
    }

    /// Reports an object that a rule leaves out.
    pub(crate) fn report_withheld(&mut self, path: TreePath, why: String) {
        self.withheld += 1;
        self.add_omitted(OmittedObject { path, why, is_withheld: true });
    }

    fn add_omitted(&mut self, left_out: OmittedObject) {
        // Objects left out by a rule are more important than special files.
        let known = if left_out.is_withheld { self.withheld } else { self.left_out.len() as u64 };
        if known <= MAX_OMITTED_PATHS as u64 {
            self.left_out.push(left_out);
        }
    }
}

impl FileTree {
    /// Packs the content of a directory, or one file by its name.
    ///
    /// # Errors
    /// An error if there is no object, a rule withholds the file, a limit is exceeded, a file
    /// shrinks meanwhile, or `output` fails. The archive is then incomplete.
    pub fn download_archive(
        &self,
        path: &TreePath,
        output: &mut dyn Write,
        bounds: ContentLimits,
    ) -> Result<DownloadReport, FilesError> {
        let top = self.open_object(path)?;
        let mut packing =
            ArchivePacker { tree: self, archive: Builder::new(output), bounds, done: DownloadReport::default() };
        match (top.kind(), path.split_name()) {
            (ObjectKind::Directory, _) => packing.pack_directory(path)?,
            (_, Some((_, name))) => {
                if let Some(why) = self.withhold_reason(path, &top) {
                    return Err(FilesError::Withheld { path: path.clone(), why });
                }
                let name = TreePath::root().join(name);
                packing.pack_object(path, &name, &top)?;
            }
            (_, None) => return Err(FilesError::NotFound(path.clone())),
        }
        packing.archive.finish().map_err(output_failed)?;
        Ok(packing.done)
    }
}

struct ArchivePacker<'t, 'o> {
    tree: &'t FileTree,
    archive: Builder<&'o mut dyn Write>,
    bounds: ContentLimits,
    done: DownloadReport,
}

impl ArchivePacker<'_, '_> {
    fn pack_directory(&mut self, top: &TreePath) -> Result<(), FilesError> {
        let mut waiting = vec![(top.clone(), TreePath::root())];
        while let Some((path, name)) = waiting.pop() {
            let object = match self.tree.open_object(&path) {
                // Removed or replaced meanwhile.
                Err(FilesError::NotFound(_) | FilesError::ByLink(_)) if !name.is_root() => continue,
                other => other?,
            };
            if !name.is_root() {
                if let Some(why) = self.tree.withhold_reason(&path, &object) {
                    self.done.report_withheld(path, why);
                    continue;
                }
                self.pack_object(&path, &name, &object)?;
            }
            if object.is_directory() {
                let mut inner = list_entries(object.fd.as_fd()).map_err(errno_error("list", &path))?;
                // The last one is taken first.
                inner.sort_unstable_by(|one, other| other.0.cmp(&one.0));
                let inner = inner.iter().filter(|(inner, _)| !is_passing(&path, inner));
                waiting.extend(inner.map(|(inner, _)| (path.join(to_os_str(inner)), name.join(to_os_str(inner)))));
            }
        }
        Ok(())
    }

    fn pack_object(&mut self, path: &TreePath, name: &TreePath, object: &TreeObject) -> Result<(), FilesError> {
        let kind = match object.kind() {
            ObjectKind::File => EntryType::Regular,
            ObjectKind::Directory => EntryType::Directory,
            ObjectKind::Link => EntryType::Symlink,
            ObjectKind::Pipe | ObjectKind::Socket | ObjectKind::Device => {
                self.done.leave_out(path.clone());
                return Ok(());
            }
        };
        self.done.count_object(object, self.bounds)?;
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(object.mode() & 0o777);
        header.set_mtime(u64::try_from(object.modified_time().seconds).unwrap_or(0));
        header.set_size(0);
        match kind {
            EntryType::Regular => self.pack_file(path, name, object, &mut header),
            EntryType::Symlink => {
                let text = object.link_text().map_err(errno_error("read", path))?;
                self.archive.append_link(&mut header, name.as_path(), to_os_str(&text)).map_err(output_failed)
            }
            _ => self.archive.append_data(&mut header, name.as_path(), std::io::empty()).map_err(output_failed),
        }
    }

    fn pack_file(
        &mut self,
        path: &TreePath,
        name: &TreePath,
        object: &TreeObject,
        header: &mut Header,
    ) -> Result<(), FilesError> {
        let size = object.size();
        header.set_size(size);
        let mut content = ExactReader {
            file: object.open_file().map_err(errno_error("open", path))?,
            remaining: size,
            ended_early: false,
        };
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
struct ExactReader {
    file: std::fs::File,
    remaining: u64,
    ended_early: bool,
}

impl Read for ExactReader {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let read_length = usize::try_from(self.remaining).unwrap_or(usize::MAX).min(into.len());
        if read_length == 0 {
            return Ok(0);
        }
        let length = self.file.read(&mut into[..read_length])?;
        if length == 0 {
            self.ended_early = true;
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        self.remaining -= length as u64;
        Ok(length)
    }
}
