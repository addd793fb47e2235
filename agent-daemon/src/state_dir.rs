//! The state folder: where it is, that only its owner can read it, and that only one daemon uses it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

use crate::paths::{Env, Mode};
use crate::remedy;

/// Names the state folder.
pub const STATE_VARIABLE: &str = "SKALD_AGENTD_STATE_DIR";

const SYSTEM_STATE: &str = "/var/lib/skald-agentd";
const LOCK: &str = "lock";

/// Why the state folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateDirError {
    /// No variable says where it is.
    #[error("HOME is not set, so there is no place for the state: set {STATE_VARIABLE}")]
    NoPlace,
    /// It cannot be made or read.
    #[error("{path}: {error}{}", remedy::for_file(.error))]
    File {
        /// Which file or folder.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// It belongs to another user.
    #[error("{path} belongs to another user (uid {uid}): run as that user, or set {STATE_VARIABLE}")]
    Owner {
        /// The folder.
        path: PathBuf,
        /// Its owner.
        uid: u32,
    },
    /// Another daemon uses it.
    #[error("already running{} with the state folder {path}", pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default())]
    Running {
        /// The folder.
        path: PathBuf,
        /// The other daemon, as far as it has said.
        pid: Option<u32>,
    },
}

/// The folder for this mode: what the environment says, or the platform's place.
pub fn default_path(mode: Mode, env: Env<'_>) -> Result<PathBuf, StateDirError> {
    let path = |name| env(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(folder) = path(STATE_VARIABLE) {
        return Ok(folder);
    }
    if mode == Mode::System {
        return Ok(SYSTEM_STATE.into());
    }
    let home = path("HOME");
    let folder = if cfg!(target_os = "macos") {
        home.map(|home| home.join("Library/Application Support/Skald"))
    } else {
        let state = path("XDG_STATE_HOME").or_else(|| home.map(|home| home.join(".local/state")));
        state.map(|state| state.join("skald-agentd"))
    };
    folder.ok_or(StateDirError::NoPlace)
}

/// The folder, held by this process until dropped.
#[derive(Debug)]
pub struct StateDir {
    path: PathBuf,
    /// The kernel lets go of the lock when the file is closed, however the process ends.
    _lock: File,
}

impl StateDir {
    /// Makes the folder if need be, and takes it.
    pub fn open(path: &Path) -> Result<Self, StateDirError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |error| StateDirError::File { path, error }
        };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed(path))?;
        let about = fs::metadata(path).map_err(failed(path))?;
        if about.uid() != rustix::process::geteuid().as_raw() {
            return Err(StateDirError::Owner { path: path.to_owned(), uid: about.uid() });
        }
        if about.mode() & 0o077 != 0 {
            fs::set_permissions(path, fs::Permissions::from_mode(0o700)).map_err(failed(path))?;
        }
        let lock_path = path.join(LOCK);
        let lock = lock(path, &lock_path)?;
        Ok(Self { path: path.to_owned(), _lock: lock })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn lock(folder: &Path, path: &Path) -> Result<File, StateDirError> {
    let failed = |error| StateDirError::File { path: path.to_owned(), error };
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
        .map_err(failed)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let mut text = String::new();
            // The number is a courtesy; the lock itself has answered.
            let pid = file.read_to_string(&mut text).ok().and_then(|_| text.trim().parse().ok());
            return Err(StateDirError::Running { path: folder.to_owned(), pid });
        }
        Err(error) => return Err(failed(error.into())),
    }
    file.set_len(0).map_err(failed)?;
    file.rewind().map_err(failed)?;
    writeln!(file, "{}", std::process::id()).map_err(failed)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    #[test]
    fn the_environment_decides_where_it_is() {
        let env = |pairs: &'static [(&str, &str)]| {
            move |name: &str| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value))
        };
        let path = |mode, pairs| default_path(mode, &env(pairs));
        let told: &[_] = &[(STATE_VARIABLE, "/x"), ("HOME", "/h")];
        assert_eq!(path(Mode::User, told).unwrap(), Path::new("/x"));
        assert_eq!(path(Mode::System, told).unwrap(), Path::new("/x"));
        assert_eq!(path(Mode::System, &[]).unwrap(), Path::new(SYSTEM_STATE));
        if !cfg!(target_os = "macos") {
            assert_eq!(path(Mode::User, &[("HOME", "/h")]).unwrap(), Path::new("/h/.local/state/skald-agentd"));
            let xdg: &[_] = &[("HOME", "/h"), ("XDG_STATE_HOME", "/s")];
            assert_eq!(path(Mode::User, xdg).unwrap(), Path::new("/s/skald-agentd"));
        }
        assert!(matches!(path(Mode::User, &[]), Err(StateDirError::NoPlace)));
    }

    #[test]
    fn it_is_made_private_and_a_lax_one_is_tightened() {
        let base = tempfile::tempdir().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        let made = base.path().join("a/b");
        let held = StateDir::open(&made).unwrap();
        assert_eq!((mode(&made), held.path()), (0o700, made.as_path()));
        let lax = base.path().join("lax");
        fs::create_dir(&lax).unwrap();
        fs::set_permissions(&lax, fs::Permissions::from_mode(0o755)).unwrap();
        let _held = StateDir::open(&lax).unwrap();
        assert_eq!((mode(&lax), mode(&lax.join(LOCK))), (0o700, 0o600));
    }

    #[test]
    fn a_second_daemon_is_told_which_one_runs_until_that_ends() {
        let base = tempfile::tempdir().unwrap();
        let held = StateDir::open(base.path()).unwrap();
        let error = StateDir::open(base.path()).unwrap_err();
        let expected = format!("already running (pid {})", std::process::id());
        assert!(error.to_string().starts_with(&expected), "{error}");
        drop(held);
        StateDir::open(base.path()).unwrap();
    }
}
