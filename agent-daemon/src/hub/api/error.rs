//! Why the hub did not do what was asked.

/// Why the hub did not do what was asked. `Display` is one line for the person who asked, without content or secrets.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApiError {
    /// Another live connection has this host name (-32002).
    #[error("a host named {0:?} is already connected")]
    NameTaken(String),
    /// Something in the parameters is wrong: what, and where (-32602).
    #[error("{0}")]
    InvalidParams(String),
    /// A bound on what one host or the daemon holds is reached.
    #[error("{0}")]
    Limit(String),
    /// The host session is closed: it was replaced, or fell too far behind.
    #[error("this session is closed")]
    SessionClosed,
    /// No device has such a key.
    #[error("no device has a key that begins with {0:?}")]
    NoSuchDevice(String),
    /// More than one device has such a key.
    #[error("{count} devices have a key that begins with {prefix:?}: give more digits")]
    AmbiguousDevice {
        /// What was asked for.
        prefix: String,
        /// How many match.
        count: usize,
    },
    /// The prefix is too short or not hexadecimal.
    #[error("a device is named by its key, or at least the first 8 hexadecimal digits of it")]
    BadDevicePrefix,
    /// No such item is pending.
    #[error("no such item is pending")]
    NoSuchItem,
    /// No such pairing code was ever given out by this run of the daemon.
    #[error("no such pairing code")]
    NoSuchCode,
    /// `relay_url` is empty.
    #[error("no relay is configured: set relay_url")]
    NoRelay,
    /// There is no connection to the relay: why.
    #[error("the relay cannot be reached: {0}")]
    RelayUnreachable(String),
    /// The relay did not do its part in time.
    #[error("the relay did not answer in time")]
    RelayTimeout,
    /// `devices.restore` without a backup, or with nothing to restore.
    #[error("there is no backup of devices to restore")]
    NoBackup,
    /// Authorized devices are at the protocol's limit of 64.
    #[error("64 devices are authorized already, which is the limit: revoke one first")]
    TooManyDevices,
    /// The device table was lost and not yet restored or cleared.
    #[error("the device table was lost: confirm with devices.restore or devices.clear first")]
    DevicesUnconfirmed,
    /// The database could not be written; nothing was changed.
    #[error("the state could not be stored: {0}")]
    Storage(String),
    /// The daemon is stopping.
    #[error("the daemon is stopping")]
    Stopping,
}

impl ApiError {
    /// A stable word for programs (socket API, Errors).
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::NameTaken(_) => "name_taken",
            Self::InvalidParams(_) => "invalid_params",
            Self::Limit(_) => "limit",
            Self::SessionClosed => "session_closed",
            Self::NoSuchDevice(_) => "no_such_device",
            Self::AmbiguousDevice { .. } => "ambiguous_device",
            Self::BadDevicePrefix => "bad_device_prefix",
            Self::NoSuchItem => "no_such_item",
            Self::NoSuchCode => "no_such_code",
            Self::NoRelay => "no_relay",
            Self::RelayUnreachable(_) => "relay_unreachable",
            Self::RelayTimeout => "relay_timeout",
            Self::NoBackup => "no_backup",
            Self::TooManyDevices => "too_many_devices",
            Self::DevicesUnconfirmed => "devices_unconfirmed",
            Self::Storage(_) => "storage",
            Self::Stopping => "stopping",
        }
    }
}
