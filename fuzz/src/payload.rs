//! The JSON that agent and devices exchange: whatever can be read is written so that it reads the same.

use skald_common::payload::{Kind, Payload, PayloadError, ToAgent, ToDevice};

use crate::quiet::{JSON, assert_quiet};
use crate::tape::Tape;

const NOW: u64 = 1_750_000_000_000;

/// The target.
pub fn run(data: &[u8]) {
    let mut tape = Tape::new(data);
    let now = if tape.byte() & 1 == 0 { NOW } else { NOW + tape.number() };
    let json = tape.rest();
    read::<ToAgent>(json, now);
    read::<ToDevice>(json, now);
}

fn read<K: Kind + PartialEq + std::fmt::Debug>(json: &[u8], now: u64) {
    match Payload::<K>::parse(json, now) {
        Ok(payload) => {
            let again = payload.to_json();
            assert_eq!(again.capacity(), again.len(), "a copy of a secret may be left behind");
            assert_eq!(Payload::<K>::parse(&again, now).as_ref(), Ok(&payload), "written otherwise than read");
        }
        Err(PayloadError::Malformed(what)) => {
            if what != "id is empty or too long" {
                assert_quiet(&what, &JSON);
            }
        }
        Err(_) => {}
    }
}
