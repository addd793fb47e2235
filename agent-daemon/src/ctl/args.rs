//! The command line and its help.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// Talks to skald-agentd: pairs phones, shows what is pending, and asks a person from any script.
#[derive(Debug, Parser)]
#[command(name = "skaldctl", version, after_help = EXAMPLES, max_term_width = 100)]
pub(super) struct Cli {
    /// Folder of the daemon's sockets (default: `$SKALD_AGENTD_DIR`, else the user's daemon, else the machine's)
    #[arg(long, global = true, value_name = "DIR", help_heading = COMMON)]
    pub(super) dir: Option<PathBuf>,
    /// Print JSON, for programs
    #[arg(long, global = true, help_heading = COMMON)]
    pub(super) json: bool,
    #[command(subcommand)]
    pub(super) command: Command,
}

/// Heading of the options that every command has.
const COMMON: &str = "Common options";

const EXAMPLES: &str = "\
Examples:
  skaldctl pair                       show a code, wait for a phone, authorize it
  skaldctl ask approval --tool deploy --summary \"Deploy to production?\" -- target=prod
  skaldctl ask question \"Which branch?\" --suggest main --suggest next
  password=$(skaldctl ask secret \"Password of deploy@host\")

Exit codes: 0 done, approved or answered; 1 rejected or declined; 2 trouble; 3 timed out;
130 interrupted.";

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Show the daemon, its relay connection, devices and what is pending
    Status,
    /// Show a pairing code, wait for a device, and authorize it
    #[command(after_help = PAIR)]
    Pair(Pair),
    /// List devices; clear or restore the list
    #[command(after_help = DEVICES)]
    Devices {
        #[command(subcommand)]
        action: Option<Devices>,
    },
    /// Let a device that waits read the inbox and answer
    #[command(after_help = "Example:\n  skaldctl authorize 5f0c9ae2")]
    Authorize {
        /// The device's key, or its first 8 or more digits (see `skaldctl devices`)
        device: String,
    },
    /// Take a device's access away, or reject one that waits
    #[command(after_help = "Example:\n  skaldctl revoke 5f0c9ae2")]
    Revoke {
        /// The device's key, or its first 8 or more digits (see `skaldctl devices`)
        device: String,
    },
    /// Show what is pending, in full
    Inbox,
    /// Answer a pending item from here, as a device would
    #[command(after_help = ANSWER)]
    Answer {
        /// The item's id, or an unambiguous beginning of it (see `skaldctl inbox`)
        id: String,
        #[command(subcommand)]
        answer: Answer,
    },
    /// Send a message to all authorized devices
    #[command(after_help = "Example:\n  skaldctl notify \"Backup\" \"Finished in 12 minutes.\"")]
    Notify {
        /// One line
        title: String,
        /// The text
        body: String,
    },
    /// Ask a person, wait, and print the answer
    #[command(after_help = ASK)]
    Ask(Ask),
    /// Show or change the daemon's settings
    #[command(after_help = CONFIG)]
    Config {
        #[command(subcommand)]
        action: Config,
    },
    /// Show what happens, until interrupted
    Events,
}

#[derive(Debug, Args)]
pub(super) struct Pair {
    /// Authorize the device without asking, and so without a person's comparison of fingerprints
    #[arg(long)]
    pub(super) yes: bool,
    /// How long the code is valid, in seconds, at most 600 (default: the setting `pairing_ttl`)
    #[arg(long, value_name = "SECS")]
    pub(super) ttl: Option<u32>,
    /// Write the code as a PNG picture instead of to the terminal
    #[arg(long, value_name = "FILE")]
    pub(super) png: Option<PathBuf>,
    /// Write the code as an SVG picture instead of to the terminal
    #[arg(long, value_name = "FILE")]
    pub(super) svg: Option<PathBuf>,
}

const PAIR: &str = "\
Examples:
  skaldctl pair
  skaldctl pair --ttl 60 --png code.png
  skaldctl --json pair --yes

The comparison of fingerprints is what keeps a relay from slipping in a device of its own.
With --json the first line is the content of the code, and each further line an event; nobody
is asked, and it waits until the device is authorized or revoked, here (--yes) or elsewhere.
Exit codes: 0 authorized, 1 not authorized, 2 trouble, 3 no device came in time,
130 interrupted (the code is void then).";

#[derive(Debug, Default, Subcommand)]
pub(super) enum Devices {
    /// List them (the default)
    #[default]
    List,
    /// Revoke all
    Clear,
    /// Take the devices of the backup, after the database was lost
    Restore,
}

const DEVICES: &str = "\
Examples:
  skaldctl devices
  skaldctl devices clear";

#[derive(Debug, Subcommand)]
pub(super) enum Answer {
    /// Approve a tool call
    Approve {
        /// Let similar calls pass for so many seconds; 0: as long as the agent runs
        #[arg(long, value_name = "SECS")]
        bypass: Option<u64>,
    },
    /// Reject a tool call
    Reject {
        /// Why
        #[arg(long)]
        reason: Option<String>,
    },
    /// Answer a question
    Text {
        /// The answer
        answer: String,
    },
    /// Give the value that a prompt asks for; read without echo, or from standard input
    Value,
    /// Say yes to a prompt without a value
    Accept,
    /// Say no to a prompt
    Decline,
    /// Abort the request behind a prompt
    Cancel,
}

const ANSWER: &str = "\
Examples:
  skaldctl answer 17.5f0c approve
  skaldctl answer 17.5f0c reject --reason \"Not on a Friday\"
  skaldctl answer 18.77ab text \"The second one\"
  skaldctl answer 19.0d3e value";

#[derive(Debug, Args)]
pub(super) struct Ask {
    /// Give up after so many seconds (default: never)
    #[arg(long, global = true, value_name = "SECS")]
    pub(super) timeout: Option<u64>,
    /// Who asks, as the phone shows it
    #[arg(long, global = true, value_name = "TEXT", default_value = "skaldctl")]
    pub(super) label: String,
    #[command(subcommand)]
    pub(super) what: What,
}

#[derive(Debug, Subcommand)]
pub(super) enum What {
    /// Ask for a yes or no
    #[command(after_help = APPROVAL)]
    Approval {
        /// What is to be done, in a word
        #[arg(long)]
        tool: String,
        /// One line for the card
        #[arg(long)]
        summary: String,
        /// More text
        #[arg(long)]
        detail: Option<String>,
        /// What exactly is approved: KEY=TEXT or KEY:=JSON
        #[arg(last = true, value_name = "KEY=TEXT")]
        arguments: Vec<String>,
    },
    /// Ask for an answer in words
    #[command(after_help = QUESTION)]
    Question {
        /// The question
        question: String,
        /// What it is about
        #[arg(long)]
        context: Option<String>,
        /// An answer to tap; may be given several times
        #[arg(long, value_name = "ANSWER")]
        suggest: Vec<String>,
    },
    /// Ask for a secret; standard output gets the value alone
    #[command(after_help = SECRET)]
    Secret {
        /// The prompt
        message: String,
        /// For what program
        #[arg(long, value_name = "NAME", default_value = "skaldctl")]
        server: String,
        /// Name of the value
        #[arg(long, value_name = "NAME", default_value = "value")]
        field: String,
    },
}

const ASK: &str = "\
Examples:
  skaldctl ask approval --tool deploy --summary \"Deploy to production?\" -- target=prod
  skaldctl ask question \"Which branch?\" --suggest main --suggest next --timeout 600
  password=$(skaldctl ask secret \"Password of deploy@host\" --field password)

Exit codes: 0 approved or answered, 1 rejected or declined, 2 trouble, 3 timed out, 130 interrupted.
The end of the time, Ctrl-C, and the end of this program in any way withdraw the question.";

const APPROVAL: &str = "\
Examples:
  skaldctl ask approval --tool deploy --summary \"Deploy to production?\" -- target=prod
  skaldctl ask approval --tool rm --summary \"Delete?\" -- dir=/old 'files:=[\"a\",\"b\"]' force:=true

KEY=TEXT gives {\"KEY\": \"TEXT\"}; KEY:=JSON takes any JSON value, its numbers as they are written.
Prints `approved`, or `rejected` with the reason.";

const QUESTION: &str = "\
Example:
  branch=$(skaldctl ask question \"Which branch?\" --suggest main --suggest next)";

const SECRET: &str = "\
Example:
  skaldctl ask secret \"Passphrase of the backup key\" --timeout 300 | restic-unlock

The value goes to standard output and nowhere else; with --json, as the field `value` of one object.";

#[derive(Debug, Subcommand)]
pub(super) enum Config {
    /// Show all settings, or one
    Get {
        /// Which
        name: Option<String>,
    },
    /// Change a setting; it is written to the daemon's file and holds at once
    Set {
        /// Which
        name: String,
        /// Its new value
        value: String,
    },
    /// Bring back a setting's default
    Unset {
        /// Which
        name: String,
    },
}

const CONFIG: &str = "\
Examples:
  skaldctl config get
  skaldctl config set relay_url wss://relay.example/v1/ws
  skaldctl config set require_device_confirmation true
  skaldctl config unset qr_url

Settings: relay_url, qr_url, pairing_ttl, require_device_confirmation, notify_delay_secs, web_port.";

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn arguments_of_an_approval_stand_after_the_dashes() {
        let line =
            ["skaldctl", "ask", "approval", "--tool", "t", "--summary", "s", "--timeout", "5", "--", "a=b", "--c=d"];
        let Command::Ask(Ask { timeout: Some(5), what: What::Approval { arguments, .. }, .. }) =
            Cli::parse_from(line).command
        else {
            panic!("not read");
        };
        assert_eq!(arguments, ["a=b", "--c=d"]);
    }
}
