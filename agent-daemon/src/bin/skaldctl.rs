//! `skaldctl`: the command line of the daemon. All of it is in the library, so that it can be tested there.

fn main() -> std::process::ExitCode {
    skald_agentd::ctl::main()
}
