//! A little of the fuzzer's work without the fuzzer, so that every run of the tests does some: mutations of each corpus, the
//! same ones every time. `SKALD_FUZZ_MUTATIONS=100000` does more, `SKALD_FUZZ_SEED=1` does others.

use std::fs;
use std::panic::catch_unwind;
use std::path::PathBuf;

const MUTATIONS: u64 = 500;
/// As long as what the fuzzer makes.
const MAX_LENGTH: usize = 16 * 1024;

/// `SplitMix64`.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % n.max(1) as u64).unwrap()
    }

    fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }

    /// A place to cut.
    fn place(&mut self, bytes: &[u8]) -> usize {
        self.below(bytes.len() + 1)
    }
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a number"))
}

fn mutate(dice: &mut Dice, bytes: &mut Vec<u8>, corpus: &[Vec<u8>]) {
    let at = dice.place(bytes);
    match dice.below(6) {
        0 => {
            let flip = 1 << dice.below(8);
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= flip;
            }
        }
        1 => {
            let new = dice.byte();
            if let Some(byte) = bytes.get_mut(at) {
                *byte = new;
            }
        }
        2 => bytes.insert(at, dice.byte()),
        3 => {
            let end = (at + dice.below(9)).min(bytes.len());
            bytes.drain(at..end);
        }
        4 => {
            let end = (at + dice.below(40)).min(bytes.len());
            let again = bytes[at..end].to_vec();
            let to = dice.place(bytes);
            bytes.splice(to..to, again);
        }
        _ => {
            let other = &corpus[dice.below(corpus.len())];
            let from = dice.place(other);
            bytes.truncate(at);
            bytes.extend(&other[from..]);
        }
    }
    bytes.truncate(MAX_LENGTH);
}

fn survive(target: &str, run: fn(&[u8])) {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let mut files: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let corpus: Vec<Vec<u8>> = files.iter().map(|file| fs::read(file).unwrap()).collect();
    let mut dice = Dice(number("SKALD_FUZZ_SEED", 0));
    for _ in 0..number("SKALD_FUZZ_MUTATIONS", MUTATIONS) {
        let mut bytes = corpus[dice.below(corpus.len())].clone();
        for _ in 0..=dice.below(8) {
            mutate(&mut dice, &mut bytes, &corpus);
        }
        if catch_unwind(|| run(&bytes)).is_err() {
            let path = std::env::temp_dir().join(format!("skald-fuzz-{target}"));
            fs::write(&path, &bytes).unwrap();
            panic!("{target} failed above; its input is in {}", path.display());
        }
    }
}

macro_rules! targets {
    ($($target:ident)*) => {
        $(#[test]
        fn $target() {
            survive(stringify!($target), skald_fuzz::$target::run);
        })*
    };
}

targets! {
    config pairing_code payload peer phone_state pipe_auth pipe_frames pipe_signal pipes push_body push_services relay_engine relay_restore routes sealed socket_lines wire
}
