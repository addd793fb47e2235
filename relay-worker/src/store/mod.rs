//! What a namespace keeps: schema, statements and rows, over the small [`Sql`] trait. A Durable Object's SQL in production,
//! rusqlite in native tests: the same statements. Nothing here decides anything; that is the engine's.

use std::fmt;

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

/// A SQLite database.
pub trait Sql {
    /// Runs one statement with `?` parameters in order, and returns all rows.
    fn exec(&self, statement: &str, params: &[Param<'_>]) -> Result<Vec<Row>, SqlError>;

    /// Runs `work` in a transaction: kept when it returns `Ok`, undone when it returns `Err`. Never nested.
    fn transaction<T>(&self, work: impl FnOnce() -> Result<T, SqlError>) -> Result<T, SqlError>;
}
