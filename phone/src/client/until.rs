//! How long to wait.

use std::time::Duration;

use skald_common::peer::Millis;
use skald_link::Clock;
use tokio::time::{Instant, timeout_at};

/// A moment to give up at. Made once and passed on, it bounds everything that happens before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Until(Option<Instant>);

impl Until {
    /// Never.
    pub const NEVER: Self = Self(None);

    /// So many seconds from now.
    pub fn secs(secs: u64) -> Self {
        Self::after(Duration::from_secs(secs))
    }

    /// So long from now; never, if the clock does not reach so far.
    pub fn after(duration: Duration) -> Self {
        Self(Instant::now().checked_add(duration))
    }

    /// This or the other, whichever comes first.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self([self.0, other.0].into_iter().flatten().min())
    }

    /// This, or when `clock` shows `at`, whichever comes first.
    #[must_use]
    pub(super) fn or_after(self, clock: Clock, at: Millis) -> Self {
        self.or(Self(Some(clock.when(at))))
    }

    /// Whether it has come.
    pub fn is_over(self) -> bool {
        self.0.is_some_and(|at| Instant::now() >= at)
    }

    /// What the future gives, unless the moment comes first.
    pub async fn within<T>(self, future: impl Future<Output = T>) -> Option<T> {
        match self.0 {
            Some(at) => timeout_at(at, future).await.ok(),
            None => Some(future.await),
        }
    }
}
