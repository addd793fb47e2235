//! The seed file: the daemon's one secret, made once and never replaced.
//!
//! Losing or swapping it would cut every phone off without a word, so anything odd about it is an error for a person to
//! look at (protocol, Identity).

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use skald_common::crypto::Seed;
use zeroize::Zeroizing;

use crate::remedy;

/// The file's name in the state folder.
pub const SEED: &str = "seed";

/// Why there is no identity. Each says what to do.
#[derive(Debug, thiserror::Error)]
pub enum SeedError {
    /// It cannot be read or made.
    #[error("{path}: {error}{}", remedy::for_file(.error))]
    File {
        /// The seed file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// It is something else than a file of its own.
    #[error("{path} is no regular file; it is never replaced: put the seed itself there")]
    NotAFile {
        /// The seed file.
        path: PathBuf,
    },
    /// It has another length.
    #[error(
        "{path} has {len} bytes, a seed has 32; it is never replaced: restore it from a backup, or move it away to begin \
         with a new identity (every phone must then pair again)"
    )]
    Length {
        /// The seed file.
        path: PathBuf,
        /// Its length, bytes.
        len: u64,
    },
    /// Others can read it.
    #[error(
        "{path} can be read by others (mode {mode:03o}): chmod 600 it, and if they may have read it, start a new identity"
    )]
    Mode {
        /// The seed file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// There was nothing to make it from.
    #[error("the system gives no random numbers, so no seed can be made")]
    Random,
    /// It belongs to another user.
    #[error("{path} belongs to another user (uid {uid})")]
    Owner {
        /// The seed file.
        path: PathBuf,
        /// Its owner.
        uid: u32,
    },
}

/// The folder's seed. True: it was made just now, from `random` bytes.
pub fn load_or_create(
    folder: &Path,
    random: impl FnOnce() -> Option<Zeroizing<[u8; 32]>>,
) -> Result<(Seed, bool), SeedError> {
    let path = folder.join(SEED);
    match load(&path) {
        Err(SeedError::File { error, .. }) if error.kind() == io::ErrorKind::NotFound => {}
        loaded => return loaded.map(|seed| (seed, false)),
    }
    let seed = random().ok_or(SeedError::Random)?;
    create(folder, &path, &seed).map_err(|error| SeedError::File { path: path.clone(), error })?;
    load(&path).map(|seed| (seed, true))
}

fn load(path: &Path) -> Result<Seed, SeedError> {
    let failed = |error| SeedError::File { path: path.to_owned(), error };
    let no_follow = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let mut file = match OpenOptions::new().read(true).custom_flags(no_follow.bits().cast_signed()).open(path) {
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) => {
            return Err(SeedError::NotAFile { path: path.to_owned() });
        }
        opened => opened.map_err(failed)?,
    };
    let about = file.metadata().map_err(failed)?;
    if !about.is_file() {
        return Err(SeedError::NotAFile { path: path.to_owned() });
    }
    let (mode, uid) = (about.mode() & 0o777, about.uid());
    if mode & 0o077 != 0 {
        return Err(SeedError::Mode { path: path.to_owned(), mode });
    }
    if uid != rustix::process::geteuid().as_raw() {
        return Err(SeedError::Owner { path: path.to_owned(), uid });
    }
    let length = |len| SeedError::Length { path: path.to_owned(), len };
    if about.len() != 32 {
        return Err(length(about.len()));
    }
    let mut bytes = Zeroizing::new([0; 32]);
    file.read_exact(bytes.as_mut()).map_err(failed)?;
    Seed::from_slice(bytes.as_ref()).map_err(|_| length(about.len()))
}

/// Written beside its place and then linked there: whole or not at all, and never over another.
fn create(folder: &Path, path: &Path, seed: &[u8; 32]) -> io::Result<()> {
    let draft = folder.join("seed.new");
    match fs::remove_file(&draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
    file.write_all(seed)?;
    file.sync_all()?;
    let linked = fs::hard_link(&draft, path);
    fs::remove_file(&draft)?;
    linked?;
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn never() -> Option<Zeroizing<[u8; 32]>> {
        panic!("an existing seed must not be replaced")
    }

    #[test]
    fn it_is_made_once_with_mode_600_and_then_only_read() {
        let folder = tempfile::tempdir().unwrap();
        let (seed, new) = load_or_create(folder.path(), || Some(Zeroizing::new([7; 32]))).unwrap();
        assert!(new && seed.expose() == &[7; 32]);
        let path = folder.path().join(SEED);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let (again, new) = load_or_create(folder.path(), never).unwrap();
        assert!(!new && again.expose() == seed.expose());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no draft is left");
    }

    #[test]
    fn a_seed_of_another_length_is_an_error_and_stays() {
        for len in [0, 31, 33] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join(SEED);
            fs::write(&path, vec![1; len]).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            let error = load_or_create(folder.path(), never).unwrap_err();
            assert!(matches!(error, SeedError::Length { .. }), "{error}");
            assert_eq!(fs::read(&path).unwrap().len(), len);
        }
    }

    #[test]
    fn a_seed_that_others_can_read_a_link_and_a_folder_are_errors() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(SEED);
        fs::write(&path, [1; 32]).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(load_or_create(folder.path(), never), Err(SeedError::Mode { mode: 0o640, .. })));
        let real = folder.path().join("elsewhere");
        fs::rename(&path, &real).unwrap();
        fs::set_permissions(&real, fs::Permissions::from_mode(0o600)).unwrap();
        symlink(&real, &path).unwrap();
        assert!(matches!(load_or_create(folder.path(), never), Err(SeedError::NotAFile { .. })));
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(load_or_create(folder.path(), never).is_err());
        assert!(path.is_dir());
    }

    #[test]
    fn without_randomness_none_is_made() {
        let folder = tempfile::tempdir().unwrap();
        assert!(matches!(load_or_create(folder.path(), || None), Err(SeedError::Random)));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn errors_do_not_show_the_seed() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(SEED), b"canary-canary-canary").unwrap();
        let error = load_or_create(folder.path(), never).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("canary"));
    }
}
