//! An access token of a push service, kept for as long as it is good: an object that wakes up need not ask for another. Not
//! part of what the engine knows.

use super::{Columns, Param, Sql, SqlError, Store, int};
use crate::push::Access;

const TABLE: &str = "CREATE TABLE IF NOT EXISTS push_access (
    id INTEGER PRIMARY KEY CHECK (id = 0),
    identity BLOB NOT NULL,
    token TEXT NOT NULL,
    until INTEGER NOT NULL
) STRICT";

impl<S: Sql> Store<S> {
    /// The token that was kept last, if any.
    pub fn access(&self) -> Result<Option<Access>, SqlError> {
        if !self.has_table("push_access")? {
            return Ok(None);
        }
        let rows = self.sql.exec("SELECT identity, token, until FROM push_access", &[])?;
        let Some(row) = rows.into_iter().next() else { return Ok(None) };
        let mut columns = Columns::of(row);
        let (identity, token, until_ms) = (columns.blob()?, columns.text()?, columns.int()?);
        Ok(identity.try_into().ok().map(|identity| Access { identity, token, until_ms }))
    }

    /// Keeps a token in place of the one before; nothing in a database whose namespace is gone, or was never there.
    pub fn put_access(&self, access: &Access) -> Result<(), SqlError> {
        if !self.exists()? {
            return Ok(());
        }
        self.sql.exec(TABLE, &[])?;
        let statement = "INSERT OR REPLACE INTO push_access (id, identity, token, until) VALUES (0, ?, ?, ?)";
        let params = [Param::Blob(&access.identity), Param::Text(&access.token), int(access.until_ms)?];
        self.sql.exec(statement, &params).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::native::NativeSql;

    #[test]
    fn a_token_is_kept_with_a_namespace_and_goes_with_it() {
        let store = Store::new(std::rc::Rc::new(NativeSql::new().unwrap()));
        let access = |token: &str| Access { identity: [1; 16], token: token.to_owned(), until_ms: 7 };
        store.put_access(&access("a")).unwrap();
        assert_eq!(store.access(), Ok(None), "no namespace, so nothing is written");
        store.create().unwrap();
        assert_eq!(store.access(), Ok(None));
        store.put_access(&access("a")).unwrap();
        store.put_access(&access("b")).unwrap();
        assert_eq!(store.access(), Ok(Some(access("b"))));
        store.sql.delete_all().unwrap();
        store.put_access(&access("c")).unwrap();
        assert_eq!(store.access(), Ok(None));
    }
}
