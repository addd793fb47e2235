//! Where the sockets and the settings are (socket API, Sockets and Settings).
//!
//! The environment is passed in as a function, so that this can be tested without changing the process's own.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The hosts' socket: raise items, get answers.
pub const HOSTS_SOCKET: &str = "agentd.sock";

/// The owner's socket: skaldctl.
pub const CONTROL_SOCKET: &str = "control.sock";

/// Names the folder of the sockets.
pub const DIR_VARIABLE: &str = "SKALD_AGENTD_DIR";

/// Names the settings file.
pub const CONFIG_VARIABLE: &str = "SKALD_AGENTD_CONFIG";

const SYSTEM_DIR: &str = "/run/skald-agentd";
const SYSTEM_CONFIG: &str = "/etc/skald-agentd/config.toml";

/// For whom the daemon runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// One user; only that user's programs reach the sockets.
    User,
    /// The machine, as a service; the groups `skald` and `skald-admin` reach the sockets.
    System,
}

/// A variable that is needed to find a place is not set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{variable} is not set, so there is no place for {what}: set {remedy}")]
pub struct PathError {
    variable: &'static str,
    what: &'static str,
    remedy: &'static str,
}

/// Looks up an environment variable.
pub type Env<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// The process's own environment.
pub fn process_env(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}

fn path(env: Env<'_>, name: &str) -> Option<PathBuf> {
    env(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// The folder in which the daemon makes its sockets.
pub fn socket_dir(mode: Mode, env: Env<'_>) -> Result<PathBuf, PathError> {
    match (path(env, DIR_VARIABLE), mode) {
        (Some(dir), _) => Ok(dir),
        (None, Mode::System) => Ok(SYSTEM_DIR.into()),
        (None, Mode::User) => user_socket_dir(env),
    }
}

/// Where a client looks for a socket: the folder that it was told, or the user's daemon and then the machine's.
pub fn socket_candidates(dir: Option<&Path>, name: &str, env: Env<'_>) -> Vec<PathBuf> {
    let dirs = match dir.map(Path::to_owned).or_else(|| path(env, DIR_VARIABLE)) {
        Some(dir) => vec![dir],
        None => user_socket_dir(env).into_iter().chain([SYSTEM_DIR.into()]).collect(),
    };
    dirs.into_iter().map(|dir| dir.join(name)).collect()
}

/// The settings file.
pub fn config_file(mode: Mode, env: Env<'_>) -> Result<PathBuf, PathError> {
    if let Some(file) = path(env, CONFIG_VARIABLE) {
        return Ok(file);
    }
    if mode == Mode::System {
        return Ok(SYSTEM_CONFIG.into());
    }
    let config = path(env, "XDG_CONFIG_HOME").or_else(|| path(env, "HOME").map(|home| home.join(".config")));
    let missing =
        PathError { variable: "HOME", what: "the settings", remedy: "HOME, or SKALD_AGENTD_CONFIG to a file" };
    config.map(|config| config.join("skald-agentd/config.toml")).ok_or(missing)
}

fn user_socket_dir(env: Env<'_>) -> Result<PathBuf, PathError> {
    if cfg!(target_os = "macos") {
        let missing =
            PathError { variable: "HOME", what: "the sockets", remedy: "HOME, or SKALD_AGENTD_DIR to a folder" };
        return path(env, "HOME").map(|home| home.join("Library/Application Support/Skald")).ok_or(missing);
    }
    path(env, "XDG_RUNTIME_DIR").map(|runtime| runtime.join("skald-agentd")).ok_or(PathError {
        variable: "XDG_RUNTIME_DIR",
        what: "the sockets",
        remedy: "SKALD_AGENTD_DIR to a folder, or run the system service with --system",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with<'a>(pairs: &'a [(&str, &str)]) -> impl Fn(&str) -> Option<OsString> + 'a {
        |name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into())
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn places_follow_the_environment_and_the_mode() {
        let user = with(&[("XDG_RUNTIME_DIR", "/run/user/7"), ("HOME", "/home/a"), (DIR_VARIABLE, "")]);
        assert_eq!(socket_dir(Mode::User, &user), Ok("/run/user/7/skald-agentd".into()));
        assert_eq!(socket_dir(Mode::System, &user), Ok("/run/skald-agentd".into()));
        assert_eq!(config_file(Mode::User, &user), Ok("/home/a/.config/skald-agentd/config.toml".into()));
        assert_eq!(config_file(Mode::System, &user), Ok("/etc/skald-agentd/config.toml".into()));

        let told = with(&[(DIR_VARIABLE, "/d"), (CONFIG_VARIABLE, "/c"), ("XDG_CONFIG_HOME", "/x")]);
        assert_eq!(socket_dir(Mode::System, &told), Ok("/d".into()));
        assert_eq!(config_file(Mode::System, &told), Ok("/c".into()));
        assert_eq!(socket_candidates(None, "s", &told), [PathBuf::from("/d/s")]);
        assert_eq!(socket_candidates(Some(Path::new("/e")), "s", &told), [PathBuf::from("/e/s")]);
        let both = socket_candidates(None, "s", &user);
        assert_eq!(both, [PathBuf::from("/run/user/7/skald-agentd/s"), "/run/skald-agentd/s".into()]);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_missing_variable_is_named_with_the_remedy() {
        let text = socket_dir(Mode::User, &with(&[])).unwrap_err().to_string();
        assert!(text.contains("XDG_RUNTIME_DIR") && text.contains("SKALD_AGENTD_DIR"), "{text}");
        let text = config_file(Mode::User, &with(&[])).unwrap_err().to_string();
        assert!(text.contains("HOME") && text.contains("SKALD_AGENTD_CONFIG"), "{text}");
    }
}
