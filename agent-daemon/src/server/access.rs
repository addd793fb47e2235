//! Who may connect to a socket: the mode and group of its file, and once more by the caller's credentials.

use nix::unistd::{Gid, Group, Uid, User};
use tokio::net::unix::UCred;

use super::listen::Socket;
use crate::paths::Mode;

/// Group of the programs that may raise items.
const HOSTS_GROUP: &str = "skald";

/// Group of those who may answer, pair and configure.
const CONTROL_GROUP: &str = "skald-admin";

/// A group could not be looked up.
#[derive(Debug, thiserror::Error)]
#[error("cannot look up the group {name}: {error}")]
pub struct GroupError {
    name: &'static str,
    error: nix::Error,
}

/// Who may use a socket, besides root and the daemon's own user.
#[derive(Debug)]
pub(super) struct Access {
    owner: Uid,
    mode: Mode,
    group: Option<Group>,
}

impl Access {
    pub(super) fn new(socket: Socket, mode: Mode) -> Result<Self, GroupError> {
        let owner = Uid::effective();
        if mode == Mode::User {
            return Ok(Self { owner, mode, group: None });
        }
        let name = match socket {
            Socket::Hosts => HOSTS_GROUP,
            Socket::Control => CONTROL_GROUP,
        };
        let group = Group::from_name(name).map_err(|error| GroupError { name, error })?;
        if group.is_none() {
            tracing::warn!("there is no group {name}: only root and the daemon's user can use {}", socket.name());
        }
        Ok(Self { owner, mode, group })
    }

    /// Mode of the socket's file.
    pub(super) const fn file_mode(&self) -> u32 {
        match self.mode {
            Mode::User => 0o600,
            Mode::System => 0o660,
        }
    }

    /// Group of the socket's file, if it is to be another than the daemon's.
    pub(super) fn gid(&self) -> Option<u32> {
        self.group.as_ref().map(|group| group.gid.as_raw())
    }

    /// Whether a peer may go on.
    pub(super) fn permits(&self, peer: UCred) -> bool {
        self.permits_ids(Uid::from_raw(peer.uid()), Gid::from_raw(peer.gid()))
    }

    fn permits_ids(&self, uid: Uid, gid: Gid) -> bool {
        uid.is_root() || uid == self.owner || self.group.as_ref().is_some_and(|group| is_member(group, uid, gid))
    }
}

fn is_member(group: &Group, uid: Uid, gid: Gid) -> bool {
    gid == group.gid
        || User::from_uid(uid)
            .ok()
            .flatten()
            .is_some_and(|user| user.gid == group.gid || group.mem.contains(&user.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOBODY: u32 = 65_534;

    fn permits(access: &Access, uid: u32, gid: u32) -> bool {
        access.permits_ids(Uid::from_raw(uid), Gid::from_raw(gid))
    }

    #[test]
    fn in_user_mode_only_the_user_and_root_pass() {
        let access = Access { owner: Uid::from_raw(1000), mode: Mode::User, group: None };
        assert!(permits(&access, 1000, 5) && permits(&access, 0, 0));
        assert!(!permits(&access, 1001, 1000) && !permits(&access, NOBODY, 0));
        assert_eq!((access.file_mode(), access.gid()), (0o600, None));
    }

    #[test]
    fn in_system_mode_members_of_the_group_pass_too() {
        let group = |gid, mem: &[&str]| Group {
            name: "g".into(),
            passwd: std::ffi::CString::default(),
            gid: Gid::from_raw(gid),
            mem: mem.iter().map(|&name| name.into()).collect(),
        };
        let access = Access { owner: Uid::from_raw(1000), mode: Mode::System, group: Some(group(4242, &["daemon"])) };
        assert!(permits(&access, 1234, 4242), "the caller's own group");
        assert!(!permits(&access, 1234, 4243));
        let daemon = User::from_name("daemon").unwrap();
        if let Some(daemon) = daemon {
            assert!(permits(&access, daemon.uid.as_raw(), 4243), "listed in the group");
            let access =
                Access { owner: Uid::from_raw(1000), mode: Mode::System, group: Some(group(daemon.gid.as_raw(), &[])) };
            assert!(permits(&access, daemon.uid.as_raw(), 4243), "primary group");
        }
        assert_eq!((access.file_mode(), access.gid()), (0o660, Some(4242)));
    }
}
