//! Trouble at home: a database or journal that is damaged, and a clock that is wrong. Nobody is revoked, and what was asked
//! is answered in the end.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde_json::{Value, json};
use skald_tests::{Host, World, shift_clock, unix_ms};

/// What happens to the files of a daemon that was killed.
type Damage = fn(&Path);

/// Overwrites the middle of a file, from `start` on as far as it goes.
fn scribble(file: &Path, start: u64) {
    let length = fs::metadata(file).expect("it exists").len();
    assert!(length > start, "{} has no more than {length} bytes", file.display());
    let open = OpenOptions::new().write(true).open(file).expect("it can be written");
    let rubbish = vec![0x5a; usize::try_from(length - start).expect("small")];
    open.write_all_at(&rubbish, start).expect("it can be written");
}

fn cut(file: &Path, length: u64) {
    OpenOptions::new().write(true).open(file).and_then(|file| file.set_len(length)).expect("it can be cut");
}

const DAMAGES: [(&str, Damage); 9] = [
    ("the journal's pages are scribbled over", |state| scribble(&state.join("agentd.db-wal"), 32)),
    ("the journal's end is scribbled over", |state| {
        let journal = state.join("agentd.db-wal");
        scribble(&journal, fs::metadata(&journal).expect("it exists").len() - 2000);
    }),
    ("the journal's head is scribbled over", |state| scribble(&state.join("agentd.db-wal"), 0)),
    ("the journal was cut in a page", |state| cut(&state.join("agentd.db-wal"), 5000)),
    ("the journal's index is scribbled over", |state| scribble(&state.join("agentd.db-shm"), 0)),
    ("the database was cut to its first page", |state| cut(&state.join("agentd.db"), 4096)),
    ("the database was cut in a page", |state| {
        fs::remove_file(state.join("agentd.db-wal")).expect("it exists");
        cut(&state.join("agentd.db"), 10_000);
    }),
    ("the database is empty", |state| cut(&state.join("agentd.db"), 0)),
    ("the database's pages are scribbled over", |state| scribble(&state.join("agentd.db"), 4096)),
];

#[tokio::test]
async fn whatever_of_database_and_journal_is_damaged_devices_stay_and_what_was_asked_is_answered() {
    let mut world = World::new().await;
    let mut phone = world.raw_phone("Ann").await;
    for (n, (what, damage)) in (1..).zip(DAMAGES) {
        // Pages in the database itself, and more in the journal.
        world.daemon.stop().await;
        world.daemon.start_again().await;
        world.reconnect().await;
        let item = Host::approval(n, what, &json!({"n": n}));
        let host = world.host("skald").await;
        host.sync(std::slice::from_ref(&item), &[], &[]).await;
        phone.item("approvals").await;
        drop(host);
        world.daemon.kill().await;
        damage(&world.daemon.state());
        world.daemon.start_again().await;
        world.reconnect().await;

        let status = world.control.status().await;
        assert_eq!(status["devices"]["authorized"], 1, "{what}: {status}");
        let mut host = world.host("skald").await;
        host.sync(std::slice::from_ref(&item), &[], &[]).await;
        let id = loop {
            let inbox = phone.inbox().await;
            if let Some(shown) = inbox["approvals"].as_array().and_then(|list| list.first()) {
                break shown["request_id"].clone();
            }
        };
        phone.decide(&id, "approved").await;
        let answer = host.answered().await;
        assert_eq!((&answer["request_id"], &answer["decision"]), (&json!(n), &json!("approved")), "{what}");
        world.pending(0).await;
    }
    let aside = fs::read_dir(world.daemon.state()).expect("a folder").flatten();
    let aside = aside.filter(|entry| entry.file_name().to_string_lossy().contains("damaged")).count();
    assert!(aside > 0, "what could not be read was kept");
}

/// More than a day, seconds.
const A_DAY: i64 = 25 * 3600;

/// Restarts the daemon with a clock that is off by this much. False: that cannot be done here.
async fn restart_off_by(world: &mut World, secs: i64) -> bool {
    world.daemon.stop().await;
    let mut command = world.daemon.command();
    let possible = shift_clock(&mut command, secs);
    if possible {
        world.daemon.start_by(command).await;
        world.reconnect().await;
    }
    possible
}

fn in_1970() -> i64 {
    60 - i64::try_from(unix_ms() / 1000).expect("small")
}

fn pending_id(inbox: &Value) -> String {
    inbox["items"][0]["request_id"].as_str().expect("an item is pending").to_owned()
}

#[tokio::test]
async fn a_daemon_whose_clock_is_in_1970_or_a_day_behind_is_answered_all_the_same() {
    let mut world = World::new().await;
    let phone = world.phone("Ann").await;
    for (n, secs) in [(1, in_1970()), (2, -A_DAY), (3, in_1970())] {
        if !restart_off_by(&mut world, secs).await {
            return;
        }
        let notices = world.control.status().await["notices"].to_string();
        assert_eq!(notices.contains("this machine's clock is behind"), secs != -A_DAY, "{notices}");
        let mut host = world.host("skald").await;
        host.request("approval", &Host::approval(n, "Deploy", &json!({"n": n}))).await;
        let id = pending_id(&phone.inbox().await);
        let approving = phone.start(&["approve", &id]);
        let answer = host.answered().await;
        assert_eq!((&answer["request_id"], &answer["decision"]), (&json!(n), &json!("approved")));
        assert!(approving.finished().await.ok().says("the agent has it"));
    }
}

#[tokio::test]
async fn an_answer_to_a_daemon_whose_clock_is_a_day_ahead_is_refused_with_the_reason_and_counts_once_it_is_right() {
    let mut world = World::new().await;
    let phone = world.phone("Ann").await;
    if !restart_off_by(&mut world, A_DAY).await {
        return;
    }
    let item = Host::approval(1, "Deploy", &json!({"target": "prod"}));
    let host = world.host("skald").await;
    host.sync(std::slice::from_ref(&item), &[], &[]).await;
    let id = pending_id(&phone.inbox().await);
    let refused = phone.run(&["approve", &id]).await;
    assert_eq!(refused.code(), 1, "{refused}");
    let told = world.skaldctl().run(&["status"]).await.ok();
    assert!(told.says("25 hours ago") && told.says("set the clock here or there"), "{told}");
    assert_eq!(world.control.inbox().await.len(), 1, "nothing is lost");

    assert!(restart_off_by(&mut world, 0).await);
    let mut host = Host::connect(&world.daemon.hosts_socket(), "skald").await;
    host.sync(std::slice::from_ref(&item), &[], &[]).await;
    let approving = phone.start(&["approve", &pending_id(&phone.inbox().await)]);
    assert_eq!(host.answered().await["decision"], "approved");
    approving.finished().await.ok();
}
