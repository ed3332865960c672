//! The budget of a session for reviews: calls, and bytes both ways. Stored in a small file for each
//! session, because a session has many runs; without a session, in memory. If the file cannot be
//! read or written, the budget counts as used up.

use std::fs::{self, DirBuilder, File};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use stockade_model::SessionId;

/// Time-out for the lock of the file, which another run may hold.
const LOCK_TIMEOUT: Duration = Duration::from_millis(200);
/// A session's file is removed after this time.
const FILE_RETENTION: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// Most old files that are examined at a time.
const MAX_EXAMINED_FILES: usize = 1_000;

/// The spent part of a budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct BudgetUsage {
    calls: u64,
    bytes: u64,
}

/// Limits, and the location of the spent amounts.
#[derive(Debug)]
pub(crate) struct ReviewBudget {
    calls: u64,
    bytes: u64,
    directory: Option<PathBuf>,
    here: Mutex<BudgetUsage>,
}

/// Reason why no call is allowed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BudgetError {
    #[error("the budget of this session is used up ({0} of them)")]
    Calls(u64),
    #[error("the budget of this session is used up ({0} bytes)")]
    Bytes(u64),
    #[error("the budget of this session cannot be stored: {0}")]
    File(#[from] std::io::Error),
}

impl ReviewBudget {
    pub(crate) fn new(calls: u64, bytes: u64, directory: Option<PathBuf>) -> Self {
        Self { calls, bytes, directory, here: Mutex::default() }
    }

    /// Takes one call and the bytes of its request, before it is sent.
    pub(crate) fn take_call(&self, session: Option<&SessionId>, request_bytes: u64) -> Result<(), BudgetError> {
        self.update_usage(session, |usage| {
            if usage.calls >= self.calls {
                return Err(BudgetError::Calls(self.calls));
            }
            let bytes = usage.bytes.saturating_add(request_bytes);
            if bytes > self.bytes {
                return Err(BudgetError::Bytes(self.bytes));
            }
            Ok(BudgetUsage { calls: usage.calls + 1, bytes })
        })
    }

    /// Adds received bytes.
    pub(crate) fn add_received(&self, session: Option<&SessionId>, received_bytes: u64) -> Result<(), BudgetError> {
        self.update_usage(session, |usage| {
            Ok(BudgetUsage { bytes: usage.bytes.saturating_add(received_bytes), ..usage })
        })
    }

    fn update_usage(
        &self,
        session: Option<&SessionId>,
        change: impl FnOnce(BudgetUsage) -> Result<BudgetUsage, BudgetError>,
    ) -> Result<(), BudgetError> {
        let (Some(directory), Some(session)) = (&self.directory, session) else {
            let mut here = self.here.lock().unwrap_or_else(PoisonError::into_inner);
            *here = change(*here)?;
            return Ok(());
        };
        // An id consists of letters, digits, `-` and `_`, so it is a valid file name.
        let path = directory.join(session.as_str());
        let options = || File::options().read(true).write(true).create(true).truncate(false).mode(0o600).to_owned();
        let mut file = match options().open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
                options().open(&path)?
            }
            Err(error) => return Err(error.into()),
        };
        lock_file(&file)?;
        let mut text = String::new();
        (&file).take(64).read_to_string(&mut text)?;
        if text.is_empty() {
            self.forget_old();
        }
        let usage = change(parse_usage(&text)?)?;
        file.rewind()?;
        // Each number has a fixed width, so a new text overwrites the old one completely.
        writeln!(file, "{:020} {:020}", usage.calls, usage.bytes)?;
        Ok(())
    }

    /// Removes the files of old sessions.
    fn forget_old(&self) {
        let entries = self.directory.as_ref().and_then(|directory| fs::read_dir(directory).ok());
        for entry in entries.into_iter().flatten().flatten().take(MAX_EXAMINED_FILES) {
            let age = entry.metadata().and_then(|metadata| metadata.modified()).ok().and_then(|at| at.elapsed().ok());
            if age.is_some_and(|age| age > FILE_RETENTION) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

fn lock_file(file: &File) -> std::io::Result<()> {
    let until = Instant::now() + LOCK_TIMEOUT;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(fs::TryLockError::WouldBlock) if Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(fs::TryLockError::WouldBlock) => return Err(std::io::ErrorKind::TimedOut.into()),
            Err(fs::TryLockError::Error(error)) => return Err(error),
        }
    }
}

fn parse_usage(text: &str) -> std::io::Result<BudgetUsage> {
    if text.is_empty() {
        return Ok(BudgetUsage::default());
    }
    let mut numbers = text.split_whitespace().map(str::parse);
    match (numbers.next(), numbers.next(), numbers.next()) {
        (Some(Ok(calls)), Some(Ok(bytes)), None) => Ok(BudgetUsage { calls, bytes }),
        _ => Err(std::io::ErrorKind::InvalidData.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_spends_over_many_runs() {
        let dir = tempfile::tempdir().unwrap();
        let run = || ReviewBudget::new(2, 100, Some(dir.path().join("reviews")));
        let (one, other) = ("ses_1".parse().unwrap(), "ses_2".parse().unwrap());
        run().take_call(Some(&one), 10).unwrap();
        run().take_call(Some(&one), 10).unwrap();
        assert!(matches!(run().take_call(Some(&one), 10), Err(BudgetError::Calls(2))));
        run().take_call(Some(&other), 60).unwrap();
        run().add_received(Some(&other), 30).unwrap();
        assert!(matches!(run().take_call(Some(&other), 11), Err(BudgetError::Bytes(100))));
        run().take_call(Some(&other), 10).unwrap();
    }

    #[test]
    fn unreadable_budgets_count_as_spent() {
        let dir = tempfile::tempdir().unwrap();
        let session = "ses_1".parse().unwrap();
        for bad in ["x", "1", "1 2 3", "-1 2"] {
            fs::write(dir.path().join("ses_1"), bad).unwrap();
            let budget = ReviewBudget::new(9, 900, Some(dir.path().to_owned()));
            assert!(matches!(budget.take_call(Some(&session), 1), Err(BudgetError::File(_))), "{bad:?}");
        }
        let nowhere = ReviewBudget::new(9, 900, Some("/proc/none".into()));
        assert!(matches!(nowhere.take_call(Some(&session), 1), Err(BudgetError::File(_))));
    }

    #[test]
    fn without_a_session_a_run_spends_alone() {
        let budget = ReviewBudget::new(1, 100, None);
        budget.take_call(None, 1).unwrap();
        assert!(budget.take_call(None, 1).is_err());
    }

    #[test]
    fn many_at_once_take_no_more_than_there_is() {
        let dir = tempfile::tempdir().unwrap();
        let session: SessionId = "ses_1".parse().unwrap();
        let take = || ReviewBudget::new(5, 10_000, Some(dir.path().to_owned())).take_call(Some(&session), 1).is_ok();
        let granted_calls: usize = std::thread::scope(|scope| {
            let all: Vec<_> = (0..12).map(|_| scope.spawn(take)).collect();
            all.into_iter().map(|thread| usize::from(thread.join().unwrap())).sum()
        });
        assert_eq!(granted_calls, 5);
    }
}
