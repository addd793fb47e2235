//! A history is a list of steps. It comes from a seed, or out of the shrinker, or from a regression test, and always means
//! the same.

use std::fmt::Write as _;

use super::disk::{Loss, Trouble};

/// Small numbers that never end and are always the same (splitmix64).
pub(super) struct Dice(pub(super) u64);

impl Dice {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(super) fn below(&mut self, end: u8) -> u8 {
        u8::try_from(self.next() % u64::from(end)).unwrap()
    }

    fn one_in(&mut self, many: u8) -> bool {
        self.below(many) == 0
    }
}

/// What a host does with a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reaction {
    /// Acts on it and says so.
    Act,
    /// Acts on it, and its connection ends before it can say so.
    ActAndVanish,
    /// Answers with an error.
    Fail,
    /// Dies before it acts.
    Vanish,
    /// Reads it and never answers.
    Ignore,
}

/// What a phone does to an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tap {
    Yes,
    No,
    /// What makes no sense.
    Nonsense,
}

/// One thing that happens. Numbers name whatever is there, modulo how much there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Op {
    // Hosts.
    HostConnects { host: u8, linger: u8 },
    HostVanishes { host: u8 },
    HostSyncs { host: u8 },
    Raise { host: u8, kind: u8, number: u8, content: u8, large: bool, life: u8 },
    Withdraw { host: u8, which: u8 },
    Call { host: u8, reaction: Reaction },
    Notify { host: u8, copies: u8 },
    // Phones.
    PhoneWakes { phone: u8 },
    PhoneSleeps { phone: u8 },
    Tapped { phone: u8, which: u8, tap: Tap },
    TappedOld { phone: u8, which: u8, tap: Tap },
    SaidAgain { phone: u8 },
    SentTwice { phone: u8 },
    AsksForInbox { phone: u8 },
    LogsOut { phone: u8 },
    Invites { phone: u8, known: bool, live: bool },
    InvitesAgain { phone: u8 },
    Pairs { phone: u8 },
    PairsWithOtherKey { phone: u8 },
    // The owner.
    OpensWindow,
    StopsWindow,
    Authorizes { phone: u8 },
    Revokes { phone: u8 },
    ClearsDevices,
    Restores,
    Answers { which: u8, tap: Tap },
    Settings { confirm: bool, delay: bool },
    WebPort { on: bool },
    // The relay.
    RelayPower { up: bool },
    RelayFeatures { modern: bool },
    Cut { replaced: bool },
    Refuses { messages: u8 },
    // The daemon and its machine.
    ServerAnswers { which: u8, well: bool },
    TunnelEnds { which: u8 },
    Disk(Trouble),
    CrashOnWire { after: u8 },
    Restart(Loss),
    // Time.
    Waits { ms: u64 },
    ClockJumps { ms: i64 },
}

/// An operation, and how many frames of the relay the daemon gets to read after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Step(pub(super) Op, pub(super) u8);

/// Every frame that comes.
pub(super) const ALL: u8 = u8::MAX;

/// The history of a seed.
pub(super) fn generate(seed: u64, length: usize) -> Vec<Step> {
    let mut dice = Dice(seed);
    let mut steps = beginning(&mut dice);
    while steps.len() < length {
        let op = any(&mut dice);
        let flow = if dice.one_in(6) { dice.below(4) } else { ALL };
        steps.push(Step(op, flow));
    }
    steps
}

/// Most worlds have a relay, phones and hosts from the start.
fn beginning(dice: &mut Dice) -> Vec<Step> {
    let mut ops = vec![Op::RelayFeatures { modern: !dice.one_in(6) }, Op::RelayPower { up: !dice.one_in(8) }];
    ops.push(Op::Settings { confirm: dice.one_in(3), delay: dice.one_in(3) });
    ops.push(Op::WebPort { on: !dice.one_in(3) });
    for phone in 0..=dice.below(3) {
        ops.extend([Op::OpensWindow, Op::Pairs { phone }, Op::Authorizes { phone }, Op::PhoneWakes { phone }]);
    }
    for host in 0..=dice.below(3) {
        ops.push(Op::HostConnects { host, linger: dice.below(4) });
    }
    ops.into_iter().map(|op| Step(op, ALL)).collect()
}

fn any(dice: &mut Dice) -> Op {
    match dice.below(100) {
        0..35 => of_host(dice),
        35..68 => of_phone(dice),
        68..78 => of_owner(dice),
        78..84 => of_relay(dice),
        84..89 => of_machine(dice),
        _ => of_time(dice),
    }
}

fn of_host(dice: &mut Dice) -> Op {
    let host = dice.below(3);
    match dice.below(20) {
        0..3 => Op::HostConnects { host, linger: dice.below(4) },
        3..5 => Op::HostVanishes { host },
        5..7 => Op::HostSyncs { host },
        7..12 => Op::Raise {
            host,
            kind: dice.below(3),
            number: dice.below(3),
            content: if dice.one_in(4) { dice.below(3) } else { 0 },
            large: dice.one_in(8),
            life: if dice.one_in(5) { 1 + dice.below(3) } else { 0 },
        },
        12..13 => Op::Withdraw { host, which: dice.below(6) },
        13..19 => {
            let reaction = match dice.below(8) {
                0 => Reaction::ActAndVanish,
                1 => Reaction::Fail,
                2 => Reaction::Vanish,
                3 if dice.one_in(2) => Reaction::Ignore,
                _ => Reaction::Act,
            };
            Op::Call { host, reaction }
        }
        _ => Op::Notify { host, copies: if dice.one_in(10) { 200 } else { 1 } },
    }
}

fn tap(dice: &mut Dice) -> Tap {
    match dice.below(8) {
        0..5 => Tap::Yes,
        5..7 => Tap::No,
        _ => Tap::Nonsense,
    }
}

fn of_phone(dice: &mut Dice) -> Op {
    let phone = dice.below(4);
    match dice.below(46) {
        32..36 => Op::Invites { phone, known: !dice.one_in(6), live: !dice.one_in(6) },
        36 => Op::InvitesAgain { phone },
        37..44 => Op::ServerAnswers { which: dice.below(6), well: !dice.one_in(4) },
        44..46 => Op::TunnelEnds { which: dice.below(6) },
        0..4 => Op::PhoneWakes { phone },
        4..6 => Op::PhoneSleeps { phone },
        6..20 => Op::Tapped { phone, which: dice.below(6), tap: tap(dice) },
        20..23 => Op::TappedOld { phone, which: dice.below(12), tap: tap(dice) },
        23..25 => Op::SaidAgain { phone },
        25..27 => Op::SentTwice { phone },
        27..29 => Op::AsksForInbox { phone },
        29 if dice.one_in(3) => Op::LogsOut { phone },
        30 if dice.one_in(3) => Op::PairsWithOtherKey { phone },
        _ => Op::Pairs { phone },
    }
}

fn of_owner(dice: &mut Dice) -> Op {
    let phone = dice.below(4);
    match dice.below(18) {
        16 => Op::WebPort { on: !dice.one_in(3) },
        0..4 => Op::OpensWindow,
        4 => Op::StopsWindow,
        5..9 => Op::Authorizes { phone },
        9..11 => Op::Revokes { phone },
        11 if dice.one_in(4) => Op::ClearsDevices,
        12 => Op::Restores,
        13 => Op::Settings { confirm: dice.one_in(2), delay: dice.one_in(2) },
        _ => Op::Answers { which: dice.below(6), tap: tap(dice) },
    }
}

fn of_relay(dice: &mut Dice) -> Op {
    match dice.below(10) {
        0..2 => Op::RelayPower { up: false },
        2..5 => Op::RelayPower { up: true },
        5..8 => Op::Cut { replaced: dice.one_in(3) },
        8 => Op::Refuses { messages: 1 + dice.below(4) },
        _ => Op::RelayFeatures { modern: !dice.one_in(4) },
    }
}

fn of_machine(dice: &mut Dice) -> Op {
    match dice.below(10) {
        0..3 => Op::Disk(Trouble::Refuse(1 + dice.below(3))),
        3 => Op::Disk(Trouble::Over),
        4 => Op::Disk(Trouble::CrashBefore(dice.below(3))),
        5 => Op::Disk(Trouble::CrashAfter(dice.below(3))),
        6..8 => Op::CrashOnWire { after: dice.below(6) },
        8 => Op::Restart(if dice.one_in(2) { Loss::PowerCut } else { Loss::Nothing }),
        _ if dice.one_in(6) => Op::Restart(Loss::Both),
        _ if dice.one_in(3) => Op::Restart(Loss::Database),
        _ => Op::Restart(Loss::Nothing),
    }
}

fn of_time(dice: &mut Dice) -> Op {
    const MINUTE: u64 = 60_000;
    match dice.below(24) {
        0..8 => Op::Waits { ms: 1 + u64::from(dice.below(200)) },
        8..16 => Op::Waits { ms: 1_000 + 200 * u64::from(dice.below(200)) },
        16..20 => Op::Waits { ms: MINUTE + MINUTE * u64::from(dice.below(6)) },
        20 => Op::Waits { ms: 20 * MINUTE },
        21 if dice.one_in(6) => Op::Waits { ms: 25 * 60 * MINUTE },
        22 => Op::ClockJumps { ms: -1_000 - 1_000 * i64::from(dice.below(200)) },
        23 if dice.one_in(2) => Op::ClockJumps { ms: if dice.one_in(2) { 90_000_000 } else { -90_000_000 } },
        _ => Op::ClockJumps { ms: 1_000 + 1_000 * i64::from(dice.below(200)) },
    }
}

/// The shortest history, as far as leaving out steps can find it, that still `fails`; gives up after so many tries.
pub(super) fn shrink(mut steps: Vec<Step>, mut tries: u64, fails: impl Fn(&[Step]) -> bool) -> Vec<Step> {
    let mut chunk = steps.len() / 2;
    while chunk > 0 {
        let mut at = 0;
        let before = steps.len();
        while at < steps.len() && tries > 0 {
            tries -= 1;
            let mut fewer = steps.clone();
            fewer.drain(at..steps.len().min(at + chunk));
            if fails(&fewer) {
                steps = fewer;
            } else {
                at += chunk;
            }
        }
        if chunk > 1 || steps.len() == before {
            chunk /= 2;
        }
    }
    steps
}

/// As it is written in a regression test.
pub(super) fn print(steps: &[Step]) -> String {
    let mut text = String::from("&[\n");
    for Step(op, flow) in steps {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "    Step({op:?}, {flow}),");
    }
    text + "]"
}
