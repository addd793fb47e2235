//! The monotonic clock that the engine is driven by.

use std::time::Duration;

use skald_common::peer::Millis;
use tokio::time::Instant;

use crate::debug::clock_speed;

/// Milliseconds since it was made. Follows tokio's clock, so that tests can pause it; a debug build can have it run
/// [faster](crate::debug).
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    /// Starts at 0.
    #[must_use]
    pub fn start() -> Self {
        Self { start: Instant::now() }
    }

    /// Now.
    pub fn now(&self) -> Millis {
        let elapsed = self.start.elapsed().as_micros() * u128::from(clock_speed()) / 1000;
        u64::try_from(elapsed).unwrap_or(u64::MAX)
    }

    /// When it will show `at`.
    pub fn when(&self, at: Millis) -> Instant {
        self.start + Duration::from_millis(at) / clock_speed()
    }

    /// Waits until then; for ever, if `None`.
    pub async fn sleep_until(&self, deadline: Option<Millis>) {
        match deadline {
            Some(at) => tokio::time::sleep_until(self.when(at)).await,
            None => std::future::pending().await,
        }
    }
}
