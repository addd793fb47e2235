//! Histories of hosts, phones, relay, owner, disk and clock, made from seeds and run through the daemon's own core: hub,
//! connection and the code that carries steps out are the product's; disk, wire and time are not.
//!
//! A history can be cut at any step, by a refused write, a crash before or after a write or in the midst of its effects,
//! a power cut, a lost database. After each step the [`oracle`] checks its rules; at the end everything heals, and then
//! nothing may be missing anywhere ([`calm`]). A failing history is printed short, to be pasted into a test.
//!
//! `SIMULATION_STEPS` runs so many steps instead of the suite's, `SIMULATION_SEED` begins with another seed, and
//! `SIMULATION_SHRINK` is how many shorter histories are tried at most.

mod acts;
mod calm;
mod disk;
mod history;
mod host;
mod oracle;
mod phone;
mod regressions;
mod relay;
mod thread;
mod tunnels;
mod world;

use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};

use disk::Disk;
use history::Step;
use world::World;

use super::BUILD_DATE;

/// Steps in the suite.
const STEPS: u64 = 200_000;
/// Steps of one history.
const LENGTH: usize = 200;
/// When histories begin.
const START: u64 = BUILD_DATE + 30 * super::HOUR;

/// Thrown where the process is to die.
struct Crash;

impl Crash {
    fn now() -> ! {
        resume_unwind(Box::new(Self))
    }
}

/// Thrown where a rule is broken.
#[derive(Debug)]
struct Broken {
    what: String,
    /// Where the rule stands: a history is shortened for as long as it breaks the same.
    rule: u32,
}

/// A rule of the oracle.
#[track_caller]
fn demand(holds: bool, what: impl FnOnce() -> String) {
    if !holds {
        resume_unwind(Box::new(Broken { what: what(), rule: Location::caller().line() }));
    }
}

/// Runs a history to its end and through the calm after it; gives the rule that was broken.
fn run(steps: &[Step], seed: u64, disk: Disk) -> Result<(), Broken> {
    let run = catch_unwind(AssertUnwindSafe(|| {
        let mut world = World::new(seed, disk);
        for step in steps {
            world.step(*step);
        }
        calm::check(&mut world);
    }));
    run.map_err(|payload| {
        let panic = |text: &str| Broken { what: format!("a panic: {text}"), rule: 0 };
        match payload.downcast::<Broken>() {
            Ok(broken) => *broken,
            Err(payload) => match payload.downcast_ref::<String>() {
                Some(text) => panic(text),
                None => panic(payload.downcast_ref::<&str>().unwrap_or(&"of no words")),
            },
        }
    })
}

/// Runs a history; one that breaks a rule is shortened first.
fn check(steps: Vec<Step>, seed: u64) {
    let Err(Broken { what, rule }) = run(&steps, seed, Disk::model()) else { return };
    let same = |steps: &[Step]| run(steps, seed, Disk::model()).is_err_and(|broken| broken.rule == rule);
    let tries = variable("SIMULATION_SHRINK").unwrap_or(600);
    let short = history::shrink(steps, tries, same);
    let last = run(&short, seed, Disk::model()).unwrap_err().what;
    let (count, steps) = (short.len(), history::print(&short));
    panic!("oracle, seed {seed}: {what}\nshortened to {count} steps: {last}\nreplay({seed}, {steps});");
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// One of so many parts of the suite, each of which runs in a thread of its own.
fn part(number: u64, of: u64) {
    let length = u64::try_from(LENGTH).unwrap();
    let histories = variable("SIMULATION_STEPS").unwrap_or(STEPS).div_ceil(length);
    let first = variable("SIMULATION_SEED").unwrap_or(1);
    for seed in (first..first + histories).filter(|seed| seed % of == number) {
        check(history::generate(seed, LENGTH), seed);
    }
}

#[test]
fn no_rule_is_broken_in_any_history_of_even_seed() {
    part(0, 2);
}

#[test]
fn no_rule_is_broken_in_any_history_of_odd_seed() {
    part(1, 2);
}

#[test]
fn the_model_of_the_disk_is_the_database() {
    for seed in 1..=8 {
        let steps = history::generate(seed, LENGTH);
        run(&steps, seed, Disk::twin(START)).unwrap_or_else(|broken| panic!("seed {seed}: {broken:?}"));
    }
}

#[test]
fn a_history_is_the_same_each_time() {
    let trace = |seed| {
        let mut world = World::new(seed, Disk::model());
        for step in history::generate(seed, LENGTH) {
            world.step(step);
        }
        world.trace()
    };
    assert_eq!(trace(5), trace(5));
    assert_ne!(trace(5), trace(6));
}
