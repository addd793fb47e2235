//! Every target, as libFuzzer drives it, over its corpus; and the corpus itself: each target has one, small, that begins
//! with the seeds. `SKALD_FUZZ_SEEDS=write` writes them anew.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use skald_fuzz::seeds;

/// A corpus is committed, so it stays small.
const MAX_CORPUS: u64 = 24 * 1024;

fn corpus(target: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target)
}

fn files(target: &str) -> Vec<PathBuf> {
    let folder = fs::read_dir(corpus(target)).unwrap_or_else(|error| panic!("corpus of {target}: {error}"));
    let mut files: Vec<PathBuf> = folder.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn replay(target: &str, program: &str) {
    let files = files(target);
    let size: u64 = files.iter().map(|file| file.metadata().unwrap().len()).sum();
    assert!(size <= MAX_CORPUS, "the corpus of {target} has {size} bytes: scripts/fuzz --minimise {target}");
    // Without instrumentation libFuzzer only runs the files it is given.
    let output = Command::new(program).arg("-rss_limit_mb=512").arg("-timeout=60").args(&files).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{target}: {}\n{said}", output.status);
    let run = said.lines().filter(|line| line.starts_with("Executed ")).count();
    assert_eq!(run, files.len(), "{said}");
}

macro_rules! targets {
    ($($target:ident)*) => {
        const TARGETS: &[&str] = &[$(stringify!($target)),*];

        $(#[test]
        fn $target() {
            replay(stringify!($target), env!(concat!("CARGO_BIN_EXE_", stringify!($target))));
        })*
    };
}

targets! {
    config pairing_code payload peer phone_state pipe_auth pipe_frames pipe_signal pipes push_body push_services relay_engine relay_restore routes sealed socket_lines wire
}

#[test]
fn every_target_is_replayed_and_has_seeds() {
    let manifest = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")).unwrap();
    assert_eq!(manifest.matches("\n[[bin]]\n").count(), TARGETS.len());
    for target in TARGETS {
        assert!(seeds::all().iter().any(|seed| seed.target == *target), "{target} has no seed");
    }
}

#[test]
fn the_seeds_are_what_the_product_makes_of_them_today() {
    let write = std::env::var_os("SKALD_FUZZ_SEEDS").is_some();
    for seed in seeds::all() {
        let path = corpus(seed.target).join(&seed.name);
        if write {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, &seed.bytes).unwrap();
        }
        let saved = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(saved == seed.bytes, "{} is not today's: scripts/fuzz --seeds", path.display());
    }
}
