//! What processes use, as the kernel counts it: Linux only. Elsewhere, and where reading is not permitted, there is no
//! number.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

/// Ticks of processor time in a second: the kernel's interface has used this number for ever.
const TICKS_PER_SECOND: f64 = 100.0;

/// The processor time of some processes so far.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cpu(Duration);

impl Cpu {
    /// Of these processes together.
    pub(crate) fn of(pids: &[i32]) -> Option<Self> {
        pids.iter().map(|&pid| cpu(pid)).sum::<Option<Duration>>().map(Self)
    }

    /// Since then, microseconds for each of `count` events.
    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
    pub(crate) fn us_each(self, since: Self, count: usize) -> f64 {
        self.0.saturating_sub(since.0).as_secs_f64() * 1e6 / count as f64
    }
}

/// This process.
pub(crate) fn this() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

fn cpu(pid: i32) -> Option<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may hold anything; behind it the fields are counted from the third.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |field: usize| fields.get(field - 3)?.parse::<f64>().ok();
    Some(Duration::from_secs_f64((ticks(14)? + ticks(15)?) / TICKS_PER_SECOND))
}

/// What a process holds in memory, in KiB.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Memory {
    /// All pages that it has.
    pub(crate) resident: f64,
    /// The same with shared pages divided among those who share them; not everybody may know.
    pub(crate) proportional: Option<f64>,
}

/// Of one process.
pub(crate) fn memory(pid: i32) -> Option<Memory> {
    let resident = field(&format!("/proc/{pid}/status"), "VmRSS:")?;
    Some(Memory { resident, proportional: field(&format!("/proc/{pid}/smaps_rollup"), "Pss:") })
}

fn field(file: &str, name: &str) -> Option<f64> {
    let text = fs::read_to_string(file).ok()?;
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse().ok()
}

/// The process called `name` below `root`, which may be it itself.
pub(crate) fn descendant(root: i32, name: &str) -> Option<i32> {
    let mut waiting = vec![root];
    while let Some(pid) = waiting.pop() {
        if fs::read_to_string(format!("/proc/{pid}/comm")).ok()?.trim_end() == name {
            return Some(pid);
        }
        let tasks = fs::read_dir(PathBuf::from(format!("/proc/{pid}/task"))).ok()?;
        for task in tasks.flatten() {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            waiting.extend(children.split_whitespace().filter_map(|pid| pid.parse::<i32>().ok()));
        }
    }
    None
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn this_process_uses_something_and_is_below_itself() {
        let before = Cpu::of(&[this()]).unwrap();
        let mut sum = 0_u64;
        while Cpu::of(&[this()]).unwrap().us_each(before, 1) < 10_000.0 {
            sum = (0..100_000).fold(sum, u64::wrapping_add);
        }
        let memory = memory(this()).unwrap();
        assert!(memory.resident > 500.0 && memory.resident < 10e6, "{memory:?}");
        let name = fs::read_to_string("/proc/self/comm").unwrap();
        assert_eq!(descendant(this(), name.trim_end()), Some(this()));
        assert_eq!(descendant(this(), "no such program"), None);
        assert!(sum > 0);
    }
}
