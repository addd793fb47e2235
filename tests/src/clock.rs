//! Another date for a single program, by a library that is preloaded into it: the program itself is the one that ships.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use crate::build::root;

/// Has the wall clock of this command's program show another time; seconds to add. False: not on this system.
pub fn shift_clock(command: &mut Command, secs: i64) -> bool {
    static LIBRARY: OnceLock<Option<PathBuf>> = OnceLock::new();
    let Some(library) = LIBRARY.get_or_init(build) else {
        eprintln!("skipped: no library can be preloaded here to change a program's date");
        return false;
    };
    command.env("LD_PRELOAD", library).env("SKALD_TEST_CLOCK_SECS", secs.to_string());
    true
}

/// A C compiler is there: `SQLite` was compiled along.
fn build() -> Option<PathBuf> {
    if !cfg!(target_os = "linux") {
        return None;
    }
    let test = std::env::current_exe().expect("the test program has a path");
    let library = test.with_extension("wall-clock.so");
    let output = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .arg(&library)
        .arg(root().join("tests/shims/wall_clock.c"))
        .arg("-ldl")
        .output()
        .expect("a C compiler");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(library)
}
