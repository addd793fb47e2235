//! What survives a restart: an `SQLite` database, and beside it a small backup of the devices.
//!
//! Writes come as lists and are one transaction each. Those that somebody relies on are on the disk before the call returns
//! (WAL, synchronous FULL); the others survive the end of the process, but not a power cut. A
//! database that is damaged is set aside, never deleted; one of a newer version is left alone. When it is gone or older
//! than the backup, the devices come from there, so that no phone is revoked by a lost file (design, The daemon).

mod backup;
mod migrations;
mod read;
mod write;

use std::fs;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, ErrorCode, OpenFlags};
use skald_common::ids::NamespaceId;

use crate::hub::durable::{Backup, Durable, Origin, Write};
use crate::remedy;
use backup::BackupFile;

/// The database's file name.
pub const DATABASE: &str = "agentd.db";
/// The backup's file name.
pub const BACKUP: &str = "devices.json";

/// Why the state cannot be kept.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database cannot be read or written.
    #[error("database: {}{}", .0, remedy::for_database(.0))]
    Database(#[from] rusqlite::Error),
    /// A file beside it cannot be read or written.
    #[error("{path}: {error}{}", remedy::for_file(.error))]
    File {
        /// Which one.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// A newer version of the daemon has made it.
    #[error(
        "{path} was made by a newer version of skald-agentd (format {found}, this version knows {known}): install the newer \
         version, or move the file away"
    )]
    Newer {
        /// The database.
        path: PathBuf,
        /// Its format.
        found: i64,
        /// The newest format that this build knows.
        known: i64,
    },
    /// It belongs to another seed.
    #[error(
        "{path} belongs to another identity than the seed beside it: put the right seed back, or move the file away"
    )]
    OtherIdentity {
        /// The database.
        path: PathBuf,
    },
    /// A row does not hold what it should.
    #[error("a row of {0} is damaged")]
    Damaged(&'static str),
}

/// The open database.
#[derive(Debug)]
pub struct Store {
    db: Connection,
    backup: BackupFile,
    origin: Origin,
    /// Transactions wait for the disk, as things are.
    lasting: bool,
}

/// An opened store: what it holds, and what a person should know of how it was found.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) store: Store,
    pub(crate) durable: Durable,
    pub(crate) notices: Vec<String>,
}

impl Store {
    /// Opens what `folder` holds for this identity, or makes it. `new_identity`: the seed was made just now, so that there
    /// can be nothing to lose. `unix` in milliseconds names a file that is set aside.
    pub(crate) fn open(
        folder: &Path,
        namespace: NamespaceId,
        new_identity: bool,
        unix: u64,
    ) -> Result<Opened, StoreError> {
        let path = folder.join(DATABASE);
        let mut notices = Vec::new();
        let mut db = match open_database(&path) {
            Ok(db) => db,
            Err(error) if is_damaged(&error) => {
                let aside = set_aside(&path, unix)?;
                notices.push(format!("the database was damaged; it was set aside as {}", aside.display()));
                open_database(&path)?
            }
            Err(error) => return Err(error),
        };
        let backup = BackupFile::new(folder.join(BACKUP), namespace);
        let saved = match backup.read() {
            Ok(saved) => saved,
            Err(error) => {
                notices.push(format!("the backup of devices is of no use: {error}"));
                None
            }
        };
        let fresh = migrations::begin(&mut db, &path, namespace)?;
        let origin = if fresh && !new_identity { Origin::Lost } else { read::origin(&db)? };
        let older = saved.as_ref().is_some_and(|saved| read::generation(&db).is_ok_and(|own| own < saved.generation));
        let mut store = Self { db, backup, origin, lasting: true };
        match saved {
            // What was deleted since the older copy was made stays deleted: the backup is the newer list.
            Some(saved) if origin == Origin::Lost || older => store.load_backup(&saved)?,
            // A start that changes nothing waits for no disk here.
            _ if read::origin(&store.db)? == origin => {}
            _ => store.set_origin(origin)?,
        }
        store.save_backup();
        let durable = store.load()?;
        Ok(Opened { store, durable, notices })
    }

    /// Carries out a list of changes, all or none.
    pub(crate) fn apply(&mut self, writes: &[Write]) -> Result<(), StoreError> {
        if writes.is_empty() {
            return Ok(());
        }
        let backed_up = writes.iter().any(Write::is_backed_up);
        self.set_lasting(writes.iter().any(Write::is_promise))?;
        let transaction = self.db.transaction()?;
        for write in writes {
            write::apply(&transaction, write)?;
        }
        if backed_up {
            write::next_generation(&transaction)?;
        }
        transaction.commit()?;
        for write in writes {
            if let Write::SetOrigin(origin) = write {
                self.origin = *origin;
            }
        }
        if backed_up {
            self.save_backup();
        }
        if writes.iter().any(Write::wipes) {
            self.empty_journal();
        }
        Ok(())
    }

    /// Whether the next transactions wait for the disk.
    fn set_lasting(&mut self, lasting: bool) -> Result<(), StoreError> {
        if self.lasting != lasting {
            self.db.pragma_update(None, "synchronous", if lasting { "full" } else { "normal" })?;
            self.lasting = lasting;
        }
        Ok(())
    }

    /// The journal still holds what was deleted. Emptying it is a matter of tidiness: the change itself is safe.
    fn empty_journal(&self) {
        let emptied = self.db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
        if let Err(error) = emptied {
            tracing::warn!(%error, "the database's journal cannot be emptied");
        }
    }

    /// Everything that survives a restart.
    pub(crate) fn load(&self) -> Result<Durable, StoreError> {
        read::everything(&self.db, self.origin)
    }

    /// The backup as it is on the disk now; `None`: there is none, or it is of no use.
    pub(crate) fn read_backup(&self) -> Option<Backup> {
        self.backup.read().ok().flatten().map(|saved| saved.content)
    }

    fn set_origin(&mut self, origin: Origin) -> Result<(), StoreError> {
        write::apply(&self.db, &Write::SetOrigin(origin))?;
        self.origin = origin;
        Ok(())
    }

    /// Replaces the devices by those of the backup.
    fn load_backup(&mut self, saved: &backup::Saved) -> Result<(), StoreError> {
        let keep = saved.content.devices.iter().map(|device| device.ed25519).collect::<Vec<_>>();
        let transaction = self.db.transaction()?;
        let before = read::devices(&transaction)?;
        for device in &before {
            // What has paired since a loss is in no backup, and waits for its owner's OK.
            let pairs_anew = self.origin == Origin::Lost && device.state == crate::hub::api::DeviceState::Pending;
            if !keep.contains(&device.ed25519) && !pairs_anew {
                write::apply(&transaction, &Write::RemoveDevice(device.ed25519))?;
            }
        }
        for device in &saved.content.devices {
            let mut device = device.clone();
            // The backup follows changes of the devices, not each message: counters may be further on here.
            if let Some(known) =
                before.iter().find(|known| known.x25519 == device.x25519 && known.ed25519 == device.ed25519)
            {
                device.received = device.received.max(known.received);
                device.reserved = device.reserved.max(known.reserved);
            }
            write::apply(&transaction, &Write::PutDevice(device))?;
        }
        write::raise_high_water(&transaction, saved.content.high_water)?;
        write::set_generation(&transaction, saved.generation + 1)?;
        write::apply(&transaction, &Write::SetOrigin(Origin::Backup))?;
        transaction.commit()?;
        self.origin = Origin::Backup;
        Ok(())
    }

    /// The database is the truth and is on disk: without the backup nothing is lost yet, so that a failure is only told.
    fn save_backup(&self) {
        if self.origin == Origin::Lost {
            return;
        }
        let saved = read::generation(&self.db).and_then(|generation| {
            let content = Backup { high_water: read::high_water(&self.db)?, devices: read::devices(&self.db)? };
            self.backup.write(generation, &content)
        });
        if let Err(error) = saved {
            tracing::error!(%error, "the backup of devices cannot be written");
        }
    }
}

fn open_database(path: &Path) -> Result<Connection, StoreError> {
    create_private(path)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let db = Connection::open_with_flags(path, flags)?;
    db.busy_timeout(std::time::Duration::from_secs(5))?;
    db.pragma_update_and_check(None, "journal_mode", "wal", |_| Ok(()))?;
    db.pragma_update(None, "synchronous", "full")?;
    db.pragma_update(None, "foreign_keys", true)?;
    // Answers are deleted to be gone.
    db.pragma_update(None, "secure_delete", true)?;
    let verdict: String = db.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    if verdict == "ok" { Ok(db) } else { Err(StoreError::Damaged("the database")) }
}

/// The file exists, and nobody else may read it; the database's other files get the same mode.
fn create_private(path: &Path) -> Result<(), StoreError> {
    use std::os::unix::fs::OpenOptionsExt;
    let failed = |error| StoreError::File { path: path.to_owned(), error };
    fs::OpenOptions::new().create(true).append(true).mode(0o600).open(path).map(drop).map_err(failed)
}

fn is_damaged(error: &StoreError) -> bool {
    match error {
        StoreError::Damaged(_) => true,
        StoreError::Database(error) => {
            matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
        }
        _ => false,
    }
}

/// Moves the database and its journal out of the way, under a name that says when.
fn set_aside(path: &Path, unix: u64) -> Result<PathBuf, StoreError> {
    let aside = |suffix: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".damaged-{}{suffix}", unix / 1000));
        PathBuf::from(name)
    };
    for suffix in ["-wal", "-shm", ""] {
        let mut from = path.as_os_str().to_owned();
        from.push(suffix);
        match fs::rename(&from, aside(suffix)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(StoreError::File { path: PathBuf::from(from), error });
            }
            _ => {}
        }
    }
    Ok(aside(""))
}

#[cfg(test)]
mod tests;
