//! The devices of a namespace. The agent is member 0 and has no row here: its key stands in the namespace's own.

use std::fmt;

use skald_common::ids::{Ed25519Public, X25519Public};

use super::{Columns, Param, Row, Sql, SqlError, Store, corrupt, int};

// Keys are unique by the engine's doing: an index would cost a row per write, and there are few members.
pub(super) const TABLE: &str = "CREATE TABLE IF NOT EXISTS member (
    no INTEGER PRIMARY KEY,
    key BLOB NOT NULL,
    x25519 BLOB,
    authorized INTEGER NOT NULL,
    token TEXT NOT NULL,
    platform INTEGER NOT NULL,
    paired_at INTEGER NOT NULL
) STRICT";

/// Where a device stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Paired, and the agent has not said yes yet.
    Pending,
    /// On the agent's list.
    Authorized,
}

/// A device.
#[derive(Clone, PartialEq, Eq)]
pub struct Member {
    /// Its number in the namespace, from 1.
    pub no: u32,
    /// Its signing key.
    pub key: Ed25519Public,
    /// Its agreement key, if it paired here.
    pub x25519: Option<X25519Public>,
    /// Where it stands.
    pub standing: Standing,
    /// Its push token; empty for none.
    pub token: String,
    /// Where the token leads: the wire's number, known here or not.
    pub platform: i32,
    /// When it paired, Unix milliseconds; 0 if it never did here.
    pub paired_at: u64,
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Member({}, {:?}, {:?})", self.no, self.key, self.standing)
    }
}

impl<S: Sql> Store<S> {
    /// All devices, by number.
    pub fn members(&self) -> Result<Vec<Member>, SqlError> {
        let query = "SELECT no, key, x25519, authorized, token, platform, paired_at FROM member ORDER BY no";
        self.sql.exec(query, &[])?.into_iter().map(parse).collect()
    }

    /// Writes a device's row.
    pub fn put_member(&self, member: &Member) -> Result<(), SqlError> {
        let statement = "INSERT INTO member (no, key, x25519, authorized, token, platform, paired_at)
            VALUES (?, ?, ?, ?, ?, ?, ?)
            ON CONFLICT (no) DO UPDATE SET key = excluded.key, x25519 = excluded.x25519, authorized = excluded.authorized,
            token = excluded.token, platform = excluded.platform, paired_at = excluded.paired_at";
        let params = [
            Param::Int(member.no.into()),
            Param::Blob(member.key.as_bytes()),
            member.x25519.as_ref().map_or(Param::Null, |key| Param::Blob(key.as_bytes())),
            Param::Int((member.standing == Standing::Authorized).into()),
            Param::Text(&member.token),
            // Unsigned on the way, so that every column reads alike.
            Param::Int(member.platform.cast_unsigned().into()),
            int(member.paired_at)?,
        ];
        self.sql.exec(statement, &params).map(drop)
    }

    /// Forgets a device: its row, its token, its queue, its pushes.
    pub fn delete_member(&self, no: u32) -> Result<(), SqlError> {
        self.purge_queue(no)?;
        self.delete_push(no)?;
        self.sql.exec("DELETE FROM member WHERE no = ?", &[Param::Int(no.into())]).map(drop)
    }
}

fn parse(row: Row) -> Result<Member, SqlError> {
    let mut columns = Columns::of(row);
    Ok(Member {
        no: u32::try_from(columns.int()?).map_err(|_| corrupt("member number"))?,
        key: Ed25519Public::from_slice(&columns.blob()?).map_err(|e| corrupt(&e.to_string()))?,
        x25519: columns
            .maybe_blob()?
            .map(|key| X25519Public::from_slice(&key))
            .transpose()
            .map_err(|e| corrupt(&e.to_string()))?,
        standing: if columns.int()? != 0 { Standing::Authorized } else { Standing::Pending },
        token: columns.text()?,
        platform: u32::try_from(columns.int()?).map_err(|_| corrupt("platform"))?.cast_signed(),
        paired_at: columns.int()?,
    })
}
