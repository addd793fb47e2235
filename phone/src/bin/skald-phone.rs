//! The terminal phone; see [`skald_phone::cli`].

fn main() -> std::process::ExitCode {
    skald_phone::cli::main()
}
