//! The help texts are part of the interface: a change is seen in review. Rewrite them with `UPDATE_HELP=1`.

use std::path::Path;
use std::process::Command;

fn check(program: &str, file: &str, pages: &[&[&str]]) {
    let mut text = String::new();
    for page in pages {
        let mut command = Command::new(program);
        command.env_clear().env("COLUMNS", "100").args(*page).arg("--help");
        let output = command.output().expect("it runs");
        assert!(output.status.success(), "{page:?}");
        let help = String::from_utf8(output.stdout).expect("UTF-8");
        let name = Path::new(program).file_name().and_then(|name| name.to_str()).expect("a name");
        let line = [&[name], *page].concat().join(" ");
        text.extend(["$ ", &line, " --help\n", &help, "\n"]);
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/help").join(file);
    if std::env::var_os("UPDATE_HELP").is_some() {
        std::fs::write(&path, &text).expect("the file can be written");
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(text == expected, "the help differs from {}: look at it, then run with UPDATE_HELP=1", path.display());
}

#[test]
fn the_help_of_skald_phone_is_the_reviewed_one() {
    check(env!("CARGO_BIN_EXE_skald-phone"), "skald-phone.txt", &[&[], &["watch"], &["proxy"], &["notify-open"]]);
}
