//! How large what is built is.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};

use crate::processes::{beside, root};
use crate::report::{Bound, Report, Section};

/// The relay, compressed, in kB (1,000 bytes).
const AIM_COMPRESSED_KB: f64 = 350.0;

/// See the module.
pub(crate) fn measure(report: &mut Report) -> anyhow::Result<()> {
    let mut section = Section::new("sizes", "Sizes, kB");
    let wasm = root().join("relay-worker/build/index_bg.wasm");
    let compressed = compressed(&wasm)?;
    section.line("relay, wasm", &[("kb", size(&wasm)?), ("compressed_kb", compressed)]);
    report.aim("relay's wasm, compressed", compressed, "kB", Bound::Below(AIM_COMPRESSED_KB));
    for name in ["skald-agentd", "skaldctl", "skald-phone"] {
        let program = beside(name)?;
        section.line(name, &[("kb", size(&program)?), ("stripped_kb", stripped(&program).unwrap_or(f64::NAN))]);
    }
    report.add(section);
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "files are smaller than 2^53 bytes")]
fn kb(bytes: u64) -> f64 {
    bytes as f64 / 1000.0
}

fn size(file: &Path) -> anyhow::Result<f64> {
    let meta = file.metadata().with_context(|| format!("{} is missing; scripts/bench builds it", file.display()))?;
    Ok(kb(meta.len()))
}

/// As Cloudflare counts it, about.
fn compressed(file: &Path) -> anyhow::Result<f64> {
    let output = Command::new("gzip").args(["-9", "-c"]).arg(file).stderr(Stdio::inherit()).output();
    let output = output.context("gzip does not run")?;
    ensure!(output.status.success(), "gzip {} failed", file.display());
    Ok(kb(output.stdout.len() as u64))
}

/// Without the names of functions, which are kept for the sake of crash reports. Where binutils are missing, unknown.
fn stripped(program: &Path) -> Option<f64> {
    let copy = tempfile::NamedTempFile::new().ok()?;
    let done = Command::new("strip").arg("-o").arg(copy.path()).arg(program).stderr(Stdio::null()).status().ok()?;
    if done.success() { size(copy.path()).ok() } else { None }
}
