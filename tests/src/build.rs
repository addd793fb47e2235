//! Where the programs under test are: beside the test program, built by cargo if they are missing or older than their
//! sources. `SKALD_TEST_BIN_DIR` names another folder, from which they are taken as they are.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The root of the repository.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ is in the repository")
}

/// The program of this name.
pub(crate) fn program(name: &str) -> PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| match std::env::var_os("SKALD_TEST_BIN_DIR") {
        Some(folder) => PathBuf::from(folder),
        None => build(),
    });
    let program = folder.join(name);
    assert!(
        program.is_file(),
        "{} is missing: build it with `cargo build -p skald-agentd -p skald-phone`",
        program.display()
    );
    program
}

/// Lets cargo look whether anything is to be built. The lock of the target folder is free while tests run.
fn build() -> PathBuf {
    let test = std::env::current_exe().expect("the test program has a path");
    // target/PROFILE/deps/test
    let folder = test.ancestors().nth(2).expect("the test program is in a target folder").to_owned();
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .args(["build", "--quiet", "--locked", "-p", "skald-agentd", "-p", "skald-phone", "--bins"])
        .current_dir(root());
    if folder.file_name().is_some_and(|profile| profile == "release") {
        command.arg("--release");
    }
    let output = command.output().expect("cargo builds the programs under test");
    assert!(
        output.status.success(),
        "the programs under test do not build (cargo build -p skald-agentd -p skald-phone):\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    folder
}
