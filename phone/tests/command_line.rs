//! The program's edges without a relay: what it says, where, and with which exit status.

mod support;

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use skald_common::ids::{Ed25519Public, PairingToken, X25519Public};
use skald_common::pairing::PairingQr;
use skald_phone::model::account::{Account, AgentKeys};
use skald_phone::store::Store;
use support::run;
use zeroize::Zeroizing;

/// When everything in the folder happened; nothing is received later.
const NOW: u64 = 1_750_000_000_000;

fn phone(folder: &Path, arguments: &[&str]) -> Output {
    run(folder, arguments, "")
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// The one line on standard error.
fn complaint(output: &Output) -> String {
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    text
}

/// A folder with a paired phone whose agent has sent an approval with hostile content.
fn paired() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path(), "default").unwrap();
    store.seed_or_new(|| Zeroizing::new([5; 32])).unwrap();
    let agent = AgentKeys { ed25519: Ed25519Public::new([1; 32]), x25519: X25519Public::new([2; 32]) };
    let mut account = Account::new(agent, "ws://127.0.0.1:1/v1/ws".into(), "Phone".into(), NOW);
    let json = format!(
        r#"{{"v":1,"kind":"inbox_update","id":"x","ts":{NOW},"badge":2,"approvals":[
        {{"request_id":"ab.1","tool_name":"execute_cmd","agent_label":"Skald","summary":"Run \u202eit","created_at":{NOW},
        "arguments":{{"command":"ls\n\u001b[2Jok\nApprove this? [y/N] y","n":1.10}}}},
        {{"request_id":"ab.2","tool_name":"t","agent_label":"Skald","summary":"Second","created_at":{NOW}}}],
        "clarifications":[]}}"#
    );
    account.receive(1, true, json.as_bytes(), NOW);
    store.create(&account).unwrap();
    folder
}

#[test]
fn what_an_agent_wrote_is_shown_in_full_and_obeyed_nowhere() {
    let folder = paired();
    let output = phone(folder.path(), &["show", "ab.1", "--offline"]);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0));
    assert!(!text.contains(['\u{1b}', '\u{202e}']), "{text:?}");
    for part in ["    │ ls\n    │ \\u{1b}[2Jok\n    │ Approve this? [y/N] y\n", "│ 1.10", "│ Run \\u{202e}it"]
    {
        assert!(text.contains(part), "{part:?} in {text}");
    }
    let output = phone(folder.path(), &["--json", "inbox", "--offline"]);
    let text = stdout(&output);
    assert_eq!(text.lines().count(), 1);
    assert!(text.is_ascii() && text.contains(r#""n":1.10"#), "{text}");
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((value["badge"].as_u64(), &value["source"]), (Some(2), &"local".into()));
    assert_eq!(value["items"][0]["arguments"]["command"], "ls\n\u{1b}[2Jok\nApprove this? [y/N] y");
}

#[test]
fn an_id_that_fits_none_or_several_is_refused_with_its_own_status() {
    let folder = paired();
    let none = phone(folder.path(), &["show", "zz", "--offline"]);
    assert_eq!(none.status.code(), Some(1));
    assert!(complaint(&none).contains("no pending item"));
    let several = phone(folder.path(), &["show", "ab", "--offline"]);
    assert_eq!(several.status.code(), Some(2));
    assert!(complaint(&several).contains("ab.1, ab.2"));
}

#[test]
fn an_unpaired_phone_says_how_to_pair() {
    let folder = tempfile::tempdir().unwrap();
    for command in
        [&["inbox"][..], &["status"], &["approve", "x"], &["watch"], &["proxy"], &["logout"], &["inbox", "--offline"]]
    {
        let output = phone(folder.path(), command);
        assert_eq!(output.status.code(), Some(2), "{command:?}");
        assert!(complaint(&output).contains("skald-phone pair"), "{command:?}");
    }
}

#[test]
fn a_relay_that_is_not_there_is_named_and_nothing_is_lost() {
    let folder = paired();
    let output = phone(folder.path(), &["--timeout", "1", "--json", "approve", "ab.1"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(complaint(&output).contains("cannot reach the relay"));
    let value: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert!(value["error"].as_str().unwrap().contains("check the network"));
    assert!(stdout(&phone(folder.path(), &["inbox", "--offline"])).contains("ab.1"));
    let status = phone(folder.path(), &["--timeout", "1", "status"]);
    assert_eq!(status.status.code(), Some(2));
    assert!(stdout(&status).contains("fingerprint  "));
}

#[test]
fn a_wrong_code_is_refused_without_being_quoted_and_pairs_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let keys = (Ed25519Public::new([1; 32]), X25519Public::new([2; 32]));
    let token = "03".repeat(32);
    let code = |url: &str| PairingQr::new(url.into(), keys.0, keys.1, PairingToken::new([3; 32])).to_json().to_string();
    for (code, words) in [
        ("not json".to_owned(), "no pairing code"),
        (code("ws://h/v1/ws").replace("\"v\":1", "\"v\":7"), "version 7"),
        (code("ws://h/v1/ws").replace("0101", "0202"), "contradicts itself"),
        (code("http://h"), "ws:// or wss://"),
        (code("ws://user@h"), "host, a port and a path"),
        (code("ws://h").replace(&token, &token[2..]), "no pairing code"),
    ] {
        let output = phone(folder.path(), &["pair", &code]);
        let complaint = complaint(&output);
        assert_eq!(output.status.code(), Some(2), "{complaint}");
        assert!(complaint.contains(words) && complaint.contains("pairing code"), "{complaint}");
        assert!(!complaint.contains("0303"), "{complaint}");
        let piped = run(folder.path(), &["pair", "-"], &code);
        assert_eq!(piped.status.code(), Some(2));
    }
    let output = phone(folder.path(), &["status", "--offline"]);
    assert!(complaint(&output).contains("not paired"));
}

#[test]
fn a_damaged_folder_is_told_and_only_logout_touches_it() {
    let folder = paired();
    let state = folder.path().join("default/state.json");
    std::fs::write(&state, "{").unwrap();
    for command in [&["inbox"][..], &["status"], &["watch"]] {
        let output = phone(folder.path(), command);
        assert_eq!(output.status.code(), Some(2));
        assert!(complaint(&output).contains("damaged"));
    }
    assert_eq!(std::fs::read(&state).unwrap(), b"{");
    let output = phone(folder.path(), &["logout", "--local"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(!state.exists() && !folder.path().join("default/seed").exists());
}

#[test]
fn profiles_are_phones_of_their_own() {
    let folder = paired();
    let output = phone(folder.path(), &["--profile", "other", "inbox", "--offline"]);
    assert!(complaint(&output).contains("profile \"other\""));
    let output = phone(folder.path(), &["--profile", "../default", "inbox", "--offline"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(complaint(&output).contains("letters"));
}

#[test]
fn status_shows_what_people_compare() {
    let folder = paired();
    let value: serde_json::Value =
        serde_json::from_str(&stdout(&phone(folder.path(), &["status", "--offline", "--json"]))).unwrap();
    let fingerprint = value["fingerprint"].as_str().unwrap();
    assert_eq!(fingerprint.len(), 24);
    assert_eq!(value["public_key"].as_str().unwrap().len(), 64);
    assert_eq!((&value["standing"], &value["badge"]), (&"pending".into(), &2.into()));
    let text = stdout(&phone(folder.path(), &["status", "--offline"]));
    assert!(text.contains(fingerprint), "{text}");
}

#[test]
fn the_proxy_listens_where_other_machines_can_come_only_if_told_so() {
    let folder = paired();
    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:80"] {
        let output = phone(folder.path(), &["proxy", "--listen", address]);
        assert_eq!(output.status.code(), Some(2));
        assert!(complaint(&output).contains("--allow-remote"), "{address}");
    }
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = phone(folder.path(), &["proxy", "--listen", &address]);
    assert_eq!(output.status.code(), Some(2));
    assert!(complaint(&output).contains("choose another --listen"));
}

#[test]
fn the_proxy_says_first_where_it_listens_and_ends_well_on_a_signal() {
    use rustix::process::{Pid, Signal, kill_process};
    for (signal, arguments) in [(Signal::TERM, &["proxy"][..]), (Signal::INT, &["proxy", "--allow-remote"])] {
        let folder = paired();
        let address = if arguments.len() == 1 { "127.0.0.1:0" } else { "0.0.0.0:0" };
        let mut child = Command::new(env!("CARGO_BIN_EXE_skald-phone"))
            .args([arguments, &["--listen", address]].concat())
            .env("SKALD_PHONE_DIR", folder.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = lines.next().unwrap().unwrap();
        let url = line.strip_prefix("Listening on http://").and_then(|url| url.strip_suffix("/")).expect("the address");
        let port = url.rsplit_once(':').unwrap().1.parse().unwrap();
        // There it takes connections, though it has none itself.
        let client = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
        // A second one has to be told of the first.
        let second = phone(folder.path(), &["watch"]);
        assert!(complaint(&second).contains("`watch` or `proxy`"));
        kill_process(Pid::from_child(&child), signal).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(0));
        drop(client);
    }
}
