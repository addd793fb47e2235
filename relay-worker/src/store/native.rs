//! [`Sql`] over rusqlite, for native tests. Integers take the way they take in a Durable Object: through floating point.

use std::cell::Cell;
use std::panic::resume_unwind;

use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, StatementStatus, ToSql};

use super::{Param, Row, Sql, SqlError, Value};

/// A database in memory that counts rows and can be told to fail. The end of a transaction counts as a statement.
pub struct NativeSql {
    db: Connection,
    trap: Cell<Option<(u32, Trap)>>,
    rows_read: Cell<u64>,
}

/// How a statement fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trap {
    /// Nothing is done, and that is told.
    Refuse,
    /// It is done, and reported failed all the same.
    Belie,
    /// Nothing is done, and whoever called unwinds, past the panic hook.
    Crash,
}

impl NativeSql {
    /// An empty one.
    pub fn new() -> Result<Self, SqlError> {
        let db = Connection::open_in_memory().map_err(error)?;
        Ok(Self { db, trap: Cell::new(None), rows_read: Cell::new(0) })
    }

    /// Rows written so far.
    pub fn rows_written(&self) -> u64 {
        self.db.total_changes()
    }

    /// Rows read so far: those that came back, those that were looked at on the way, those found to be changed.
    pub fn rows_read(&self) -> u64 {
        self.rows_read.get()
    }

    /// Lets `statements` more run, then fails one.
    pub fn fail_after(&self, statements: u32) {
        self.trap_after(statements, Trap::Refuse);
    }

    /// Lets `statements` more run, then springs the trap on one.
    pub fn trap_after(&self, statements: u32, trap: Trap) {
        self.trap.set(Some((statements, trap)));
    }

    /// No failure is to come any more. Returns whether one was still to come.
    pub fn heal(&self) -> bool {
        self.trap.take().is_some()
    }

    /// What a Durable Object's `deleteAll` does.
    pub fn delete_all(&self) -> Result<(), SqlError> {
        for row in self.run("SELECT name FROM sqlite_master WHERE type = 'table'", &[])? {
            if let Some(Value::Text(name)) = row.first() {
                self.db.execute_batch(&format!("DROP TABLE {name}")).map_err(error)?;
            }
        }
        Ok(())
    }

    fn next_trap(&self) -> Option<Trap> {
        match self.trap.get()? {
            (0, trap) => {
                self.trap.set(None);
                Some(trap)
            }
            (n, trap) => {
                self.trap.set(Some((n - 1, trap)));
                None
            }
        }
    }

    /// Runs a statement of which the trap may take hold.
    fn trapped<T>(&self, work: impl FnOnce() -> Result<T, SqlError>) -> Result<T, SqlError> {
        let told = || SqlError("told to fail".to_owned());
        match self.next_trap() {
            None => work(),
            Some(Trap::Refuse) => Err(told()),
            Some(Trap::Belie) => work().and(Err(told())),
            Some(Trap::Crash) => resume_unwind(Box::new(Trap::Crash)),
        }
    }

    fn run(&self, statement: &str, params: &[Param<'_>]) -> Result<Vec<Row>, SqlError> {
        let before = self.db.total_changes();
        let mut prepared = self.db.prepare_cached(statement).map_err(error)?;
        let columns = prepared.column_count();
        let mut rows = prepared.query(rusqlite::params_from_iter(params)).map_err(error)?;
        let mut found = Vec::new();
        while let Some(row) = rows.next().map_err(error)? {
            let values = (0..columns).map(|i| row.get_ref(i).map(value)).collect::<Result<_, _>>();
            found.push(values.map_err(error)?);
        }
        drop(rows);
        let scanned = u64::try_from(prepared.reset_status(StatementStatus::FullscanStep)).unwrap_or(0);
        let changed = self.db.total_changes() - before;
        self.rows_read.set(self.rows_read.get() + scanned.max(found.len() as u64) + changed);
        Ok(found)
    }
}

/// Undoes a transaction that is left without an end, as by a crash.
struct Open<'a>(&'a Connection);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if !self.0.is_autocommit() {
            let _ = self.0.execute_batch("ROLLBACK");
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
        self.trapped(|| self.run(statement, params))
    }

    fn transaction<T>(&self, work: impl FnOnce() -> Result<T, SqlError>) -> Result<T, SqlError> {
        self.db.execute_batch("BEGIN").map_err(error)?;
        let _open = Open(&self.db);
        let done = work()?;
        self.trapped(|| self.db.execute_batch("COMMIT").map_err(error).map(|()| done))
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
