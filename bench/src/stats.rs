//! Times of many events, and what is said of them.

use std::time::{Duration, Instant};

/// Latencies of one run, and how long it took.
#[derive(Debug, Clone)]
pub(crate) struct Samples {
    latencies: Vec<Duration>,
    took: Duration,
}

/// Collects them.
#[derive(Debug)]
pub(crate) struct Collector {
    latencies: Vec<Duration>,
    began: Instant,
}

impl Collector {
    /// The run begins now.
    pub(crate) fn begin(expected: usize) -> Self {
        Self { latencies: Vec::with_capacity(expected), began: Instant::now() }
    }

    /// Something that began then is over.
    pub(crate) fn note(&mut self, since: Instant) {
        self.latencies.push(since.elapsed());
    }

    /// The run is over.
    pub(crate) fn end(mut self) -> Samples {
        let took = self.began.elapsed();
        self.latencies.sort_unstable();
        Samples { latencies: self.latencies, took }
    }
}

impl Samples {
    /// How many events.
    pub(crate) fn count(&self) -> usize {
        self.latencies.len()
    }

    /// Events a second.
    pub(crate) fn per_second(&self) -> f64 {
        per_second(self.count(), self.took)
    }

    /// The latency that this share of them (0 to 1) does not exceed, microseconds.
    pub(crate) fn percentile_us(&self, share: f64) -> f64 {
        percentile(&self.latencies, share).map_or(f64::NAN, |latency| latency.as_secs_f64() * 1e6)
    }
}

/// Events a second.
#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
pub(crate) fn per_second(count: usize, took: Duration) -> f64 {
    count as f64 / took.as_secs_f64()
}

/// The middle of any numbers.
pub(crate) fn median(numbers: &[f64]) -> f64 {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    percentile(&sorted, 0.5).unwrap_or(f64::NAN)
}

/// The nearest rank in what is sorted.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rank is small and never negative"
)]
fn percentile<T: Copy>(sorted: &[T], share: f64) -> Option<T> {
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_the_nearest_rank() {
        let latencies = (1..=200).map(Duration::from_micros).collect();
        let samples = Samples { latencies, took: Duration::from_secs(2) };
        assert!((samples.percentile_us(0.5) - 100.0).abs() < 1e-6);
        assert!((samples.percentile_us(0.99) - 198.0).abs() < 1e-6);
        assert!((samples.percentile_us(1.0) - 200.0).abs() < 1e-6);
        assert!((samples.per_second() - 100.0).abs() < 1e-9);
    }

    #[test]
    fn the_median_needs_no_order_and_nothing_has_none() {
        assert!((median(&[3.0, 1.0, 2.0]) - 2.0).abs() < f64::EPSILON);
        assert!(median(&[]).is_nan());
    }
}
