//! Archives as a stream: reads members in order, and checks each one before its use. The `tar`
//! crate reads the fields of a header. Decisions are made here, because an archive is untrusted
//! input.
//!
//! Accepts regular files, directories, symbolic and hard links (POSIX.1-1988 and later, GNU's and
//! pax's long names). Refuses every other kind, and every member that is ambiguous.

use std::io::Read;

use stockade_model::RawText;
use tar::{EntryType, Header, PaxExtensions};

use crate::object::FileTime;
use crate::{FilesError, PATH_MAX, TreePath};

/// Size of a block, and of a header.
pub(crate) const TAR_BLOCK_BYTES: usize = 512;
/// Largest extension header that is read, in bytes.
const MAX_EXTENSION_BYTES: u64 = 64 << 10;

/// Size limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContentLimits {
    /// Bytes of all files together.
    pub bytes: u64,
    /// Files, directories and links.
    pub entries: u64,
}

impl ContentLimits {
    /// Counts one more entry, if it is within the limit.
    pub(crate) fn add_entry(&self, entries: &mut u64) -> Result<(), FilesError> {
        *entries += 1;
        let limit = self.entries;
        if *entries > limit { Err(FilesError::TooMuch { limit, unit: "entries" }) } else { Ok(()) }
    }

    /// Counts bytes, if they are within the limit.
    pub(crate) fn add_bytes(&self, bytes: &mut u64, more: u64) -> Result<(), FilesError> {
        let limit = self.bytes;
        let sum = bytes.checked_add(more).filter(|sum| *sum <= limit);
        *bytes = sum.ok_or(FilesError::TooMuch { limit, unit: "bytes" })?;
        Ok(())
    }
}

/// A member of an archive.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ArchiveMember {
    pub path: TreePath,
    pub mode: u32,
    pub modified: FileTime,
    pub body: MemberBody,
}

/// Kind of a member, with its link target.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum MemberBody {
    Directory,
    File,
    /// A symbolic link, with its target.
    Link(Vec<u8>),
    /// Another name (hard link) of an earlier member.
    Same(TreePath),
}

/// Fields of extension headers for the member after them.
#[derive(Debug, Default)]
struct ExtensionFields {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
}

/// Reader of an archive.
pub(crate) struct ArchiveReader<'r> {
    input: &'r mut dyn Read,
    bounds: ContentLimits,
    entries: u64,
    bytes: u64,
    /// Unread bytes of the current file.
    remaining: u64,
    /// Padding after the file, up to the next block.
    padding: u64,
}

impl<'r> ArchiveReader<'r> {
    pub fn new(input: &'r mut dyn Read, bounds: ContentLimits) -> Self {
        Self { input, bounds, entries: 0, bytes: 0, remaining: 0, padding: 0 }
    }

    /// Returns the size of all files so far.
    pub fn total_bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the next member; `None` at the end, which the archive must mark.
    pub fn next(&mut self) -> Result<Option<ArchiveMember>, FilesError> {
        self.skip_content()?;
        let mut extended = ExtensionFields::default();
        loop {
            let header = self.read_header()?;
            if header.as_bytes().iter().all(|b| *b == 0) {
                return Ok(None);
            }
            self.count_entry()?;
            check_sum(&header)?;
            match header.entry_type() {
                EntryType::GNULongName => extended.path = Some(self.long_text(&header)?),
                EntryType::GNULongLink => extended.link = Some(self.long_text(&header)?),
                EntryType::XHeader => self.extend(&header, &mut extended)?,
                EntryType::XGlobalHeader => self.pass_global(&header)?,
                kind => return self.parse_member(&header, kind, extended).map(Some),
            }
        }
    }

    /// Reads bytes of the current file; 0 at its end.
    pub fn read_content(&mut self, into: &mut [u8]) -> Result<usize, FilesError> {
        let read_length = usize::try_from(self.remaining).unwrap_or(usize::MAX).min(into.len());
        if read_length == 0 {
            return Ok(0);
        }
        fill_block(self.input, &mut into[..read_length])?;
        self.remaining -= read_length as u64;
        Ok(read_length)
    }

    fn skip_content(&mut self) -> Result<(), FilesError> {
        let mut scratch = [0; TAR_BLOCK_BYTES];
        self.remaining += self.padding;
        self.padding = 0;
        while self.read_content(&mut scratch)? > 0 {}
        Ok(())
    }

    fn read_header(&mut self) -> Result<Header, FilesError> {
        let mut header = Header::new_old();
        fill_block(self.input, header.as_mut_bytes())?;
        Ok(header)
    }

    fn count_entry(&mut self) -> Result<(), FilesError> {
        self.entries += 1;
        // Extension headers count, too.
        if self.entries > self.bounds.entries.saturating_mul(2) {
            return Err(FilesError::TooMuch { limit: self.bounds.entries, unit: "entries" });
        }
        Ok(())
    }

    /// Returns the content of an extension header.
    fn read_extension(&mut self, header: &Header) -> Result<Vec<u8>, FilesError> {
        let size = header.entry_size().map_err(|_| archive_error(None, "a size is not a number"))?;
        if size > MAX_EXTENSION_BYTES {
            return Err(archive_error(None, "a name or an extension is too long"));
        }
        let mut content = vec![0; usize::try_from(size).unwrap_or(0)];
        fill_block(self.input, &mut content)?;
        let mut padding = [0; TAR_BLOCK_BYTES];
        fill_block(self.input, &mut padding[..padding_of(size)])?;
        Ok(content)
    }

    fn long_text(&mut self, header: &Header) -> Result<Vec<u8>, FilesError> {
        let mut text = self.read_extension(header)?;
        if text.last() == Some(&0) {
            text.pop();
        }
        Ok(text)
    }

    fn extend(&mut self, header: &Header, extended: &mut ExtensionFields) -> Result<(), FilesError> {
        let content = self.read_extension(header)?;
        for pair in PaxExtensions::new(&content) {
            let pair = pair.map_err(|_| archive_error(None, "an extension is no list of pairs"))?;
            match pair.key_bytes() {
                b"path" => extended.path = Some(pair.value_bytes().to_vec()),
                b"linkpath" => extended.link = Some(pair.value_bytes().to_vec()),
                b"size" => {
                    let size = pair.value().ok().filter(|text| text.bytes().all(|b| b.is_ascii_digit()));
                    let size = size.and_then(|text| text.parse().ok());
                    extended.size = Some(size.ok_or_else(|| archive_error(None, "a size is not a number"))?);
                }
                key if key.starts_with(b"GNU.sparse") => {
                    return Err(archive_error(None, "a sparse file is not supported"));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Accepts a header for all following members only if it is a comment, as git-archive writes.
    fn pass_global(&mut self, header: &Header) -> Result<(), FilesError> {
        let mut extensions = ExtensionFields::default();
        self.extend(header, &mut extensions)?;
        if extensions.path.is_some() || extensions.link.is_some() || extensions.size.is_some() {
            return Err(archive_error(None, "a name or a size for all members is not supported"));
        }
        Ok(())
    }

    fn parse_member(
        &mut self,
        header: &Header,
        kind: EntryType,
        extended: ExtensionFields,
    ) -> Result<ArchiveMember, FilesError> {
        let name = extended.path.unwrap_or_else(|| header.path_bytes().into_owned());
        let refused = |why: &str| archive_error(Some(&name), why);
        let path = TreePath::new(&name).map_err(|why| refused(&why.to_string()))?;
        let size = match extended.size {
            Some(size) => size,
            None => header.entry_size().map_err(|_| refused("its size is not a number"))?,
        };
        let link = || {
            let text = extended.link.clone().or_else(|| header.link_name_bytes().map(|text| text.into_owned()));
            text.filter(|text| (1..=PATH_MAX).contains(&text.len()) && !text.contains(&0))
                .ok_or_else(|| refused("its link has no target"))
        };
        let body = match kind {
            // Old archives have no type for directories.
            EntryType::Regular if name.ends_with(b"/") => MemberBody::Directory,
            EntryType::Regular => MemberBody::File,
            EntryType::Directory => MemberBody::Directory,
            EntryType::Symlink => MemberBody::Link(link()?),
            EntryType::Link => MemberBody::Same(TreePath::new(&link()?).map_err(|why| refused(&why.to_string()))?),
            EntryType::Char | EntryType::Block => return Err(refused("a device is not supported")),
            EntryType::Fifo => return Err(refused("a pipe is not supported")),
            EntryType::GNUSparse => return Err(refused("a sparse file is not supported")),
            _ => return Err(refused("it is of an unsupported kind")),
        };
        match body {
            MemberBody::File => self.begin_file(size)?,
            _ if size > 0 => return Err(refused("only a file has a content")),
            _ => {}
        }
        let mode = header.mode().map_err(|_| refused("its mode is not a number"))? & 0o777;
        let seconds = header.mtime().map_err(|_| refused("its time is not a number"))?;
        let modified = FileTime { seconds: i64::try_from(seconds).unwrap_or(i64::MAX), nanoseconds: 0 };
        Ok(ArchiveMember { path, mode, modified, body })
    }

    fn begin_file(&mut self, size: u64) -> Result<(), FilesError> {
        self.bounds.add_bytes(&mut self.bytes, size)?;
        self.remaining = size;
        self.padding = padding_of(size) as u64;
        Ok(())
    }
}

/// Makes the error for a refused archive.
pub(crate) fn archive_error(member: Option<&[u8]>, why: &str) -> FilesError {
    FilesError::Archive { member: member.map(RawText::from), why: why.to_owned() }
}

/// Returns the number of bytes from the end of a content to the next block.
fn padding_of(size: u64) -> usize {
    let over = usize::try_from(size % TAR_BLOCK_BYTES as u64).unwrap_or(0);
    if over == 0 { 0 } else { TAR_BLOCK_BYTES - over }
}

fn check_sum(header: &Header) -> Result<(), FilesError> {
    let sum: u32 = header.as_bytes().iter().map(|b| u32::from(*b)).sum();
    let own: u32 = header.as_old().cksum.iter().map(|b| u32::from(*b)).sum();
    let expected = sum - own + 8 * u32::from(b' ');
    match header.cksum() {
        Ok(found) if found == expected => Ok(()),
        _ => Err(archive_error(None, "it is damaged, or not a tar archive")),
    }
}

fn fill_block(input: &mut dyn Read, block: &mut [u8]) -> Result<(), FilesError> {
    input.read_exact(block).map_err(|e| match e.kind() {
        std::io::ErrorKind::UnexpectedEof => archive_error(None, "it is truncated"),
        _ => FilesError::Stream { what: "input", why: e.to_string() },
    })
}
