//! The settings file: read with the place of each mistake, written without losing comments.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use toml_edit::{Document, DocumentMut};

use super::{Config, InvalidSetting, Setting, Value};
use crate::paths::Env;

/// Mode of a settings file that we create.
const NEW_FILE_MODE: u32 = 0o600;

/// Why the settings could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file is there and cannot be read.
    #[error("cannot read the settings in {}: {error}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// Not TOML.
    #[error("{}, line {line}: {what}", path.display())]
    Syntax {
        /// Which file.
        path: PathBuf,
        /// Where, from 1.
        line: usize,
        /// What is wrong.
        what: String,
    },
    /// A wrong value in the file.
    #[error("{}, line {line}: {invalid}", path.display())]
    InFile {
        /// Which file.
        path: PathBuf,
        /// Where, from 1.
        line: usize,
        /// What is wrong.
        invalid: InvalidSetting,
    },
    /// A wrong value in the environment.
    #[error("environment variable {variable}: {}", invalid.what)]
    InEnvironment {
        /// Which variable.
        variable: String,
        /// What is wrong.
        invalid: InvalidSetting,
    },
    /// A wrong value in a call.
    #[error(transparent)]
    InCall(#[from] InvalidSetting),
    /// A change would have no effect.
    #[error("{setting}: the environment variable {variable} of the daemon overrides the file: change it there")]
    Overridden {
        /// Which setting.
        setting: Setting,
        /// By which variable.
        variable: String,
    },
    /// The file cannot be written; nothing was changed.
    #[error("cannot write the settings to {}: {error}", path.display())]
    Write {
        /// Which file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
}

/// The settings and where they come from.
#[derive(Debug)]
pub struct ConfigStore {
    path: PathBuf,
    overrides: BTreeMap<Setting, Value>,
    current: Config,
}

impl ConfigStore {
    /// Reads the file, which need not exist, and the overrides in the environment.
    pub fn open(path: &Path, env: Env<'_>) -> Result<Self, ConfigError> {
        let overrides = overrides(env)?;
        let mut store = Self { path: path.to_owned(), overrides, current: Config::default() };
        store.reload()?;
        Ok(store)
    }

    /// The settings in force.
    pub const fn current(&self) -> &Config {
        &self.current
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the file again. On an error the settings stay as they are.
    pub fn reload(&mut self) -> Result<&Config, ConfigError> {
        let text = self.read()?;
        self.current = self.evaluate(&text)?;
        Ok(&self.current)
    }

    /// Changes settings: all or none. Checked, written to the file, then in force.
    pub fn set(&mut self, changes: &BTreeMap<String, Value>) -> Result<&Config, ConfigError> {
        let text = self.read()?;
        let mut document = parse(&self.path, &text)?.into_mut();
        for (name, value) in changes {
            let setting = Setting::by_name(name)?;
            if self.overrides.contains_key(&setting) {
                return Err(ConfigError::Overridden { setting, variable: setting.variable() });
            }
            // On a copy: whatever else is in the file must not hide what is wrong with the change itself.
            Config::default().set(setting, value)?;
            change(&mut document, setting, value);
        }
        let text = document.to_string();
        let config = self.evaluate(&text)?;
        write(&self.path, &text).map_err(|error| ConfigError::Write { path: self.path.clone(), error })?;
        self.current = config;
        Ok(&self.current)
    }

    fn read(&self) -> Result<String, ConfigError> {
        match fs::read_to_string(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
            read => read.map_err(|error| ConfigError::Read { path: self.path.clone(), error }),
        }
    }

    fn evaluate(&self, text: &str) -> Result<Config, ConfigError> {
        let mut config = Config::default();
        let document = parse(&self.path, text)?;
        for (name, item) in document.iter() {
            Setting::by_name(name).and_then(|setting| config.set(setting, &Value::from(item))).map_err(|invalid| {
                let start = document.key(name).and_then(toml_edit::Key::span).map_or(0, |span| span.start);
                ConfigError::InFile { path: self.path.clone(), line: line(text, start), invalid }
            })?;
        }
        for (&setting, value) in &self.overrides {
            config.set(setting, value)?;
        }
        Ok(config)
    }
}

fn overrides(env: Env<'_>) -> Result<BTreeMap<Setting, Value>, ConfigError> {
    let mut overrides = BTreeMap::new();
    for setting in Setting::ALL {
        let variable = setting.variable();
        let Some(text) = env(&variable) else { continue };
        let value = text.into_string().map_or(Value::Other, Value::Text);
        // Set but empty: the default, also for those that are no text.
        let value = if value == Value::Text(String::new()) { Value::Unset } else { value };
        if let Err(invalid) = Config::default().set(setting, &value) {
            return Err(ConfigError::InEnvironment { variable, invalid });
        }
        overrides.insert(setting, value);
    }
    Ok(overrides)
}

fn parse<'a>(path: &Path, text: &'a str) -> Result<Document<&'a str>, ConfigError> {
    Document::parse(text).map_err(|error| ConfigError::Syntax {
        path: path.to_owned(),
        line: line(text, error.span().map_or(0, |span| span.start)),
        what: error.message().lines().next().unwrap_or("is not TOML").to_owned(),
    })
}

fn line(text: &str, offset: usize) -> usize {
    1 + text.bytes().take(offset).filter(|&byte| byte == b'\n').count()
}

/// Replaces a value and keeps the comments around it.
fn change(document: &mut DocumentMut, setting: Setting, value: &Value) {
    let mut new = match value {
        Value::Text(text) => natural(setting, text),
        Value::Integer(number) => (*number).into(),
        Value::Boolean(value) => (*value).into(),
        Value::Unset | Value::Other => {
            document.remove(setting.name());
            return;
        }
    };
    if let Some(old) = document.get(setting.name()).and_then(toml_edit::Item::as_value) {
        *new.decor_mut() = old.decor().clone();
    }
    document[setting.name()] = toml_edit::Item::Value(new);
}

/// Text that stands for a number or a truth value is written as one.
fn natural(setting: Setting, text: &str) -> toml_edit::Value {
    match setting {
        Setting::RelayUrl | Setting::QrUrl => text.trim().into(),
        _ => text.trim().parse::<i64>().map_or_else(|_| (text == "true").into(), Into::into),
    }
}

/// Writes beside the file and renames, so that a reader or a crash sees the old or the new whole. Keeps the mode; follows
/// a link rather than replacing it.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let mode = fs::metadata(&path).map_or(NEW_FILE_MODE, |metadata| metadata.permissions().mode() & 0o777);
    let mut file = tempfile::Builder::new()
        .prefix(".config")
        .suffix(".toml")
        .permissions(fs::Permissions::from_mode(mode))
        .tempfile_in(folder)?;
    file.write_all(text.as_bytes())?;
    // The umask may have taken bits of the mode.
    file.as_file().set_permissions(fs::Permissions::from_mode(mode))?;
    file.as_file().sync_all()?;
    file.persist(&path).map_err(|error| error.error)?;
    fs::File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    fn no_env(_: &str) -> Option<OsString> {
        None
    }

    struct Fixture {
        _folder: tempfile::TempDir,
        path: PathBuf,
    }

    fn file(text: &str) -> Fixture {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.toml");
        fs::write(&path, text).unwrap();
        Fixture { _folder: folder, path }
    }

    fn changes(pairs: &[(&str, Value)]) -> BTreeMap<String, Value> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect()
    }

    #[test]
    fn the_environment_overrides_the_file_which_overrides_the_defaults() {
        let file = file("relay_url = \"ws://file/v1/ws\"\npairing_ttl = 60\n");
        let env = |name: &str| match name {
            "SKALD_AGENTD_RELAY_URL" => Some(OsString::from("ws://env/v1/ws")),
            "SKALD_AGENTD_WEB_PORT" => Some(OsString::from("")),
            _ => None,
        };
        let mut store = ConfigStore::open(&file.path, &env).unwrap();
        let config = store.current();
        assert_eq!((config.relay_url.as_str(), config.pairing_ttl), ("ws://env/v1/ws", 60));
        assert_eq!((config.notify_delay_secs, config.web_port), (20, None));
        let error = store.set(&changes(&[("relay_url", Value::Text("ws://new".into()))])).unwrap_err();
        assert!(error.to_string().contains("SKALD_AGENTD_RELAY_URL"), "{error}");
        assert_eq!(fs::read_to_string(&file.path).unwrap(), "relay_url = \"ws://file/v1/ws\"\npairing_ttl = 60\n");
    }

    #[test]
    fn mistakes_are_named_with_file_and_line_or_variable() {
        for (text, expected) in [
            ("pairing_ttl = 60\nrelay-url = \"\"\n", "config.toml, line 2: relay-url: there is no such setting"),
            ("# a\n\npairing_ttl = 1.5", "config.toml, line 3: pairing_ttl: must be a whole number from 1 to 600"),
            ("relay_url = \"http://x\"", "config.toml, line 1: relay_url: must begin with"),
            ("[relay_url]\nx = 1", "config.toml, line 1: relay_url: must be a text"),
            ("pairing_ttl = 60\nweb_port = ", "config.toml, line 2: "),
        ] {
            let file = file(text);
            let error = ConfigStore::open(&file.path, &no_env).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        let file = file("");
        let env = |name: &str| (name == "SKALD_AGENTD_PAIRING_TTL").then(|| OsString::from("soon"));
        let error = ConfigStore::open(&file.path, &env).unwrap_err().to_string();
        assert_eq!(error, "environment variable SKALD_AGENTD_PAIRING_TTL: must be a whole number from 1 to 600");
    }

    #[test]
    fn a_missing_file_means_the_defaults_and_is_made_by_the_first_change() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/config.toml");
        let mut store = ConfigStore::open(&path, &no_env).unwrap();
        assert_eq!(*store.current(), Config::default());
        store.set(&changes(&[("web_port", Value::Integer(8080))])).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "web_port = 8080\n");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn changes_keep_comments_order_mode_and_links() {
        let file = file("# mine\nrelay_url = \"ws://a\" # here\n\n# wait\npairing_ttl = 60\nweb_port = 80\n");
        fs::set_permissions(&file.path, fs::Permissions::from_mode(0o640)).unwrap();
        let link = file.path.with_file_name("link.toml");
        std::os::unix::fs::symlink(&file.path, &link).unwrap();
        let mut store = ConfigStore::open(&link, &no_env).unwrap();
        store
            .set(&changes(&[
                ("relay_url", Value::Text("ws://b".into())),
                ("pairing_ttl", Value::Text("90".into())),
                ("require_device_confirmation", Value::Text("false".into())),
                ("web_port", Value::Unset),
            ]))
            .unwrap();
        let expected =
            "# mine\nrelay_url = \"ws://b\" # here\n\n# wait\npairing_ttl = 90\nrequire_device_confirmation = false\n";
        assert_eq!(fs::read_to_string(&file.path).unwrap(), expected);
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::metadata(&file.path).unwrap().permissions().mode() & 0o777, 0o640);
        assert_eq!(fs::read_dir(file.path.parent().unwrap()).unwrap().count(), 2, "a temporary file was left");
        assert_eq!(*ConfigStore::open(&file.path, &no_env).unwrap().current(), *store.current());
    }

    #[test]
    fn a_wrong_change_changes_nothing_and_a_wrong_file_keeps_the_old_settings() {
        let file = file("pairing_ttl = 60\n");
        let mut store = ConfigStore::open(&file.path, &no_env).unwrap();
        let wrong = changes(&[("pairing_ttl", Value::Integer(61)), ("web_port", Value::Integer(0))]);
        assert_eq!(store.set(&wrong).unwrap_err().to_string(), "web_port: must be a whole number from 1 to 65535");
        let unknown = changes(&[("colour", Value::Integer(1))]);
        assert!(store.set(&unknown).unwrap_err().to_string().starts_with("colour: there is no such setting"));
        assert_eq!(fs::read_to_string(&file.path).unwrap(), "pairing_ttl = 60\n");
        assert_eq!(store.current().pairing_ttl, 60);

        fs::write(&file.path, "pairing_ttl = 0\n").unwrap();
        store.reload().unwrap_err();
        assert_eq!(store.current().pairing_ttl, 60);
        fs::write(&file.path, "pairing_ttl = 70\n").unwrap();
        assert_eq!(store.reload().unwrap().pairing_ttl, 70);
    }
}
