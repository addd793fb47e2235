//! `skald-bench`: the numbers of the project, measured on this machine, beside two baselines measured in the same run.
//! See docs/performance.md for how to read them.

mod echo;
mod members;
mod parts;
mod phone;
mod processes;
mod report;
mod stats;
mod usage;
mod wire;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Parser, ValueEnum};
use rustix::process::{Resource, Rlimit};
use serde_json::{Value, json};

use crate::parts::{Plan, forward, idle, pairing, pipe, roundtrip, sizes, start, stored};
use crate::report::Report;

/// Measures relay, daemon and the whole path, beside a bare JavaScript object and a native echo.
#[derive(Debug, Parser)]
#[command(name = "scripts/bench")]
struct Cli {
    /// What to measure; everything unless given
    #[arg(value_enum)]
    parts: Vec<Part>,
    /// Write the numbers to a file, for programs
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Only show that it runs: unoptimised programs and few repetitions, whose numbers mean nothing
    #[arg(long)]
    smoke: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// The relay's object against the bare one
    Forward,
    /// Pipes: the relay's splice against a bare one
    Splice,
    /// Pipes, sealed end to end
    Pipes,
    /// A web page at home, on the phone
    Tunnel,
    /// Phone, daemon, phone
    Roundtrip,
    /// Messages for a phone that is away
    Stored,
    /// From the pairing code to the first answer
    Pairing,
    /// The daemon's start and its memory
    Daemon,
    /// The relay's memory for idle connections
    Idle,
    /// Of what is built
    Sizes,
    /// Be the native echo
    #[value(hide = true)]
    Echo,
}

const ALL: [Part; 10] = [
    Part::Forward,
    Part::Splice,
    Part::Pipes,
    Part::Tunnel,
    Part::Roundtrip,
    Part::Stored,
    Part::Pairing,
    Part::Daemon,
    Part::Idle,
    Part::Sizes,
];

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("scripts/bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> anyhow::Result<()> {
    // Each idle connection is an open file, here and in the relay.
    let files = rustix::process::getrlimit(Resource::Nofile);
    if let Err(error) = rustix::process::setrlimit(Resource::Nofile, Rlimit { current: files.maximum, ..files }) {
        eprintln!("bench: no more than {:?} open files: {error}", files.current);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    if cli.parts == [Part::Echo] {
        return runtime.block_on(echo::serve());
    }
    let plan = if cli.smoke { Plan::SMOKE } else { Plan::FULL };
    let parts = if cli.parts.is_empty() { &ALL[..] } else { &cli.parts[..] };
    let mut report = Report::default();
    for part in parts {
        let measured = runtime.block_on(async {
            match part {
                Part::Forward => forward::measure(&plan, &mut report).await,
                Part::Splice => pipe::raw::measure(&plan, &mut report).await,
                Part::Pipes => pipe::sealed::measure(&plan, &mut report).await,
                Part::Tunnel => pipe::tunnel::measure(&plan, &mut report).await,
                Part::Roundtrip => roundtrip::measure(&plan, &mut report).await,
                Part::Stored => stored::measure(&plan, &mut report).await,
                Part::Pairing => pairing::measure(&plan, &mut report).await,
                Part::Daemon => start::measure(&plan, &mut report).await,
                Part::Idle => idle::measure(&plan, &mut report).await,
                Part::Sizes => sizes::measure(&mut report),
                Part::Echo => Ok(()),
            }
        });
        measured.with_context(|| format!("{part:?}"))?;
    }
    match report.aims_table() {
        _ if cli.smoke => println!("\nIt runs; these numbers mean nothing."),
        Some(aims) => println!("\n{aims}"),
        None => {}
    }
    if let Some(file) = &cli.json {
        let text = serde_json::to_string_pretty(&report.json(&machine(cli.smoke)))?;
        std::fs::write(file, text + "\n").with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}

/// Where and of what the numbers are.
fn machine(smoke: bool) -> Value {
    let read = |file: &str| std::fs::read_to_string(file).unwrap_or_default();
    let cpu = read("/proc/cpuinfo");
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or_default();
    json!({
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "cpu": model.trim_start_matches([' ', '\t', ':']),
        "kernel": read("/proc/sys/kernel/osrelease").trim(),
        "load": read("/proc/loadavg").trim(),
        "smoke": smoke,
    })
}
