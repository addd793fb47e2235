//! `skald_fuzz::pairing_code` under libFuzzer.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| skald_fuzz::pairing_code::run(data));
