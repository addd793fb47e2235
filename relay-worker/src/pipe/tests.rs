//! An end's rules, with fake time and sockets that hold what the test says.

use skald_common::crypto::{Identity, Seed};
use skald_common::ids::DestHash;
use skald_common::pipe::auth::decode_challenge;

use super::*;

const START: u64 = 1_800_000_000_000;
const SECOND: u64 = 1000;
const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;
const NONCE: ChallengeNonce = ChallengeNonce::new([5; 32]);
const PIPE: ConnectionId = ConnectionId::new([0xc1; 32]);
const PARTNER: &[u8; 64] = b"00000000000000000000000000000000000000000000000000000000000000ab";

struct World {
    end: End,
    now: u64,
    /// What waits in the sockets.
    waiting: Buffered,
    timer: Option<u64>,
    wakes: u64,
    closed: Option<u16>,
    aborted: bool,
    /// Everything but timers since the last look.
    done: Vec<Output>,
}

impl World {
    fn new(limits: Limits) -> Self {
        Self::on_route(limits, None)
    }

    fn on_route(limits: Limits, namespace: Option<NamespaceId>) -> Self {
        let end = End::new(limits, START, NONCE, namespace);
        let waiting = Buffered::default();
        let mut world =
            Self { end, now: START, waiting, timer: None, wakes: 0, closed: None, aborted: false, done: Vec::new() };
        world.drain();
        world
    }

    fn drain(&mut self) {
        while let Some(output) = self.end.poll() {
            match output {
                Output::Timer { at_ms } => self.timer = at_ms,
                Output::Close { code, .. } if self.closed.is_none() => self.closed = Some(code),
                Output::Abort => self.aborted = true,
                _ => self.done.push(output),
            }
        }
    }

    fn put(&mut self, input: Input<'_>) {
        self.end.handle(self.now, self.waiting, input);
        self.drain();
    }

    /// What was done since the last look.
    fn done(&mut self) -> Vec<Output> {
        std::mem::take(&mut self.done)
    }

    /// Time passes; the timer fires on the way.
    fn pass(&mut self, ms: u64) {
        let end = self.now + ms;
        while let Some(due) = self.timer.filter(|at| *at <= end) {
            self.now = self.now.max(due);
            (self.timer, self.wakes) = (None, self.wakes + 1);
            self.put(Input::Timer);
        }
        self.now = end;
    }

    /// The client answers the challenge.
    fn authenticated(limits: Limits, flow: bool) -> Self {
        let mut world = Self::new(limits);
        world.put(Input::Auth(&auth(flow).encode()));
        assert!(matches!(world.done().as_slice(), [Output::Challenge(_), Output::Join(_)]));
        world.put(Input::Joined);
        assert_eq!(world.done(), []);
        world
    }

    fn open_with(limits: Limits, flow: bool) -> Self {
        let mut world = Self::authenticated(limits, flow);
        assert!(world.end.expects(&PIPE));
        world.put(Input::Linked);
        assert_eq!(world.done(), [Output::Release]);
        world
    }

    fn open(flow: bool) -> Self {
        Self::open_with(Limits::default(), flow)
    }
}

fn me() -> Identity {
    Identity::new(&Seed::from_slice(&[1; 32]).unwrap())
}

fn auth(flow: bool) -> PipeAuth {
    let me = me();
    PipeAuth {
        connection: PIPE,
        pubkey: me.ed25519_pub(),
        dest: DestHash::new([2; 32]),
        namespace: NamespaceId::new([3; 32]),
        signature: me.sign_pipe(&NONCE, &PIPE),
        flow,
    }
}

// --- joining ---

#[test]
fn a_client_is_challenged_and_its_answer_joins_the_namespace() {
    let mut world = World::new(Limits::default());
    let challenge = world.done();
    let [Output::Challenge(bytes)] = challenge.as_slice() else { panic!("{challenge:?}") };
    assert_eq!(decode_challenge(bytes), Ok(NONCE));
    assert!(world.end.awaits_auth(4096) && !world.end.awaits_auth(4097));
    world.put(Input::Auth(&auth(true).encode()));
    assert_eq!(world.done(), [Output::Join(Box::new(auth(true)))]);
    assert!(!world.end.awaits_auth(10));
}

#[test]
fn a_wrong_answer_has_its_code() {
    let code = |namespace: Option<NamespaceId>, input: Input<'_>| {
        let mut world = World::on_route(Limits::default(), namespace);
        world.put(input);
        assert!(!world.done.iter().any(|output| matches!(output, Output::Join(_))));
        world.closed
    };
    let good = auth(false).encode();
    let forged = PipeAuth { connection: ConnectionId::new([9; 32]), ..auth(false) }.encode();
    assert_eq!(code(None, Input::Auth(b"\x80")), Some(4400));
    assert_eq!(code(None, Input::Text), Some(4400));
    assert_eq!(code(None, Input::Message { size: 5000 }), Some(4400));
    assert_eq!(code(None, Input::Auth(&forged)), Some(4401));
    assert_eq!(code(Some(NamespaceId::new([4; 32])), Input::Auth(&good)), Some(4403));
    let mut right = World::on_route(Limits::default(), Some(NamespaceId::new([3; 32])));
    right.put(Input::Auth(&good));
    assert_eq!(right.closed, None);
}

#[test]
fn no_answer_within_30_seconds_is_the_end() {
    let mut world = World::new(Limits::default());
    world.pass(30 * SECOND - 1);
    assert_eq!(world.closed, None);
    world.pass(1);
    assert_eq!(world.closed, Some(4408));
}

#[test]
fn the_one_that_is_told_dials_and_no_other_link_is_taken() {
    let mut world = World::authenticated(Limits::default(), false);
    assert!(!world.end.expects(&ConnectionId::new([9; 32])));
    world.put(Input::Told(PARTNER));
    assert_eq!(world.done(), [Output::Dial { end: EndId::from_bytes(PARTNER).unwrap(), connection: PIPE }]);
    assert!(!world.end.expects(&PIPE), "it dials itself");
    world.put(Input::Linked);
    assert_eq!(world.done(), [Output::Release]);
    assert!(!world.end.expects(&PIPE), "one link is enough");
}

#[test]
fn what_came_before_the_link_is_held_and_let_go_in_order() {
    let mut world = World::authenticated(Limits::default(), false);
    world.put(Input::Message { size: 10 });
    world.put(Input::Message { size: 20 });
    assert_eq!(world.done(), [Output::Keep, Output::Keep]);
    world.put(Input::Linked);
    world.put(Input::Message { size: 30 });
    assert_eq!(world.done(), [Output::Release, Output::Pass]);
}

#[test]
fn a_namespace_that_forgot_a_lonely_side_does_not_keep_it_for_ever() {
    let mut world = World::authenticated(Limits::default(), false);
    world.pass(31 * SECOND);
    assert_eq!(world.closed, None, "the namespace's own word comes first");
    world.pass(SECOND);
    assert_eq!(world.closed, Some(4404));
}

#[test]
fn the_namespace_s_codes_reach_the_client() {
    for (code, expected) in [(4403, 4403), (4409, 4409), (4429, 4429), (1006, 1001), (1005, 1001)] {
        for mut world in [World::authenticated(Limits::default(), false), World::open(false)] {
            world.put(Input::ControlClosed { code });
            assert_eq!(world.closed, Some(expected));
        }
    }
    let mut world = World::authenticated(Limits::default(), false);
    world.put(Input::Told(b""));
    assert_eq!(world.closed, Some(1001), "the other side is gone");
    let mut world = World::open(false);
    world.put(Input::Told(b""));
    assert_eq!(world.closed, None, "the link says when it is over");
    let mut world = World::authenticated(Limits::default(), false);
    world.put(Input::Unreachable);
    assert_eq!(world.closed, Some(1001));
}

#[test]
fn a_client_that_leaves_while_its_end_dials_still_delivers() {
    let mut world = World::authenticated(Limits::default(), false);
    world.put(Input::Message { size: 10 });
    world.put(Input::Told(PARTNER));
    world.put(Input::ClientClosed { code: 1000 });
    assert_eq!(world.closed, None);
    world.done();
    world.put(Input::Linked);
    assert_eq!((world.done(), world.closed), (vec![Output::Release], Some(1000)));
}

#[test]
fn a_socket_that_comes_too_late_is_closed() {
    for late in [Input::Joined, Input::Linked] {
        let mut world = World::authenticated(Limits::default(), false);
        world.put(Input::ClientClosed { code: 1006 });
        assert_eq!(world.closed.take(), Some(1001));
        world.put(late);
        assert_eq!(world.closed, Some(1001));
    }
}

// --- passing on ---

#[test]
fn messages_pass_both_ways_and_either_close_is_passed_on() {
    let mut world = World::open(false);
    world.put(Input::Message { size: MIB });
    world.put(Input::LinkMessage { size: MIB });
    assert_eq!(world.done(), [Output::Pass, Output::Pass]);
    for (code, expected) in [(1000, 1000), (4999, 4999), (1005, 1001), (1006, 1001), (1015, 1001)] {
        let mut world = World::open(false);
        world.put(Input::ClientClosed { code });
        assert_eq!(world.closed, Some(expected));
        let mut world = World::open(false);
        world.put(Input::LinkClosed { code });
        assert_eq!(world.closed, Some(expected));
        world.put(Input::LinkMessage { size: 1 });
        world.put(Input::Message { size: 1 });
        assert_eq!(world.done(), []);
    }
}

#[test]
fn text_and_too_large_frames_end_a_pipe() {
    for mut world in [World::authenticated(Limits::default(), true), World::open(true)] {
        world.put(Input::Text);
        assert_eq!(world.closed, Some(4400));
    }
    for mut world in [World::authenticated(Limits::default(), true), World::open(true)] {
        world.put(Input::Message { size: MIB });
        assert_eq!(world.closed, None);
        world.put(Input::Message { size: MIB + 1 });
        assert_eq!(world.closed, Some(4413));
    }
}

#[test]
fn a_silent_pipe_ends_and_a_message_in_either_direction_keeps_it() {
    let mut world = World::open(false);
    for input in [Input::Message { size: 1 }, Input::LinkMessage { size: 1 }, Input::Message { size: 1 }] {
        world.pass(120 * SECOND - 1);
        assert_eq!(world.closed, None);
        world.put(input);
    }
    assert!(world.wakes <= 6, "{}", world.wakes);
    world.pass(120 * SECOND);
    assert_eq!(world.closed, Some(4408));
}

#[test]
fn bytes_a_second_are_limited_where_a_limit_is_set_and_one_frame_always_passes() {
    let limits = Limits { pipe_rate: 100 * KIB, ..Limits::default() };
    let mut world = World::open_with(limits.clone(), false);
    world.put(Input::Message { size: MIB });
    assert_eq!(world.closed, None);
    world.pass(SECOND);
    world.put(Input::Message { size: 100 * KIB });
    assert_eq!(world.closed, None);
    world.put(Input::Message { size: KIB });
    assert_eq!(world.closed, Some(4429));

    // In small pieces nothing is lost by rounding.
    let mut world = World::open_with(limits, false);
    world.put(Input::Message { size: MIB });
    for _ in 0..300 {
        world.pass(1);
        world.put(Input::Message { size: 102 });
    }
    assert_eq!(world.closed, None);
}

// --- backpressure ---

#[test]
fn a_client_that_does_not_read_has_the_other_end_pause_until_it_has_read() {
    let mut world = World::open(false);
    world.waiting.client = MIB;
    world.put(Input::LinkMessage { size: 1 });
    assert_eq!(world.done(), [Output::Pass, Output::Signal("pause")]);
    world.put(Input::LinkMessage { size: 1 });
    assert_eq!(world.done(), [Output::Pass], "once");
    world.waiting.client = 256 * KIB;
    world.pass(SECOND);
    assert_eq!(world.done(), []);
    world.waiting.client = 256 * KIB - 1;
    world.pass(SECOND);
    assert_eq!(world.done(), [Output::Signal("resume")]);
}

#[test]
fn a_fast_reader_is_found_out_soon_and_a_slow_one_costs_few_wake_ups() {
    let mut world = World::open(false);
    world.waiting.client = 2 * MIB;
    world.put(Input::LinkMessage { size: 1 });
    world.done();
    world.waiting.client = 0;
    world.pass(5);
    assert_eq!(world.done(), [Output::Signal("resume")]);

    world.waiting.client = 2 * MIB;
    world.put(Input::LinkMessage { size: 1 });
    world.wakes = 0;
    world.pass(60 * SECOND);
    assert!(world.wakes < 330, "{}", world.wakes);
}

#[test]
fn a_client_that_obeys_is_told_and_one_that_does_not_is_braked_ever_longer() {
    let mut world = World::open(true);
    world.put(Input::LinkText("pause"));
    world.put(Input::Message { size: 1 });
    world.put(Input::LinkText("pause"));
    assert_eq!(world.done(), [Output::Tell("pause"), Output::Pass]);
    world.put(Input::LinkText("resume"));
    assert_eq!(world.done(), [Output::Tell("resume")]);

    let mut world = World::open(false);
    world.put(Input::LinkText("pause"));
    let brakes = |world: &mut World, n: usize| -> Vec<u64> {
        (0..n).for_each(|_| world.put(Input::Message { size: 1 }));
        let brake = |output| match output {
            Output::Brake { ms } => Some(ms),
            Output::Pass => None,
            other => panic!("{other:?}"),
        };
        world.done().into_iter().filter_map(brake).collect()
    };
    assert_eq!(brakes(&mut world, 8), [20, 40, 80, 160, 320, 640, 1000, 1000]);
    world.put(Input::LinkText("resume"));
    assert_eq!(brakes(&mut world, 2), [0; 0]);
    world.put(Input::LinkText("pause"));
    assert_eq!(brakes(&mut world, 2), [20, 40]);
    world.put(Input::LinkText("something newer"));
    assert_eq!(world.closed, None);
}

#[test]
fn a_client_is_held_back_too_when_its_own_end_s_link_is_full() {
    let mut world = World::open(true);
    world.waiting.link = MIB;
    world.put(Input::Message { size: 1 });
    assert_eq!(world.done(), [Output::Pass, Output::Tell("pause")]);
    world.put(Input::LinkText("pause"));
    world.waiting.link = 0;
    world.pass(SECOND);
    assert_eq!(world.done(), [], "the other end has not resumed");
    world.put(Input::LinkText("resume"));
    assert_eq!(world.done(), [Output::Tell("resume")]);
}

#[test]
fn more_than_a_mebibyte_before_the_match_holds_the_client_back() {
    let mut world = World::authenticated(Limits::default(), true);
    world.put(Input::Message { size: MIB });
    assert_eq!(world.done(), [Output::Keep]);
    world.put(Input::Message { size: 1 });
    assert_eq!(world.done(), [Output::Keep, Output::Tell("pause")]);
    world.put(Input::Linked);
    assert_eq!(world.done(), [Output::Release], "it still waits, in the link");
    world.pass(SECOND);
    assert_eq!(world.done(), [Output::Tell("resume")]);

    let mut world = World::authenticated(Limits::default(), false);
    (0..3).for_each(|_| world.put(Input::Message { size: MIB }));
    let brakes = [Output::Brake { ms: 20 }, Output::Brake { ms: 40 }];
    assert_eq!(world.done().into_iter().filter(|output| matches!(output, Output::Brake { .. })).count(), 1);
    world.put(Input::Message { size: MIB });
    assert_eq!(world.done(), [Output::Keep, brakes[1].clone()]);
}

#[test]
fn more_than_32_mebibytes_anywhere_end_the_pipe() {
    let mut world = World::authenticated(Limits::default(), true);
    (0..32).for_each(|_| world.put(Input::Message { size: MIB }));
    assert_eq!(world.closed, None);
    world.put(Input::Message { size: 1 });
    assert_eq!(world.closed, Some(1013));
    for waiting in [Buffered { client: 32 * MIB, link: 0 }, Buffered { client: 0, link: 32 * MIB }] {
        let mut world = World::open(true);
        world.waiting = waiting;
        world.put(Input::Timer);
        assert_eq!(world.closed, None);
        world.put(if waiting.client > 0 { Input::LinkMessage { size: 1 } } else { Input::Message { size: 1 } });
        assert_eq!(world.closed, Some(1013));
    }
}

#[test]
fn a_reader_that_takes_nothing_for_120_seconds_ends_the_pipe_and_one_that_takes_a_little_does_not() {
    let mut world = World::open(true);
    world.put(Input::LinkMessage { size: 4 * MIB });
    world.waiting.client = 4 * MIB;
    for _ in 0..20 {
        world.pass(100 * SECOND);
        assert_eq!(world.closed, None);
        world.waiting.client -= 64 * KIB;
    }
    let signs = world.done().iter().filter(|output| **output == Output::Signal("pause")).count();
    assert!((15..80).contains(&signs), "the other end knows that this one lives: {signs}");
    world.pass(SECOND);
    world.pass(120 * SECOND);
    assert_eq!(world.closed, Some(1013));

    // Nothing lived on the other side: it would have said so.
    let mut paused = World::open(true);
    paused.put(Input::LinkText("pause"));
    for _ in 0..5 {
        paused.pass(60 * SECOND);
        paused.put(Input::LinkText("pause"));
        assert_eq!(paused.closed, None);
    }
    paused.pass(120 * SECOND);
    assert_eq!(paused.closed, Some(4408));
}

// --- the end ---

#[test]
fn a_closed_client_may_read_on_for_as_long_as_it_reads_and_is_cut_then() {
    let mut world = World::open(true);
    world.put(Input::LinkMessage { size: MIB });
    world.waiting.client = MIB;
    world.put(Input::LinkClosed { code: 1000 });
    for _ in 0..10 {
        world.pass(29 * SECOND);
        assert!(!world.aborted);
        world.waiting.client -= 64 * KIB;
    }
    world.pass(SECOND);
    world.pass(30 * SECOND);
    assert!(world.aborted);
    assert_eq!(world.timer, None);
}

#[test]
fn a_client_that_answers_the_close_leaves_nothing_behind() {
    let mut world = World::open(true);
    world.put(Input::LinkClosed { code: 1000 });
    world.put(Input::ClientClosed { code: 1000 });
    assert_eq!((world.timer, world.aborted), (None, false));
    world.put(Input::ControlClosed { code: 1000 });
    world.put(Input::Timer);
    assert_eq!((world.timer, world.aborted), (None, false));
}
