//! `skald_fuzz::relay_engine` under libFuzzer.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| skald_fuzz::relay_engine::run(data));
