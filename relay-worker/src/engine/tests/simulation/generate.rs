//! Histories from seeds. Each seed draws its own mix: some have no crashes, some no floods, some hardly anything but
//! pairings, so that rare things meet in some of them.

use super::history::{Exit, Fraud, History, Oddity, Op, PEERS, Route, Setup, Text, Token, Verdict, Wire};

/// `SplitMix64`.
pub(super) struct Dice(pub(super) u64);

impl Dice {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn below32(&mut self, n: u32) -> u32 {
        u32::try_from(self.below(n.into())).unwrap()
    }

    /// True once in `n` times.
    pub(super) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub(super) fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[usize::try_from(self.below(all.len() as u64)).unwrap()]
    }

    fn peer(&mut self) -> usize {
        // The agent takes part in most of what happens.
        if self.one_in(3) { 0 } else { self.device() }
    }

    fn device(&mut self) -> usize {
        usize::try_from(1 + self.below(PEERS as u64 - 1)).unwrap()
    }

    fn route(&mut self) -> Route {
        if self.one_in(4) { Route::Direct } else { Route::Front }
    }
}

/// What kinds of things happen.
#[derive(Clone, Copy)]
enum Kind {
    Connect,
    Leave,
    Say,
    Live,
    OneShot,
    Read,
    Ack,
    Wire,
    Authorize,
    Pair,
    Presence,
    Pass,
    Reap,
    Impostor,
    Odd,
    Flood,
    Jump,
    Burst,
    Pipe,
    Equip,
    Answer,
}

/// How often, where the seed does not leave it out; and whether it may.
const MIX: &[(Kind, u64, bool)] = &[
    (Kind::Connect, 14, false),
    (Kind::Leave, 6, true),
    (Kind::Say, 26, false),
    (Kind::Live, 8, true),
    (Kind::OneShot, 4, true),
    (Kind::Read, 16, false),
    (Kind::Ack, 10, true),
    (Kind::Wire, 8, true),
    (Kind::Authorize, 6, false),
    (Kind::Pair, 8, true),
    (Kind::Presence, 4, true),
    (Kind::Pass, 8, false),
    (Kind::Reap, 3, false),
    (Kind::Impostor, 2, true),
    (Kind::Odd, 3, true),
    (Kind::Flood, 1, true),
    (Kind::Jump, 1, true),
    (Kind::Burst, 3, true),
    (Kind::Pipe, 6, true),
    (Kind::Equip, 2, true),
    (Kind::Answer, 16, true),
];

/// How often something goes wrong between and within operations: once in so many, 0 for never.
struct Troubles {
    evict: u64,
    fault: u64,
    crash: u64,
}

/// The history of a seed, with so many operations.
pub(super) fn history(seed: u64, steps: usize) -> History {
    let mut dice = Dice(seed);
    let setup = setup(&mut dice);
    let troubles = Troubles {
        evict: dice.pick(&[0, 2, 8, 30]),
        fault: dice.pick(&[0, 0, 12, 40]),
        crash: dice.pick(&[0, 0, 12, 40]),
    };
    let mut mix: Vec<(Kind, u64)> = Vec::new();
    for (kind, weight, optional) in MIX {
        if !optional || dice.one_in(3) || dice.one_in(2) {
            mix.push((*kind, *weight * (1 + dice.below(3))));
        }
    }
    let mut ops = vec![Op::Connect { peer: 0, features: 7, route: Route::Front }];
    for device in 1..PEERS {
        ops.push(Op::Authorize { device, on: !dice.one_in(5) });
        ops.push(Op::Equip { device, platform: platform(&mut dice) });
        if dice.one_in(2) {
            ops.push(Op::Connect { peer: device, features: 7, route: Route::Front });
            ops.push(Op::Leave { peer: device, exit: Exit::Normal });
        }
    }
    let days = dice.one_in(3);
    while ops.len() < steps {
        if troubles.evict > 0 && dice.one_in(troubles.evict) {
            ops.push(Op::Evict);
        }
        if troubles.fault > 0 && dice.one_in(troubles.fault) {
            ops.push(Op::Fault { statement: dice.below32(10), done: dice.one_in(3) });
        }
        if troubles.crash > 0 && dice.one_in(troubles.crash) {
            let at = dice.below32(8);
            let crash = if dice.one_in(2) {
                Op::CrashAtStatement { statement: at }
            } else {
                Op::CrashAfterOutputs { outputs: at }
            };
            ops.push(crash);
        }
        let kind = weighted(&mut dice, &mix);
        happen(&mut dice, kind, days, &mut ops);
    }
    ops.truncate(steps);
    History { setup, ops }
}

fn setup(dice: &mut Dice) -> Setup {
    Setup {
        window: dice.pick(&[1, 2, 3, 6, 64]),
        window_bytes: dice.pick(&[600, 4096, 1 << 20]),
        held: dice.pick(&[1, 2, 6, 16]),
        queue: dice.pick(&[3, 6, 20, 200]),
        queue_bytes: dice.pick(&[2000, 20_000, 4 << 20]),
        rate: dice.pick(&[10, 60, 9999, 9999]),
        pending: dice.pick(&[1, 2, 16]),
        pipes: dice.pick(&[1, 2, 3, 32]),
        services: dice.pick(&[0, 7, 7, 7, 2, 5]),
    }
}

fn weighted(dice: &mut Dice, mix: &[(Kind, u64)]) -> Kind {
    let mut rest = dice.below(mix.iter().map(|(_, weight)| weight).sum());
    for (kind, weight) in mix {
        match rest.checked_sub(*weight) {
            Some(less) => rest = less,
            None => return *kind,
        }
    }
    unreachable!("the rest is below the sum")
}

fn happen(dice: &mut Dice, kind: Kind, days: bool, ops: &mut Vec<Op>) {
    let peer = dice.peer();
    match kind {
        Kind::Connect => {
            let features = dice.pick(&[0, 0, 1, 3, 4, 5, 7, 7, 15, 15]);
            ops.push(Op::Connect { peer, features, route: dice.route() });
        }
        Kind::Leave => {
            let exit = dice.pick(&[Exit::Normal, Exit::Away, Exit::Cut, Exit::Vanish]);
            ops.push(Op::Leave { peer, exit });
        }
        Kind::Say => ops.push(Op::Say(text(dice, peer, false))),
        Kind::Live => ops.push(Op::Say(text(dice, peer, true))),
        Kind::OneShot => {
            let device = dice.device();
            ops.push(Op::OneShot(Text { to: 0, ..text(dice, device, false) }));
        }
        Kind::Read => ops.push(Op::Read { peer, frames: 1 + dice.below32(24) }),
        Kind::Ack => ops.push(Op::Ack { peer }),
        Kind::Wire => ops.push(match dice.below(6) {
            0 | 1 => Op::SetWire { peer, wire: Wire::Open },
            2 => Op::SetWire { peer, wire: Wire::Slow },
            3 => Op::SetWire { peer, wire: Wire::Dead { room: dice.pick(&[0, 700, 100_000]) } },
            _ => Op::Trickle { peer, bytes: dice.below32(3000) },
        }),
        Kind::Authorize => ops.push(Op::Authorize { device: dice.device(), on: !dice.one_in(3) }),
        Kind::Pair => pair(dice, ops),
        Kind::Pipe => pipe(dice, ops),
        Kind::Equip => ops.push(Op::Equip { device: dice.device(), platform: platform(dice) }),
        Kind::Answer => {
            for _ in 0..=dice.below(4) {
                let nth = u8::try_from(dice.below(4)).unwrap();
                ops.push(Op::Answer { nth, verdict: verdict(dice), again: dice.one_in(10) });
            }
            if dice.one_in(3) {
                ops.push(Op::Pass { ms: dice.below(40_000) });
            }
        }
        Kind::Presence => ops.push(Op::Presence { peer }),
        Kind::Pass => ops.push(Op::Pass { ms: passing(dice, days) }),
        Kind::Reap => ops.push(if dice.one_in(3) { Op::Notice } else { Op::Reap }),
        Kind::Impostor => {
            let fraud = dice.pick(&[
                Fraud::Silence,
                Fraud::Silence,
                Fraud::Chat,
                Fraud::Noise,
                Fraud::Huge,
                Fraud::Forged,
                Fraud::Astray,
                Fraud::Early,
            ]);
            ops.push(Op::Impostor { peer, fraud });
        }
        Kind::Odd => ops.push(Op::Odd { peer, oddity: oddity(dice) }),
        Kind::Flood => ops.push(Op::Flood { peer, frames: 20 + dice.below32(30) }),
        Kind::Jump => {
            let hour = 3_600_000;
            ops.push(Op::Jump { ms: dice.pick(&[-hour, -30_000, 200_000, hour, 9 * 24 * hour, 100 * 24 * hour]) });
        }
        Kind::Burst => {
            // Among others what a device that is away is told again and again.
            let tag = u8::try_from(dice.below(2)).unwrap();
            let message = text(dice, peer, false);
            let message = Text { tag: Some(tag).filter(|_| dice.one_in(2)).or(message.tag), ..message };
            for _ in 0..2 + dice.below(8) {
                ops.push(Op::Say(Text { tag: message.tag.filter(|_| dice.one_in(2)), ..message }));
            }
        }
    }
}

fn text(dice: &mut Dice, from: usize, live: bool) -> Text {
    let to = if from != 0 && !dice.one_in(5) { 0 } else { dice.device() };
    let size = dice.pick(&[20, 20, 100, 300, 1500]);
    let tag = dice.one_in(4).then(|| u8::try_from(dice.below(2)).unwrap());
    Text { from, to, size, live, tag, quiet: dice.one_in(6) }
}

fn platform(dice: &mut Dice) -> i32 {
    dice.pick(&[0, 1, 2, 2, 101, 101, 77])
}

fn verdict(dice: &mut Dice) -> Verdict {
    match dice.below(12) {
        0..=5 => Verdict::Sent,
        6 => Verdict::Gone,
        7 => Verdict::Refused,
        8..=10 => Verdict::Busy(0),
        _ => Verdict::Busy(dice.pick(&[1, 7000, 100_000, 9_000_000])),
    }
}

fn pipe(dice: &mut Dice, ops: &mut Vec<Op>) {
    let pipe = u8::try_from(dice.below(6)).unwrap();
    let device = dice.device();
    let (peer, partner) = if dice.one_in(2) { (0, device) } else { (device, 0) };
    match dice.below(8) {
        0 => ops.push(Op::Part { pipe, peer }),
        1 => ops.push(Op::Join { pipe, peer, partner: dice.device() }),
        2 | 3 => ops.push(Op::Join { pipe, peer, partner }),
        _ => {
            ops.push(Op::Join { pipe, peer, partner });
            if dice.one_in(4) {
                ops.push(Op::Pass { ms: passing(dice, false) });
            }
            ops.push(Op::Join { pipe, peer: partner, partner: peer });
        }
    }
}

fn pair(dice: &mut Dice, ops: &mut Vec<Op>) {
    match dice.below(8) {
        0..=2 => ops.push(Op::OpenWindow { ttl: dice.pick(&[0, 5, 60, 60, 9999]) }),
        3 => ops.push(Op::CloseWindow),
        _ => {
            let token = dice.pick(&[Token::Newest, Token::Newest, Token::Newest, Token::Older, Token::Wrong]);
            ops.push(Op::Pair { device: dice.device(), token, route: dice.route() });
        }
    }
}

fn passing(dice: &mut Dice, days: bool) -> u64 {
    match dice.below(12) {
        0..=5 => dice.below(3000),
        6..=9 => dice.below(90_000),
        10 => dice.below(3_600_000),
        _ if days => dice.pick(&[1, 3, 8, 40, 95]) * 86_400_000,
        _ => dice.below(86_400_000),
    }
}

fn oddity(dice: &mut Dice) -> Oddity {
    dice.pick(&[
        Oddity::Malformed,
        Oddity::Unknown,
        Oddity::Empty,
        Oddity::Word,
        Oddity::Misplaced,
        Oddity::ShortNonce,
        Oddity::NoCiphertext,
        Oddity::LongTag,
        Oddity::ToNobody,
        Oddity::ToOneself,
        Oddity::AckOfNothing,
        Oddity::StoredTooLarge,
        Oddity::LiveTooLarge,
    ])
}
