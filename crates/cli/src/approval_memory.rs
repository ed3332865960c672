//! Remembered answers, opened at the first use: most runs remember nothing and should not pay for a
//! database.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use stockade_engine::adapters::StoreMemory;
use stockade_engine::core::{AnswerMemo, RememberedAnswer};
use stockade_engine::keys::{GrantContext, MemoryKey};
use stockade_engine::ports::{AnswerMemory, MemoryError, PersistentAnswers};
use stockade_model::SessionId;
use stockade_store::ApprovalStore;

/// Store at a path. Opened at the first lookup, created at the first answer.
#[derive(Debug)]
pub struct LazyMemory {
    path: PathBuf,
    open: Mutex<Option<StoreMemory>>,
}

impl LazyMemory {
    /// Memory in the store at `path`, which need not exist yet.
    pub fn new(path: PathBuf) -> Self {
        Self { path, open: Mutex::new(None) }
    }

    /// Opens the store, and creates it if needed.
    fn open_or_create(&self) -> Result<StoreMemory, MemoryError> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(memory) = open.as_ref() {
            return Ok(memory.clone());
        }
        let store = ApprovalStore::open(&self.path).map_err(|e| MemoryError(e.to_string()))?;
        Ok(open.insert(StoreMemory::new(Arc::new(store))).clone())
    }

    /// Opens the store if it exists. If its existence cannot be determined, the open reports the
    /// reason.
    fn open_existing(&self) -> Result<Option<StoreMemory>, MemoryError> {
        if self.path.try_exists().is_ok_and(|exists| !exists) { Ok(None) } else { self.open_or_create().map(Some) }
    }
}

impl AnswerMemory for LazyMemory {
    fn look_up_answer(
        &self,
        key: &MemoryKey,
        session: Option<&SessionId>,
        now_ms: u64,
    ) -> Result<Option<RememberedAnswer>, MemoryError> {
        self.open_existing()?.map_or(Ok(None), |memory| memory.look_up_answer(key, session, now_ms))
    }

    fn remember_answer(&self, memo: &AnswerMemo, session: Option<&SessionId>, now_ms: u64) -> Result<(), MemoryError> {
        self.open_or_create()?.remember_answer(memo, session, now_ms)
    }

    fn persistent_answers(
        &self,
        context: &GrantContext,
        session: Option<&SessionId>,
        now_ms: u64,
    ) -> Result<PersistentAnswers, MemoryError> {
        self.open_existing()?
            .map_or(Ok(PersistentAnswers::default()), |memory| memory.persistent_answers(context, session, now_ms))
    }
}
