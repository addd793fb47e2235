//! A disk that refuses, and state that is gone.

use super::super::api::DeviceTable;
use super::*;
use crate::store::{BACKUP, DATABASE};

fn lose_database(folder: &std::path::Path) {
    for suffix in ["", "-wal", "-shm"] {
        let _ = std::fs::remove_file(folder.join(format!("{DATABASE}{suffix}")));
    }
}

fn lose_both(folder: &std::path::Path) {
    lose_database(folder);
    std::fs::remove_file(folder.join(BACKUP)).unwrap();
}

#[test]
fn a_message_that_cannot_be_stored_is_not_acted_on_and_counts_when_it_comes_again() {
    let mut world = World::new();
    world.phone(1);
    let mut skald = world.host("skald");
    let id = world.shown_approval(&skald, 1);
    world.full = true;
    assert!(!world.approve(1, &id), "to be rejected");
    assert!(skald.calls().is_empty() && world.take_sent().is_empty());
    assert_eq!(world.inbox()[0].id, id, "still pending");
    let failed_at = world.now.unix;
    world.now.unix += 5_000;
    let status = world.status();
    assert!(status.last_error.unwrap().contains("could not be stored"));
    assert_eq!(status.last_error_at, Some(failed_at), "a look at the status makes nothing good");
    world.full = false;
    world.counter -= 1;
    assert!(world.approve(1, &id), "the same counter again");
    assert_eq!(world.status().last_error, None, "the disk takes writes again");
    assert_eq!(skald.calls().len(), 1);
}

#[test]
fn a_phone_is_not_told_that_an_answer_counts_which_could_not_be_stored() {
    let mut world = World::new();
    world.our_phone(1);
    let mut skald = world.host("skald");
    let id = world.shown_approval(&skald, 1);
    world.full = true;
    assert!(!world.approve(1, &id));
    world.full = false;
    world.advance(60_000);
    let told = world.accept_all();
    assert!(told.iter().all(|sent| sent.json["kind"] != "ack"), "{told:?}");
    assert!(skald.calls().is_empty());
    world.counter -= 1;
    assert!(world.approve(1, &id));
    let acks: Vec<_> = world.accept_all().into_iter().filter(|sent| sent.json["kind"] == "ack").collect();
    assert!(acks.len() == 1 && acks[0].json["outcome"] == "accepted", "{acks:?}");
}

#[test]
fn what_cannot_be_stored_is_refused_with_an_error_and_leaves_no_trace() {
    let mut world = World::new();
    world.phone(1);
    let skald = world.host("skald");
    world.pair(2, Platform::Android);
    world.full = true;
    assert!(matches!(world.request(&skald, Kind::Approval, &approval(1)), Err(ApiError::Storage(_))));
    let authorized = world.begin(|reply| Command::DevicesAuthorize(key(2).to_hex(), reply)).try_recv();
    assert!(matches!(authorized.unwrap(), Err(ApiError::Storage(_))));
    assert!(world.inbox().is_empty());
    assert_eq!(world.device(2).unwrap().state, DeviceState::Pending);
    world.full = false;
    world.request(&skald, Kind::Approval, &approval(1)).unwrap();
    assert_eq!(world.inbox().len(), 1);
}

#[test]
fn a_secret_under_way_survives_another_write_that_fails() {
    let mut world = World::new();
    world.phone(1);
    let mut ssh = world.host("ssh");
    world.request(&ssh, Kind::Elicitation, ELICITATION).unwrap();
    let id = world.inbox()[0].id.clone();
    world.phone_says(
        1,
        "elicitation_response",
        &format!(r#""request_id":"{id}","action":"accept","content":{{"password":"x"}}"#),
    );
    let (call, _) = ssh.answer();
    world.full = true;
    assert!(world.request(&ssh, Kind::Approval, &approval(1)).is_err());
    assert!(world.inbox().is_empty(), "the prompt has its answer");
    world.full = false;
    world.done(&ssh, call, CallOutcome::Resolved(true));
    assert!(world.store.load().unwrap().items.is_empty());
}

#[test]
fn what_was_to_be_sent_or_called_when_the_disk_refused_is_done_later() {
    let mut world = World::new();
    world.phone(1);
    let skald = world.host("skald");
    let id = world.shown_approval(&skald, 1);
    world.leave(skald);
    world.approve(1, &id);
    world.accept_all();
    let mut skald = world.host("skald");
    world.full = true;
    // The new item is what cannot be stored; the answer's delivery falls with it.
    assert!(world.sync(&skald, &[&approval(1), &approval(2)]).is_err());
    assert!(skald.calls().is_empty());
    world.full = false;
    world.sync(&skald, &[&approval(1), &approval(2)]).unwrap();
    world.advance(5_000);
    assert_eq!(skald.calls().len(), 1);
    world.request(&skald, Kind::Elicitation, ELICITATION).unwrap();
    world.advance(60_000);
    let pending: Vec<_> = world.inbox().into_iter().map(|entry| entry.id).collect();
    assert_eq!(world.accept_all().last().unwrap().ids(), pending);
}

#[test]
fn a_host_whose_opening_could_not_be_stored_can_try_again() {
    let mut world = World::new();
    let skald = world.host("skald");
    world.approval(&skald, 1);
    world.leave(skald);
    world.full = true;
    assert!(matches!(world.ask(|reply| Command::OpenHost(hello("skald", None), reply)), Err(ApiError::Storage(_))));
    world.full = false;
    world.host("skald");
}

#[test]
fn a_lost_database_is_made_good_from_the_backup_and_nobody_is_revoked() {
    let mut world = World::new();
    world.our_phone(1);
    world.phone(2);
    world.pair(3, Platform::Android);
    let high = world.now.unix * 4096 + 5_000_000;
    world.relay(RelayInput::Reserve { device: key(1), upto: high });
    let mut world = world.restart_with(false, lose_database);
    let partner = world.partner(1).unwrap();
    assert_eq!((partner.x25519, partner.send_from), (x_key(1), high + 1));
    assert_eq!(world.device(1).unwrap().name, "Phone 1");
    assert_eq!(world.device(3).unwrap().state, DeviceState::Pending);
    let status = world.status();
    assert_eq!(status.device_table, DeviceTable::LoadedFromBackup);
    assert!(status.notices[0].contains("devices.json"), "{status:?}");
    assert_eq!(world.hub.devices.list(), Some(vec![key(1), key(2)]));
    world.connect();
    assert!(world.accept_all().iter().filter(|sent| sent.is_snapshot()).count() >= 2, "what they show is not known");
    let mut world = world.restart();
    assert_eq!(world.status().device_table, DeviceTable::LoadedFromBackup);
    world.phone_says(2, "logout", "");
    assert_eq!(world.status().device_table, DeviceTable::Normal);
}

#[test]
fn with_database_and_backup_gone_no_list_is_sent_until_the_owner_has_spoken() {
    let mut world = World::new();
    world.phone(1);
    let mut world = world.restart_with(false, lose_both);
    assert_eq!(world.told_lists(), [None]);
    world.connect();
    assert_eq!(world.status().device_table, DeviceTable::Lost);
    assert!(world.status().notices[0].contains("devices.clear"));
    world.pair(2, Platform::Android);
    let error = world.begin(|reply| Command::DevicesAuthorize(key(2).to_hex(), reply)).try_recv().unwrap();
    assert_eq!(error, Err(ApiError::DevicesUnconfirmed));
    let world_dir = world.folder.path().to_owned();
    assert!(!world_dir.join(BACKUP).exists(), "no empty backup hides the loss");
    let mut world = world.restart();
    assert_eq!(world.told_lists(), [None], "nor does a restart");
    world.connect();
    let mut reply = world.begin(Command::DevicesClear);
    world.relay(RelayInput::Authorized);
    assert!(reply.try_recv().unwrap().unwrap().applied);
    assert_eq!(world.told_lists().pop(), Some(Some(vec![])));
    assert_eq!(world.status().device_table, DeviceTable::Normal);
}

#[test]
fn a_lost_table_without_confirmation_of_devices_does_not_let_a_newcomer_revoke_the_others() {
    let mut world = World::new();
    world.phone(1);
    let mut world = world.restart_with(false, lose_both);
    world.connect();
    let mut settings = world.settings.clone();
    settings.require_device_confirmation = false;
    world.ask(|reply| Command::Settings(settings, reply)).unwrap();
    world.take_orders();
    world.pair(2, Platform::Android);
    assert_eq!(world.device(2).unwrap().state, DeviceState::Pending);
    assert!(world.told_lists().iter().all(Option::is_none));
}

#[test]
fn a_backup_that_is_put_back_is_taken_on_command_and_at_the_next_start() {
    let mut world = World::new();
    world.phone(1);
    let saved = std::fs::read(world.folder.path().join(BACKUP)).unwrap();
    let mut world = world.restart_with(false, lose_both);
    world.connect();
    let restore = |world: &mut World| {
        let (sender, mut receiver) = oneshot::channel();
        let backup = world.store.read_backup();
        world.input(Input::Restore(backup, sender));
        world.relay(RelayInput::Authorized);
        receiver.try_recv().unwrap()
    };
    assert_eq!(restore(&mut world), Err(ApiError::NoBackup));
    std::fs::write(world.folder.path().join(BACKUP), &saved).unwrap();
    assert!(restore(&mut world).is_ok());
    assert_eq!(world.told_lists().pop(), Some(Some(vec![key(1)])));
    assert_eq!(restore(&mut world), Err(ApiError::NoBackup), "nothing is lost any more");
    let lost = world.restart_with(false, lose_both);
    let back = lost.restart_with(false, |folder| std::fs::write(folder.join(BACKUP), &saved).unwrap());
    assert_eq!(back.hub.devices.list(), Some(vec![key(1)]));
}

#[test]
fn an_older_copy_of_the_database_does_not_bring_a_revoked_device_back() {
    let mut world = World::new();
    world.phone(1);
    world.phone(2);
    world.store.apply(&[]).unwrap();
    let copy = tempfile::tempdir().unwrap();
    let files = |suffix: &str| format!("{DATABASE}{suffix}");
    for suffix in ["", "-wal"] {
        std::fs::copy(world.folder.path().join(files(suffix)), copy.path().join(files(suffix))).unwrap();
    }
    world.tell(|reply| Command::DevicesRevoke(key(1).to_hex(), reply));
    let mut world = world.restart_with(false, |folder| {
        lose_database(folder);
        for suffix in ["", "-wal"] {
            std::fs::copy(copy.path().join(files(suffix)), folder.join(files(suffix))).unwrap();
        }
    });
    assert_eq!(world.hub.devices.list(), Some(vec![key(2)]));
    assert_eq!(world.status().device_table, DeviceTable::LoadedFromBackup);
}

#[test]
fn a_new_identity_tells_the_relay_an_empty_list_at_once() {
    let mut world = World::unconnected();
    assert_eq!(world.told_lists(), [Some(vec![])]);
    assert_eq!(world.status().device_table, DeviceTable::Normal);
}
