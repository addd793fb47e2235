//! The daemon's settings file, written by hand: read, changed by a call, and read again.

use std::collections::BTreeMap;

use skald_agentd::config::{ConfigError, ConfigStore, Setting, Value};

use crate::tape::Tape;

/// The target.
pub fn run(data: &[u8]) {
    let mut tape = Tape::new(data);
    let setting = Setting::ALL[tape.below(Setting::ALL.len())];
    let value = match tape.below(5) {
        0 => Value::Unset,
        1 => Value::Text(String::from_utf8_lossy(tape.bytes()).into_owned()),
        2 => Value::Integer(tape.number().cast_signed()),
        3 => Value::Boolean(tape.byte() & 1 == 1),
        _ => Value::Other,
    };
    let text = tape.rest();
    FOLDER.with(|folder| {
        let path = folder.path().join("config.toml");
        std::fs::write(&path, text).expect("a folder to write in");
        let opened = ConfigStore::open(&path, &|_| None);
        match opened {
            Ok(store) => change(store, setting, value),
            Err(ConfigError::Syntax { line, .. } | ConfigError::InFile { line, .. }) => {
                let lines = text.split(|byte| *byte == b'\n').count();
                assert!((1..=lines).contains(&line), "a mistake in line {line} of {lines}");
            }
            Err(ConfigError::Read { .. }) => assert!(std::str::from_utf8(text).is_err(), "a text that is not read"),
            Err(other) => panic!("{other}"),
        }
    });
}

thread_local! {
    static FOLDER: tempfile::TempDir = tempfile::tempdir().expect("a temporary folder");
}

/// A change is in force, in the file, and changes nothing else; or it is refused and changes nothing at all.
fn change(mut store: ConfigStore, setting: Setting, value: Value) {
    let (before, path) = (store.current().clone(), store.path().to_owned());
    let file = std::fs::read(&path).expect("just written");
    let mut expected = before.clone();
    let allowed = expected.set(setting, &value).is_ok();
    let changed = store.set(&BTreeMap::from([(setting.name().to_owned(), value)])).cloned();
    let reread = ConfigStore::open(&path, &|_| None).expect("what was written can be read").current().clone();
    if let Ok(config) = changed {
        assert!(allowed, "a wrong value was taken");
        assert_eq!(config, expected, "another setting changed");
        assert_eq!(reread, config, "the file says otherwise");
    } else {
        assert!(!allowed, "a right value was refused");
        assert_eq!((store.current(), &reread), (&before, &before));
        assert_eq!(std::fs::read(&path).expect("still there"), file, "a refused change touched the file");
    }
}
