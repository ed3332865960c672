//! Opens a log: checks its head and its key against the log, and replaces a head of an earlier
//! version by a signed one.

use std::fs::File;
use std::io;

use rustix::fs::OFlags;

use crate::anchor::holds_tip;
use crate::head::{self, Boot, Found, HEAD_NAME, HeadNote};
use crate::key::{KeyFiles, SigningKey, StoredKey};
use crate::line::{Fault, Witness};
use crate::log::{OpenError, Torn, set_aside};
use crate::place::{Place, system};
use crate::scan::{self, Break, Followed, LOG_NAME, Tip};

/// Log that was checked.
pub(crate) struct OpenedLog {
    pub head: File,
    pub key: SigningKey,
    pub note: HeadNote,
    /// The bytes of the head file.
    pub head_bytes: Vec<u8>,
    pub tip: Tip,
    pub torn: Option<Torn>,
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
pub(crate) fn open_log(place: &Place, keys: &KeyFiles, log: &File, size: u64) -> Result<OpenedLog, OpenError> {
    let stored = keys.load()?;
    let now = Boot::current();
    let found = find_head(place, keys, stored.as_ref(), size, now)?;
    let (mut note, start) = compare(place, log, size, found.note, now)?;
    let (tip, torn) = match scan::follow(log, start, size).map_err(system("read", &place.path.join(LOG_NAME)))? {
        Ok(Followed::Whole(tip)) => (tip, None),
        Ok(Followed::Torn(tip)) => (tip, Some(set_aside(place, log, tip, size)?)),
        Err(Break { line, fault }) => return Err(OpenError::Broken { dir: place.path.clone(), line, fault }),
    };
    if tip.seq < note.last.seq {
        note.lost = note.lost.saturating_add(u32::try_from(note.last.seq - tip.seq).unwrap_or(u32::MAX));
    } else if start != note.last {
        // Nothing is missing, but the line in the head is another one.
        return Err(OpenError::Broken { dir: place.path.clone(), line: note.last.seq, fault: Fault::NotHead });
    }
    note.last = tip;
    note.boot = now;
    let is_pending = stored.as_ref().is_none_or(|stored| stored.is_pending);
    let key = match stored {
        Some(stored) => stored.key,
        None => keys.create_pending()?,
    };
    let (head, head_bytes) = write_head(place, log, &found, &key, &note)?;
    if is_pending {
        keys.publish()?;
    }
    Ok(OpenedLog { head, key, note, head_bytes, tip, torn })
}

fn find_head(
    place: &Place,
    keys: &KeyFiles,
    stored: Option<&StoredKey>,
    size: u64,
    now: Boot,
) -> Result<FoundHead, OpenError> {
    let path = place.path.join(HEAD_NAME);
    let broken = || OpenError::Head { dir: place.path.clone() };
    let file = place.open_private(HEAD_NAME, OFlags::RDWR)?;
    let bytes = file.as_ref().map_or(Ok(Vec::new()), head::read_bytes).map_err(system("read", &path))?;
    match (head::parse(&bytes), stored) {
        (Found::Signed(signed), Some(stored)) => {
            let note = signed.checked(&stored.key).ok_or_else(broken)?;
            Ok(FoundHead { file, note, bytes: Some(bytes) })
        }
        (Found::Signed(_), None) => Err(OpenError::Key { dir: place.path.clone(), key: keys.path() }),
        // A log of an earlier version: from now on its head is signed.
        (Found::Unsigned(tip), None | Some(StoredKey { is_pending: true, .. })) => {
            let note = HeadNote { last: tip, durable: tip, ..HeadNote::start(now) };
            Ok(FoundHead { file, note, bytes: None })
        }
        // The creation was interrupted, and nothing was appended since.
        (Found::Empty, _) if size == 0 => Ok(FoundHead { file, note: HeadNote::start(now), bytes: None }),
        (Found::Unsigned(_) | Found::Empty | Found::Broken, _) => Err(broken()),
    }
}

/// Requires the lines of the note, except those that a stop of the machine may have lost. Returns
/// the note, and the line after which the check continues.
fn compare(place: &Place, log: &File, size: u64, mut note: HeadNote, now: Boot) -> Result<(HeadNote, Tip), OpenError> {
    let holds = |tip| holds_tip(log, size, tip).map_err(system("read", &place.path.join(LOG_NAME)));
    if holds(note.last)? {
        if note.boot.differs(now) {
            // The line was read from the disk after a stop of the machine.
            note.durable = note.last;
        }
        return Ok((note, note.last));
    }
    if !note.boot.is_same(now) && holds(note.durable)? {
        return Ok((note, note.durable));
    }
    let fault = if size < note.last.end {
        let there = count_whole_lines(log, size).map_err(system("read", &place.path.join(LOG_NAME)))?;
        Fault::Missing { last: note.last.seq, count: note.last.seq.saturating_sub(there), witness: Witness::Head }
    } else {
        Fault::NotHead
    };
    Err(OpenError::Broken { dir: place.path.clone(), line: note.last.seq, fault })
}

pub(crate) fn count_whole_lines(log: &File, size: u64) -> io::Result<u64> {
    let mut lines = scan::Lines::new(log, 0, size);
    let mut count = 0;
    while let Some(piece) = lines.next_piece()? {
        count += u64::from(piece.terminated);
    }
    Ok(count)
}

/// Writes the head if the file differs from it.
fn write_head(
    place: &Place,
    log: &File,
    found: &FoundHead,
    key: &SigningKey,
    note: &HeadNote,
) -> Result<(File, Vec<u8>), OpenError> {
    let path = place.path.join(HEAD_NAME);
    let missing = || system("create", &path)(io::ErrorKind::NotFound.into());
    let file = match &found.file {
        Some(file) => file.try_clone().map_err(system("open", &path))?,
        None => place.open_private(HEAD_NAME, OFlags::RDWR | OFlags::CREATE)?.ok_or_else(missing)?,
    };
    if let Some(bytes) = found.bytes.as_ref().filter(|_| found.note == *note) {
        return Ok((file, bytes.clone()));
    }
    let bytes = note.render(key);
    head::write(&file, &bytes).map_err(system("write", &path))?;
    if found.bytes.is_none() {
        // Once for each log: its files have their names, or do not exist.
        file.sync_all().map_err(system("sync", &path))?;
        log.sync_all().map_err(system("sync", &place.path.join(LOG_NAME)))?;
        place.sync()?;
    }
    Ok((file, bytes))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use stockade_model::{Event, EventKind};

    use super::*;
    use crate::log::Log;
    use crate::verify::{VerifyError, verify};

    fn append(log: &Log, count: u64) {
        for time_ms in 0..count {
            let kind = EventKind::Failed { message: "x".into() };
            log.append(&Event { time_ms, request: "req_1".parse().unwrap(), session: None, kind }).unwrap();
        }
    }

    /// Creates a log of two durable lines and three others, written in another boot.
    fn of_earlier_boot(dir: &Path) {
        let log = Log::open(dir).unwrap();
        append(&log, 2);
        log.commit().unwrap();
        append(&log, 3);
        drop(log);
        let key = KeyFiles::of_log(dir).unwrap().unwrap().load().unwrap().unwrap().key;
        let path = dir.join(HEAD_NAME);
        let Found::Signed(signed) = head::parse(&std::fs::read(&path).unwrap()) else { panic!("no head") };
        let note = HeadNote { boot: Boot::parse("00000000000000aa").unwrap(), ..signed.checked(&key).unwrap() };
        std::fs::write(path, note.render(&key)).unwrap();
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
        let found = verify(&dir);
        assert!(
            matches!(found, Err(VerifyError::Broken { line: 4, why: Fault::LostOrCut { last: 5, count: 2 } })),
            "{found:?}"
        );
        append(&Log::open(&dir).unwrap(), 1);
        let found = verify(&dir).unwrap();
        assert_eq!((found.entries, found.lost), (4, 2));
        // From here on they are certain: this is the same boot.
        cut(&dir, 1);
        assert!(matches!(verify(&dir), Err(VerifyError::Broken { line: 4, why: Fault::Missing { count: 1, .. } })));
    }

    #[test]
    fn durable_lines_are_demanded_in_every_boot() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("audit");
        of_earlier_boot(&dir);
        cut(&dir, 4);
        assert!(matches!(verify(&dir), Err(VerifyError::Broken { line: 2, why: Fault::Missing { count: 4, .. } })));
        assert!(matches!(Log::open(&dir), Err(OpenError::Broken { fault: Fault::Missing { count: 4, .. }, .. })));
    }

    #[test]
    fn lines_that_outlived_a_stop_of_the_machine_are_durable() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("audit");
        of_earlier_boot(&dir);
        drop(Log::open(&dir).unwrap());
        assert_eq!(verify(&dir).unwrap().durable.0, 5);
    }

    #[test]
    fn another_line_in_the_place_of_a_lost_one_is_found() {
        let root = tempfile::tempdir().unwrap();
        let [dir, other] = ["audit", "other"].map(|name| root.path().join(name));
        of_earlier_boot(&dir);
        let log = Log::open(&other).unwrap();
        append(&log, 2);
        // The first two lines of both are equal; the others have other times.
        append(&log, 1);
        append(&log, 4);
        std::fs::copy(other.join(LOG_NAME), dir.join(LOG_NAME)).unwrap();
        assert!(matches!(verify(&dir), Err(VerifyError::Broken { why: Fault::NotHead, .. })));
        assert!(matches!(Log::open(&dir), Err(OpenError::Broken { fault: Fault::NotHead, .. })));
    }
}
