//! Errors say what is wrong and where; of what was read they repeat nothing.

/// Checks that an error's words come from us: with the digits taken out it is one of the `known`.
pub fn assert_quiet(error: &str, known: &[&str]) {
    let words: String = error.chars().filter(|c| !c.is_ascii_digit()).collect();
    assert!(known.contains(&&*words), "an error in other words than ours: {error:?}");
}

/// What `skald_common::payload::describe` says.
pub const JSON: [&str; 4] = [
    "cannot be read (line , column )",
    "is not JSON (line , column )",
    "has a missing field or one of the wrong type (line , column )",
    "ends too early (line , column )",
];
