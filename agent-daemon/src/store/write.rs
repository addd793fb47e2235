//! Changes as SQL.

use rusqlite::{Connection, params};
use skald_common::wire::Platform;

use super::StoreError;
use crate::hub::api::DeviceState;
use crate::hub::durable::{Origin, Write};

/// Counters and times as the database's signed integers; the same bits both ways.
pub(super) const fn int(value: u64) -> i64 {
    value.cast_signed()
}

fn optional(value: Option<u64>) -> Option<i64> {
    value.map(int)
}

pub(super) const fn state_word(state: DeviceState) -> &'static str {
    match state {
        DeviceState::Pending => "pending",
        DeviceState::Authorized => "authorized",
    }
}

pub(super) const fn origin_word(origin: Origin) -> &'static str {
    match origin {
        Origin::Normal => "normal",
        Origin::Backup => "backup",
        Origin::Lost => "lost",
    }
}

/// Carries out one change.
pub(super) fn apply(db: &Connection, write: &Write) -> Result<(), StoreError> {
    match write {
        Write::PutDevice(row) => {
            let info = row.info.as_ref().map(serde_json::to_string).transpose();
            let info = info.map_err(|_| StoreError::Damaged("devices"))?;
            db.prepare_cached(
                "INSERT INTO devices (ed25519, x25519, state, platform, info, paired_at, last_seen, reserved, received, stale)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)
                 ON CONFLICT (ed25519) DO UPDATE SET x25519 = ?2, state = ?3, platform = ?4, info = ?5, paired_at = ?6,
                 last_seen = ?7, reserved = ?8, received = ?9, stale = ?10",
            )?
            .execute(params![
                row.ed25519.as_bytes(),
                row.x25519.as_bytes(),
                state_word(row.state),
                platform_number(row.platform),
                info,
                int(row.paired_at),
                optional(row.last_seen),
                int(row.reserved),
                int(row.received),
                row.stale
            ])?;
        }
        Write::RemoveDevice(key) => {
            db.prepare_cached("DELETE FROM devices WHERE ed25519 = ?1")?.execute([key.as_bytes()])?;
        }
        Write::Received { device, counter, last_seen } => {
            db.prepare_cached("UPDATE devices SET received = ?2, last_seen = ?3 WHERE ed25519 = ?1")?
                .execute(params![device.as_bytes(), int(*counter), int(*last_seen)])?;
        }
        Write::Reserved { device, upto } => {
            raise_high_water(db, *upto)?;
            db.prepare_cached("UPDATE devices SET reserved = max(reserved, ?2) WHERE ed25519 = ?1")?
                .execute(params![device.as_bytes(), int(*upto)])?;
        }
        Write::Stale { device, stale } => {
            db.prepare_cached("UPDATE devices SET stale = ?2 WHERE ed25519 = ?1")?
                .execute(params![device.as_bytes(), stale])?;
        }
        Write::PutItem(row) => {
            let item = &row.item;
            db.prepare_cached(
                "INSERT INTO items (id, host, kind, request_id, json, created_at, arrived_at, expires_at, linger_secs, leaves_at)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
            )?
            .execute(params![
                item.id,
                item.host,
                item.kind.as_str(),
                item.request_id.json(),
                item.json,
                int(item.created_at),
                int(item.arrived_at),
                optional(item.expires_at),
                int(row.linger_secs),
                optional(row.leaves_at)
            ])?;
        }
        Write::RemoveItem(id) => {
            db.prepare_cached("DELETE FROM items WHERE id = ?1")?.execute([id])?;
        }
        Write::Leaves { host, leaves_at, linger_secs } => {
            db.prepare_cached("UPDATE items SET leaves_at = ?2, linger_secs = ?3 WHERE host = ?1")?
                .execute(params![host, optional(*leaves_at), int(*linger_secs)])?;
        }
        Write::PutSight { device, item, sight } => {
            db.prepare_cached(
                "INSERT INTO sights (device, item, shown, rang) VALUES (?1, ?2, ?3, ?4)
                 ON CONFLICT (device, item) DO UPDATE SET shown = ?3, rang = ?4",
            )?
            .execute(params![device.as_bytes(), item, sight.shown as u8, sight.rang])?;
        }
        Write::PutAnswer(row) => {
            let content = serde_json::to_string(&row.content).map_err(|_| StoreError::Damaged("answers"))?;
            let by = &row.by;
            db.prepare_cached(
                "INSERT INTO answers (item, answer_id, device, name, payload_id, at, content)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
            )?
            .execute(params![
                row.item,
                row.answer_id,
                by.device.as_bytes(),
                by.name,
                by.payload_id,
                int(by.at),
                content
            ])?;
        }
        Write::RemoveAnswer(item) => {
            db.prepare_cached("DELETE FROM answers WHERE item = ?1")?.execute([item])?;
        }
        Write::PutDecided(item, by) => {
            db.prepare_cached(
                "INSERT OR REPLACE INTO decided (item, device, name, payload_id, at) VALUES (?1, ?2, ?3, ?4, ?5)",
            )?
            .execute(params![item, by.device.as_bytes(), by.name, by.payload_id, int(by.at)])?;
        }
        Write::RemoveDecided(item) => {
            db.prepare_cached("DELETE FROM decided WHERE item = ?1")?.execute([item])?;
        }
        Write::SetWindow(None) => {
            db.execute("DELETE FROM pairing_window", [])?;
        }
        Write::SetWindow(Some(window)) => {
            db.execute(
                "INSERT OR REPLACE INTO pairing_window (one, token_hash, expires_at) VALUES (1, ?1, ?2)",
                params![window.token_hash, int(window.expires_at)],
            )?;
        }
        Write::SetOrigin(origin) => {
            db.execute("UPDATE meta SET origin = ?1", [origin_word(*origin)])?;
        }
    }
    Ok(())
}

pub(super) fn raise_high_water(db: &Connection, mark: u64) -> Result<(), StoreError> {
    db.prepare_cached("UPDATE meta SET high_water = max(high_water, ?1)")?.execute([int(mark)])?;
    Ok(())
}

/// The devices have changed: a backup that does not follow is known to be older.
pub(super) fn next_generation(db: &Connection) -> Result<(), StoreError> {
    db.prepare_cached("UPDATE meta SET generation = generation + 1")?.execute([])?;
    Ok(())
}

pub(super) fn set_generation(db: &Connection, generation: u64) -> Result<(), StoreError> {
    db.execute("UPDATE meta SET generation = max(generation, ?1)", [int(generation)])?;
    Ok(())
}

const fn platform_number(platform: Platform) -> i32 {
    platform as i32
}
