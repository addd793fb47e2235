//! Random histories of a namespace against an oracle. Peers old and new come by both routes, vanish, clog, flood and lie;
//! devices are paired, authorized and revoked; storage fails, the object is evicted between any two events and panics at
//! any point; the clock jumps. After every input the promises are checked.
//!
//! | module | |
//! |---|---|
//! | [`history`] | what can happen: a list of operations, printable as code |
//! | [`generate`] | a history from a seed |
//! | [`platform`] | sockets, clock, alarm, timer, database, evictions, panics |
//! | [`run`] | the peers, and what carries a history out |
//! | [`oracle`] | what must hold, from a record of its own |
//! | [`memory`] | how much the engine may keep in memory |
//! | [`shrink`] | what of a failing history is needed |
//! | [`regressions`] | histories that once failed |
//!
//! More of it: docs/testing.md.

mod generate;
mod history;
mod memory;
mod oracle;
mod platform;
mod regressions;
mod run;
mod shrink;

use std::sync::atomic::{AtomicU64, Ordering};

use super::{DAY, START};
use history::{History, Op, Setup};
use run::Run;

/// Operations of one history.
const STEPS: usize = 400;
/// Operations in the suite.
const SUITE: u64 = 200_000;

/// A promise that was not kept.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Broken {
    rule: &'static str,
    detail: String,
}

type Verdict<T = ()> = Result<T, Broken>;

impl Broken {
    const fn new(rule: &'static str, detail: String) -> Self {
        Self { rule, detail }
    }
}

/// Breaks off unless the condition holds.
macro_rules! demand {
    ($holds:expr, $rule:literal, $($detail:tt)+) => {
        if !$holds {
            return Err($crate::engine::tests::simulation::Broken::new($rule, format!($($detail)+)));
        }
    };
}
use demand;

/// What the promises say to a history.
fn replay(history: &History) -> Verdict {
    Run::all(history)
}

/// For the histories in [`regressions`].
fn holds(setup: Setup, ops: Vec<Op>) {
    if let Err(broken) = replay(&History { setup, ops }) {
        panic!("oracle: {}: {}", broken.rule, broken.detail);
    }
}

/// The report on a seed that failed: what is needed of it, as a test.
fn report(seed: u64, history: &History, broken: &Broken) -> String {
    if variable("SIMULATION_SHRINK") == Some(0) {
        return format!("oracle: seed {seed}: {}: {}", broken.rule, broken.detail);
    }
    let same = |ops: &[Op]| {
        let again = History { setup: history.setup, ops: ops.to_vec() };
        replay(&again).is_err_and(|other| other.rule == broken.rule)
    };
    let ops = shrink::shrink(&history.ops, same);
    let shrunk = History { setup: history.setup, ops };
    let detail = replay(&shrunk).err().map_or_else(String::new, |broken| broken.detail);
    format!(
        "oracle: seed {seed}: {}: {detail}\n{} of {} operations are needed:\n{}",
        broken.rule,
        shrunk.ops.len(),
        history.ops.len(),
        shrunk.as_code(&format!("seed_{seed}"))
    )
}

/// Histories until there have been enough operations, on two threads; the report on the first that fails.
fn search(first: u64, operations: u64, steps: usize) -> Option<String> {
    let next = AtomicU64::new(first);
    let end = first + operations.div_ceil(steps as u64);
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= end {
                return None;
            }
            let history = generate::history(seed, steps);
            if let Err(broken) = replay(&history) {
                next.store(end, Ordering::Relaxed);
                return Some(report(seed, &history, &broken));
            }
        }
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(work);
        let mine = work();
        mine.or(other.join().unwrap())
    })
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn every_promise_holds_in_random_histories() {
    let first = variable("SIMULATION_SEED").unwrap_or(0);
    let operations = variable("SIMULATION_STEPS").unwrap_or(SUITE);
    if let Some(report) = search(first, operations, STEPS) {
        panic!("{report}");
    }
}

#[test]
fn the_same_seed_is_the_same_history_and_another_is_another() {
    assert_eq!(generate::history(7, STEPS), generate::history(7, STEPS));
    assert_ne!(generate::history(7, STEPS).ops, generate::history(8, STEPS).ops);
}

#[test]
fn a_failing_list_shrinks_to_what_it_needs() {
    let list: Vec<u32> = (0..500).collect();
    let needs = |ops: &[u32]| [3, 77, 78, 499].iter().all(|n| ops.contains(n));
    assert_eq!(shrink::shrink(&list, needs), [3, 77, 78, 499]);
    assert_eq!(shrink::shrink(&list, |_| true), [0; 0]);
    let in_order = |ops: &[u32]| ops.windows(2).any(|pair| pair[1] - pair[0] > 100);
    assert_eq!(shrink::shrink(&[5, 6, 300, 301, 700], in_order).len(), 2);
}
