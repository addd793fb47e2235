//! The database and the backup on real files. What the hub makes of them is tested there.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use skald_common::ids::{Ed25519Public, X25519Public};
use skald_common::payload::{Decision, DeviceInfo};
use skald_common::wire::Platform;

use super::*;
use crate::hub::api::{AnswerContent, DeviceState};
use crate::hub::durable::{AnswerRow, Answerer, DeviceRow, ItemRow, Shown, Sight, WindowRow};
use crate::hub::items::{Item, Kind, RequestId};

const NOW: u64 = 1_796_000_000_000;

fn namespace() -> NamespaceId {
    NamespaceId::new([5; 32])
}

fn open(folder: &Path) -> Result<Opened, StoreError> {
    Store::open(folder, namespace(), true, NOW)
}

fn device(n: u8) -> DeviceRow {
    DeviceRow {
        ed25519: Ed25519Public::new([n; 32]),
        x25519: X25519Public::new([n; 32]),
        state: DeviceState::Authorized,
        platform: Platform::Web,
        info: Some(DeviceInfo { platform: "web".into(), device_name: Some("Desk".into()), ..DeviceInfo::default() }),
        paired_at: NOW,
        last_seen: Some(NOW),
        reserved: i64::MAX.unsigned_abs(),
        received: u64::MAX - 1,
        stale: true,
    }
}

fn item(n: u64) -> ItemRow {
    let item = Item {
        id: format!("{n}.0123456789abcdef"),
        host: "skald".into(),
        kind: Kind::Approval,
        request_id: RequestId::from_json(&n.to_string()).unwrap(),
        json: "{}".into(),
        created_at: NOW,
        arrived_at: NOW,
        expires_at: Some(NOW + 1),
    };
    ItemRow { item, linger_secs: 60, leaves_at: None }
}

fn answer(n: u64) -> AnswerRow {
    let content =
        AnswerContent::Approval { decision: Decision::Approved, reason: Some("canary".into()), bypass_secs: Some(1) };
    AnswerRow { item: item(n).item.id, answer_id: "a".into(), by: answerer(), content }
}

fn answerer() -> Answerer {
    Answerer { device: device(1).ed25519, name: "Desk".into(), payload_id: "p".into(), at: NOW }
}

#[test]
fn opening_what_is_in_order_writes_nothing_into_the_database() {
    let folder = tempfile::tempdir().unwrap();
    drop(open(folder.path()).unwrap());
    for new_identity in [true, false] {
        let opened = Store::open(folder.path(), namespace(), new_identity, NOW).unwrap();
        assert_eq!(opened.store.db.total_changes(), 0);
        assert_eq!(opened.durable.origin, Origin::Normal);
    }
}

#[test]
fn everything_that_is_written_is_read_back_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = open(folder.path()).unwrap().store;
    let sight = Sight { shown: Shown::Wholly, rang: false };
    let (key, id) = (device(1).ed25519, item(1).item.id);
    let window = WindowRow { token_hash: [3; 32], expires_at: NOW };
    store
        .apply(&[
            Write::PutDevice(device(1)),
            Write::PutItem(item(1)),
            Write::PutItem(item(2)),
            Write::PutSight { device: key, item: id.clone(), sight },
            Write::PutAnswer(answer(1)),
            Write::PutDecided("gone".into(), answerer()),
            Write::SetWindow(Some(window)),
            Write::Reserved { device: key, upto: 77 },
            Write::Leaves { host: "skald".into(), leaves_at: Some(NOW + 5), linger_secs: 5 },
        ])
        .unwrap();
    drop(store);
    let Opened { durable, notices, .. } = Store::open(folder.path(), namespace(), false, NOW).unwrap();
    assert_eq!(notices, Vec::<String>::new());
    assert_eq!(durable.high_water, 77);
    assert_eq!(durable.devices, [device(1)]);
    assert_eq!(durable.items.len(), 2);
    assert_eq!((durable.items[0].leaves_at, durable.items[0].linger_secs), (Some(NOW + 5), 5));
    assert_eq!(durable.items[0].item, item(1).item);
    assert_eq!(durable.sights, [(key, id, sight)]);
    assert_eq!(durable.answers, [answer(1)]);
    assert_eq!(durable.decided, [("gone".to_owned(), answerer())]);
    assert_eq!((durable.window, durable.origin), (Some(window), Origin::Normal));
}

#[test]
fn a_list_of_changes_is_made_whole_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = open(folder.path()).unwrap().store;
    let before = store.load().unwrap();
    let twice = [Write::PutDevice(device(1)), Write::PutItem(item(1)), Write::PutItem(item(1))];
    assert!(store.apply(&twice).is_err());
    assert_eq!(store.load().unwrap(), before);
}

#[test]
fn a_full_disk_refuses_and_leaves_what_was_there() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = open(folder.path()).unwrap().store;
    store.apply(&[Write::PutItem(item(1))]).unwrap();
    let pages: i64 = store.db.query_row("PRAGMA page_count", [], |row| row.get(0)).unwrap();
    store.db.query_row(&format!("PRAGMA max_page_count = {}", pages + 1), [], |_| Ok(())).unwrap();
    let mut large = item(2);
    large.item.json = "x".repeat(100_000);
    let error = store.apply(&[Write::PutDevice(device(1)), Write::PutItem(large)]).unwrap_err();
    assert!(error.to_string().contains("full"), "{error}");
    let durable = store.load().unwrap();
    assert_eq!((durable.items.len(), durable.devices.len()), (1, 0));
}

#[test]
fn what_hangs_on_an_item_or_a_device_goes_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = open(folder.path()).unwrap().store;
    let (key, id) = (device(1).ed25519, item(1).item.id);
    let sight = Sight { shown: Shown::Surely, rang: true };
    let all = [
        Write::PutDevice(device(1)),
        Write::PutItem(item(1)),
        Write::PutSight { device: key, item: id.clone(), sight },
        Write::PutAnswer(answer(1)),
    ];
    store.apply(&all).unwrap();
    store.apply(&[Write::PutDevice(device(1))]).unwrap();
    assert_eq!(store.load().unwrap().sights.len(), 1, "a device that is replaced keeps what it was sent");
    store.apply(&[Write::RemoveItem(id)]).unwrap();
    let durable = store.load().unwrap();
    assert_eq!((durable.sights.len(), durable.answers.len()), (0, 0));
    store.apply(&all[1..]).unwrap();
    store.apply(&[Write::RemoveDevice(key)]).unwrap();
    assert!(store.load().unwrap().sights.is_empty());
}

#[test]
fn an_answer_that_is_removed_leaves_no_trace_in_the_files() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = open(folder.path()).unwrap().store;
    store.apply(&[Write::PutItem(item(1)), Write::PutAnswer(answer(1))]).unwrap();
    let traces = || {
        let files = fs::read_dir(folder.path()).unwrap().map(|file| fs::read(file.unwrap().path()).unwrap());
        files.filter(|bytes| bytes.windows(6).any(|window| window == b"canary")).count()
    };
    assert_ne!(traces(), 0);
    store.apply(&[Write::RemoveAnswer(item(1).item.id)]).unwrap();
    assert_eq!(traces(), 0, "also while the daemon runs");
    drop(store);
    assert_eq!(traces(), 0);
}

#[test]
fn only_what_nobody_relies_on_does_not_wait_for_the_disk() {
    const NORMAL: i64 = 1;
    const FULL: i64 = 2;
    let folder = tempfile::tempdir().unwrap();
    let mut store = open(folder.path()).unwrap().store;
    let received = Write::Received { device: device(1).ed25519, counter: 1, last_seen: NOW };
    for (writes, expected) in [
        (vec![Write::PutDevice(device(1))], FULL),
        (vec![received.clone()], NORMAL),
        (vec![received.clone(), Write::PutItem(item(1)), Write::PutAnswer(answer(1))], FULL),
        (vec![received], NORMAL),
        (vec![Write::Reserved { device: device(1).ed25519, upto: 9 }], FULL),
    ] {
        store.apply(&writes).unwrap();
        let level: i64 = store.db.query_row("PRAGMA synchronous", [], |row| row.get(0)).unwrap();
        assert_eq!(level, expected, "{writes:?}");
    }
}

#[test]
fn every_file_is_for_its_owner_alone() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = open(folder.path()).unwrap().store;
    store.apply(&[Write::PutDevice(device(1))]).unwrap();
    let files: Vec<_> = fs::read_dir(folder.path()).unwrap().map(Result::unwrap).collect();
    assert!(files.len() >= 3, "database, journal, backup");
    for file in files {
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{:?}", file.path());
    }
}

#[test]
fn a_damaged_database_is_set_aside_whole_and_the_devices_come_from_the_backup() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = open(folder.path()).unwrap().store;
    store.apply(&[Write::PutDevice(device(1))]).unwrap();
    drop(store);
    let path = folder.path().join(DATABASE);
    let rubbish = b"not a database at all, but kept".repeat(100);
    fs::write(&path, &rubbish).unwrap();
    let opened = Store::open(folder.path(), namespace(), false, NOW).unwrap();
    assert!(opened.notices[0].contains("set aside"), "{:?}", opened.notices);
    assert_eq!(opened.durable.origin, Origin::Backup);
    assert_eq!(opened.durable.devices[0].ed25519, device(1).ed25519);
    let aside = folder.path().join(format!("{DATABASE}.damaged-{}", NOW / 1000));
    assert_eq!(fs::read(aside).unwrap(), rubbish);
}

#[test]
fn a_database_damaged_in_the_middle_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = open(folder.path()).unwrap().store;
    let many: Vec<Write> = (0..200).map(|n| Write::PutItem(item(n))).collect();
    store.apply(&many).unwrap();
    drop(store);
    let path = folder.path().join(DATABASE);
    let mut bytes = fs::read(&path).unwrap();
    let end = bytes.len();
    bytes[8192..end].fill(0x55);
    fs::write(&path, bytes).unwrap();
    let opened = Store::open(folder.path(), namespace(), false, NOW).unwrap();
    assert!(opened.notices[0].contains("set aside"));
}

#[test]
fn a_database_of_a_newer_version_or_of_another_identity_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    drop(open(folder.path()).unwrap());
    let other = Store::open(folder.path(), NamespaceId::new([6; 32]), false, NOW).unwrap_err();
    assert!(matches!(other, StoreError::OtherIdentity { .. }), "{other}");
    let db = Connection::open(folder.path().join(DATABASE)).unwrap();
    db.pragma_update(None, "user_version", 99).unwrap();
    drop(db);
    let error = open(folder.path()).unwrap_err();
    assert!(matches!(error, StoreError::Newer { found: 99, .. }), "{error}");
    assert!(error.to_string().contains("install the newer"));
    assert!(
        fs::read_dir(folder.path()).unwrap().all(|file| !file.unwrap().path().to_string_lossy().contains("damaged"))
    );
}

#[test]
fn a_backup_of_another_identity_or_of_rubbish_is_not_taken() {
    for text in [
        "rubbish",
        "{}",
        &format!(r#"{{"v":1,"namespace_id":"{}","generation":9,"high_water":0,"devices":[]}}"#, "06".repeat(32)),
    ] {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(BACKUP), text).unwrap();
        let opened = Store::open(folder.path(), namespace(), false, NOW).unwrap();
        assert_eq!(opened.durable.origin, Origin::Lost);
        assert!(opened.notices[0].contains("of no use"), "{:?}", opened.notices);
        assert_eq!(fs::read_to_string(folder.path().join(BACKUP)).unwrap(), text, "and it stays");
    }
}

#[test]
fn receive_counters_never_go_back_when_the_backup_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = open(folder.path()).unwrap().store;
    let row = DeviceRow { received: 5, reserved: 10, ..device(1) };
    store.apply(&[Write::PutDevice(row)]).unwrap();
    store.apply(&[Write::Received { device: device(1).ed25519, counter: 9, last_seen: NOW }]).unwrap();
    let saved = fs::read_to_string(folder.path().join(BACKUP)).unwrap();
    let newer = saved.replace("\"generation\": 1", "\"generation\": 8");
    assert_ne!(saved, newer);
    drop(store);
    fs::write(folder.path().join(BACKUP), newer).unwrap();
    let opened = Store::open(folder.path(), namespace(), false, NOW).unwrap();
    assert_eq!((opened.durable.origin, opened.durable.devices[0].received), (Origin::Backup, 9));
}

#[test]
fn a_backup_of_an_absurd_generation_gives_its_devices_back_once() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = open(folder.path()).unwrap().store;
    store.apply(&[Write::PutDevice(device(1))]).unwrap();
    drop(store);
    let saved = fs::read_to_string(folder.path().join(BACKUP)).unwrap();
    let absurd = saved.replace("\"generation\": 1", &format!("\"generation\": {}", u64::MAX));
    assert_ne!(saved, absurd);
    fs::write(folder.path().join(BACKUP), absurd).unwrap();
    let mut opened = Store::open(folder.path(), namespace(), false, NOW).unwrap();
    assert_eq!((opened.durable.origin, opened.durable.devices.len()), (Origin::Backup, 1));
    opened.store.apply(&[Write::SetOrigin(Origin::Normal), Write::RemoveDevice(device(1).ed25519)]).unwrap();
    drop(opened);
    let opened = Store::open(folder.path(), namespace(), false, NOW).unwrap();
    assert_eq!((opened.durable.origin, opened.durable.devices.len()), (Origin::Normal, 0), "what is deleted stays so");
}
