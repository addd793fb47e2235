//! `skald_fuzz::socket_lines` under libFuzzer.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| skald_fuzz::socket_lines::run(data));
