//! The folder of one pairing: the seed, the saved [`Account`], and the locks by which several processes share them.
//!
//! ```text
//! <root>/<profile>/     0700
//!   seed                0600  32 bytes, created once, never replaced
//!   state.json          0600  the account, replaced as a whole
//!   push.json           0600  how the relay wakes this phone, with the secrets of it; replaced as a whole
//!   lock                      held for the moment of a change
//!   connection.lock           held by a command for as long as it needs the relay connection
//!   watch.lock                held by the one `watch` or `proxy`
//! ```
//!
//! The relay allows one connection per key, so commands take turns, and a `watch` or `proxy` steps aside for them.

use std::fs::{File, OpenOptions, Permissions, TryLockError};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use skald_common::crypto::Seed;
use skald_common::payload::describe;
use zeroize::Zeroizing;

use crate::model::account::Account;
use crate::registration::Registration;

const PRIVATE_FILE: u32 = 0o600;
const PRIVATE_FOLDER: u32 = 0o700;
const MAX_PROFILE: usize = 32;
/// Largest `push.json`, bytes.
const MAX_PUSH: u64 = 16 * 1024;

/// Why the folder of a pairing cannot be used. Never quotes content.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Not a name for a profile.
    #[error("a profile's name has 1 to {MAX_PROFILE} letters, digits, '-' or '_'")]
    Profile,
    /// A file cannot be read or written.
    #[error("cannot {doing} {}: {source}", .path.display())]
    Io {
        /// What was tried.
        doing: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
    /// The saved state is damaged.
    #[error("{} is damaged ({why}); move it away and pair again", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The seed has the wrong size.
    #[error("{} has {length} bytes instead of 32; restore it, or move the folder away and pair again", .path.display())]
    Seed {
        /// The file.
        path: PathBuf,
        /// Its size.
        length: usize,
    },
    /// What was saved of the push token is damaged.
    #[error("{} is damaged ({why}); delete it, or give --push-url or --push-token again", .path.display())]
    Push {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// There is no pairing in this folder.
    #[error("this phone is not paired (profile \"{profile}\"); run `skald-phone pair` with the pairing code")]
    NotPaired {
        /// The profile.
        profile: String,
    },
}

/// The folder of one pairing.
#[derive(Debug, Clone)]
pub struct Store {
    folder: PathBuf,
    profile: String,
}

/// What a lock is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// To use the relay connection for a command.
    Connection,
    /// To be the one `watch` or `proxy`.
    Watch,
}

/// A lock; given back when dropped.
#[derive(Debug)]
pub struct Held(#[expect(dead_code, reason = "closing the file gives the lock back")] File);

impl Store {
    /// The folder of `profile` under `root`; both are made if need be.
    pub fn open(root: &Path, profile: &str) -> Result<Self, StoreError> {
        let store = Self::at(root, profile)?;
        let folder = &store.folder;
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(PRIVATE_FOLDER)
            .create(folder)
            .map_err(io("create the folder", folder))?;
        let mode = folder.metadata().map_err(io("read", folder))?.permissions().mode();
        if mode & 0o077 != 0 {
            std::fs::set_permissions(folder, Permissions::from_mode(PRIVATE_FOLDER))
                .map_err(io("make private the folder", folder))?;
        }
        Ok(store)
    }

    /// The same, to read from it: nothing is made or changed.
    pub fn at(root: &Path, profile: &str) -> Result<Self, StoreError> {
        let fits = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if profile.is_empty() || profile.len() > MAX_PROFILE || !profile.chars().all(fits) {
            return Err(StoreError::Profile);
        }
        Ok(Self { folder: root.join(profile), profile: profile.to_owned() })
    }

    /// Its profile.
    pub fn profile(&self) -> &str {
        &self.profile
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The seed; `make` gives the bytes of a new one if there is none yet.
    pub fn seed_or_new(&self, make: impl FnOnce() -> Zeroizing<[u8; 32]>) -> Result<Seed, StoreError> {
        let path = self.seed_path();
        let created = OpenOptions::new().write(true).create_new(true).mode(PRIVATE_FILE).open(&path);
        match created {
            Ok(mut file) => {
                let bytes = make();
                let written = file.write_all(bytes.as_ref()).and_then(|()| file.sync_all());
                if let Err(source) = written {
                    // Half a seed is none; without this the profile could never be used.
                    let _ = std::fs::remove_file(&path);
                    return Err(io("write", &path)(source));
                }
                self.sync_folder()?;
                Ok(Seed::new(*bytes))
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => self.seed(),
            Err(source) => Err(io("create", &path)(source)),
        }
    }

    /// The seed of a pairing.
    pub fn seed(&self) -> Result<Seed, StoreError> {
        let path = self.seed_path();
        let mut bytes = Zeroizing::new([0; 33]);
        let mut file = File::open(&path).map_err(io("read", &path))?;
        let mut length = 0;
        while length < bytes.len() {
            match file.read(&mut bytes[length..]).map_err(io("read", &path))? {
                0 => break,
                more => length += more,
            }
        }
        let length_now = file.metadata().map_or(length, |meta| usize::try_from(meta.len()).unwrap_or(usize::MAX));
        Seed::from_slice(&bytes[..length]).map_err(|_| StoreError::Seed { path, length: length_now.max(length) })
    }

    /// The saved account, if there is one.
    pub fn load(&self) -> Result<Option<Account>, StoreError> {
        let _lock = self.lock()?;
        self.read()
    }

    /// The same, whatever other processes do at this moment: no lock is waited for or taken. What is saved is replaced in one
    /// step, so it is whole, and may be older by that step.
    pub fn peek(&self) -> Result<Option<Account>, StoreError> {
        self.read()
    }

    /// How the relay wakes this phone, if that was said. Takes no lock, either.
    pub fn registration(&self) -> Result<Option<Registration>, StoreError> {
        let path = self.push_path();
        let mut json = Zeroizing::new(Vec::with_capacity(usize::try_from(MAX_PUSH).unwrap_or_default() + 1));
        match File::open(&path) {
            Ok(file) => file.take(MAX_PUSH + 1).read_to_end(&mut json).map_err(io("read", &path))?,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(io("read", &path)(source)),
        };
        Registration::from_json(&json).map(Some).map_err(|error| StoreError::Push { path, why: error.to_string() })
    }

    /// Saves how the relay is to wake this phone, durably before this returns: what `make` makes of what is saved now, if it
    /// makes something. A damaged file counts as none.
    pub fn register<E: From<StoreError>>(
        &self,
        make: impl FnOnce(Option<Registration>) -> Result<Option<Registration>, E>,
    ) -> Result<(), E> {
        let _lock = self.lock()?;
        let saved = match self.registration() {
            Err(StoreError::Push { .. }) => None,
            saved => saved?,
        };
        if let Some(registration) = make(saved)? {
            self.replace(&self.push_path(), &self.folder.join("push.json.new"), &registration.to_json())?;
        }
        Ok(())
    }

    /// Saves a new pairing.
    pub fn create(&self, account: &Account) -> Result<(), StoreError> {
        let _lock = self.lock()?;
        self.write(account)
    }

    /// Changes the saved account, durably before this returns. The change is made on what is saved now, which another
    /// process may have changed since.
    pub fn update<T>(&self, change: impl FnOnce(&mut Account) -> T) -> Result<(Account, T), StoreError> {
        let _lock = self.lock()?;
        let mut account = self.read()?.ok_or_else(|| StoreError::NotPaired { profile: self.profile.clone() })?;
        let before = account.clone();
        let result = change(&mut account);
        if account != before {
            self.write(&account)?;
        }
        Ok((account, result))
    }

    /// Forgets the pairing: state, seed and push token are deleted.
    pub fn forget(&self) -> Result<(), StoreError> {
        let _lock = self.lock()?;
        for path in [self.state_path(), self.push_path(), self.seed_path()] {
            match std::fs::remove_file(&path) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(io("delete", &path)(error)),
                _ => {}
            }
        }
        self.sync_folder()
    }

    /// Takes a turn if it is free.
    pub fn try_turn(&self, turn: Turn) -> Result<Option<Held>, StoreError> {
        let path = self.folder.join(match turn {
            Turn::Connection => "connection.lock",
            Turn::Watch => "watch.lock",
        });
        let file = open_lock(&path)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Held(file))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(source)) => Err(io("lock", &path)(source)),
        }
    }

    fn read(&self) -> Result<Option<Account>, StoreError> {
        let path = self.state_path();
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(io("read", &path)(source)),
        };
        match serde_json::from_slice::<Account>(&bytes) {
            Ok(account) if account.is_readable() => Ok(Some(account)),
            Ok(_) => Err(StoreError::Damaged { path, why: "written by another version".into() }),
            Err(error) => Err(StoreError::Damaged { path, why: describe(&error) }),
        }
    }

    fn write(&self, account: &Account) -> Result<(), StoreError> {
        let path = self.state_path();
        let bytes = serde_json::to_vec(account)
            .map_err(|error| StoreError::Damaged { path: path.clone(), why: describe(&error) })?;
        self.replace(&path, &self.folder.join("state.json.new"), &bytes)
    }

    /// Replaces a file in one step, so that a crash leaves the old or the new.
    fn replace(&self, path: &Path, fresh: &Path, bytes: &[u8]) -> Result<(), StoreError> {
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(PRIVATE_FILE)
            .open(fresh)
            .map_err(io("write", fresh))?;
        file.write_all(bytes).and_then(|()| file.sync_all()).map_err(io("write", fresh))?;
        std::fs::rename(fresh, path).map_err(io("replace", path))?;
        self.sync_folder()
    }

    fn lock(&self) -> Result<Held, StoreError> {
        let path = self.folder.join("lock");
        let file = open_lock(&path)?;
        file.lock().map_err(io("lock", &path))?;
        Ok(Held(file))
    }

    fn sync_folder(&self) -> Result<(), StoreError> {
        File::open(&self.folder).and_then(|folder| folder.sync_all()).map_err(io("save the folder", &self.folder))
    }

    fn state_path(&self) -> PathBuf {
        self.folder.join("state.json")
    }

    fn push_path(&self) -> PathBuf {
        self.folder.join("push.json")
    }

    fn seed_path(&self) -> PathBuf {
        self.folder.join("seed")
    }
}

fn open_lock(path: &Path) -> Result<File, StoreError> {
    OpenOptions::new().write(true).create(true).truncate(false).mode(PRIVATE_FILE).open(path).map_err(io("open", path))
}

fn io<'a>(doing: &'static str, path: &'a Path) -> impl FnOnce(std::io::Error) -> StoreError + 'a {
    move |source| StoreError::Io { doing, path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use skald_common::ids::{Ed25519Public, X25519Public};

    use super::*;
    use crate::model::account::AgentKeys;

    fn store() -> (tempfile::TempDir, Store) {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("phone"), "default").unwrap();
        (folder, store)
    }

    fn account() -> Account {
        let agent = AgentKeys { ed25519: Ed25519Public::new([1; 32]), x25519: X25519Public::new([2; 32]) };
        Account::new(agent, "ws://relay.example".into(), "Phone".into(), 1)
    }

    fn register(store: &Store, token: &str) {
        store.register(|_| Ok::<_, StoreError>(Some(Registration::parse(token).unwrap()))).unwrap();
    }

    fn mode(path: &Path) -> u32 {
        path.metadata().unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn folder_and_files_are_private_and_an_open_folder_is_closed() {
        let (folder, store) = store();
        store.seed_or_new(|| Zeroizing::new([7; 32])).unwrap();
        store.create(&account()).unwrap();
        register(&store, "ios:00");
        assert_eq!(mode(&folder.path().join("phone")), 0o700);
        assert_eq!(mode(store.folder()), 0o700);
        for file in std::fs::read_dir(store.folder()).unwrap() {
            let path = file.unwrap().path();
            assert_eq!(mode(&path), 0o600, "{}", path.display());
        }
        std::fs::set_permissions(store.folder(), Permissions::from_mode(0o755)).unwrap();
        Store::open(&folder.path().join("phone"), "default").unwrap();
        assert_eq!(mode(store.folder()), 0o700);
    }

    #[test]
    fn a_seed_is_made_once_and_a_broken_one_is_never_replaced() {
        let (_folder, store) = store();
        let seed = store.seed_or_new(|| Zeroizing::new([7; 32])).unwrap();
        let again = store.seed_or_new(|| unreachable!("there is one")).unwrap();
        assert_eq!((seed.expose(), again.expose()), (&[7; 32], &[7; 32]));
        for length in [0, 31, 33, 1000] {
            std::fs::write(store.seed_path(), vec![7; length]).unwrap();
            let error = store.seed_or_new(|| unreachable!("there is one")).unwrap_err();
            assert!(matches!(error, StoreError::Seed { length: told, .. } if told == length), "{error}");
            assert_eq!(std::fs::read(store.seed_path()).unwrap().len(), length);
        }
    }

    #[test]
    fn a_change_is_made_on_what_is_saved_and_damage_is_told_and_kept() {
        let (_folder, store) = store();
        assert!(matches!(store.update(|_| ()), Err(StoreError::NotPaired { .. })));
        assert!(store.load().unwrap().is_none());
        store.create(&account()).unwrap();
        let (_, ()) = store.update(|account| account.counters.reserved = 5).unwrap();
        let (saved, reserved) = store.clone().update(|account| account.counters.reserved).unwrap();
        assert_eq!((reserved, saved.counters.reserved), (5, 5));
        std::fs::write(store.state_path(), b"{\"hunter2\":1").unwrap();
        let error = store.load().unwrap_err().to_string();
        assert!(error.contains("damaged") && error.contains("pair again") && !error.contains("hunter2"), "{error}");
        assert!(store.update(|_| ()).is_err());
        assert_eq!(std::fs::read(store.state_path()).unwrap(), b"{\"hunter2\":1");
    }

    #[test]
    fn a_state_of_a_later_version_is_left_alone() {
        let (_folder, store) = store();
        store.create(&account()).unwrap();
        let text = std::fs::read_to_string(store.state_path()).unwrap().replace("\"format\":1", "\"format\":2");
        std::fs::write(store.state_path(), text).unwrap();
        assert!(store.load().unwrap_err().to_string().contains("another version"));
    }

    #[test]
    fn a_push_token_is_kept_until_another_is_given_and_a_damaged_one_is_told_without_being_quoted() {
        let (_folder, store) = store();
        assert!(store.registration().unwrap().is_none());
        for token in ["ios:00ff", "android:token"] {
            register(&store, token);
            let saved = store.registration().unwrap().unwrap();
            assert_eq!(Some(saved.device_token().as_str()), token.split(':').nth(1));
        }
        for damaged in [&b"{\"hunter2\""[..], &vec![b' '; 20_000]] {
            std::fs::write(store.push_path(), damaged).unwrap();
            let error = store.registration().unwrap_err().to_string();
            assert!(error.contains("push.json is damaged") && error.contains("--push-url"), "{error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
        register(&store, "ios:00");
        assert!(store.registration().unwrap().is_some());
    }

    #[test]
    fn peeking_makes_nothing_and_waits_for_nobody() {
        let folder = tempfile::tempdir().unwrap();
        let nowhere = Store::at(folder.path(), "default").unwrap();
        assert!(nowhere.peek().unwrap().is_none() && nowhere.registration().unwrap().is_none());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        let store = Store::open(folder.path(), "default").unwrap();
        store.create(&account()).unwrap();
        // Somebody saves, and takes their time.
        let _lock = store.lock().unwrap();
        assert_eq!(nowhere.peek().unwrap(), Some(account()));
    }

    #[test]
    fn a_turn_has_one_holder_until_it_is_dropped() {
        let (_folder, store) = store();
        let held = store.try_turn(Turn::Connection).unwrap();
        assert!(held.is_some());
        assert!(store.try_turn(Turn::Connection).unwrap().is_none());
        assert!(store.try_turn(Turn::Watch).unwrap().is_some(), "each lock is its own");
        drop(held);
        assert!(store.try_turn(Turn::Connection).unwrap().is_some());
    }

    #[test]
    fn forgetting_leaves_neither_seed_nor_state() {
        let (_folder, store) = store();
        store.seed_or_new(|| Zeroizing::new([7; 32])).unwrap();
        store.create(&account()).unwrap();
        register(&store, "android:token");
        store.forget().unwrap();
        assert!(store.load().unwrap().is_none() && store.registration().unwrap().is_none());
        assert!(!store.seed_path().exists() && !store.push_path().exists());
        store.forget().unwrap();
    }

    #[test]
    fn names_that_could_leave_the_folder_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["", ".", "..", "a/b", "a b", "ü", &"a".repeat(33)] {
            assert!(matches!(Store::open(folder.path(), name), Err(StoreError::Profile)), "{name:?}");
            assert!(matches!(Store::at(folder.path(), name), Err(StoreError::Profile)), "{name:?}");
        }
    }
}
