//! Histories that once broke a rule, as the failing suite printed them.

use super::disk::Disk;
use super::disk::Trouble::*;
use super::history::Op::*;
use super::history::Reaction::*;
use super::history::Step;
use super::history::Tap::*;
use super::run;

fn replay(seed: u64, steps: &[Step]) {
    if let Err(broken) = run(steps, seed, Disk::model()) {
        panic!("oracle: {}", broken.what);
    }
}

/// A message that could not be stored was remembered as answered, and not heard when it came again.
#[test]
fn an_answer_that_the_disk_refused_counts_when_it_comes_again() {
    let steps = [
        Step(RelayPower { up: true }, 255),
        Step(Settings { confirm: false, delay: true }, 255),
        Step(Waits { ms: 2400 }, 1),
        Step(HostConnects { host: 2, linger: 3 }, 255),
        Step(OpensWindow, 255),
        Step(HostConnects { host: 0, linger: 2 }, 255),
        Step(PhoneWakes { phone: 3 }, 255),
        Step(Raise { host: 2, kind: 2, number: 0, content: 0, large: false, life: 0 }, 255),
        Step(Pairs { phone: 3 }, 255),
        Step(Raise { host: 0, kind: 1, number: 2, content: 0, large: false, life: 2 }, 255),
        Step(Raise { host: 2, kind: 0, number: 2, content: 2, large: false, life: 0 }, 255),
        Step(TappedOld { phone: 3, which: 6, tap: Yes }, 255),
        Step(Disk(Refuse(3)), 255),
        Step(Tapped { phone: 3, which: 5, tap: No }, 255),
        Step(TappedOld { phone: 3, which: 10, tap: No }, 255),
        Step(Waits { ms: 11800 }, 0),
        Step(Call { host: 0, reaction: Act }, 3),
    ];
    replay(2128, &steps);
}

/// The value of a prompt, held in memory alone, outlived the step that the disk had refused.
#[test]
fn an_answer_that_was_refused_with_an_error_is_never_delivered() {
    let steps = [
        Step(HostConnects { host: 2, linger: 2 }, 255),
        Step(Raise { host: 2, kind: 2, number: 2, content: 1, large: false, life: 0 }, 2),
        Step(RelayPower { up: true }, 255),
        Step(Settings { confirm: false, delay: false }, 255),
        Step(Waits { ms: 60_000 }, 255),
        Step(OpensWindow, 255),
        Step(Pairs { phone: 1 }, 255),
        Step(Disk(Refuse(2)), 2),
        Step(Answers { which: 0, tap: Yes }, 3),
    ];
    replay(75, &steps);
}

/// Phones were told that a prompt is gone, its value was lost with the process, and nobody told them that it is back.
#[test]
fn a_prompt_whose_answer_was_lost_with_a_crash_shows_again_by_itself() {
    let steps = [
        Step(RelayPower { up: true }, 255),
        Step(Settings { confirm: false, delay: true }, 255),
        Step(HostConnects { host: 2, linger: 3 }, 255),
        Step(Waits { ms: 3000 }, 255),
        Step(OpensWindow, 255),
        Step(Raise { host: 2, kind: 2, number: 0, content: 0, large: false, life: 0 }, 1),
        Step(Pairs { phone: 3 }, 255),
        Step(Answers { which: 0, tap: Nonsense }, 255),
        Step(CrashOnWire { after: 2 }, 255),
        Step(Waits { ms: 300_000 }, 255),
    ];
    replay(2128, &steps);
}

/// The relay's word that a device has paired was lost with the write that was refused, and so was the device.
#[test]
fn a_pairing_that_the_disk_refused_is_not_lost() {
    let steps = [
        Step(Settings { confirm: false, delay: true }, 1),
        Step(HostConnects { host: 0, linger: 1 }, 255),
        Step(RelayPower { up: true }, 255),
        Step(Waits { ms: 180_000 }, 255),
        Step(OpensWindow, 1),
        Step(PairsWithOtherKey { phone: 1 }, 255),
        Step(Raise { host: 0, kind: 2, number: 0, content: 0, large: false, life: 3 }, 255),
        Step(OpensWindow, 255),
        Step(Disk(Refuse(3)), 255),
        Step(PairsWithOtherKey { phone: 1 }, 255),
    ];
    replay(2755, &steps);
}

/// A device that paired again when no window of ours was open stayed pending at the relay, which let nothing through.
#[test]
fn a_device_that_pairs_again_unasked_is_not_deaf_afterwards() {
    let steps = [
        Step(Settings { confirm: false, delay: true }, 1),
        Step(RelayPower { up: true }, 255),
        Step(Waits { ms: 180_000 }, 255),
        Step(OpensWindow, 1),
        Step(Waits { ms: 90_000_000 }, 255),
        Step(PairsWithOtherKey { phone: 1 }, 255),
        Step(Refuses { messages: 4 }, 1),
        Step(Disk(CrashBefore(1)), 3),
        Step(OpensWindow, 255),
        Step(PairsWithOtherKey { phone: 1 }, 255),
    ];
    replay(2755, &steps);
}

/// A host was called with an answer, let a day pass, and was called with another one.
#[test]
fn an_answer_that_its_host_was_called_with_is_not_replaced_however_old_it_is() {
    let steps = [
        Step(HostConnects { host: 0, linger: 3 }, 255),
        Step(Raise { host: 0, kind: 0, number: 2, content: 0, large: false, life: 0 }, 255),
        Step(Answers { which: 0, tap: Yes }, 255),
        Step(ClockJumps { ms: 90_000_000 }, 255),
        Step(Answers { which: 1, tap: No }, 2),
        Step(Raise { host: 0, kind: 1, number: 2, content: 0, large: false, life: 0 }, 255),
    ];
    replay(4334, &steps);
}

/// A host read its call a day late, when the answer had been given up: the day is reckoned from the answer.
#[test]
fn an_answer_may_be_replaced_once_it_is_a_day_old_and_its_host_has_not_looked() {
    let steps = [
        Step(HostConnects { host: 1, linger: 3 }, 255),
        Step(Raise { host: 1, kind: 1, number: 0, content: 0, large: false, life: 0 }, 255),
        Step(Answers { which: 3, tap: Yes }, 255),
        Step(Waits { ms: 90_000_000 }, 255),
        Step(Call { host: 1, reaction: Ignore }, 255),
        Step(HostVanishes { host: 1 }, 255),
        Step(Answers { which: 0, tap: No }, 255),
    ];
    replay(497, &steps);
}

/// The disk refused to forget a device: its tunnel was ended by the hub, and went on all the same.
#[test]
fn a_tunnel_whose_end_could_not_be_stored_has_ended() {
    let steps = [
        Step(RelayPower { up: true }, 255),
        Step(WebPort { on: true }, 255),
        Step(Waits { ms: 180_000 }, 255),
        Step(OpensWindow, 255),
        Step(Pairs { phone: 0 }, 255),
        Step(Authorizes { phone: 0 }, 255),
        Step(PhoneWakes { phone: 0 }, 255),
        Step(Invites { phone: 0, known: true, live: true }, 255),
        Step(ServerAnswers { which: 0, well: true }, 255),
        Step(Disk(Refuse(1)), 255),
        Step(Revokes { phone: 0 }, 255),
    ];
    replay(1, &steps);
}

/// A phone paired again with a window that the relay still had open and the daemon had not: the relay had thrown away what
/// waited for it, and it was sent nothing in its place.
#[test]
fn a_phone_that_paired_again_too_late_is_still_owed_the_inbox() {
    let steps = [
        Step(RelayPower { up: true }, 255),
        Step(Settings { confirm: false, delay: false }, 255),
        Step(Waits { ms: 14_400 }, 255),
        Step(OpensWindow, 255),
        Step(Pairs { phone: 1 }, 255),
        Step(HostConnects { host: 0, linger: 3 }, 255),
        Step(Raise { host: 0, kind: 2, number: 0, content: 0, large: false, life: 0 }, 1),
        Step(OpensWindow, 255),
        Step(Waits { ms: 1_200_000 }, 255),
        Step(Pairs { phone: 1 }, 2),
    ];
    replay(5986, &steps);
}

/// The disk refused an answer, and its phone was told all the same that it counts. A relay without receipts had lost it by
/// then, and the next answer was delivered.
#[test]
fn an_answer_that_the_disk_refused_is_not_told_to_count() {
    let steps = [
        Step(RelayPower { up: true }, 255),
        Step(PhoneWakes { phone: 0 }, 255),
        Step(Settings { confirm: false, delay: false }, 1),
        Step(RelayFeatures { modern: false }, 2),
        Step(HostConnects { host: 0, linger: 1 }, 3),
        Step(Waits { ms: 300_000 }, 255),
        Step(OpensWindow, 1),
        Step(Pairs { phone: 0 }, 255),
        Step(Raise { host: 0, kind: 0, number: 2, content: 0, large: false, life: 2 }, 2),
        Step(Disk(Refuse(1)), 255),
        Step(Tapped { phone: 0, which: 3, tap: No }, 255),
        Step(Waits { ms: 11_400 }, 255),
        Step(Tapped { phone: 0, which: 1, tap: Yes }, 255),
        Step(Raise { host: 0, kind: 0, number: 1, content: 0, large: false, life: 0 }, 255),
    ];
    replay(23867, &steps);
}
