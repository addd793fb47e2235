//! `skald_fuzz::phone_state` under libFuzzer.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| skald_fuzz::phone_state::run(data));
