//! What a namespace keeps: schema, statements and rows, over the small [`Sql`] trait. A Durable Object's SQL in production,
//! rusqlite in native tests: the same statements. Nothing here decides anything; that is the engine's.

mod access;
mod members;
mod namespace;
#[cfg(all(not(target_arch = "wasm32"), any(test, feature = "testing")))]
pub mod native;
mod push;
mod queue;

use std::fmt;

pub use members::{Member, Standing};
pub use namespace::{Namespace, Window};
pub use queue::{Indexed, Queued, Tag};

/// A value of a row. Integers stay within 2^53, which is what a Durable Object carries exactly.
#[derive(Clone, PartialEq, Eq)]
pub enum Value {
    /// NULL.
    Null,
    /// An integral number. Numbers that arrive as floating point and are whole count as this.
    Int(i64),
    /// Text.
    Text(String),
    /// Bytes.
    Blob(Vec<u8>),
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("Null"),
            Self::Int(n) => write!(f, "Int({n})"),
            Self::Text(text) => write!(f, "Text({} bytes)", text.len()),
            Self::Blob(bytes) => write!(f, "Blob({} bytes)", bytes.len()),
        }
    }
}

/// A parameter of a statement.
#[derive(Clone, Copy)]
pub enum Param<'a> {
    /// NULL.
    Null,
    /// An integer within 2^53.
    Int(i64),
    /// Text.
    Text(&'a str),
    /// Bytes.
    Blob(&'a [u8]),
}

/// The columns of a row, in the statement's order.
pub type Row = Vec<Value>;

/// The database refused; its own words, which name tables and causes, never content.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("storage: {0}")]
pub struct SqlError(pub String);

/// A database of `SQLite`.
pub trait Sql {
    /// Runs one statement with `?` parameters in order, and returns all rows.
    fn exec(&self, statement: &str, params: &[Param<'_>]) -> Result<Vec<Row>, SqlError>;

    /// Runs `work` in a transaction: kept when it returns `Ok`, undone when it returns `Err`. Never nested.
    fn transaction<T>(&self, work: impl FnOnce() -> Result<T, SqlError>) -> Result<T, SqlError>;
}

impl<T: Sql> Sql for std::rc::Rc<T> {
    fn exec(&self, statement: &str, params: &[Param<'_>]) -> Result<Vec<Row>, SqlError> {
        (**self).exec(statement, params)
    }

    fn transaction<R>(&self, work: impl FnOnce() -> Result<R, SqlError>) -> Result<R, SqlError> {
        (**self).transaction(work)
    }
}

/// The rows of one namespace.
pub struct Store<S> {
    sql: S,
}

impl<S: Sql> Store<S> {
    /// Over a database, which may be empty; nothing is written until [`Store::create`].
    pub const fn new(sql: S) -> Self {
        Self { sql }
    }

    /// Runs `work` in a transaction; see [`Sql::transaction`].
    pub fn transaction<T>(&self, work: impl FnOnce() -> Result<T, SqlError>) -> Result<T, SqlError> {
        self.sql.transaction(work)
    }

    /// Whether anything was ever written.
    pub fn exists(&self) -> Result<bool, SqlError> {
        self.has_table("namespace")
    }

    fn has_table(&self, name: &str) -> Result<bool, SqlError> {
        let query = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = ?";
        let rows = self.sql.exec(query, &[Param::Text(name)])?;
        Ok(rows.into_iter().next().map_or(Ok(0), |row| Columns::of(row).int())? > 0)
    }

    /// Makes the tables of an empty database.
    pub fn create(&self) -> Result<(), SqlError> {
        for table in [namespace::TABLE, members::TABLE, queue::TABLE] {
            self.sql.exec(table, &[])?;
        }
        Ok(())
    }
}

/// Takes a row apart, column by column.
struct Columns(std::vec::IntoIter<Value>);

impl Columns {
    fn of(row: Row) -> Self {
        Self(row.into_iter())
    }

    fn int(&mut self) -> Result<u64, SqlError> {
        match self.0.next() {
            Some(Value::Int(n)) => u64::try_from(n).map_err(|_| corrupt("a negative number")),
            other => Err(unexpected("an integer", other.as_ref())),
        }
    }

    fn maybe_int(&mut self) -> Result<Option<u64>, SqlError> {
        match self.0.as_slice().first() {
            Some(Value::Null) => {
                self.0.next();
                Ok(None)
            }
            _ => self.int().map(Some),
        }
    }

    fn text(&mut self) -> Result<String, SqlError> {
        match self.0.next() {
            Some(Value::Text(text)) => Ok(text),
            other => Err(unexpected("text", other.as_ref())),
        }
    }

    fn blob(&mut self) -> Result<Vec<u8>, SqlError> {
        self.maybe_blob()?.ok_or_else(|| corrupt("NULL where bytes belong"))
    }

    fn maybe_blob(&mut self) -> Result<Option<Vec<u8>>, SqlError> {
        match self.0.next() {
            Some(Value::Null) => Ok(None),
            Some(Value::Blob(bytes)) => Ok(Some(bytes)),
            other => Err(unexpected("bytes", other.as_ref())),
        }
    }
}

fn corrupt(what: &str) -> SqlError {
    SqlError(format!("corrupt row: {what}"))
}

fn unexpected(wanted: &str, got: Option<&Value>) -> SqlError {
    corrupt(&format!("expected {wanted}, got {got:?}"))
}

/// A number as a parameter; one that the database cannot carry is an error, not another number.
fn int(n: u64) -> Result<Param<'static>, SqlError> {
    match i64::try_from(n) {
        Ok(n) if n <= MAX_INT => Ok(Param::Int(n)),
        _ => Err(SqlError(format!("{n} is beyond 2^53"))),
    }
}

/// The largest integer that a Durable Object carries exactly.
const MAX_INT: i64 = 1 << 53;
