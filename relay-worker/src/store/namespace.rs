//! The one row that a namespace has for itself: its owner, its pairing window, its deadlines.

use skald_common::ids::{Ed25519Public, PairingToken};

use super::{Columns, Param, Row, Sql, SqlError, Store, corrupt, int};

pub(super) const TABLE: &str = "CREATE TABLE IF NOT EXISTS namespace (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    version INTEGER NOT NULL,
    agent BLOB NOT NULL,
    authorized INTEGER NOT NULL,
    window_token BLOB,
    window_until INTEGER,
    last_active INTEGER NOT NULL,
    alarm_at INTEGER
) STRICT";

/// Of the tables' layout.
const VERSION: u64 = 1;

/// A pairing window; single use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    /// What a device must show.
    pub token: PairingToken,
    /// Closed from then on, Unix milliseconds.
    pub until: u64,
}

/// The namespace's own row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namespace {
    /// The owner's key.
    pub agent: Ed25519Public,
    /// Whether the agent has ever said who belongs.
    pub authorized: bool,
    /// The open pairing window.
    pub window: Option<Window>,
    /// When a member was last seen connected, Unix milliseconds, to within a day; exact once nobody is.
    pub last_active: u64,
    /// What the alarm is set to, Unix milliseconds.
    pub alarm_at: Option<u64>,
}

impl<S: Sql> Store<S> {
    /// The namespace's row; `None` before its agent came.
    pub fn namespace(&self) -> Result<Option<Namespace>, SqlError> {
        let query =
            "SELECT version, agent, authorized, window_token, window_until, last_active, alarm_at FROM namespace";
        self.sql.exec(query, &[])?.into_iter().next().map(parse).transpose()
    }

    /// Writes the namespace's row.
    pub fn put_namespace(&self, namespace: &Namespace) -> Result<(), SqlError> {
        let statement = "INSERT INTO namespace
            (id, version, agent, authorized, window_token, window_until, last_active, alarm_at) VALUES (1, ?, ?, ?, ?, ?, ?, ?)
            ON CONFLICT (id) DO UPDATE SET authorized = excluded.authorized, window_token = excluded.window_token,
            window_until = excluded.window_until, last_active = excluded.last_active, alarm_at = excluded.alarm_at";
        let (token, until) = match &namespace.window {
            Some(window) => (Param::Blob(window.token.expose()), int(window.until)?),
            None => (Param::Null, Param::Null),
        };
        let params = [
            int(VERSION)?,
            Param::Blob(namespace.agent.as_bytes()),
            int(namespace.authorized.into())?,
            token,
            until,
            int(namespace.last_active)?,
            namespace.alarm_at.map_or(Ok(Param::Null), int)?,
        ];
        self.sql.exec(statement, &params).map(drop)
    }
}

fn parse(row: Row) -> Result<Namespace, SqlError> {
    let mut columns = Columns::of(row);
    let version = columns.int()?;
    if version != VERSION {
        return Err(SqlError(format!("tables of version {version}, this relay reads {VERSION}: run the newer relay")));
    }
    let agent = Ed25519Public::from_slice(&columns.blob()?).map_err(|e| corrupt(&e.to_string()))?;
    let authorized = columns.int()? != 0;
    let token = columns.maybe_blob()?.map(|token| PairingToken::from_slice(&token)).transpose();
    let token = token.map_err(|e| corrupt(&e.to_string()))?;
    let window = token.zip(columns.maybe_int()?).map(|(token, until)| Window { token, until });
    Ok(Namespace { agent, authorized, window, last_active: columns.int()?, alarm_at: columns.maybe_int()? })
}
