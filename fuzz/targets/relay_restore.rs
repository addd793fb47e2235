//! `skald_fuzz::relay_restore` under libFuzzer.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| skald_fuzz::relay_restore::run(data));
