//! Remembered answers: their table and its statements.

use rusqlite::{Connection, OptionalExtension, Row, Transaction, TransactionBehavior, params};
use stockade_model::{ApprovalId, ApprovalScope, Digest, Grant, RawText, SessionId};

use super::{DatabaseSchema, is_duplicate, json_text, parse_column, read_amount, read_time, to_sql_integer};
use crate::database::StoreError;
use crate::remembered::{ApprovalNamespace, ApprovalRecord, Consent};
use crate::store::{ApprovalStore, MAX_LISTED};

/// Schema of the file of remembered answers.
pub(crate) const SCHEMA: DatabaseSchema = DatabaseSchema {
    application_id: 0x5354_4b44, // `STKD`
    migrations: &["
    CREATE TABLE approval (
        id TEXT PRIMARY KEY,
        namespace TEXT NOT NULL CHECK (namespace IN ('run', 'grant', 'escalate', 'unsandboxed')),
        digest TEXT NOT NULL,
        question BLOB NOT NULL,
        grants TEXT NOT NULL,
        consent TEXT NOT NULL CHECK (consent IN ('approved', 'denied')),
        scope TEXT NOT NULL CHECK (scope IN ('session', 'times', 'until', 'always')),
        session TEXT CHECK (scope <> 'session' OR session IS NOT NULL),
        remaining INTEGER CHECK ((scope = 'times') = (remaining IS NOT NULL) AND remaining >= 0),
        until_ms INTEGER CHECK ((scope = 'until') = (until_ms IS NOT NULL) AND until_ms >= 0),
        answered_by TEXT NOT NULL,
        created_ms INTEGER NOT NULL CHECK (created_ms >= 0),
        request TEXT NOT NULL,
        revoked_ms INTEGER,
        ended_ms INTEGER
    ) STRICT;
    CREATE INDEX approval_key ON approval (namespace, digest);
    CREATE INDEX approval_session ON approval (session) WHERE scope = 'session';
"],
};

const COLUMNS: &str = "id, namespace, digest, question, grants, consent, scope, session, remaining, until_ms, \
                       answered_by, created_ms, request, revoked_ms, ended_ms";

/// Condition for rows that answer: valid, and of this session if they are bound to one.
const MATCHING_CONDITION: &str = "namespace = ?1 AND digest = ?2 AND revoked_ms IS NULL AND ended_ms IS NULL \
                        AND (scope = 'always' OR (scope = 'session' AND session = ?3) \
                             OR (scope = 'until' AND until_ms > ?4) OR (scope = 'times' AND remaining > 0))";

/// Order: refusals before approvals; then answers without counted uses before counted ones.
const PRECEDENCE_ORDER: &str = "consent = 'approved', \
                          CASE scope WHEN 'always' THEN 0 WHEN 'session' THEN 1 WHEN 'until' THEN 2 ELSE 3 END, \
                          created_ms, id";

impl ApprovalStore {
    /// Inserts an answer that may be remembered; returns false if its id is taken.
    pub(crate) fn insert_answer(&self, r: &ApprovalRecord) -> Result<bool, StoreError> {
        let (scope, remaining, until_ms) = match r.scope {
            ApprovalScope::Once => ("once", None, None),
            ApprovalScope::Session => ("session", None, None),
            ApprovalScope::Times(uses) => ("times", Some(uses), None),
            ApprovalScope::Until(until_ms) => ("until", None, Some(to_sql_integer(until_ms))),
            ApprovalScope::Always => ("always", None, None),
        };
        let grants = json_text(&r.grants)?;
        let sql = format!(
            "INSERT INTO approval ({COLUMNS}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)"
        );
        let inserted = self.database.lock().prepare_cached(&sql)?.execute(params![
            r.id.as_str(),
            r.namespace.as_str(),
            r.digest.as_str(),
            r.question.as_bytes(),
            grants,
            consent_text(r.consent),
            scope,
            r.session.as_ref().map(SessionId::as_str),
            remaining,
            until_ms,
            r.by,
            to_sql_integer(r.created_ms),
            r.request.as_str(),
            r.revoked_ms.map(to_sql_integer),
            r.ended_ms.map(to_sql_integer),
        ]);
        match inserted {
            Err(error) if is_duplicate(&error) => Ok(false),
            other => Ok(other? > 0),
        }
    }

    /// Returns the remembered answer to a question, if there is one. Refusals precede approvals,
    /// and answers without counted uses precede counted ones. If its uses are counted, one is taken
    /// durably, and the returned scope contains the remaining uses. No more uses are given than
    /// were granted, whatever the number of processes.
    ///
    /// # Errors
    /// [`StoreError`] if the store failed; then there is no answer, and no command may run because
    /// of one.
    pub fn look_up_answer(
        &self,
        namespace: ApprovalNamespace,
        digest: &Digest,
        session: Option<&SessionId>,
        now_ms: u64,
    ) -> Result<Option<ApprovalRecord>, StoreError> {
        let mut connection = self.database.lock();
        let found = find_matching(&connection, namespace, digest, session, now_ms)?;
        if !matches!(found, Some(ApprovalRecord { scope: ApprovalScope::Times(_), .. })) {
            return Ok(found);
        }
        // Counted: look again in a transaction, in which no other process can count.
        let transaction = Transaction::new(&mut connection, TransactionBehavior::Immediate)?;
        let mut found = find_matching(&transaction, namespace, digest, session, now_ms)?;
        if let Some(ApprovalRecord { id, scope: ApprovalScope::Times(uses), .. }) = &mut found {
            let sql =
                "UPDATE approval SET remaining = remaining - 1 WHERE id = ?1 AND remaining > 0 RETURNING remaining";
            *uses = transaction.prepare_cached(sql)?.query_row([id.as_str()], |row| row.get(0))?;
        }
        transaction.commit()?;
        Ok(found)
    }

    /// Returns all remembered answers, valid or not, the newest first; at most [`MAX_LISTED`].
    ///
    /// # Errors
    /// [`StoreError`] if the store failed.
    pub fn list_answers(&self) -> Result<Vec<ApprovalRecord>, StoreError> {
        let sql = format!("SELECT {COLUMNS} FROM approval ORDER BY created_ms DESC, id LIMIT {MAX_LISTED}");
        self.database.select_rows(&sql, [], parse_answer)
    }

    /// Returns one remembered answer.
    ///
    /// # Errors
    /// [`StoreError`] if the store failed.
    pub fn find_answer(&self, id: &ApprovalId) -> Result<Option<ApprovalRecord>, StoreError> {
        let sql = format!("SELECT {COLUMNS} FROM approval WHERE id = ?1");
        Ok(self.database.lock().prepare_cached(&sql)?.query_row([id.as_str()], parse_answer).optional()?)
    }

    /// Revokes an answer, which then answers no question. Returns false if it does not exist, or
    /// was revoked before.
    ///
    /// # Errors
    /// [`StoreError`] if the store failed.
    pub fn revoke_answer(&self, id: &ApprovalId, now_ms: u64) -> Result<bool, StoreError> {
        let sql = "UPDATE approval SET revoked_ms = ?2 WHERE id = ?1 AND revoked_ms IS NULL";
        Ok(self.database.execute(sql, params![id.as_str(), to_sql_integer(now_ms)])? > 0)
    }

    /// Ends the answers of a session; returns their number.
    ///
    /// # Errors
    /// [`StoreError`] if the store failed.
    pub fn end_session(&self, session: &SessionId, now_ms: u64) -> Result<usize, StoreError> {
        let sql = "UPDATE approval SET ended_ms = ?2 WHERE scope = 'session' AND session = ?1 AND ended_ms IS NULL";
        self.database.execute(sql, params![session.as_str(), to_sql_integer(now_ms)])
    }

    /// Removes answers that became invalid before `before_ms`; returns their number. (Counted
    /// answers: those used up and given before that time.)
    ///
    /// # Errors
    /// [`StoreError`] if the store failed.
    pub fn prune_answers(&self, before_ms: u64) -> Result<usize, StoreError> {
        let sql = "DELETE FROM approval WHERE revoked_ms < ?1 OR ended_ms < ?1 OR until_ms < ?1 \
                   OR (remaining = 0 AND created_ms < ?1)";
        self.database.execute(sql, [to_sql_integer(before_ms)])
    }

    /// Checks the whole store for damage.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] with the first damage.
    pub fn check_integrity(&self) -> Result<(), StoreError> {
        self.database.check_file()
    }
}

fn find_matching(
    connection: &Connection,
    namespace: ApprovalNamespace,
    digest: &Digest,
    session: Option<&SessionId>,
    now_ms: u64,
) -> Result<Option<ApprovalRecord>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM approval WHERE {MATCHING_CONDITION} ORDER BY {PRECEDENCE_ORDER} LIMIT 1");
    let session = session.map(SessionId::as_str);
    let mut statement = connection.prepare_cached(&sql)?;
    Ok(statement
        .query_row(params![namespace.as_str(), digest.as_str(), session, to_sql_integer(now_ms)], parse_answer)
        .optional()?)
}

fn consent_text(consent: Consent) -> &'static str {
    match consent {
        Consent::Approved => "approved",
        Consent::Denied => "denied",
    }
}

fn parse_answer(row: &Row<'_>) -> rusqlite::Result<ApprovalRecord> {
    let digest = |text: String| serde_json::from_value(serde_json::Value::String(text)).ok();
    let scope = match row.get_ref(6)?.as_str()? {
        "session" => ApprovalScope::Session,
        "times" => ApprovalScope::Times(row.get(8)?),
        "until" => ApprovalScope::Until(read_amount(row, 9)?),
        "always" => ApprovalScope::Always,
        _ => parse_column(row, 6, |_| None)?,
    };
    let session: Option<String> = row.get(7)?;
    Ok(ApprovalRecord {
        id: parse_column(row, 0, |text| text.parse().ok())?,
        namespace: parse_column(row, 1, |text| text.parse().ok())?,
        digest: parse_column(row, 2, digest)?,
        question: RawText::from(row.get::<_, Vec<u8>>(3)?),
        grants: parse_column(row, 4, |text| serde_json::from_str::<Vec<Grant>>(&text).ok())?,
        consent: parse_column(row, 5, |text| match text.as_str() {
            "approved" => Some(Consent::Approved),
            "denied" => Some(Consent::Denied),
            _ => None,
        })?,
        scope,
        session: session.map(|_| parse_column(row, 7, |text| text.parse().ok())).transpose()?,
        by: row.get(10)?,
        created_ms: read_amount(row, 11)?,
        request: parse_column(row, 12, |text| text.parse().ok())?,
        revoked_ms: read_time(row, 13)?,
        ended_ms: read_time(row, 14)?,
    })
}
