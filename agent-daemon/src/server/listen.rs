//! Makes the two sockets, or takes them from systemd: place, permissions, and whether another daemon has them.
//!
//! Liveness is an answer on the socket, never a pid or a file: a socket that nobody listens on is replaced, one that
//! answers means "already running". A lock in the folder makes two daemons that start at once take turns.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

use super::access::{Access, GroupError};
use super::inherited::{Inherited, InheritedError};
use crate::paths::{CONTROL_SOCKET, HOSTS_SOCKET, Mode};

/// How long a program that holds a socket may take to answer.
const ANSWER: Duration = Duration::from_secs(3);

/// Longest path of a socket, bytes: `sun_path` without its closing zero.
const LONGEST_PATH: usize = if cfg!(target_os = "linux") { 107 } else { 103 };

/// Makes starting daemons take turns.
const LOCK: &str = ".lock";

/// Which of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Socket {
    /// For programs that ask.
    Hosts,
    /// For the owner, who answers.
    Control,
}

impl Socket {
    /// Both.
    pub const BOTH: [Self; 2] = [Self::Hosts, Self::Control];

    /// The file's name, which is also what systemd calls it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hosts => HOSTS_SOCKET,
            Self::Control => CONTROL_SOCKET,
        }
    }
}

/// Why the sockets could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another daemon answers on the socket.
    #[error("already running: a daemon answers on {}; stop it first, or set SKALD_AGENTD_DIR to another folder", .0.display())]
    AlreadyRunning(PathBuf),
    /// Some program holds the socket and does not answer.
    #[error("a program holds {} but does not answer: stop it, then start again", .0.display())]
    Occupied(PathBuf),
    /// The path is too long for a socket.
    #[error(
        "{} is {} bytes long; a socket's path may have {LONGEST_PATH}: set SKALD_AGENTD_DIR to a shorter folder",
        .0.display(), .0.as_os_str().len()
    )]
    TooLong(PathBuf),
    /// Something else has the socket's name.
    #[error("{} is no socket and is in the way: remove it, or set SKALD_AGENTD_DIR to another folder", .0.display())]
    InTheWay(PathBuf),
    /// Anyone could replace the sockets.
    #[error("every user of this machine can write to {}: chmod o-w, or set SKALD_AGENTD_DIR to another folder", .0.display())]
    OpenFolder(PathBuf),
    /// The system said no.
    #[error("cannot {what} {}: {error}", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// With what.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// A group could not be looked up.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// What systemd passed is not what we need.
    #[error(transparent)]
    Inherited(#[from] InheritedError),
}

/// A socket that takes connections. Its file is removed when this is dropped, if it is still ours.
#[derive(Debug)]
pub struct Listener {
    /// Which.
    pub(super) socket: Socket,
    /// Who may connect.
    pub(super) access: Access,
    pub(super) inner: UnixListener,
    _file: Option<SocketFile>,
}

/// Makes both sockets in the folder; those that systemd passed are used as they are.
pub async fn listen(dir: &Path, mode: Mode, inherited: Inherited) -> Result<Vec<Listener>, ListenError> {
    let mut inherited = inherited;
    let mut listeners = Vec::new();
    let missing: Vec<Socket> = Socket::BOTH.into_iter().filter(|socket| !inherited.has(*socket)).collect();
    let _turn = if missing.is_empty() { None } else { Some(prepare(dir, mode)?) };
    for socket in Socket::BOTH {
        let access = Access::new(socket, mode)?;
        let listener = match inherited.take(socket)? {
            Some(listener) => Listener { socket, access, inner: listener, _file: None },
            None => bind(dir.join(socket.name()), socket, access).await?,
        };
        listeners.push(listener);
    }
    Ok(listeners)
}

/// Makes the folder if need be, checks it, and waits for our turn.
fn prepare(dir: &Path, mode: Mode) -> Result<fs::File, ListenError> {
    for socket in Socket::BOTH {
        let path = dir.join(socket.name());
        if path.as_os_str().len() > LONGEST_PATH {
            return Err(ListenError::TooLong(path));
        }
    }
    let failed = |what| move |error| ListenError::Io { what, path: dir.to_owned(), error };
    let private = if mode == Mode::User { 0o700 } else { 0o755 };
    if !dir.exists() {
        fs::DirBuilder::new().recursive(true).mode(private).create(dir).map_err(failed("make the folder"))?;
        // The umask may have taken bits that the groups need.
        fs::set_permissions(dir, fs::Permissions::from_mode(private)).map_err(failed("open the folder"))?;
    }
    let metadata = fs::metadata(dir).map_err(failed("use the folder"))?;
    let (everyone_writes, sticky) = (metadata.mode() & 0o002 != 0, metadata.mode() & 0o1000 != 0);
    if everyone_writes && !sticky {
        return Err(ListenError::OpenFolder(dir.to_owned()));
    }
    let lock = fs::File::create(dir.join(LOCK)).map_err(failed("write to the folder"))?;
    flock(&lock, FlockOperation::LockExclusive).map_err(|error| failed("lock the folder")(error.into()))?;
    Ok(lock)
}

async fn bind(path: PathBuf, socket: Socket, access: Access) -> Result<Listener, ListenError> {
    clear(&path).await?;
    let failed = |what| {
        let path = path.clone();
        move |error| ListenError::Io { what, path, error }
    };
    let listener = UnixListener::bind(&path).map_err(failed("make the socket"))?;
    let file = SocketFile::new(path.clone()).map_err(failed("look at the socket"))?;
    // First for nobody else, then for the group: never for a wrong one.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).map_err(failed("close the socket"))?;
    if let Some(gid) = access.gid() {
        std::os::unix::fs::chown(&path, None, Some(gid)).map_err(failed("give the socket's group access to"))?;
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(access.file_mode())).map_err(failed("open the socket"))?;
    Ok(Listener { socket, access, inner: listener, _file: Some(file) })
}

/// Removes a stale socket; an error if the path is in use.
async fn clear(path: &Path) -> Result<(), ListenError> {
    let failed = |what| move |error| ListenError::Io { what, path: path.to_owned(), error };
    let metadata = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        metadata => metadata.map_err(failed("look at"))?,
    };
    if !metadata.file_type().is_socket() {
        return Err(ListenError::InTheWay(path.to_owned()));
    }
    match UnixStream::connect(path).await {
        Ok(stream) => {
            let holder = if answers(stream).await { ListenError::AlreadyRunning } else { ListenError::Occupied };
            Err(holder(path.to_owned()))
        }
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            tracing::info!(path = %path.display(), "replacing a stale socket");
            fs::remove_file(path).map_err(failed("remove the stale socket"))
        }
        Err(error) => Err(failed("try the socket")(error)),
    }
}

/// Any answer will do: before `hello`, a daemon of any version says at least "hello first".
async fn answers(mut stream: UnixStream) -> bool {
    let ask = async {
        stream.write_all(b"{\"jsonrpc\":\"2.0\",\"id\":0,\"method\":\"status\"}\n").await?;
        stream.read(&mut [0; 1]).await
    };
    matches!(tokio::time::timeout(ANSWER, ask).await, Ok(Ok(1)))
}

/// The file of a socket that we made.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl SocketFile {
    fn new(path: PathBuf) -> io::Result<Self> {
        let metadata = fs::symlink_metadata(&path)?;
        Ok(Self { device: metadata.dev(), inode: metadata.ino(), path })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let still_ours = fs::symlink_metadata(&self.path)
            .is_ok_and(|metadata| (metadata.dev(), metadata.ino()) == (self.device, self.inode));
        if still_ours && let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove the socket");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn fresh(dir: &Path) -> Result<Vec<Listener>, ListenError> {
        listen(dir, Mode::User, Inherited::none()).await
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[tokio::test]
    async fn sockets_are_private_and_go_when_the_daemon_does() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("a/b");
        let listeners = fresh(&dir).await.unwrap();
        assert_eq!(mode(&dir), 0o700);
        for socket in Socket::BOTH {
            assert_eq!(mode(&dir.join(socket.name())), 0o600);
        }
        drop(listeners);
        for socket in Socket::BOTH {
            assert!(!dir.join(socket.name()).exists());
        }
    }

    #[tokio::test]
    async fn a_stale_socket_is_replaced() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join(HOSTS_SOCKET);
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let _listeners = fresh(root.path()).await.unwrap();
        UnixStream::connect(&path).await.unwrap();
    }

    #[tokio::test]
    async fn an_answer_on_the_socket_means_already_running() {
        let root = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(root.path().join(CONTROL_SOCKET)).unwrap();
        let other = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut line = [0; 16];
            let _ = stream.read(&mut line).await.unwrap();
            stream.write_all(b"{}\n").await.unwrap();
        });
        let error = fresh(root.path()).await.unwrap_err();
        assert!(matches!(&error, ListenError::AlreadyRunning(path) if path.ends_with(CONTROL_SOCKET)), "{error}");
        assert!(!root.path().join(HOSTS_SOCKET).exists(), "the other socket was left behind");
        other.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_socket_whose_holder_is_silent_is_left_alone() {
        let root = tempfile::tempdir().unwrap();
        let _silent = UnixListener::bind(root.path().join(HOSTS_SOCKET)).unwrap();
        let error = fresh(root.path()).await.unwrap_err();
        assert!(matches!(error, ListenError::Occupied(_)), "{error}");
    }

    #[tokio::test]
    async fn what_is_no_socket_is_not_removed() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join(HOSTS_SOCKET), "precious").unwrap();
        assert!(matches!(fresh(root.path()).await, Err(ListenError::InTheWay(_))));
        assert_eq!(fs::read_to_string(root.path().join(HOSTS_SOCKET)).unwrap(), "precious");
    }

    #[tokio::test]
    async fn long_paths_and_open_folders_are_refused_with_the_remedy() {
        let root = tempfile::tempdir().unwrap();
        let error = fresh(&root.path().join("x".repeat(100))).await.unwrap_err().to_string();
        assert!(error.contains("may have 107") && error.contains("SKALD_AGENTD_DIR"), "{error}");
        fs::set_permissions(root.path(), fs::Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(fresh(root.path()).await, Err(ListenError::OpenFolder(_))));
        fs::set_permissions(root.path(), fs::Permissions::from_mode(0o1777)).unwrap();
        fresh(root.path()).await.unwrap();
    }
}
