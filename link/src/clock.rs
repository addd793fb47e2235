//! The monotonic clock that the engine is driven by.

use std::time::Duration;

use skald_common::peer::Millis;
use tokio::time::Instant;

/// Milliseconds since it was made. Follows tokio's clock, so that tests can pause it.
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
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Waits until then; for ever, if `None`.
    pub async fn sleep_until(&self, deadline: Option<Millis>) {
        match deadline {
            Some(at) => tokio::time::sleep_until(self.start + Duration::from_millis(at)).await,
            None => std::future::pending().await,
        }
    }
}
