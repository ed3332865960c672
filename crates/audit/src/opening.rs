//! Opens a log: checks its head and its key against the log, and replaces a head of an earlier
//! version by a signed one.

use std::fs::File;
use std::io;

use rustix::fs::OFlags;

use crate::anchor::holds_tip;
use crate::head::{self, BootId, HEAD_NAME, HeadContent, HeadNote};
use crate::key::{KeyFiles, SigningKey, StoredKey};
use crate::line::{LineFault, LogEndSource};
use crate::log::{LogOpenError, TornTail, set_aside};
use crate::log_directory::{LogDirectory, system_error};
use crate::scan::{self, ChainBreak, ChainEnd, LOG_NAME, LogTip};

/// Log that was checked.
pub(crate) struct OpenedLog {
    pub head: File,
    pub key: SigningKey,
    pub note: HeadNote,
    /// The bytes of the head file.
    pub head_bytes: Vec<u8>,
    pub tip: LogTip,
    pub torn: Option<TornTail>,
}

/// The head as found, before the log is compared with it.
struct FoundHead {
    file: Option<File>,
    note: HeadNote,
    /// `None` if the file must be written again, whatever the note contains.
    bytes: Option<Vec<u8>>,
}

/// Checks the log against its head, and writes the head if it must change. The caller holds the
/// log's exclusive lock.
pub(crate) fn open_log(
    directory: &LogDirectory,
    keys: &KeyFiles,
    log: &File,
    size: u64,
) -> Result<OpenedLog, LogOpenError> {
    let stored = keys.load_key()?;
    let now = BootId::read_current();
    let found = find_head(directory, keys, stored.as_ref(), size, now)?;
    let (mut note, start) = compare_head(directory, log, size, found.note, now)?;
    let (tip, torn) =
        match scan::follow_chain(log, start, size).map_err(system_error("read", &directory.path.join(LOG_NAME)))? {
            Ok(ChainEnd::Whole(tip)) => (tip, None),
            Ok(ChainEnd::Torn(tip)) => (tip, Some(set_aside(directory, log, tip, size)?)),
            Err(ChainBreak { line, fault }) => {
                return Err(LogOpenError::Broken { dir: directory.path.clone(), line, fault });
            }
        };
    if tip.seq < note.last.seq {
        note.lost = note.lost.saturating_add(u32::try_from(note.last.seq - tip.seq).unwrap_or(u32::MAX));
    } else if start != note.last {
        // Nothing is missing, but the line in the head is another one.
        return Err(LogOpenError::Broken {
            dir: directory.path.clone(),
            line: note.last.seq,
            fault: LineFault::NotHead,
        });
    }
    note.last = tip;
    note.boot = now;
    let is_pending = stored.as_ref().is_none_or(|stored| stored.is_pending);
    let key = match stored {
        Some(stored) => stored.key,
        None => keys.create_pending()?,
    };
    let (head, head_bytes) = write_head(directory, log, &found, &key, &note)?;
    if is_pending {
        keys.publish_key()?;
    }
    Ok(OpenedLog { head, key, note, head_bytes, tip, torn })
}

fn find_head(
    directory: &LogDirectory,
    keys: &KeyFiles,
    stored: Option<&StoredKey>,
    size: u64,
    now: BootId,
) -> Result<FoundHead, LogOpenError> {
    let path = directory.path.join(HEAD_NAME);
    let broken = || LogOpenError::Head { dir: directory.path.clone() };
    let file = directory.open_private(HEAD_NAME, OFlags::RDWR)?;
    let bytes = file.as_ref().map_or(Ok(Vec::new()), head::read_bytes).map_err(system_error("read", &path))?;
    match (head::parse_head(&bytes), stored) {
        (HeadContent::Signed(signed), Some(stored)) => {
            let note = signed.verify_signature(&stored.key).ok_or_else(broken)?;
            Ok(FoundHead { file, note, bytes: Some(bytes) })
        }
        (HeadContent::Signed(_), None) => Err(LogOpenError::Key { dir: directory.path.clone(), key: keys.path() }),
        // A log of an earlier version: from now on its head is signed.
        (HeadContent::Unsigned(tip), None | Some(StoredKey { is_pending: true, .. })) => {
            let note = HeadNote { last: tip, durable: tip, ..HeadNote::for_empty_log(now) };
            Ok(FoundHead { file, note, bytes: None })
        }
        // The creation was interrupted, and nothing was appended since.
        (HeadContent::Empty, _) if size == 0 => Ok(FoundHead { file, note: HeadNote::for_empty_log(now), bytes: None }),
        (HeadContent::Unsigned(_) | HeadContent::Empty | HeadContent::Broken, _) => Err(broken()),
    }
}

/// Requires the lines of the note, except those that a stop of the machine may have lost. Returns
/// the note, and the line after which the check continues.
fn compare_head(
    directory: &LogDirectory,
    log: &File,
    size: u64,
    mut note: HeadNote,
    now: BootId,
) -> Result<(HeadNote, LogTip), LogOpenError> {
    let holds = |tip| holds_tip(log, size, tip).map_err(system_error("read", &directory.path.join(LOG_NAME)));
    if holds(note.last)? {
        if note.boot.is_other_boot(now) {
            // The line was read from the disk after a stop of the machine.
            note.durable = note.last;
        }
        return Ok((note, note.last));
    }
    if !note.boot.is_same(now) && holds(note.durable)? {
        return Ok((note, note.durable));
    }
    let fault = if size < note.last.end {
        let there = count_whole_lines(log, size).map_err(system_error("read", &directory.path.join(LOG_NAME)))?;
        LineFault::Missing {
            last: note.last.seq,
            count: note.last.seq.saturating_sub(there),
            end_source: LogEndSource::Head,
        }
    } else {
        LineFault::NotHead
    };
    Err(LogOpenError::Broken { dir: directory.path.clone(), line: note.last.seq, fault })
}

pub(crate) fn count_whole_lines(log: &File, size: u64) -> io::Result<u64> {
    let mut lines = scan::LineReader::new(log, 0, size);
    let mut count = 0;
    while let Some(piece) = lines.next_piece()? {
        count += u64::from(piece.terminated);
    }
    Ok(count)
}

/// Writes the head if the file differs from it.
fn write_head(
    directory: &LogDirectory,
    log: &File,
    found: &FoundHead,
    key: &SigningKey,
    note: &HeadNote,
) -> Result<(File, Vec<u8>), LogOpenError> {
    let path = directory.path.join(HEAD_NAME);
    let missing = || system_error("create", &path)(io::ErrorKind::NotFound);
    let file = match &found.file {
        Some(file) => file.try_clone().map_err(system_error("open", &path))?,
        None => directory.open_private(HEAD_NAME, OFlags::RDWR | OFlags::CREATE)?.ok_or_else(missing)?,
    };
    if let Some(bytes) = found.bytes.as_ref().filter(|_| found.note == *note) {
        return Ok((file, bytes.clone()));
    }
    let bytes = note.render_signed(key);
    head::write_head_bytes(&file, &bytes).map_err(system_error("write", &path))?;
    if found.bytes.is_none() {
        // Once for each log: its files have their names, or do not exist.
        file.sync_all().map_err(system_error("sync", &path))?;
        log.sync_all().map_err(system_error("sync", &directory.path.join(LOG_NAME)))?;
        directory.sync_names()?;
    }
    Ok((file, bytes))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use stockade_model::{Event, EventKind};

    use super::*;
    use crate::log::AuditLogWriter;
    use crate::verify::{VerifyError, verify_audit_log};

    fn append(log: &AuditLogWriter, count: u64) {
        for time_ms in 0..count {
            let kind = EventKind::Failed { message: "x".into() };
            log.append_event(&Event { time_ms, request: "req_1".parse().unwrap(), session: None, kind }).unwrap();
        }
    }

    /// Creates a log of two durable lines and three others, written in another boot.
    fn of_earlier_boot(dir: &Path) {
        let log = AuditLogWriter::open(dir).unwrap();
        append(&log, 2);
        log.commit_lines().unwrap();
        append(&log, 3);
        drop(log);
        let key = KeyFiles::of_log(dir).unwrap().unwrap().load_key().unwrap().unwrap().key;
        let path = dir.join(HEAD_NAME);
        let HeadContent::Signed(signed) = head::parse_head(&std::fs::read(&path).unwrap()) else { panic!("no head") };
        let note = HeadNote {
            boot: BootId::parse_text("00000000000000aa").unwrap(),
            ..signed.verify_signature(&key).unwrap()
        };
        std::fs::write(path, note.render_signed(&key)).unwrap();
    }

    fn cut(dir: &Path, lines: usize) {
        let path = dir.join(LOG_NAME);
        let text = std::fs::read_to_string(&path).unwrap();
        let all: Vec<&str> = text.split_inclusive('\n').collect();
        std::fs::write(path, all[..all.len() - lines].concat()).unwrap();
    }

    #[test]
    fn lines_that_a_stop_of_the_machine_took_are_counted_and_do_not_stop_the_log() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("audit");
        of_earlier_boot(&dir);
        cut(&dir, 2);
        let found = verify_audit_log(&dir);
        assert!(
            matches!(found, Err(VerifyError::Broken { line: 4, why: LineFault::LostOrCut { last: 5, count: 2 } })),
            "{found:?}"
        );
        append(&AuditLogWriter::open(&dir).unwrap(), 1);
        let found = verify_audit_log(&dir).unwrap();
        assert_eq!((found.entries, found.lost), (4, 2));
        // From here on they are certain: this is the same boot.
        cut(&dir, 1);
        assert!(matches!(
            verify_audit_log(&dir),
            Err(VerifyError::Broken { line: 4, why: LineFault::Missing { count: 1, .. } })
        ));
    }

    #[test]
    fn durable_lines_are_demanded_in_every_boot() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("audit");
        of_earlier_boot(&dir);
        cut(&dir, 4);
        assert!(matches!(
            verify_audit_log(&dir),
            Err(VerifyError::Broken { line: 2, why: LineFault::Missing { count: 4, .. } })
        ));
        assert!(matches!(
            AuditLogWriter::open(&dir),
            Err(LogOpenError::Broken { fault: LineFault::Missing { count: 4, .. }, .. })
        ));
    }

    #[test]
    fn lines_that_outlived_a_stop_of_the_machine_are_durable() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("audit");
        of_earlier_boot(&dir);
        drop(AuditLogWriter::open(&dir).unwrap());
        assert_eq!(verify_audit_log(&dir).unwrap().durable.0, 5);
    }

    #[test]
    fn a_line_that_replaces_a_lost_one_is_found() {
        let root = tempfile::tempdir().unwrap();
        let [dir, other] = ["audit", "other"].map(|name| root.path().join(name));
        of_earlier_boot(&dir);
        let log = AuditLogWriter::open(&other).unwrap();
        append(&log, 2);
        // The first two lines of both are equal; the others have other times.
        append(&log, 1);
        append(&log, 4);
        std::fs::copy(other.join(LOG_NAME), dir.join(LOG_NAME)).unwrap();
        assert!(matches!(verify_audit_log(&dir), Err(VerifyError::Broken { why: LineFault::NotHead, .. })));
        assert!(matches!(AuditLogWriter::open(&dir), Err(LogOpenError::Broken { fault: LineFault::NotHead, .. })));
    }
}
