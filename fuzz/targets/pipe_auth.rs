//! `skald_fuzz::pipe_auth` under libFuzzer.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| skald_fuzz::pipe_auth::run(data));
