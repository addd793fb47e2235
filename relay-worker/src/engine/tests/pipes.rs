//! Pipes in their namespace: who, how many, which two belong together, and when they end. The worlds here drop the engine
//! between any two events unless they say otherwise.

use skald_common::ids::{ConnectionId, Signature};
use skald_common::pipe::PipeAuth;
use skald_common::pipe::auth::dest_hash;

use super::*;

const PIPE: ConnectionId = ConnectionId::new([0xc1; 32]);
const NOTHING: [Bytes; 0] = [];

fn auth(connection: ConnectionId, me: Ed25519Public, partner: Ed25519Public) -> PipeAuth {
    let signature = Signature::new([7; 64]);
    PipeAuth { connection, pubkey: me, dest: dest_hash(&partner), namespace: namespace(), signature, flow: true }
}

fn end_id(n: u64) -> EndId {
    EndId::parse(&format!("{n:064x}")).unwrap()
}

impl World {
    fn side_with(&mut self, auth: &PipeAuth) -> ConnId {
        let end = end_id(self.next_conn + 1);
        self.open(Origin::Pipe { auth: auth.encode().into(), end })
    }

    fn side(&mut self, connection: ConnectionId, me: Ed25519Public, partner: Ed25519Public) -> ConnId {
        self.side_with(&auth(connection, me, partner))
    }

    /// What the namespace has told an end since the last look.
    fn told(&mut self, conn: ConnId) -> Vec<Bytes> {
        self.sockets.get_mut(&conn).unwrap().told.as_mut().unwrap().drain(..).collect()
    }

    /// The agent's and device 1's sides, matched.
    fn pipe(&mut self, connection: ConnectionId) -> (ConnId, ConnId) {
        let first = self.side(connection, AGENT_KEY, device(1));
        let second = self.side(connection, device(1), AGENT_KEY);
        assert_eq!((self.closed(first), self.closed(second)), (None, None));
        self.told(second);
        (first, second)
    }

    fn closes(&self, conns: &[ConnId]) -> Vec<Option<u16>> {
        conns.iter().map(|conn| self.closed(*conn)).collect()
    }
}

fn nth(n: u8) -> ConnectionId {
    ConnectionId::new([n; 32])
}

#[test]
fn the_second_side_is_told_where_the_first_one_is_and_nobody_needs_a_wake_up_or_a_row() {
    for (me, partner) in [(AGENT_KEY, device(1)), (device(1), AGENT_KEY), (device(1), device(2))] {
        for evicts in [false, true] {
            let mut world = World::with(Limits::default(), evicts);
            world.agent(&[1, 2]);
            let before = world.sql.rows_written();
            let first = world.side(PIPE, me, partner);
            assert_eq!((world.told(first), world.timer), (Vec::new(), Some(START + 30 * SECOND)));
            let second = world.side(PIPE, partner, me);
            assert_eq!(world.told(second), [end_id(first.0 >> 40).to_bytes()]);
            assert_eq!(world.told(first), NOTHING);
            world.pass(HOUR);
            assert_eq!(world.closes(&[first, second]), [None, None]);
            // An engine that has forgotten its timer does not take it back.
            assert_eq!((world.sql.rows_written(), world.wakes), (before, u64::from(evicts)));
        }
    }
}

#[test]
fn only_the_agent_and_authorized_devices_have_pipes_and_only_in_their_own_namespace() {
    let mut world = World::new();
    let nobody = world.side(PIPE, AGENT_KEY, device(1));
    assert_eq!(world.closed(nobody), Some(4403), "there is no namespace");
    assert_eq!((world.sql.rows_written(), world.alarm), (0, None), "and a pipe makes none");

    let agent = world.agent(&[1]);
    world.open_window(agent, 60);
    assert_eq!(world.pair(2), None);
    let strangers = [world.side(PIPE, device(9), AGENT_KEY), world.side(PIPE, device(2), AGENT_KEY)];
    assert_eq!(world.closes(&strangers), [Some(4403); 2], "a stranger, and a device that waits for its person's word");
    let astray = PipeAuth { namespace: NamespaceId::new([3; 32]), ..auth(PIPE, device(1), AGENT_KEY) };
    let astray = world.side_with(&astray);
    assert_eq!(world.closed(astray), Some(4403));
    let malformed = world.open(Origin::Pipe { auth: Bytes::from_static(b"\x80"), end: end_id(9) });
    assert_eq!(world.closed(malformed), Some(4400));
}

#[test]
fn sides_that_do_not_expect_each_other_end_both() {
    let pairs = [
        (auth(PIPE, AGENT_KEY, device(1)), auth(PIPE, device(2), AGENT_KEY)),
        (auth(PIPE, AGENT_KEY, device(1)), auth(PIPE, device(1), device(2))),
        (auth(PIPE, device(1), device(1)), auth(PIPE, device(1), device(1))),
    ];
    for (first, second) in pairs {
        let mut world = World::new();
        world.agent(&[1, 2]);
        let (first, second) = (world.side_with(&first), world.side_with(&second));
        assert_eq!(world.closes(&[first, second]), [Some(4404); 2]);
        assert_eq!(world.told(second), NOTHING);
    }
}

#[test]
fn a_third_side_is_turned_away_also_when_one_of_the_two_is_already_gone() {
    let mut world = World::new();
    world.agent(&[1]);
    let (first, second) = world.pipe(PIPE);
    let third = world.side(PIPE, device(1), AGENT_KEY);
    assert_eq!(world.closes(&[first, second, third]), [None, None, Some(4409)]);
    world.hang_up(first, 1000);
    let fourth = world.side(PIPE, AGENT_KEY, device(1));
    assert_eq!(world.closes(&[second, fourth]), [None, Some(4409)]);
    world.hang_up(second, 1000);
    let anew = world.side(PIPE, AGENT_KEY, device(1));
    assert_eq!(world.closed(anew), None);
}

#[test]
fn a_side_that_finds_nobody_ends_at_its_deadline_whoever_wakes_the_object() {
    let mut world = World::new();
    world.agent(&[1]);
    let side = world.side(PIPE, AGENT_KEY, device(1));
    world.pass(30 * SECOND - 1);
    assert_eq!(world.closed(side), None);
    world.pass(1);
    assert_eq!(world.closed(side), Some(4404));

    // The timer went with the memory; the partner comes too late.
    let side = world.side(nth(1), AGENT_KEY, device(1));
    world.evict();
    world.now += 30 * SECOND;
    let late = world.side(nth(1), device(1), AGENT_KEY);
    assert_eq!(world.closes(&[side, late]), [Some(4404), None]);
    assert_eq!(world.told(late), NOTHING);
}

#[test]
fn a_side_that_leaves_frees_its_place() {
    let mut world = World::new();
    world.agent(&[1]);
    let side = world.side(PIPE, AGENT_KEY, device(1));
    world.hang_up(side, 1006);
    let (first, second) = world.pipe(PIPE);
    assert_eq!(world.closes(&[first, second]), [None, None]);
}

#[test]
fn pipes_are_counted_as_pairs_pending_ones_included_and_a_second_side_is_never_one_too_many() {
    let mut world = World::with(Limits { pipes: 3, ..Limits::default() }, true);
    world.agent(&[1]);
    let (first, second) = world.pipe(nth(1));
    let pending = [world.side(nth(2), AGENT_KEY, device(1)), world.side(nth(3), device(1), AGENT_KEY)];
    let surplus = world.side(nth(4), AGENT_KEY, device(1));
    assert_eq!(world.closed(surplus), Some(4429));
    let partner = world.side(nth(3), AGENT_KEY, device(1));
    assert_eq!(world.closes(&[pending[0], pending[1], partner]), [None; 3]);

    // Half of a pipe is a pipe.
    world.hang_up(first, 1000);
    let surplus = world.side(nth(5), AGENT_KEY, device(1));
    assert_eq!(world.closed(surplus), Some(4429));
    world.hang_up(second, 1000);
    let next = world.side(nth(6), AGENT_KEY, device(1));
    assert_eq!(world.closed(next), None);
}

#[test]
fn a_revoked_device_loses_its_pipes_open_and_pending_before_the_agent_hears_that_it_is_revoked() {
    let mut world = World::new();
    let agent = world.agent(&[1, 2]);
    let (first, second) = world.pipe(nth(1));
    let pending = world.side(nth(2), device(1), AGENT_KEY);
    // Somebody waits for it: only its own side can tell.
    let waiting = world.side(nth(3), AGENT_KEY, device(1));
    let others = [world.side(nth(4), AGENT_KEY, device(2)), world.side(nth(4), device(2), AGENT_KEY)];
    world.send(agent, Frame::Authorize(Authorize { clients: vec![device(2).to_vec()] }));
    assert!(matches!(world.one(agent), Frame::AuthorizeOk(_)));
    assert_eq!(world.closes(&[first, second, pending]), [Some(4403); 3]);
    assert_eq!(world.closes(&[waiting, others[0], others[1]]), [None; 3]);
    let back = world.side(nth(3), device(1), AGENT_KEY);
    assert_eq!(world.closes(&[back, waiting]), [Some(4403), None]);
}

#[test]
fn a_device_that_pairs_anew_loses_its_pipes() {
    let mut world = World::new();
    let agent = world.agent(&[1]);
    let (first, second) = world.pipe(PIPE);
    world.open_window(agent, 60);
    assert_eq!(world.pair(1), None);
    assert_eq!(world.closes(&[first, second]), [Some(4403); 2]);
}

#[test]
fn whoever_is_left_alone_before_the_link_came_is_told() {
    let mut world = World::new();
    world.agent(&[1]);
    let (first, second) = world.pipe(PIPE);
    world.hang_up(second, 1006);
    assert_eq!(world.told(first), [Bytes::new()]);
    assert_eq!(world.closed(first), None, "what the link still carries is not cut off");
    world.hang_up(first, 1006);

    let pending = world.side(nth(1), AGENT_KEY, device(1));
    let other = world.side(nth(2), AGENT_KEY, device(1));
    world.hang_up(pending, 1006);
    assert_eq!(world.told(other), NOTHING);
}

#[test]
fn two_sides_that_disagree_after_a_panic_are_ended() {
    let mut world = World::new();
    world.agent(&[1]);
    let first = world.side(PIPE, AGENT_KEY, device(1));
    let pending = world.sockets[&first].attachment.clone();
    let second = world.side(PIPE, device(1), AGENT_KEY);
    world.sockets.get_mut(&first).unwrap().attachment = pending;
    world.step(Input::Wake);
    assert_eq!(world.closes(&[first, second]), [Some(1001); 2]);
}

#[test]
fn what_an_end_says_is_ignored_and_a_pipe_is_no_member() {
    let mut world = World::new();
    let agent = world.agent(&[1]);
    let (first, second) = world.pipe(PIPE);
    world.send_raw(first, b"\xff\xff");
    world.step(Input::Text { conn: second });
    assert_eq!(world.closes(&[first, second]), [None, None]);
    assert_eq!(world.online(agent), [AGENT_KEY]);
}

#[test]
fn a_namespace_with_an_open_pipe_is_not_idle() {
    let mut world = World::new();
    let agent = world.agent(&[1]);
    let (first, second) = world.pipe(PIPE);
    world.hang_up(agent, 1006);
    world.pass(200 * DAY);
    assert_eq!((world.deleted, world.closes(&[first, second])), (0, vec![None, None]));
    world.hang_up(first, 1006);
    world.hang_up(second, 1006);
    world.pass(200 * DAY);
    assert_eq!(world.deleted, 1);
}

#[test]
fn storage_that_fails_ends_the_newcomer_and_no_pipe_that_is_there() {
    let mut world = World::remembering();
    world.agent(&[1]);
    let (first, second) = world.pipe(PIPE);
    world.evict();
    world.sql.trap_after(0, crate::store::native::Trap::Refuse);
    let newcomer = world.side(nth(2), AGENT_KEY, device(1));
    world.sql.heal();
    assert_eq!(world.closes(&[first, second, newcomer]), [None, None, Some(1001)]);
    assert_eq!(std::mem::take(&mut world.faults).len(), 1);
    let newcomer = world.side(nth(2), AGENT_KEY, device(1));
    assert_eq!(world.closed(newcomer), None);
}
