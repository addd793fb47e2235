//! The database's format, by `user_version`: each step leads from one version to the next.

use std::path::Path;

use rusqlite::Connection;
use skald_common::ids::NamespaceId;

use super::StoreError;

/// SQL that leads from version n to n + 1.
const STEPS: [&str; 1] = [include_str!("v1.sql")];

/// Brings the database to this build's format. True: it was empty before.
pub(super) fn begin(db: &mut Connection, path: &Path, namespace: NamespaceId) -> Result<bool, StoreError> {
    let found: i64 = db.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    let known = i64::try_from(STEPS.len()).unwrap_or(i64::MAX);
    let done = usize::try_from(found).ok().filter(|done| *done <= STEPS.len());
    let Some(done) = done else {
        return Err(StoreError::Newer { path: path.to_owned(), found, known });
    };
    let transaction = db.transaction()?;
    for step in &STEPS[done..] {
        transaction.execute_batch(step)?;
    }
    transaction.pragma_update(None, "user_version", known)?;
    if done == 0 {
        transaction.execute("UPDATE meta SET namespace = ?1", [namespace.as_bytes()])?;
    }
    let owner: Vec<u8> = transaction.query_row("SELECT namespace FROM meta", [], |row| row.get(0))?;
    if owner != namespace.as_bytes() {
        // Not committed: what is somebody else's stays as it is.
        return Err(StoreError::OtherIdentity { path: path.to_owned() });
    }
    transaction.commit()?;
    Ok(done == 0)
}
