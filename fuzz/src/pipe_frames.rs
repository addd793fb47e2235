//! The frames of one pipe on a wire that may do anything to them: whatever opens is what was sealed, in order, from the
//! beginning, and after the first that does not open nothing does.

use std::collections::VecDeque;

use skald_common::crypto::{PipeCipher, PipeEnd, PipeSecret};
use skald_common::ids::ConnectionId;

use crate::tape::Tape;

/// One direction: what was sealed, and how much of it has opened.
#[derive(Default)]
struct Direction {
    plain: Vec<Vec<u8>>,
    wire: VecDeque<Vec<u8>>,
    seen: Vec<Vec<u8>>,
    opened: usize,
    dead: bool,
}

/// The target.
pub fn run(data: &[u8]) {
    let mut tape = Tape::new(data);
    let (a, b) = (PipeSecret::new([1; 32]), PipeSecret::new([2; 32]));
    let (to_a, to_b) = (a.public(), b.public());
    // Ends that do not agree on the pipe open nothing of each other's.
    let strangers = tape.below(4) == 0;
    let other = ConnectionId::new([if strangers { 8 } else { 7 }; 32]);
    let mut ends = [
        a.agree(&to_b, ConnectionId::new([7; 32]), PipeEnd::Initiator).expect("good keys"),
        b.agree(&to_a, other, PipeEnd::Responder).expect("good keys"),
    ];
    let mut directions = [Direction::default(), Direction::default()];
    while !tape.ended() {
        let which = tape.below(2);
        let [first, second] = &mut ends;
        let (from, to) = if which == 0 { (first, second) } else { (second, first) };
        let choice = tape.below(7);
        // A frame that one has sealed oneself comes back.
        let reflected = (choice == 6).then(|| directions[1 - which].seen.first().cloned()).flatten();
        step(&mut directions[which], choice, reflected, &mut tape, from, to);
        assert!(!strangers || directions[which].opened == 0, "opens without an agreement");
    }
}

fn step(
    direction: &mut Direction,
    choice: usize,
    reflected: Option<Vec<u8>>,
    tape: &mut Tape<'_>,
    from: &mut PipeCipher,
    to: &mut PipeCipher,
) {
    match choice {
        0 | 1 => {
            let plain = tape.bytes();
            let Ok(sealed) = from.seal(plain) else { return assert!(plain.is_empty(), "does not seal") };
            assert_eq!(sealed.len(), plain.len() + 16);
            direction.plain.push(plain.to_vec());
            direction.seen.push(sealed.clone());
            direction.wire.push_back(sealed);
        }
        2 => deliver(direction, None, to),
        3 => {
            // Left out.
            direction.wire.pop_front();
        }
        4 => {
            if let Some(frame) = direction.wire.front_mut().filter(|frame| !frame.is_empty()) {
                let at = usize::from(tape.short()) % frame.len();
                match tape.below(3) {
                    0 => frame[at] ^= tape.byte(),
                    1 => frame.truncate(at),
                    _ => frame.push(tape.byte()),
                }
            }
        }
        5 => {
            let again = direction.seen.get(usize::from(tape.byte())).cloned();
            deliver(direction, again, to);
        }
        _ => deliver(direction, reflected, to),
    }
}

fn deliver(direction: &mut Direction, frame: Option<Vec<u8>>, to: &mut PipeCipher) {
    let Some(frame) = frame.or_else(|| direction.wire.pop_front()) else { return };
    match to.open(&frame) {
        Ok(plain) => {
            assert!(!direction.dead, "opens after one that did not");
            assert_eq!(Some(&plain), direction.plain.get(direction.opened), "opens what was not the next");
            assert_eq!(Some(&frame), direction.seen.get(direction.opened), "opens though changed");
            direction.opened += 1;
        }
        Err(_) => direction.dead = true,
    }
}
