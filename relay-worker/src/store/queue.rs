//! Stored messages. The key is member number x 2^32 + sequence: one row in, one row out, no second index, and a recipient's
//! queue is one range in order. It stays below 2^53 because member numbers stay below 2^21.

use std::fmt;

use bytes::Bytes;
use skald_common::ids::{Ed25519Public, MessageNonce};
use skald_common::limits::MAX_COLLAPSE;

use super::{Columns, Param, Row, Sql, SqlError, Store, corrupt, int};

// The short columns come first: reading the index of a queue then never touches the pages that hold ciphertext.
pub(super) const TABLE: &str = "CREATE TABLE IF NOT EXISTS queue (
    key INTEGER PRIMARY KEY,
    at INTEGER NOT NULL,
    quiet INTEGER NOT NULL,
    tag BLOB,
    sender BLOB NOT NULL,
    nonce BLOB NOT NULL,
    ciphertext BLOB NOT NULL
) STRICT";

/// A collapse tag: 1 to 16 bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct Tag(Vec<u8>);

impl Tag {
    /// From a wire field; `None` if it is too short or too long.
    pub fn new(bytes: Vec<u8>) -> Option<Self> {
        (1..=MAX_COLLAPSE).contains(&bytes.len()).then_some(Self(bytes))
    }

    /// As it came.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tag({} bytes)", self.0.len())
    }
}

/// What is known of a queued message without reading it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Indexed {
    /// Its number in the recipient's queue.
    pub seq: u32,
    /// When it was stored, Unix milliseconds.
    pub at: u64,
    /// Bytes of ciphertext.
    pub size: u32,
    /// Who sent it.
    pub sender: Ed25519Public,
    /// What it collapses with.
    pub tag: Option<Tag>,
    /// Never pushed.
    pub quiet: bool,
}

/// What a queued message says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Queued {
    /// Who sent it.
    pub sender: Ed25519Public,
    /// As it came.
    pub nonce: MessageNonce,
    /// As it came.
    pub ciphertext: Bytes,
}

fn key(member: u32, seq: u32) -> Result<Param<'static>, SqlError> {
    int((u64::from(member) << 32) | u64::from(seq))
}

impl<S: Sql> Store<S> {
    /// The index of a member's queue, in order.
    pub fn queue(&self, member: u32) -> Result<Vec<Indexed>, SqlError> {
        let query =
            "SELECT key, at, quiet, tag, sender, length(ciphertext) FROM queue WHERE key BETWEEN ? AND ? ORDER BY key";
        self.sql.exec(query, &[key(member, 0)?, key(member, u32::MAX)?])?.into_iter().map(parse_index).collect()
    }

    /// Reads one queued message.
    pub fn queued(&self, member: u32, seq: u32) -> Result<Option<Queued>, SqlError> {
        let query = "SELECT sender, nonce, ciphertext FROM queue WHERE key = ?";
        self.sql.exec(query, &[key(member, seq)?])?.into_iter().next().map(parse_queued).transpose()
    }

    /// Stores a message.
    pub fn enqueue(&self, member: u32, index: &Indexed, message: &Queued) -> Result<(), SqlError> {
        let statement =
            "INSERT INTO queue (key, at, quiet, tag, sender, nonce, ciphertext) VALUES (?, ?, ?, ?, ?, ?, ?)";
        let params = [
            key(member, index.seq)?,
            int(index.at)?,
            Param::Int(index.quiet.into()),
            index.tag.as_ref().map_or(Param::Null, |tag| Param::Blob(&tag.0)),
            Param::Blob(message.sender.as_bytes()),
            Param::Blob(message.nonce.as_bytes()),
            Param::Blob(&message.ciphertext),
        ];
        self.sql.exec(statement, &params).map(drop)
    }

    /// Deletes the messages numbered `from` to `to`, both included.
    pub fn dequeue(&self, member: u32, from: u32, to: u32) -> Result<(), SqlError> {
        self.sql.exec("DELETE FROM queue WHERE key BETWEEN ? AND ?", &[key(member, from)?, key(member, to)?]).map(drop)
    }

    /// Deletes a member's whole queue.
    pub fn purge_queue(&self, member: u32) -> Result<(), SqlError> {
        self.dequeue(member, 0, u32::MAX)
    }

    /// Deletes what was stored at `limit` or before, Unix milliseconds.
    pub fn sweep(&self, limit: u64) -> Result<(), SqlError> {
        self.sql.exec("DELETE FROM queue WHERE at <= ?", &[int(limit)?]).map(drop)
    }

    /// Whether anything is queued for anybody.
    pub fn any_queued(&self) -> Result<bool, SqlError> {
        Ok(!self.sql.exec("SELECT 1 FROM queue LIMIT 1", &[])?.is_empty())
    }
}

fn parse_index(row: Row) -> Result<Indexed, SqlError> {
    let mut columns = Columns::of(row);
    Ok(Indexed {
        seq: u32::try_from(columns.int()? & u64::from(u32::MAX)).map_err(|_| corrupt("sequence"))?,
        at: columns.int()?,
        quiet: columns.int()? != 0,
        tag: columns.maybe_blob()?.and_then(Tag::new),
        sender: Ed25519Public::from_slice(&columns.blob()?).map_err(|e| corrupt(&e.to_string()))?,
        size: u32::try_from(columns.int()?).map_err(|_| corrupt("size"))?,
    })
}

fn parse_queued(row: Row) -> Result<Queued, SqlError> {
    let mut columns = Columns::of(row);
    Ok(Queued {
        sender: Ed25519Public::from_slice(&columns.blob()?).map_err(|e| corrupt(&e.to_string()))?,
        nonce: MessageNonce::from_slice(&columns.blob()?).map_err(|e| corrupt(&e.to_string()))?,
        ciphertext: columns.blob()?.into(),
    })
}
