//! `skald_fuzz::sealed` under libFuzzer.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| skald_fuzz::sealed::run(data));
