//! A database that an older version left behind: what is in it counts.

#[allow(dead_code, reason = "each test program uses a part of it")]
mod support;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::time::{SystemTime, UNIX_EPOCH};

use rusqlite::Connection;
use rustix::process::Signal;
use serde_json::{Value, json};
use support::Home;

const FIRST_FORMAT: &str = include_str!("databases/v1.sql");

/// A state folder as a daemon of that format left it a moment ago.
fn leave(home: &Home) {
    let state = home.path("state");
    std::fs::DirBuilder::new().mode(0o700).create(&state).unwrap();
    let seed = state.join("seed");
    std::fs::write(&seed, [7; 32]).unwrap();
    std::fs::set_permissions(&seed, std::fs::Permissions::from_mode(0o600)).unwrap();
    let db = Connection::open(state.join("agentd.db")).unwrap();
    db.execute_batch(FIRST_FORMAT).unwrap();
    let now = i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap();
    for (table, column) in
        [("devices", "paired_at"), ("answers", "at"), ("decided", "at"), ("pairing_window", "expires_at")]
    {
        db.execute(&format!("UPDATE {table} SET {column} = ?1"), [now]).unwrap();
    }
}

/// The host whose items they are, back again: what the daemon calls it with after its set.
fn host_gets(home: &Home) -> Value {
    let stream = UnixStream::connect(home.sockets().join("agentd.sock")).unwrap();
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    let approval = json!({
        "request_id": 1, "tool_name": "deploy", "summary": "Deploy?", "arguments": {"target": "prod"},
        "created_at": 1_796_000_000_000_u64,
    });
    let question = json!({
        "request_id": "c", "question": "Which branch?", "suggested_answers": ["main"],
        "created_at": 1_796_000_000_000_u64,
    });
    for (method, params) in [
        ("hello", json!({"protocol": 1, "name": "skald", "version": "1"})),
        ("inbox.sync", json!({"approvals": [approval], "clarifications": [question], "elicitations": []})),
    ] {
        writeln!(&stream, "{}", json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})).unwrap();
    }
    loop {
        let mut message: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        assert!(message["error"].is_null(), "{message}");
        if message["method"] == "inbox.resolve" {
            let answer = json!({"jsonrpc": "2.0", "id": message["id"], "result": {"resolved": true}});
            writeln!(&stream, "{answer}").unwrap();
            return message["params"].take();
        }
    }
}

#[test]
fn devices_items_and_the_answer_under_way_are_taken_over_from_the_first_format() {
    let home = Home::new();
    leave(&home);
    let daemon = home.daemon();
    let status = home.run(&["status", "--json"]).json();
    assert_eq!((&status["devices"]["authorized"], &status["devices"]["pending"]), (&json!(1), &json!(1)), "{status}");
    assert_eq!(status["notices"], json!([]));
    let devices = home.run(&["devices", "--json"]).json();
    assert_eq!((&devices[0]["name"], &devices[0]["platform"]), (&json!("Desk"), &json!("web")), "{devices}");
    let inbox = home.run(&["inbox", "--json"]).json();
    assert_eq!((inbox.as_array().map(Vec::len), &inbox[0]["id"]), (Some(1), &json!("c.e39e30d59e66e0d3")), "{inbox}");
    let answer = host_gets(&home);
    assert_eq!(
        (&answer["request_id"], &answer["decision"], &answer["reason"]),
        (&json!(1), &json!("approved"), &json!("go"))
    );
    assert_eq!(answer["answer_id"], "50e79ca8-1cf7-4a99-99d4-2851f79db563", "the one that was given then");
    assert_eq!(daemon.finish_by(Signal::TERM), Some(0));

    let db = Connection::open(home.path("state/agentd.db")).unwrap();
    let marks = "SELECT (SELECT high_water FROM meta), max(reserved), max(received) FROM devices";
    let marks = db.query_row(marks, [], |row| Ok([row.get(0)?, row.get(1)?, row.get::<_, i64>(2)?])).unwrap();
    assert_eq!(marks, [7_351_000_000_001_024, 7_351_000_000_001_024, 7_351_000_000_000_001], "no counter goes back");
}
