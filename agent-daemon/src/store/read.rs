//! Rows as the hub knows them.

use rusqlite::{Connection, Row};
use skald_common::ids::{Ed25519Public, X25519Public};
use skald_common::wire::Platform;

use super::StoreError;
use crate::hub::api::DeviceState;
use crate::hub::durable::{AnswerRow, Answerer, DeviceRow, Durable, ItemRow, Origin, Shown, Sight, WindowRow};
use crate::hub::items::{Item, Kind, RequestId};

const fn uint(value: i64) -> u64 {
    value.cast_unsigned()
}

fn get_uint(row: &Row<'_>, column: &str) -> rusqlite::Result<u64> {
    row.get::<_, i64>(column).map(uint)
}

fn get_optional(row: &Row<'_>, column: &str) -> rusqlite::Result<Option<u64>> {
    row.get::<_, Option<i64>>(column).map(|value| value.map(uint))
}

/// Reads all rows of a statement with a reader that may find them damaged.
fn all<T>(
    db: &Connection,
    table: &'static str,
    sql: &str,
    read: impl Fn(&Row<'_>) -> rusqlite::Result<Option<T>>,
) -> Result<Vec<T>, StoreError> {
    let mut statement = db.prepare(sql)?;
    let mut rows = statement.query([])?;
    let mut list = Vec::new();
    while let Some(row) = rows.next()? {
        list.push(read(row)?.ok_or(StoreError::Damaged(table))?);
    }
    Ok(list)
}

pub(super) fn origin(db: &Connection) -> Result<Origin, StoreError> {
    let word: String = db.query_row("SELECT origin FROM meta", [], |row| row.get(0))?;
    match word.as_str() {
        "normal" => Ok(Origin::Normal),
        "backup" => Ok(Origin::Backup),
        "lost" => Ok(Origin::Lost),
        _ => Err(StoreError::Damaged("meta")),
    }
}

pub(super) fn generation(db: &Connection) -> Result<u64, StoreError> {
    Ok(db.query_row("SELECT generation FROM meta", [], |row| get_uint(row, "generation"))?)
}

pub(super) fn high_water(db: &Connection) -> Result<u64, StoreError> {
    Ok(db.query_row("SELECT high_water FROM meta", [], |row| get_uint(row, "high_water"))?)
}

pub(super) fn everything(db: &Connection, origin: Origin) -> Result<Durable, StoreError> {
    Ok(Durable {
        origin,
        high_water: high_water(db)?,
        devices: devices(db)?,
        items: items(db)?,
        sights: sights(db)?,
        answers: answers(db)?,
        decided: decided(db)?,
        window: window(db)?,
    })
}

pub(super) fn devices(db: &Connection) -> Result<Vec<DeviceRow>, StoreError> {
    all(db, "devices", "SELECT * FROM devices", |row| {
        let keys = (ed25519(row, "ed25519")?, X25519Public::from_slice(row.get_ref("x25519")?.as_blob()?).ok());
        let state = match row.get_ref("state")?.as_str()? {
            "pending" => Some(DeviceState::Pending),
            "authorized" => Some(DeviceState::Authorized),
            _ => None,
        };
        let (Some(ed25519), Some(x25519), Some(state)) = (keys.0, keys.1, state) else { return Ok(None) };
        let info: Option<String> = row.get("info")?;
        Ok(Some(DeviceRow {
            ed25519,
            x25519,
            state,
            platform: Platform::try_from(row.get::<_, i32>("platform")?).unwrap_or(Platform::Unspecified),
            info: info.and_then(|json| serde_json::from_str(&json).ok()),
            paired_at: get_uint(row, "paired_at")?,
            last_seen: get_optional(row, "last_seen")?,
            reserved: get_uint(row, "reserved")?,
            received: get_uint(row, "received")?,
            stale: row.get("stale")?,
        }))
    })
}

fn items(db: &Connection) -> Result<Vec<ItemRow>, StoreError> {
    all(db, "items", "SELECT * FROM items ORDER BY seq", |row| {
        let kind = kind(row.get_ref("kind")?.as_str()?);
        let request_id = RequestId::from_json(row.get_ref("request_id")?.as_str()?).ok();
        let (Some(kind), Some(request_id)) = (kind, request_id) else { return Ok(None) };
        let item = Item {
            id: row.get("id")?,
            host: row.get("host")?,
            kind,
            request_id,
            json: row.get("json")?,
            created_at: get_uint(row, "created_at")?,
            arrived_at: get_uint(row, "arrived_at")?,
            expires_at: get_optional(row, "expires_at")?,
        };
        let (linger_secs, leaves_at) = (get_uint(row, "linger_secs")?, get_optional(row, "leaves_at")?);
        Ok(Some(ItemRow { item, linger_secs, leaves_at }))
    })
}

fn sights(db: &Connection) -> Result<Vec<(Ed25519Public, String, Sight)>, StoreError> {
    all(db, "sights", "SELECT * FROM sights", |row| {
        let shown = match row.get::<_, u8>("shown")? {
            0 => Shown::Partly,
            1 => Shown::Wholly,
            2 => Shown::Surely,
            _ => return Ok(None),
        };
        let sight = Sight { shown, rang: row.get("rang")? };
        let item = row.get("item")?;
        Ok(ed25519(row, "device")?.map(|device| (device, item, sight)))
    })
}

fn answers(db: &Connection) -> Result<Vec<AnswerRow>, StoreError> {
    all(db, "answers", "SELECT * FROM answers", |row| {
        let content = serde_json::from_str(row.get_ref("content")?.as_str()?).ok();
        let (item, answer_id) = (row.get("item")?, row.get("answer_id")?);
        let (Some(by), Some(content)) = (answerer(row)?, content) else { return Ok(None) };
        Ok(Some(AnswerRow { item, answer_id, by, content }))
    })
}

fn decided(db: &Connection) -> Result<Vec<(String, Answerer)>, StoreError> {
    all(db, "decided", "SELECT * FROM decided", |row| {
        let item = row.get("item")?;
        Ok(answerer(row)?.map(|by| (item, by)))
    })
}

fn answerer(row: &Row<'_>) -> rusqlite::Result<Option<Answerer>> {
    let (name, payload_id, at) = (row.get("name")?, row.get("payload_id")?, get_uint(row, "at")?);
    Ok(ed25519(row, "device")?.map(|device| Answerer { device, name, payload_id, at }))
}

fn window(db: &Connection) -> Result<Option<WindowRow>, StoreError> {
    let rows = all(db, "pairing_window", "SELECT * FROM pairing_window", |row| {
        let hash = <[u8; 32]>::try_from(row.get_ref("token_hash")?.as_blob()?).ok();
        let expires_at = get_uint(row, "expires_at")?;
        Ok(hash.map(|token_hash| WindowRow { token_hash, expires_at }))
    })?;
    Ok(rows.first().copied())
}

fn ed25519(row: &Row<'_>, column: &str) -> rusqlite::Result<Option<Ed25519Public>> {
    Ok(Ed25519Public::from_slice(row.get_ref(column)?.as_blob()?).ok())
}

fn kind(word: &str) -> Option<Kind> {
    [Kind::Approval, Kind::Clarification, Kind::Elicitation].into_iter().find(|kind| kind.as_str() == word)
}
