//! `skaldctl` as a process: its exit codes and what it says, against the real daemon without a relay, and against programs
//! that only pretend to be one.

#[allow(dead_code, reason = "each test program uses a part of it")]
mod support;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::process::Stdio;
use std::thread::JoinHandle;

use serde_json::{Value, json};
use support::{Control, Finished, Home, mode};

/// Starts `skaldctl ask …`, answers with `skaldctl answer ID …`, and tells how both ended.
fn ask_and_answer(ask: &[&str], answer: &[&str], input: &str) -> (Finished, Finished) {
    let home = Home::new();
    let _daemon = home.daemon();
    let mut control = Control::connect(&home);
    let mut command = home.skaldctl(&[&["ask"], ask].concat());
    let asking = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let id = control.pending();
    let answered = home.run_with(&[&["answer", &id], answer].concat(), input);
    (Finished::of(asking.wait_with_output().expect("it ends")), answered)
}

const APPROVAL: [&str; 5] = ["approval", "--tool", "deploy", "--summary", "Deploy?"];

#[test]
fn an_approval_ends_with_0_if_approved_and_1_if_rejected() {
    let (asked, answered) = ask_and_answer(&[&APPROVAL[..], &["--", "target=prod"]].concat(), &["approve"], "");
    assert_eq!((asked.code, asked.out.as_str()), (Some(0), "approved\n"), "{asked:?}");
    assert_eq!((answered.code, answered.out.as_str()), (Some(0), "Answered.\n"), "{answered:?}");

    let (asked, _) = ask_and_answer(&APPROVAL, &["reject", "--reason", "Not\u{1b}[2J now"], "");
    assert_eq!((asked.code, asked.out.as_str()), (Some(1), "rejected: Not\\u001b[2J now\n"), "{asked:?}");

    let (asked, _) = ask_and_answer(&[&APPROVAL[..], &["--json"]].concat(), &["approve", "--bypass", "60"], "");
    let answer = asked.json();
    assert_eq!(
        (&answer["decision"], &answer["bypass_secs"], &answer["device"]["name"]),
        (&json!("approved"), &json!(60), &json!("skaldctl"))
    );
}

#[test]
fn a_question_prints_the_answer_and_nothing_else() {
    let (asked, _) = ask_and_answer(&["question", "Which?", "--suggest", "a"], &["text", "the second one"], "");
    assert_eq!((asked.code, asked.out.as_str()), (Some(0), "the second one\n"), "{asked:?}");
}

#[test]
fn a_secret_goes_to_standard_output_alone_and_declining_ends_with_1() {
    let (asked, answered) = ask_and_answer(&["secret", "Password", "--field", "pw"], &["value"], " hunter2 \r\n");
    assert_eq!((asked.code, asked.out.as_str()), (Some(0), " hunter2 \n"), "{asked:?}");
    assert!(!asked.err.contains("hunter2"), "{asked:?}");
    assert!(answered.code == Some(0) && !format!("{answered:?}").contains("hunter2"), "{answered:?}");

    let (asked, _) = ask_and_answer(&["secret", "Password", "--json"], &["value"], "hunter2");
    assert_eq!(asked.json()["value"], "hunter2");
    for action in ["decline", "cancel"] {
        let (asked, _) = ask_and_answer(&["secret", "Password"], &[action], "");
        assert_eq!((asked.code, asked.out.as_str()), (Some(1), ""), "{asked:?}");
    }
}

#[test]
fn an_answer_of_the_wrong_kind_is_refused_and_the_question_goes_on() {
    let home = Home::new();
    let _daemon = home.daemon();
    let mut control = Control::connect(&home);
    let asking = home.start(&["ask", "question", "Which?"]);
    let id = control.pending();
    for wrong in [&["approve"][..], &["decline"], &["value"]] {
        let finished = home.run_with(&[&["answer", &id], wrong].concat(), "x");
        assert_eq!(finished.code, Some(2), "{finished:?}");
        assert_eq!(finished.err.lines().count(), 1, "{finished:?}");
    }
    let unknown = home.run(&["answer", "nothing", "text", "x"]);
    assert_eq!(unknown.code, Some(2), "{unknown:?}");
    assert_eq!(home.run(&["answer", &id, "text", "that"]).code, Some(0));
    assert_eq!(asking.finish(), (Some(0), vec!["that".to_owned()]));
}

#[test]
fn nobody_answering_ends_with_3_and_takes_the_question_back() {
    let home = Home::new();
    let _daemon = home.daemon();
    let finished = home.run(&["ask", "question", "Anyone?", "--timeout", "0"]);
    assert_eq!((finished.code, finished.out.as_str()), (Some(3), ""), "{finished:?}");
    assert!(finished.err.contains("no device is authorized") && finished.err.contains("withdrawn"), "{finished:?}");
    assert_eq!(home.run(&["inbox"]).out, "Nothing is pending.\n");
    let finished = home.run(&["ask", "question", "Anyone?", "--timeout", "0", "--json"]);
    assert_eq!(finished.json(), json!({"outcome": "timed_out"}));
}

#[test]
fn interrupting_ends_with_130_and_takes_the_question_back() {
    let home = Home::new();
    let _daemon = home.daemon();
    for signal in [rustix::process::Signal::INT, rustix::process::Signal::TERM] {
        let mut control = Control::connect(&home);
        let asking = home.start(&["ask", "question", "Anyone?"]);
        control.pending();
        asking.signal(signal);
        assert_eq!(asking.finish(), (Some(130), vec![]));
        assert_eq!(home.run(&["inbox", "--json"]).json(), json!([]));
    }
}

#[test]
fn a_question_survives_a_restart_of_the_daemon() {
    let home = Home::new();
    let daemon = home.daemon();
    let mut control = Control::connect(&home);
    let asking = home.start(&["ask", "question", "Still there?"]);
    let before = control.pending();
    daemon.signal(rustix::process::Signal::TERM);
    assert_eq!(daemon.finish().0, Some(0));
    let _daemon = home.daemon();
    let mut control = Control::connect(&home);
    let after = control.pending();
    assert_eq!(before, after, "the same item for the phones");
    assert_eq!(home.run(&["answer", &after, "text", "yes"]).code, Some(0));
    assert_eq!(asking.finish(), (Some(0), vec!["yes".to_owned()]));
}

#[test]
fn settings_are_shown_changed_and_checked() {
    let home = Home::new();
    let _daemon = home.daemon();
    assert_eq!(home.run(&["config", "get", "pairing_ttl"]).out, "300\n");
    assert_eq!(home.run(&["config", "set", "pairing_ttl", "60"]).out, "60\n");
    assert_eq!(home.run(&["config", "set", "web_port", "8080", "--json"]).out, "8080\n");
    assert_eq!(std::fs::read_to_string(home.config()).unwrap(), "pairing_ttl = 60\nweb_port = 8080\n");
    assert_eq!(home.run(&["config", "unset", "web_port"]).out, "(unset)\n");
    let all = home.run(&["config", "get", "--json"]).json();
    assert_eq!((&all["pairing_ttl"], &all["relay_url"], &all["web_port"]), (&json!(60), &json!(""), &Value::Null));
    for (arguments, text) in [
        (["config", "set", "pairing_ttl", "601"], "pairing_ttl: must be a whole number from 1 to 600"),
        (["config", "set", "relay_url", "http://x"], "relay_url: must begin with wss:// or ws://"),
        (["config", "set", "relay-url", "ws://x"], "relay-url: there is no such setting; there are relay_url"),
    ] {
        let finished = home.run(&arguments);
        assert_eq!(finished.code, Some(2));
        assert!(finished.err.starts_with(&format!("skaldctl: {text}")), "{finished:?}");
    }
}

#[test]
fn without_a_relay_pairing_says_what_to_set_and_the_rest_still_works() {
    let home = Home::new();
    let _daemon = home.daemon();
    let finished = home.run(&["pair"]);
    assert_eq!((finished.code, finished.out.as_str()), (Some(2), ""), "{finished:?}");
    assert!(finished.err.contains("relay_url"), "{finished:?}");
    assert!(home.run(&["status"]).out.contains("skaldctl config set relay_url"));
    assert_eq!(home.run(&["status", "--json"]).json()["relay"]["connected"], false);
    assert_eq!(home.run(&["devices", "--json"]).json(), json!([]));
    let finished = home.run(&["notify", "Title", "Body"]);
    assert!(finished.code == Some(0) && finished.out.contains("nobody gets it"), "{finished:?}");
    for arguments in [["authorize", "deadbeef"], ["revoke", "deadbeef"], ["authorize", "dead"]] {
        let finished = home.run(&arguments);
        assert_eq!((finished.code, finished.err.lines().count()), (Some(2), 1), "{finished:?}");
    }
}

#[test]
fn wrong_arguments_end_with_2_and_are_named() {
    let home = Home::new();
    for (arguments, text) in [
        (&["frobnicate"][..], "frobnicate"),
        (&["status", "--jsno"], "--jsno"),
        (&["ask", "approval"], "--tool"),
        (&["ask", "approval", "--tool", "t", "--summary", "s", "--", "x"], "\"x\" is neither KEY=TEXT nor KEY:=JSON"),
        (&["ask", "approval", "--tool", "t", "--summary", "s", "--", "x:=y"], "the value of \"x\" is not JSON"),
        (&["pair", "--ttl", "soon"], "--ttl"),
    ] {
        let finished = home.run(arguments);
        assert_eq!((finished.code, finished.out.as_str()), (Some(2), ""), "{finished:?}");
        assert!(finished.err.contains(text), "{finished:?}");
    }
}

#[test]
fn without_a_daemon_it_says_where_it_looked_and_how_to_start_one() {
    let home = Home::new();
    for arguments in [&["status"][..], &["ask", "question", "Anyone?"], &["--json", "devices"]] {
        let finished = home.run(arguments);
        assert_eq!(
            (finished.code, finished.out.as_str(), finished.err.lines().count()),
            (Some(2), "", 1),
            "{finished:?}"
        );
        let socket = if arguments[0] == "ask" { "agentd.sock" } else { "control.sock" };
        let path = home.sockets().join(socket).display().to_string();
        assert!(finished.err.contains("the daemon is not running") && finished.err.contains(&path), "{finished:?}");
        assert!(finished.err.contains("skald-agentd run"), "{finished:?}");
    }
    let elsewhere = home.path("elsewhere").display().to_string();
    let finished = home.run(&["--dir", &elsewhere, "status"]);
    assert!(finished.err.contains(&format!("{elsewhere}/control.sock")), "{finished:?}");
}

/// A daemon that answers each line with the next of these and then closes.
fn pretend(home: &Home, answers: &'static [&'static str]) -> JoinHandle<()> {
    std::fs::create_dir_all(home.sockets()).unwrap();
    let path = home.sockets().join("control.sock");
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(path).unwrap();
    std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
        let mut stream = &stream;
        for answer in answers {
            lines.next().unwrap().unwrap();
            writeln!(stream, "{answer}").unwrap();
        }
    })
}

#[test]
fn other_versions_and_broken_daemons_are_told_apart() {
    const WELCOME: &str = r#"{"jsonrpc":"2.0","id":0,"result":{"protocol":1,"daemon":{"version":"99.1","pid":1}}}"#;
    let home = Home::new();
    for (answers, code, text) in [
        (&[WELCOME, r#"{"jsonrpc":"2.0","id":1,"result":[]}"#][..], 0, "the daemon 99.1: restart the daemon"),
        (
            &[r#"{"jsonrpc":"2.0","id":0,"error":{"code":-32001,"message":"protocol 1 is not supported"}}"#],
            2,
            "do not understand each other: update the older one",
        ),
        (&[WELCOME], 2, "the daemon closed the connection"),
        (&["nonsense"], 2, "cannot be read"),
        (&[WELCOME, r#"{"jsonrpc":"2.0","id":1,"result":7}"#], 2, "expected a sequence"),
        (&[WELCOME, r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32010,"message":"not today"}}"#], 2, "not today"),
    ] {
        let daemon = pretend(&home, answers);
        let finished = home.run(&["devices"]);
        assert_eq!(finished.code, Some(code), "{finished:?}");
        assert!(finished.err.contains(text), "{finished:?}");
        daemon.join().unwrap();
    }
}

#[test]
fn a_reader_that_goes_away_ends_it_without_a_word() {
    let home = Home::new();
    let _daemon = home.daemon();
    for arguments in [&["status"][..], &["--json", "status"], &["config", "get"]] {
        // Gone before anything is written: what `head` does to whoever writes after its last line.
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let finished = Finished::of(home.skaldctl(arguments).stdout(writer).output().unwrap());
        assert_eq!((finished.code, finished.err.as_str()), (Some(2), ""), "{finished:?}");
    }
}

#[test]
fn the_sockets_are_private() {
    let home = Home::new();
    let _daemon = home.daemon();
    assert_eq!(mode(&home.sockets()), 0o700);
    assert_eq!([mode(&home.sockets().join("agentd.sock")), mode(&home.sockets().join("control.sock"))], [0o600, 0o600]);
}
