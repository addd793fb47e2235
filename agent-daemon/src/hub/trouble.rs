//! What went wrong last that a person should know of, for `status`. It is forgotten when the same thing has gone well since.

use super::{Hub, Now};

/// What it is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    /// The disk.
    Storage,
    /// A host's answer to a call.
    Host,
    /// The age of an answer.
    Age,
    /// A device's key. Nothing makes that good: it stays until something else goes wrong.
    Device,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Trouble {
    cause: Cause,
    /// For people.
    pub(super) what: String,
    /// When, Unix milliseconds.
    pub(super) at: u64,
}

impl Hub {
    pub(super) fn went_wrong(&mut self, cause: Cause, what: String, now: Now) {
        self.last_error = Some(Trouble { cause, what, at: now.unix });
    }

    pub(super) fn went_well(&mut self, cause: Cause) {
        self.last_error.take_if(|error| error.cause == cause);
    }
}
