//! What is measured, one module each.

pub(crate) mod forward;
pub(crate) mod idle;
pub(crate) mod pairing;
pub(crate) mod pipe;
pub(crate) mod roundtrip;
pub(crate) mod sizes;
pub(crate) mod start;
pub(crate) mod stored;

use std::time::Duration;

/// How often.
#[derive(Debug)]
pub(crate) struct Plan {
    /// Rounds of what is compared: its parts take turns, and the middle round counts.
    pub(crate) rounds: usize,
    /// Messages in each run of a round.
    pub(crate) messages: usize,
    /// Chunks of 64 KiB in each run through pipes.
    pub(crate) chunks: usize,
    /// Page loads, and pipes opened for a first byte.
    pub(crate) pages: usize,
    /// Round trips in each run.
    pub(crate) trips: usize,
    /// Answers of a person that go to the disk and to the program that asked.
    pub(crate) answers: usize,
    /// Messages stored for a phone that is away.
    pub(crate) stored: usize,
    /// Pairings.
    pub(crate) pairings: usize,
    /// Starts of the daemon.
    pub(crate) starts: usize,
    /// Idle connections.
    pub(crate) idle: usize,
    /// Until an idle object has left the memory: the runtime takes about ten seconds.
    pub(crate) hibernation: Duration,
}

impl Plan {
    /// For numbers.
    pub(crate) const FULL: Self = Self {
        rounds: 5,
        messages: 4_000,
        chunks: 8_000,
        pages: 40,
        trips: 2_000,
        answers: 150,
        stored: 2_000,
        pairings: 10,
        starts: 20,
        idle: 1_000,
        hibernation: Duration::from_secs(20),
    };
    /// To see that it works.
    pub(crate) const SMOKE: Self = Self {
        rounds: 1,
        messages: 100,
        chunks: 64,
        pages: 3,
        trips: 50,
        answers: 5,
        stored: 100,
        pairings: 1,
        starts: 1,
        idle: 4,
        hibernation: Duration::ZERO,
    };
}

/// Messages under way at a time where one after the other is not the question.
pub(crate) const IN_FLIGHT: usize = 32;

/// Says on standard error what is being measured: some of it takes a while.
pub(crate) fn progress(what: &str) {
    eprintln!("bench: {what}");
}
