//! Two daemons where there should be one: on one folder, and on copies of one seed.

use serde_json::{Value, json};
use skald_tests::{Daemon, DaemonOptions, World};

#[tokio::test]
async fn a_second_daemon_on_one_state_folder_says_who_runs_and_ends() {
    let world = World::new().await;
    let other = Daemon::prepare(world.relay.url(), &DaemonOptions::default());
    let mut command = other.command();
    command.env("SKALD_AGENTD_STATE_DIR", world.daemon.state());
    let second = skald_tests::Process::spawn("a second skald-agentd", command).finished().await;
    assert_ne!(second.code(), 0);
    assert!(second.err.contains("already running"), "{second}");
    assert!(second.err.contains(&world.daemon.process().pid().to_string()), "it names the other: {second}");
    assert_eq!(world.control.status().await["relay"]["connected"], true, "the first is unharmed");
}

#[tokio::test]
async fn a_second_daemon_on_one_socket_folder_ends_too() {
    let world = World::new().await;
    let other = Daemon::prepare(world.relay.url(), &DaemonOptions::default());
    let mut command = other.command();
    command.env("SKALD_AGENTD_DIR", world.daemon.sockets());
    let second = skald_tests::Process::spawn("a second skald-agentd", command).finished().await;
    assert_ne!(second.code(), 0);
    assert!(second.err.contains("already running"), "{second}");
    assert_eq!(world.control.status().await["pid"], world.daemon.process().pid(), "the first still answers");
}

#[tokio::test]
async fn a_daemon_whose_twin_keeps_taking_over_stands_aside_and_says_so() {
    let mut world = World::new().await;
    let mut phone = world.raw_phone("Ann").await;
    let mut twin = Daemon::prepare(world.relay.url(), &DaemonOptions::default());
    std::fs::create_dir_all(twin.state()).expect("a folder");
    std::fs::copy(world.daemon.state().join("seed"), twin.state().join("seed")).expect("the seed");
    twin.start_again().await;
    let mut control = twin.control().await;

    let is_parked = |event: &Value| event["parked"] == true;
    let parked = tokio::select! {
        _ = world.control.event_where("relay.disconnected", is_parked) => &world.control,
        _ = control.event_where("relay.disconnected", is_parked) => &control,
    };
    let status = parked.status().await;
    assert_eq!((&status["relay"]["parked"], &status["relay"]["connected"]), (&json!(true), &json!(false)), "{status}");
    assert!(status["notices"].to_string().len() > 4 || status["relay"]["last_error"].is_string(), "{status}");
    // The twin has the seed and no devices: it told the relay nothing that would revoke them.
    phone.disconnect().await;
    phone.connect().await;
}
