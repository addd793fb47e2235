//! `skald_fuzz::pipe_signal` under libFuzzer.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| skald_fuzz::pipe_signal::run(data));
