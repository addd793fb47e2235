//! `skald_fuzz::routes` under libFuzzer.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| skald_fuzz::routes::run(data));
