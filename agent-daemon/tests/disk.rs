//! A disk that is full, cannot be written to or is used by somebody else: the daemon says so in a line with the remedy, and
//! loses nothing.

#![cfg(target_os = "linux")]

#[allow(dead_code, reason = "each test program uses a part of it")]
mod support;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;

use rusqlite::Connection;
use rustix::process::{Signal, geteuid};
use support::disk::{Means, OnDisk};
use support::{Control, Finished, Home, Running, Stream, mode};

/// Trouble, told in the last line on standard error.
fn told(finished: &Finished, says: &[&str]) {
    assert_eq!((finished.code, finished.out.as_str()), (Some(2), ""), "{finished:?}");
    let line = finished.err.lines().last().unwrap_or_default();
    assert!(line.starts_with("skaldctl: ") && says.iter().all(|text| line.contains(text)), "{says:?}: {finished:?}");
}

/// A question is pending, and whoever asked it waits.
fn ask(home: &Home) -> (Running, String) {
    let asking = home.start(&["ask", "question", "Still there?"]);
    (asking, Control::connect(home).pending())
}

/// The pending question is answered, and whoever asked it gets the answer.
fn answer(home: &Home, asking: Running, id: &str) {
    let answered = home.run(&["answer", id, "text", "yes"]);
    assert_eq!(answered.code, Some(0), "{answered:?}");
    assert_eq!(asking.finish(), (Some(0), vec!["yes".to_owned()]));
}

/// While the state cannot be written: nothing new is taken, and what was there stays as it is.
fn refuses_and_keeps(home: &Home, id: &str, remedy: &str) {
    told(&home.run(&["ask", "question", "Another?"]), &["the state could not be stored: ", remedy]);
    told(&home.run(&["answer", id, "text", "yes"]), &["the state could not be stored: ", remedy]);
    let status = home.run(&["status", "--json"]).json();
    assert_eq!(status["pending"]["clarifications"], 1, "{status}");
    assert!(status["last_error"].as_str().is_some_and(|error| error.contains(remedy)), "{status}");
    assert_eq!(home.run(&["inbox", "--json"]).json()[0]["id"], id);
}

#[test]
fn on_a_full_disk_nothing_is_taken_or_lost_and_with_room_again_all_goes_on() {
    for means in Means::possible() {
        let home = Home::new();
        let mut disk = OnDisk::start(&home, means);
        let namespace = home.run(&["status", "--json"]).json()["namespace_id"].clone();
        let (asking, id) = ask(&home);
        disk.fill(&home);
        let remedy =
            if means == Means::FileSystem { "full: make room on that disk" } else { ": look into the system's log" };
        refuses_and_keeps(&home, &id, remedy);
        disk.free(&home);
        answer(&home, asking, &id);
        let status = home.run(&["status", "--json"]).json();
        assert!(status["last_error"].is_null(), "it is over: {status}");
        if means == Means::FileSystem {
            disk.order("restart");
            disk.daemon.wait_for("ready");
            assert_eq!(home.run(&["status", "--json"]).json()["namespace_id"], namespace);
            assert_eq!(home.run(&["inbox"]).out, "Nothing is pending.\n");
        }
    }
}

/// What a daemon says that ends at once.
fn refused(home: &Home) -> String {
    let finished = Finished::of(home.agentd().arg("run").stdin(Stdio::null()).output().expect("it runs"));
    assert_eq!(finished.code, Some(1), "{finished:?}");
    finished.err.lines().last().expect("a reason").to_owned()
}

#[test]
fn a_read_only_folder_is_named_with_the_remedy_and_works_again_once_it_is_writable() {
    let home = Home::new();
    if Means::possible().contains(&Means::FileSystem) {
        let mut disk = OnDisk::start(&home, Means::FileSystem);
        let namespace = home.run(&["status", "--json"]).json()["namespace_id"].clone();
        disk.order("read-only");
        let line = disk.daemon.wait_for("skald-agentd: ");
        assert!(line.contains("Read-only file system") && line.contains("remount that disk"), "{line}");
        disk.order("writable");
        disk.daemon.wait_for("ready");
        assert_eq!(home.run(&["status", "--json"]).json()["namespace_id"], namespace);
        return;
    }
    if geteuid().is_root() {
        eprintln!("skipped: for this user no folder is read-only, and nothing can be mounted");
        return;
    }
    let state = home.path("state");
    std::fs::create_dir(&state).unwrap();
    std::fs::set_permissions(&state, std::fs::Permissions::from_mode(0o500)).unwrap();
    let line = refused(&home);
    assert!(line.contains("Permission denied") && line.contains("SKALD_AGENTD_STATE_DIR"), "{line}");
    std::fs::set_permissions(&state, std::fs::Permissions::from_mode(0o700)).unwrap();
    assert_eq!((home.daemon().finish_by(Signal::TERM), mode(&state)), (Some(0), 0o700));
}

fn lock(state: &Path) -> Connection {
    let other = Connection::open(state.join("agentd.db")).expect("a database");
    other.execute_batch("BEGIN IMMEDIATE").expect("nobody writes");
    other
}

#[test]
fn a_database_that_another_program_holds_is_waited_for_and_then_named() {
    const HELD: &str = "database is locked: another program holds it; end that one";
    let home = Home::new();
    let daemon = home.daemon();
    let (asking, id) = ask(&home);
    let other = lock(&home.path("state"));
    refuses_and_keeps(&home, &id, HELD);
    daemon.signal(Signal::KILL);
    daemon.finish();
    let line = refused(&home);
    assert!(line.contains(HELD) && line.contains("fuser"), "{line}");
    drop(other);
    let _daemon = home.daemon();
    Control::connect(&home).pending();
    answer(&home, asking, &id);
}

/// Whatever changes a folder's files, and what the daemon must then say.
struct Case {
    prepare: fn(&Path),
    says: &'static [&'static str],
}

fn seed_mode(state: &Path, mode: u32) {
    std::fs::set_permissions(state.join("seed"), std::fs::Permissions::from_mode(mode)).unwrap();
}

const REFUSED: &[Case] = &[
    Case { prepare: |state| seed_mode(state, 0o644), says: &["seed can be read by others (mode 644): chmod 600 it"] },
    Case { prepare: |state| seed_mode(state, 0o620), says: &["seed can be read by others (mode 620): chmod 600 it"] },
    Case {
        prepare: |state| {
            std::fs::rename(state.join("seed"), state.join("elsewhere")).unwrap();
            std::os::unix::fs::symlink("elsewhere", state.join("seed")).unwrap();
        },
        says: &["seed is no regular file; it is never replaced: put the seed itself there"],
    },
    Case {
        prepare: |state| truncate(&state.join("seed"), 31),
        says: &["seed has 31 bytes, a seed has 32; it is never replaced: restore it from a backup"],
    },
    Case { prepare: |state| truncate(&state.join("seed"), 0), says: &["seed has 0 bytes, a seed has 32"] },
    Case {
        prepare: |state| std::fs::write(state.join("seed"), [7; 32]).unwrap(),
        says: &["agentd.db belongs to another identity than the seed beside it: put the right seed back"],
    },
    Case {
        prepare: |state| {
            let db = Connection::open(state.join("agentd.db")).unwrap();
            db.pragma_update(None, "user_version", 99).unwrap();
        },
        says: &["agentd.db was made by a newer version of skald-agentd (format 99, ", "install the newer version"],
    },
];

fn truncate(path: &Path, len: u64) {
    std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(len).unwrap();
}

/// Every file but the lock, in which each daemon notes its number; and what `SQLite` makes and removes as it likes.
fn files(state: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = std::fs::read_dir(state)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), std::fs::read(path).unwrap()))
        .filter(|(name, _)| name != "lock" && name != "agentd.db-shm" && name != "agentd.db-wal")
        .collect();
    files.sort();
    files
}

#[test]
fn a_state_that_cannot_be_right_is_refused_in_a_line_with_the_remedy_and_left_as_it_is() {
    let home = Home::new();
    assert_eq!(home.daemon().finish_by(Signal::TERM), Some(0));
    let state = home.path("state");
    let good = files(&state);
    for Case { prepare, says } in REFUSED {
        prepare(&state);
        let before = files(&state);
        let line = refused(&home);
        assert!(says.iter().all(|text| line.contains(text)), "{says:?}: {line}");
        assert!(files(&state) == before, "a file was changed: {line}");
        assert!(!home.sockets().join("agentd.sock").exists(), "no socket is left behind: {line}");
        std::fs::remove_dir_all(&state).unwrap();
        std::fs::create_dir(&state).unwrap();
        for (name, content) in &good {
            std::fs::write(state.join(name), content).unwrap();
            std::fs::set_permissions(state.join(name), std::fs::Permissions::from_mode(0o600)).unwrap();
        }
    }
    assert_eq!(home.daemon().finish_by(Signal::TERM), Some(0), "and the good one still works");
}

#[test]
fn places_that_cannot_be_used_are_named_with_the_remedy() {
    let home = Home::new();
    let file = home.path("file");
    std::fs::write(&file, "precious").unwrap();
    let long = home.path(&"x".repeat(100));
    for (variable, place, says) in [
        ("SKALD_AGENTD_STATE_DIR", &file, "move that file away"),
        ("SKALD_AGENTD_DIR", &long, "a socket's path may have 107: set SKALD_AGENTD_DIR to a shorter folder"),
    ] {
        let mut command = home.agentd();
        command.arg("run").env(variable, place);
        let daemon = Running::start(command, Stream::Err);
        let (code, lines) = daemon.finish();
        let line = lines.last().expect("a reason");
        assert!(code == Some(1) && line.starts_with("skald-agentd: ") && line.contains(says), "{lines:?}");
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
    let mut status = home.skaldctl(&["status"]);
    let finished = Finished::of(status.env("SKALD_AGENTD_DIR", &long).output().expect("it runs"));
    told(&finished, &["too long a path for a socket: give --dir or SKALD_AGENTD_DIR a shorter folder"]);
}
