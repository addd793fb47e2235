//! `skald-agentd` as a process: starting, stopping, signals, and what it refuses to start with.

#[allow(dead_code, reason = "each test program uses a part of it")]
mod support;

use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use support::{Finished, Home, Running, Stream};

fn refused(command: &mut Command) -> String {
    let finished = Finished::of(command.stdin(Stdio::null()).output().expect("it runs"));
    assert_eq!(finished.code, Some(1), "{finished:?}");
    let line = finished.err.lines().last().expect("a reason").to_owned();
    assert!(line.starts_with("skald-agentd: "), "{finished:?}");
    line
}

fn run(home: &Home) -> Command {
    let mut command = home.agentd();
    command.arg("run");
    command
}

#[test]
fn signals_stop_it_cleanly_and_the_sockets_go() {
    for signal in [Signal::TERM, Signal::INT] {
        let home = Home::new();
        let daemon = home.daemon();
        daemon.signal(signal);
        assert_eq!(daemon.finish().0, Some(0));
        assert!(!home.sockets().join("agentd.sock").exists() && !home.sockets().join("control.sock").exists());
    }
}

#[test]
fn a_second_one_in_the_same_folder_is_told_that_one_is_running() {
    let home = Home::new();
    let daemon = home.daemon();
    let line = refused(&mut run(&home));
    assert!(line.contains("already running") && line.contains("agentd.sock"), "{line}");
    assert_eq!(home.run(&["status"]).code, Some(0), "the first one is unharmed");
    drop(daemon);
}

#[test]
fn a_killed_ones_sockets_are_replaced() {
    let home = Home::new();
    let daemon = home.daemon();
    daemon.signal(Signal::KILL);
    daemon.finish();
    assert!(home.sockets().join("control.sock").exists());
    let _daemon = home.daemon();
    assert_eq!(home.run(&["status"]).code, Some(0));
}

#[test]
fn sighup_reads_the_settings_again_and_keeps_the_old_ones_if_they_are_wrong() {
    let home = Home::new();
    let mut daemon = home.daemon();
    std::fs::write(home.config(), "pairing_ttl = 61\n").unwrap();
    daemon.signal(Signal::HUP);
    daemon.wait_for("settings read again");
    assert_eq!(home.run(&["config", "get", "pairing_ttl"]).out, "61\n");
    std::fs::write(home.config(), "pairing_ttl = 0\n").unwrap();
    daemon.signal(Signal::HUP);
    let line = daemon.wait_for("stay as they are");
    assert!(line.contains("line 1: pairing_ttl: must be a whole number from 1 to 600"), "{line}");
    assert_eq!(home.run(&["config", "get", "pairing_ttl"]).out, "61\n");
}

#[test]
fn wrong_settings_are_refused_before_anything_is_made() {
    let home = Home::new();
    std::fs::write(home.config(), "pairing_ttl = 0\n").unwrap();
    let line = refused(&mut run(&home));
    assert!(line.contains("config.toml, line 1: pairing_ttl"), "{line}");
    let line = refused(run(&home).env("SKALD_AGENTD_CONFIG", home.path("none")).env("SKALD_AGENTD_WEB_PORT", "x"));
    assert!(line.contains("SKALD_AGENTD_WEB_PORT"), "{line}");
    let line = refused(run(&home).env_remove("SKALD_AGENTD_DIR").env("SKALD_AGENTD_CONFIG", home.path("none")));
    assert!(line.contains("XDG_RUNTIME_DIR") && line.contains("--system"), "{line}");
    assert!(!home.sockets().exists() && !home.path("state").exists());
}

#[test]
fn systemd_is_told_when_it_is_ready_and_when_it_stops() {
    let home = Home::new();
    let path = home.path("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
    let mut command = run(&home);
    command.env("NOTIFY_SOCKET", &path);
    let daemon = Running::start(command, Stream::Err);
    let told = || {
        let mut buffer = [0; 64];
        let count = loop {
            match socket.recv(&mut buffer) {
                // The end of another test's process: a wait with a timeout is not taken up again.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                received => break received.expect("a message"),
            }
        };
        String::from_utf8_lossy(&buffer[..count]).trim().to_owned()
    };
    assert_eq!(told(), "READY=1");
    assert_eq!(home.run(&["status"]).code, Some(0), "ready means that the sockets answer");
    daemon.signal(Signal::TERM);
    assert_eq!(told(), "STOPPING=1");
    assert_eq!(daemon.finish().0, Some(0));
}

#[test]
fn sockets_that_systemd_made_are_used_and_left_to_it() {
    let home = Home::new();
    std::fs::create_dir(home.sockets()).unwrap();
    let listener = |name: &str| OwnedFd::from(UnixListener::bind(home.sockets().join(name)).unwrap());
    // systemd passes them as descriptors 3 and 4, to the process of this number.
    let script = r#"exec 3<&0 4<&1 0</dev/null 1>&2; LISTEN_PID=$$ exec "$0" run --log-level debug"#;
    let mut command = Command::new("/bin/sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_skald-agentd")]).env_clear();
    command.envs(home.agentd().get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.env("LISTEN_FDS", "2").env("LISTEN_FDNAMES", "control.sock:agentd.sock");
    command.stdin(listener("control.sock")).stdout(listener("agentd.sock")).stderr(Stdio::piped());
    let mut daemon = Running::with_streams(command, Stream::Err);
    daemon.wait_for("ready");
    assert_eq!(home.run(&["status"]).code, Some(0));
    assert_eq!(home.run(&["notify", "Title", "Body"]).code, Some(0));
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.finish().0, Some(0));
    assert!(home.sockets().join("agentd.sock").exists() && home.sockets().join("control.sock").exists());
}

#[cfg(target_os = "linux")]
#[test]
fn it_leaves_no_core_dump_and_cannot_be_traced() {
    let home = Home::new();
    let daemon = home.daemon();
    let pid = home.run(&["status", "--json"]).json()["pid"].as_u64().expect("a number");
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).expect("the line");
    assert_eq!(core.split_whitespace().skip(4).take(2).collect::<Vec<_>>(), ["0", "0"], "{core}");
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    assert!(status.lines().any(|line| line.starts_with("Umask") && line.ends_with("0077")), "{status}");
    drop(daemon);
}

#[test]
fn the_version_is_printed() {
    let home = Home::new();
    let output = home.agentd().arg("version").output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("skald-agentd {}\n", env!("CARGO_PKG_VERSION")));
}
