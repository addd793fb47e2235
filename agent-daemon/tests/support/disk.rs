//! A disk that can be made full, as real as this machine allows: a small file system of its own where mounting is allowed
//! (root, or user namespaces), and everywhere a limit on the size of files.

use std::fmt::Write as _;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Resource, Rlimit, prlimit};

use super::{Home, Running, Stream};

/// Holds the mount in namespaces of its own, which end with it, runs the daemon there, and takes orders line by line.
const KEEPER: &str = r#"
state=$1
shift
mount -t tmpfs -o size=1m,mode=0700 skald "$state" || exit
start() { "$@" </dev/null & daemon=$!; }
stop() { kill "$daemon"; wait "$daemon"; }
start "$@"
while read -r order; do
  case $order in
    fill) cat /dev/zero >"$state/ballast" 2>/dev/null ;;
    free) rm "$state/ballast" ;;
    restart) stop; start "$@" ;;
    read-only) stop; mount -o remount,ro "$state"; start "$@" ;;
    writable) mount -o remount,rw "$state"; start "$@" ;;
  esac
  echo "the disk: $order" >&2
done
"#;

/// How the disk is made to refuse.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Means {
    /// A file system of 1 MiB: `ENOSPC`.
    FileSystem,
    /// No file of the daemon may be written to: `EFBIG`.
    Limit,
}

/// A daemon whose state is on such a disk.
pub(crate) struct OnDisk {
    means: Means,
    pub(crate) daemon: Running,
}

impl Means {
    /// Those that work here; says which do not.
    pub(crate) fn possible() -> Vec<Self> {
        let mounts = unshare().args(["mount", "-t", "tmpfs", "skald", "/mnt"]).stderr(Stdio::null()).status();
        if mounts.is_ok_and(|status| status.success()) {
            return vec![Self::FileSystem, Self::Limit];
        }
        eprintln!("skipped: a small file system, as nothing can be mounted here; a limit on files stands in for it");
        vec![Self::Limit]
    }
}

fn unshare() -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--pid", "--fork", "--kill-child=KILL"]);
    if !rustix::process::geteuid().is_root() {
        command.arg("--map-root-user");
    }
    command
}

impl OnDisk {
    /// Starts a daemon that is ready.
    pub(crate) fn start(home: &Home, means: Means) -> Self {
        let agentd = home.agentd();
        let mut command = match means {
            Means::FileSystem => {
                std::fs::create_dir(home.path("state")).expect("a mount point");
                let mut keeper = unshare();
                keeper.args(["sh", "-c", KEEPER, "sh"]).arg(home.path("state"));
                keeper
            }
            Means::Limit => {
                // Ignored, the signal leaves an error to whoever writes.
                let mut ignoring = Command::new("sh");
                ignoring.args(["-c", r#"trap '' XFSZ; exec "$@""#, "sh"]);
                ignoring
            }
        };
        command.arg(agentd.get_program()).args(["run", "--log-level", "debug"]);
        let path = std::env::var_os("PATH").unwrap_or_default();
        command.env_clear().env("PATH", path);
        command.envs(agentd.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let mut daemon = Running::start(command, Stream::Err);
        daemon.wait_for("ready");
        Self { means, daemon }
    }

    /// From now on no write that takes room succeeds.
    pub(crate) fn fill(&mut self, home: &Home) {
        match self.means {
            Means::FileSystem => self.order("fill"),
            Means::Limit => limit(home, Some(0)),
        }
    }

    /// There is room again.
    pub(crate) fn free(&mut self, home: &Home) {
        match self.means {
            Means::FileSystem => self.order("free"),
            Means::Limit => limit(home, None),
        }
    }

    /// Gives the keeper an order and waits until it is carried out.
    pub(crate) fn order(&mut self, order: &str) {
        let mut line = String::new();
        let _ = writeln!(line, "{order}");
        std::io::Write::write_all(self.daemon.stdin.as_mut().expect("a pipe"), line.as_bytes()).expect("it reads");
        self.daemon.wait_for(&format!("the disk: {order}"));
    }
}

fn limit(home: &Home, size: Option<u64>) {
    let pid = home.run(&["status", "--json"]).json()["pid"].as_i64().expect("a number");
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    prlimit(pid, Resource::Fsize, Rlimit { current: size, maximum: None }).expect("the daemon is ours");
}
