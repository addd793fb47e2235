//! [`Sql`] over rusqlite, for native tests. Integers take the way they take in a Durable Object: through floating point.

use std::cell::Cell;

use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, ToSql};

use super::{Param, Row, Sql, SqlError, Value};

/// A database in memory that counts the rows it writes and can be told to fail.
pub struct NativeSql {
    db: Connection,
    fail_in: Cell<Option<u32>>,
}

impl NativeSql {
    /// An empty one.
    pub fn new() -> Result<Self, SqlError> {
        Ok(Self { db: Connection::open_in_memory().map_err(error)?, fail_in: Cell::new(None) })
    }

    /// Rows written so far.
    pub fn rows_written(&self) -> u64 {
        self.db.total_changes()
    }

    /// Lets `statements` more run, then fails one.
    pub fn fail_after(&self, statements: u32) {
        self.fail_in.set(Some(statements));
    }

    /// No failure is to come any more. Returns whether one was still to come.
    pub fn heal(&self) -> bool {
        self.fail_in.take().is_some()
    }

    /// What a Durable Object's `deleteAll` does.
    pub fn delete_all(&self) -> Result<(), SqlError> {
        for row in self.exec("SELECT name FROM sqlite_master WHERE type = 'table'", &[])? {
            if let Some(Value::Text(name)) = row.first() {
                self.db.execute_batch(&format!("DROP TABLE {name}")).map_err(error)?;
            }
        }
        Ok(())
    }

    fn may_fail(&self) -> Result<(), SqlError> {
        match self.fail_in.get() {
            Some(0) => {
                self.fail_in.set(None);
                Err(SqlError("told to fail".to_owned()))
            }
            Some(n) => {
                self.fail_in.set(Some(n - 1));
                Ok(())
            }
            None => Ok(()),
        }
    }
}

impl ToSql for Param<'_> {
    #[allow(clippy::cast_precision_loss)] // as in production
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match *self {
            Self::Null => ValueRef::Null,
            Self::Int(n) => ValueRef::Real(n as f64),
            Self::Text(text) => ValueRef::Text(text.as_bytes()),
            Self::Blob(bytes) => ValueRef::Blob(bytes),
        }))
    }
}

impl Sql for NativeSql {
    fn exec(&self, statement: &str, params: &[Param<'_>]) -> Result<Vec<Row>, SqlError> {
        self.may_fail()?;
        let mut prepared = self.db.prepare_cached(statement).map_err(error)?;
        let columns = prepared.column_count();
        let mut rows = prepared.query(rusqlite::params_from_iter(params)).map_err(error)?;
        let mut found = Vec::new();
        while let Some(row) = rows.next().map_err(error)? {
            let values = (0..columns).map(|i| row.get_ref(i).map(value)).collect::<Result<_, _>>();
            found.push(values.map_err(error)?);
        }
        Ok(found)
    }

    fn transaction<T>(&self, work: impl FnOnce() -> Result<T, SqlError>) -> Result<T, SqlError> {
        self.db.execute_batch("BEGIN").map_err(error)?;
        match work() {
            Ok(done) => self.db.execute_batch("COMMIT").map_err(error).map(|()| done),
            Err(failed) => self.db.execute_batch("ROLLBACK").map_err(error).and(Err(failed)),
        }
    }
}

#[allow(clippy::cast_possible_truncation)] // whole numbers only, as in production
fn value(value: ValueRef<'_>) -> Value {
    match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(n) => Value::Int(n),
        ValueRef::Real(n) => Value::Int(n as i64),
        ValueRef::Text(text) => Value::Text(String::from_utf8_lossy(text).into_owned()),
        ValueRef::Blob(bytes) => Value::Blob(bytes.to_vec()),
    }
}

#[allow(clippy::needless_pass_by_value)] // for map_err
fn error(e: rusqlite::Error) -> SqlError {
    SqlError(e.to_string())
}
