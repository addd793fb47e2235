//! The host that can be killed (`src/bin/test-host.rs`), as a process with a folder of its own.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::process::{Process, command};

/// A host that remembers, over all its lives, what it asked and what it was answered.
#[derive(Debug)]
pub struct TestHost {
    folder: TempDir,
    socket: PathBuf,
    process: Process,
    orders: Vec<String>,
}

/// One `inbox.resolve`, as the host noted it.
#[derive(Debug, Clone, PartialEq)]
pub enum Noted {
    /// It was called; nothing has come of it yet.
    Saw(Value),
    /// It acted on the call.
    Took(Value),
}

impl TestHost {
    /// Starts it for the daemon behind this socket, running or not.
    pub fn start(socket: &Path) -> Self {
        let folder = tempfile::Builder::new().prefix("skald-host-").tempdir().expect("a temporary folder");
        let process = spawn(socket, folder.path(), "");
        Self { folder, socket: socket.to_owned(), process, orders: Vec::new() }
    }

    /// SIGKILL, if it lives still, and a new life.
    pub async fn start_again(&mut self) {
        self.start_again_to_die_at("").await;
    }

    /// The same, to kill itself at this point (`POINT` or `POINT:N`).
    pub async fn start_again_to_die_at(&mut self, point: &str) {
        self.process.kill();
        let finished = self.process.finished().await;
        assert!(finished.was_killed(), "the host ended otherwise: {finished}");
        self.process = spawn(&self.socket, self.folder.path(), point);
        // It may have died before it read what it was told.
        let read = std::fs::read_to_string(self.folder.path().join("items")).unwrap_or_default();
        for order in self.orders.iter().filter(|order| !read.contains(order.as_str())) {
            self.process.write_if_alive(order);
        }
    }

    /// Has it raise an item.
    pub fn ask(&mut self, kind: &str, item: &Value) {
        let order = format!("{}\n", json!({"kind": kind, "item": item}));
        self.process.write_if_alive(&order);
        self.orders.push(order);
    }

    /// Its process.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Everything that it noted, in order.
    pub fn noted(&self) -> Vec<Noted> {
        let text = std::fs::read_to_string(self.folder.path().join("calls")).unwrap_or_default();
        let calls = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let noted = |mut call: Value| match call.get_mut("took") {
            Some(took) => Noted::Took(took.take()),
            None => Noted::Saw(call["saw"].take()),
        };
        calls.map(noted).collect()
    }

    /// The answer that it acted on.
    pub fn took(&self, request_id: u64) -> Option<Value> {
        self.noted().into_iter().find_map(|noted| match noted {
            Noted::Took(call) if call["request_id"] == request_id => Some(call),
            _ => None,
        })
    }
}

fn spawn(socket: &Path, folder: &Path, point: &str) -> Process {
    // Cargo builds it along with the tests.
    let test = std::env::current_exe().expect("the test program has a path");
    let program = test.ancestors().nth(2).expect("the test program is in a target folder").join("test-host");
    let mut host = command(program);
    host.arg(socket).arg(folder).env("SKALD_CRASH_AT", point);
    Process::spawn("test-host", host)
}
