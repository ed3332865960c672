//! Remembered answers, opened at the first use: most runs remember nothing and should not pay for a
//! database.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use stockade_engine::core::{Memo, Remembered};
use stockade_engine::keys::{GrantContext, Key};
use stockade_engine::real::StoreMemory;
use stockade_engine::seams::{Memory, MemoryError, Standing};
use stockade_model::SessionId;
use stockade_store::Store;

/// Store at a path. Opened at the first lookup, created at the first answer.
#[derive(Debug)]
pub struct LateMemory {
    path: PathBuf,
    open: Mutex<Option<StoreMemory>>,
}

impl LateMemory {
    /// Memory in the store at `path`, which need not exist yet.
    pub fn new(path: PathBuf) -> Self {
        Self { path, open: Mutex::new(None) }
    }

    /// Opens the store, and creates it if needed.
    fn opened(&self) -> Result<StoreMemory, MemoryError> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(memory) = open.as_ref() {
            return Ok(memory.clone());
        }
        let store = Store::open(&self.path).map_err(|e| MemoryError(e.to_string()))?;
        Ok(open.insert(StoreMemory::new(Arc::new(store))).clone())
    }

    /// Opens the store if it exists. If its existence cannot be determined, the open reports the
    /// reason.
    fn existing(&self) -> Result<Option<StoreMemory>, MemoryError> {
        if self.path.try_exists().is_ok_and(|exists| !exists) { Ok(None) } else { self.opened().map(Some) }
    }
}

impl Memory for LateMemory {
    fn lookup(&self, key: &Key, session: Option<&SessionId>, now_ms: u64) -> Result<Option<Remembered>, MemoryError> {
        self.existing()?.map_or(Ok(None), |memory| memory.lookup(key, session, now_ms))
    }

    fn remember(&self, memo: &Memo, session: Option<&SessionId>, now_ms: u64) -> Result<(), MemoryError> {
        self.opened()?.remember(memo, session, now_ms)
    }

    fn standing(
        &self,
        context: &GrantContext,
        session: Option<&SessionId>,
        now_ms: u64,
    ) -> Result<Standing, MemoryError> {
        self.existing()?.map_or(Ok(Standing::default()), |memory| memory.standing(context, session, now_ms))
    }
}
