//! Byte streams through the relay: how much passes, beside a bare object that splices; how long until the first byte; what
//! a page costs.

pub(crate) mod raw;
pub(crate) mod sealed;
pub(crate) mod tunnel;

/// Bytes of a frame's content.
const CHUNK: usize = 64 * 1024;
/// Chunks that a sender is ahead of its reader, at most: the bare object has no backpressure of its own, and would fill the
/// memory instead of passing on.
const AHEAD: usize = 16;
/// Chunks in a MiB.
const PER_MIB: f64 = 16.0;
/// Pipes at once, where one is not the question.
const MANY: usize = 8;

/// How pipes are loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Load {
    pipes: usize,
    both_ways: bool,
}

impl Load {
    const ALL: [Self; 4] = [
        Self { pipes: 1, both_ways: false },
        Self { pipes: 1, both_ways: true },
        Self { pipes: MANY, both_ways: false },
        Self { pipes: MANY, both_ways: true },
    ];

    /// Directions with something to pass.
    const fn lanes(self) -> usize {
        if self.both_ways { 2 * self.pipes } else { self.pipes }
    }

    fn name(self) -> String {
        let ways = if self.both_ways { "both ways" } else { "one way" };
        format!("{} pipe{}, {ways}", self.pipes, if self.pipes == 1 { "" } else { "s" })
    }
}

/// Mebibytes.
#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
fn mib(chunks: usize) -> f64 {
    (chunks * CHUNK) as f64 / f64::from(1 << 20)
}
