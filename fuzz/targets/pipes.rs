//! `skald_fuzz::pipes` under libFuzzer.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| skald_fuzz::pipes::run(data));
