//! `skald_fuzz::push_services` under libFuzzer.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| skald_fuzz::push_services::run(data));
