//! `devices.json`: public keys and counter marks beside the database, replaced as a whole, so that neither a lost database
//! nor an older copy of it revokes phones or repeats a counter (protocol, Message key, nonce, AAD).

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use skald_common::ids::{Ed25519Public, NamespaceId, X25519Public};
use skald_common::payload::DeviceInfo;
use skald_common::wire::Platform;

use super::StoreError;
use crate::hub::api::DeviceState;
use crate::hub::durable::{Backup, DeviceRow};

const VERSION: u32 = 1;
/// No real one is beyond; one that is could not be counted on from.
const MAX_GENERATION: u64 = 1 << 53;

/// Where the backup is, and whose it is.
#[derive(Debug)]
pub(super) struct BackupFile {
    path: PathBuf,
    namespace: NamespaceId,
}

/// A backup as it was found.
#[derive(Debug)]
pub(super) struct Saved {
    /// Rises with each change of the devices, together with the database's.
    pub(super) generation: u64,
    pub(super) content: Backup,
}

#[derive(Serialize, Deserialize)]
struct Document {
    v: u32,
    namespace_id: NamespaceId,
    generation: u64,
    high_water: u64,
    devices: Vec<Entry>,
}

#[derive(Serialize, Deserialize)]
struct Entry {
    ed25519_pub: Ed25519Public,
    x25519_pub: X25519Public,
    state: DeviceState,
    platform: i32,
    device_info: Option<DeviceInfo>,
    paired_at: u64,
    reserved: u64,
    received: u64,
}

impl BackupFile {
    pub(super) const fn new(path: PathBuf, namespace: NamespaceId) -> Self {
        Self { path, namespace }
    }

    /// `Ok(None)`: there is none.
    pub(super) fn read(&self) -> Result<Option<Saved>, StoreError> {
        let text = match fs::read(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(self.failed(error)),
        };
        self.parse(&text).map(Some)
    }

    fn parse(&self, text: &[u8]) -> Result<Saved, StoreError> {
        let invalid = |what: String| self.failed(io::Error::new(io::ErrorKind::InvalidData, what));
        let document: Document =
            serde_json::from_slice(text).map_err(|error| invalid(skald_common::payload::describe(&error)))?;
        if document.v != VERSION {
            return Err(invalid(format!("its version is {}, this build knows {VERSION}", document.v)));
        }
        if document.namespace_id != self.namespace {
            return Err(invalid("it belongs to another identity".into()));
        }
        let devices = document.devices.into_iter().map(Entry::into_row).collect();
        let content = Backup { high_water: document.high_water.min(i64::MAX.unsigned_abs()), devices };
        Ok(Saved { generation: document.generation.min(MAX_GENERATION), content })
    }

    /// Replaces the file: whole and on the disk, or not at all.
    pub(super) fn write(&self, generation: u64, content: &Backup) -> Result<(), StoreError> {
        let document = Document {
            v: VERSION,
            namespace_id: self.namespace,
            generation,
            high_water: content.high_water,
            devices: content.devices.iter().map(Entry::from_row).collect(),
        };
        let mut text = serde_json::to_vec_pretty(&document).map_err(|error| self.failed(error.into()))?;
        text.push(b'\n');
        self.replace(&text).map_err(|error| self.failed(error))
    }

    fn replace(&self, text: &[u8]) -> io::Result<()> {
        use std::os::unix::fs::OpenOptionsExt;
        let folder = self.path.parent().unwrap_or(Path::new("."));
        let next = self.path.with_extension("json.new");
        let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&next)?;
        file.write_all(text)?;
        file.sync_all()?;
        fs::rename(&next, &self.path)?;
        fs::File::open(folder)?.sync_all()
    }

    fn failed(&self, error: io::Error) -> StoreError {
        StoreError::File { path: self.path.clone(), error }
    }
}

impl Entry {
    fn from_row(row: &DeviceRow) -> Self {
        Self {
            ed25519_pub: row.ed25519,
            x25519_pub: row.x25519,
            state: row.state,
            platform: row.platform as i32,
            device_info: row.info.clone(),
            paired_at: row.paired_at,
            reserved: row.reserved,
            received: row.received,
        }
    }

    fn into_row(self) -> DeviceRow {
        // Marks are compared as the database's signed integers; no real one is beyond them.
        let mark = |counter: u64| counter.min(i64::MAX.unsigned_abs());
        DeviceRow {
            ed25519: self.ed25519_pub,
            x25519: self.x25519_pub,
            state: self.state,
            platform: Platform::try_from(self.platform).unwrap_or(Platform::Unspecified),
            info: self.device_info,
            paired_at: self.paired_at,
            last_seen: None,
            reserved: mark(self.reserved),
            received: self.received,
            // What it shows is not known any more.
            stale: true,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn file(folder: &Path) -> BackupFile {
        BackupFile::new(folder.join("devices.json"), NamespaceId::new([5; 32]))
    }

    fn device(n: u8) -> DeviceRow {
        DeviceRow {
            ed25519: Ed25519Public::new([n; 32]),
            x25519: X25519Public::new([n ^ 0xff; 32]),
            state: DeviceState::Authorized,
            platform: Platform::Web,
            info: Some(DeviceInfo { platform: "web".into(), ..DeviceInfo::default() }),
            paired_at: 1,
            last_seen: None,
            reserved: 2,
            received: 3,
            stale: true,
        }
    }

    fn text(folder: &Path) -> Vec<u8> {
        file(folder).write(7, &Backup { high_water: 9, devices: vec![device(1), device(2)] }).unwrap();
        fs::read(folder.join("devices.json")).unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn what_is_read_of_a_damaged_backup_is_what_would_be_written(
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
            cut in prop::option::of(any::<prop::sample::Index>()),
        ) {
            let folder = tempfile::tempdir().unwrap();
            let mut text = text(folder.path());
            for (at, byte) in damage {
                let at = at.index(text.len());
                text[at] = byte;
            }
            if let Some(cut) = cut {
                text.truncate(cut.index(text.len()));
            }
            let file = file(folder.path());
            if let Ok(saved) = file.parse(&text) {
                prop_assert!(saved.generation <= MAX_GENERATION);
                file.write(saved.generation, &saved.content).unwrap();
                let again = file.read().unwrap().unwrap();
                prop_assert_eq!((again.generation, again.content), (saved.generation, saved.content));
            }
        }
    }
}
