//! Pipe sockets that do what no honest peer does, and the relay's objects that come and go: on both routes.

use std::time::Duration;

use futures_util::future::join_all;
use skald_common::crypto::{Identity, Seed};
use skald_common::ids::ConnectionId;
use skald_common::pipe::PipeClose;
use skald_tests::{Members, RawPipe, Received, Relay, Way, random};

/// The largest frame that a pipe takes.
const LARGEST: usize = 1024 * 1024;

fn any_pipe() -> ConnectionId {
    ConnectionId::new(random())
}

#[tokio::test]
async fn a_frame_of_1_mib_passes_and_one_more_byte_ends_this_pipe_at_both_ends_and_no_other() {
    let relay = Relay::shared().await;
    for way in Way::ALL {
        let mut members = Members::new(relay.url(), way).await;
        let (mut other_agent, mut other_phone) = members.pipe().await;
        for agent_sends in [true, false] {
            let (agent, phone) = members.pipe().await;
            let (mut from, mut to) = if agent_sends { (agent, phone) } else { (phone, agent) };
            from.send(vec![7; LARGEST]).await;
            assert_eq!(to.bytes().await, vec![7; LARGEST]);
            from.send(vec![7; LARGEST + 1]).await;
            assert_eq!(to.closed().await, PipeClose::TooLarge.code(), "{way:?}");
            assert_eq!(from.closed().await, PipeClose::TooLarge.code(), "{way:?}");
        }
        other_agent.passes_to(&mut other_phone).await;
        other_phone.passes_to(&mut other_agent).await;
        assert_eq!(members.control.presence().await.len(), 1, "nor the control plane");
    }
}

#[tokio::test]
async fn of_a_hundred_sockets_that_race_for_one_pipe_two_are_matched_and_the_others_are_turned_away() {
    let relay = Relay::shared().await;
    for (way, agent_waits) in [(Way::Front, true), (Way::Direct, false)] {
        let mut members = Members::new(relay.url(), way).await;
        let connection = any_pipe();
        let join = async |agent: bool| {
            if agent {
                members.agents_end(connection, false).await
            } else {
                members.phones_end(connection, false).await
            }
        };
        let mut waiting = join(agent_waits).await;
        let mut racers = join_all((0..99).map(|_| join(!agent_waits))).await;
        waiting.send("for whoever it is").await;
        let outcomes = join_all(racers.iter_mut().map(outcome)).await;
        let matched = outcomes.iter().position(Option::is_none).expect("one of them is matched");
        for (n, code) in outcomes.into_iter().enumerate().filter(|(n, _)| *n != matched) {
            let turned_away = [PipeClose::AlreadyMatched, PipeClose::Mismatch].map(|close| Some(close.code()));
            assert!(turned_away.contains(&code), "{way:?}: {n} got {code:?}");
        }
        let mut winner = racers.swap_remove(matched);
        winner.passes_to(&mut waiting).await;
        waiting.passes_to(&mut winner).await;
        assert_eq!(members.control.presence().await.len(), 1);
    }
}

/// What it was closed with; `None`: it is matched.
async fn outcome(end: &mut RawPipe) -> Option<u16> {
    match end.next().await {
        Received::Bytes(bytes) => {
            assert_eq!(bytes, "for whoever it is");
            None
        }
        Received::Text(text) => panic!("the relay said {text:?}"),
        Received::Closed(code) => Some(code),
    }
}

#[tokio::test]
async fn a_pipe_beyond_the_limit_is_refused_and_one_that_ends_makes_room() {
    if !Relay::controllable() {
        return;
    }
    let relay = Relay::own(&["RELAY_PIPE_MAX_PER_NS=2"]).await;
    for way in Way::ALL {
        let members = Members::new(relay.url(), way).await;
        let elsewhere = Members::new(relay.url(), way).await;
        let (mut agent, mut phone) = members.pipe().await;
        let pending = any_pipe();
        let mut half = members.phones_end(pending, false).await;
        half.send("before the match").await;
        // Nothing tells that it is counted but what comes of the next one.
        let mut refused = members.agents_end(any_pipe(), false).await;
        assert_eq!(refused.closed().await, PipeClose::TooMany.code(), "{way:?}");
        elsewhere.pipe().await;

        let mut other_half = members.agents_end(pending, false).await;
        assert_eq!(other_half.bytes().await, "before the match", "the limit does not keep a pipe from its second end");
        agent.passes_to(&mut phone).await;
        agent.close(1000).await;
        assert_eq!(phone.closed().await, 1000);
        members.pipe().await;
    }
}

#[tokio::test]
async fn what_one_end_closes_with_comes_out_at_the_other_behind_everything_that_was_sent() {
    let relay = Relay::shared().await;
    for way in Way::ALL {
        let members = Members::new(relay.url(), way).await;
        for code in [1000, 4000] {
            let (agent, mut phone) = members.pipe().await;
            let mut agent = agent;
            for n in 0..50_u8 {
                agent.send(vec![n; 60_000]).await;
            }
            agent.close(code).await;
            for n in 0..50_u8 {
                assert_eq!(phone.bytes().await, vec![n; 60_000]);
            }
            assert_eq!(phone.closed().await, code, "{way:?}");
        }
        let (agent, mut phone) = members.pipe().await;
        drop(agent);
        assert_eq!(phone.closed().await, PipeClose::GoingAway.code(), "{way:?}: a cut connection");
        let (mut agent, mut phone) = members.pipe().await;
        agent.send_text("resume").await;
        assert_eq!(agent.closed().await, PipeClose::BadAuth.code(), "{way:?}: texts are the relay's own");
        phone.closed().await;
    }
}

#[tokio::test]
async fn a_revoked_device_loses_its_pipes_matched_or_not_and_no_other_device_does() {
    let relay = Relay::shared().await;
    for way in Way::ALL {
        let mut members = Members::new(relay.url(), way).await;
        let (agent_key, revoked) = (members.agent.ed25519_pub(), members.phone.ed25519_pub());
        let other = Identity::new(&Seed::new(random()));
        members.control.authorize(&[revoked, other.ed25519_pub()]).await;
        let connection = any_pipe();
        let mut others = members.end(&other, &agent_key, connection, false).await;
        let mut agents = members.end(&members.agent, &other.ed25519_pub(), connection, false).await;
        agents.passes_to(&mut others).await;
        let (mut agent, mut phone) = members.pipe().await;
        let (mut half, half_connection) = (members.phones_end(any_pipe(), false).await, any_pipe());
        let mut for_nobody = members.agents_end(half_connection, false).await;
        phone.passes_to(&mut agent).await;

        members.control.authorize(&[other.ed25519_pub()]).await;
        phone.send("after the revocation").await;
        let revocation = PipeClose::NotMember.code();
        assert_eq!(agent.next().await, Received::Closed(revocation), "{way:?}: and nothing of it has passed");
        assert_eq!(phone.closed().await, revocation);
        assert_eq!(half.closed().await, revocation);
        let mut late = members.phones_end(half_connection, false).await;
        assert_eq!(late.closed().await, revocation);
        agents.passes_to(&mut others).await;
        others.passes_to(&mut agents).await;
        let _ = for_nobody.try_send("still").await;
    }
}

/// An open pipe whose namespace's object has left memory, and what that object does about it when it comes back.
async fn outlives(members: &mut Members, pause: Duration) {
    let connection = any_pipe();
    let (mut agent, mut phone) =
        (members.agents_end(connection, false).await, members.phones_end(connection, false).await);
    agent.passes_to(&mut phone).await;
    tokio::time::sleep(pause).await;
    phone.passes_to(&mut agent).await;
    agent.passes_to(&mut phone).await;
    let mut third = members.phones_end(connection, false).await;
    assert_eq!(third.closed().await, PipeClose::AlreadyMatched.code());
    members.pipe().await;
    members.control.authorize(&[]).await;
    assert_eq!(agent.closed().await, PipeClose::NotMember.code());
    assert_eq!(phone.closed().await, PipeClose::NotMember.code());
}

/// Ends that wait for their other ends, with something that was sent early and without.
async fn waits(members: &Members, pause: Duration) {
    let (empty, holding) = (any_pipe(), any_pipe());
    let mut half = members.phones_end(empty, false).await;
    let mut talks = members.phones_end(holding, false).await;
    for n in 0..10_u8 {
        talks.send(vec![n; 60_000]).await;
    }
    tokio::time::sleep(pause).await;
    let mut other_half = members.agents_end(empty, false).await;
    half.passes_to(&mut other_half).await;
    let mut listens = members.agents_end(holding, false).await;
    for n in 0..10_u8 {
        assert_eq!(listens.bytes().await, vec![n; 60_000], "held for the second end");
    }
    talks.close(1000).await;
    assert_eq!(listens.closed().await, 1000);
}

/// The runtime evicts an object ten seconds after its last event, and tells nobody: there is no event to await. When it
/// wakes up it says so in the relay's log, which may reach this test after what woke it.
#[tokio::test]
async fn pipes_pending_and_open_outlive_the_time_after_which_idle_objects_are_evicted() {
    if !Relay::controllable() {
        return;
    }
    let relay = Relay::own(&["RELAY_PIPE_PENDING_TTL_SECS=300", "RELAY_PIPE_IDLE_TIMEOUT_SECS=300"]).await;
    let wakings = || relay.log().matches("woke up with").count();
    for pause in [12, 14, 18, 26].map(Duration::from_secs) {
        let before = wakings();
        join_all(Way::ALL.map(async |way| {
            let (mut members, others) = (Members::new(relay.url(), way).await, Members::new(relay.url(), way).await);
            tokio::join!(outlives(&mut members, pause), waits(&others, pause));
        }))
        .await;
        // One namespace on each route.
        if wakings() >= before + 2 {
            return;
        }
    }
    panic!("never evicted: {}", relay.report());
}

#[tokio::test]
async fn pipes_of_objects_that_forget_everything_after_every_event_go_on_and_end_as_others_do() {
    if !Relay::controllable() {
        return;
    }
    let relay = Relay::forgetful(&[]).await;
    for way in Way::ALL {
        let mut members = Members::new(relay.url(), way).await;
        let (mut agent, mut phone) = members.pipe().await;
        for _ in 0..20 {
            agent.passes_to(&mut phone).await;
            phone.passes_to(&mut agent).await;
        }
        let connection = any_pipe();
        let mut phones = members.phones_end(connection, false).await;
        // Each question makes the namespace forget the end that waits.
        members.control.presence().await;
        let mut agents = members.agents_end(connection, false).await;
        phones.passes_to(&mut agents).await;
        agents.close(1000).await;
        assert_eq!(phones.closed().await, 1000, "{way:?}");
        agent.send(vec![0; LARGEST + 1]).await;
        assert_eq!(phone.closed().await, PipeClose::TooLarge.code(), "{way:?}");
        let (mut agent, mut phone) = members.pipe().await;
        members.control.authorize(&[]).await;
        assert_eq!(agent.closed().await, PipeClose::NotMember.code(), "{way:?}");
        assert_eq!(phone.closed().await, PipeClose::NotMember.code(), "{way:?}");
    }
}
