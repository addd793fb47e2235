//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::model::answer::MAX_BYPASS_SECS;

const EXIT_CODES: &str = "\
Exit status:
  0  done (an answer counts, or is on its way to an agent that is offline)
  1  refused, or too late: nothing was approved, answered or shown by this command
  2  trouble: wrong input, no connection, a damaged state folder
  3  not known in time

Examples:
  skald-phone pair @code.json --name Laptop
  skaldctl pair --json | skald-phone pair -
  skald-phone inbox --full
  skald-phone approve appr_8f2a --bypass 900
  skald-phone reject appr_8f2a --reason 'not on a Friday'
  skald-phone answer clar_3b 'Yes, proceed'
  pass show ssh/deploy | skald-phone reply elic_5d
  skald-phone --profile work watch --json
  skald-phone proxy --listen 127.0.0.1:8080
  skald-phone pair @code.json --push-url https://push.example/abc
  skald-phone notify-open < push-body

An ID may be shortened to any beginning that fits one pending item only.

What an agent has written is shown with control characters, and characters that are invisible or change the direction of text, escaped. Everything a phone keeps is in one folder per profile, readable by its owner alone; the value given to `reply` is never stored.";

/// A phone for Skald Remote in the terminal: shows what your agent asks, and answers it, end-to-end encrypted.
#[derive(Debug, Parser)]
#[command(name = "skald-phone", version, max_term_width = 100, after_help = EXIT_CODES)]
pub(super) struct Cli {
    #[command(flatten)]
    pub(super) global: Global,
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Options of every command")]
pub(super) struct Global {
    /// Which pairing to use; each profile is a phone of its own
    #[arg(long, global = true, value_name = "NAME", default_value = "default")]
    pub(super) profile: String,
    /// Print JSON, one object per line
    #[arg(long, global = true)]
    pub(super) json: bool,
    /// Folder of the profiles [default: $XDG_STATE_HOME/skald-phone, or ~/.local/state/skald-phone]
    #[arg(long, global = true, value_name = "DIR", env = "SKALD_PHONE_DIR")]
    pub(super) dir: Option<PathBuf>,
    /// Give up after so many seconds [default: 20; `pair` waits for its authorization, and `watch` and `proxy` run, without end]
    #[arg(long, global = true, value_name = "SECS", value_parser = clap::value_parser!(u64).range(1..=31_536_000))]
    pub(super) timeout: Option<u64>,
    /// Have the relay wake this phone by Web Push at this https address of a push service; kept for the profile
    #[arg(long, global = true, value_name = "URL", conflicts_with = "push_token")]
    pub(super) push_url: Option<String>,
    /// Hand the relay a push token that something else receives pushes for (ios, android or web); kept for the profile
    #[arg(long, global = true, value_name = "PLATFORM:TOKEN")]
    pub(super) push_token: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Pair with an agent, by the content of its QR code
    ///
    /// Shows this phone's fingerprint and waits until the agent's owner has authorized it. Compare the fingerprint with
    /// the one that the agent shows: it is what keeps strangers out.
    Pair(PairArgs),
    /// List what is pending
    Inbox(InboxArgs),
    /// Show one pending item in full
    Show(ItemArgs),
    /// Show what is pending and every change, until interrupted
    ///
    /// Other commands of the same profile can be run meanwhile: the watch lends them its connection.
    Watch(WatchArgs),
    /// Bring the web page of the agent's machine to this one, until interrupted
    ///
    /// Every connection to the local address goes, end-to-end encrypted, to the port that the agent's owner has set as
    /// `web_port`. Whoever can connect to the local address, which is every program of this machine, gets that page.
    ///
    /// Other commands of the same profile can be run meanwhile: the proxy lends them its connection, and pages that are open
    /// go on. Only `watch` cannot run at the same time, unless a --profile of its own is paired for it.
    Proxy(ProxyArgs),
    /// Approve a tool call, after showing it in full
    Approve(ApproveArgs),
    /// Reject a tool call
    Reject(RejectArgs),
    /// Answer a question
    Answer(AnswerArgs),
    /// Give the value that a prompt asks for, or confirm or decline it
    ///
    /// The value is read from the terminal, without echo if it is a secret, or from standard input. It is sealed, sent and
    /// forgotten.
    Reply(ReplyArgs),
    /// Show what a push says, read from standard input
    ///
    /// The body as it arrived: APNs' JSON, the data map of an FCM message as JSON, or a Web Push, encrypted or not. Nothing is
    /// connected, changed or waited for, so that it can be done while other commands of this profile run, as the notification
    /// part of an app does. A push that only wakes says to open the app. Exit status 1: nothing in it is for this phone to show.
    NotifyOpen,
    /// Leave the agent's devices and forget this pairing
    Logout(LogoutArgs),
    /// Show this phone's pairing and connection
    Status(StatusArgs),
}

#[derive(Debug, Args)]
pub(super) struct PairArgs {
    /// The QR code's JSON, @FILE to read it from a file, or - to read it from standard input
    #[arg(value_name = "CODE")]
    pub(super) code: String,
    /// Name that the agent shows for this phone [default: "Terminal" and this machine's name]
    #[arg(long, value_name = "DEVICE_NAME")]
    pub(super) name: Option<String>,
    /// End once paired, without waiting for the authorization
    #[arg(long)]
    pub(super) no_wait: bool,
    /// Pair anew with the same agent, keeping this phone's keys
    #[arg(long)]
    pub(super) again: bool,
}

#[derive(Debug, Args)]
pub(super) struct InboxArgs {
    /// Show every item in full
    #[arg(long)]
    pub(super) full: bool,
    /// Show what is known here, without connecting
    #[arg(long)]
    pub(super) offline: bool,
}

#[derive(Debug, Args)]
pub(super) struct ItemArgs {
    /// Id of a pending item, or its beginning
    #[arg(value_name = "ID", allow_hyphen_values = true)]
    pub(super) id: String,
    /// Show what is known here, without connecting
    #[arg(long)]
    pub(super) offline: bool,
}

#[derive(Debug, Args)]
pub(super) struct WatchArgs {
    /// Show new items in full
    #[arg(long)]
    pub(super) full: bool,
}

#[derive(Debug, Args)]
pub(super) struct ProxyArgs {
    /// Where to listen; port 0 is any that is free, and the first line printed names it
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8080")]
    pub(super) listen: SocketAddr,
    /// Let --listen be an address that other machines can reach: they get the page too
    #[arg(long)]
    pub(super) allow_remote: bool,
}

#[derive(Debug, Args)]
pub(super) struct ApproveArgs {
    /// Id of a pending approval, or its beginning
    #[arg(value_name = "ID", allow_hyphen_values = true)]
    pub(super) id: String,
    /// Let similar calls pass for so many seconds as well; 0 for the entire run of the agent
    #[arg(long, value_name = "SECS", value_parser = clap::value_parser!(u64).range(0..=MAX_BYPASS_SECS))]
    pub(super) bypass: Option<u64>,
    /// Do not ask on the terminal
    #[arg(long, short)]
    pub(super) yes: bool,
}

#[derive(Debug, Args)]
pub(super) struct RejectArgs {
    /// Id of a pending approval, or its beginning
    #[arg(value_name = "ID", allow_hyphen_values = true)]
    pub(super) id: String,
    /// Why, for the agent
    #[arg(long, value_name = "TEXT")]
    pub(super) reason: Option<String>,
}

#[derive(Debug, Args)]
pub(super) struct AnswerArgs {
    /// Id of a pending question, or its beginning
    #[arg(value_name = "ID", allow_hyphen_values = true)]
    pub(super) id: String,
    /// The answer, or - to read it from standard input; asked for on a terminal if left out
    #[arg(value_name = "TEXT", conflicts_with = "choice", allow_negative_numbers = true)]
    pub(super) text: Option<String>,
    /// Give the N-th suggested answer
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) choice: Option<u32>,
}

#[derive(Debug, Args)]
pub(super) struct ReplyArgs {
    /// Id of a pending prompt, or its beginning
    #[arg(value_name = "ID", allow_hyphen_values = true)]
    pub(super) id: String,
    /// Refuse the prompt
    #[arg(long, conflicts_with = "cancel")]
    pub(super) decline: bool,
    /// Abort the whole request behind the prompt
    #[arg(long)]
    pub(super) cancel: bool,
    /// Confirm a yes-or-no prompt without asking
    #[arg(long, short, conflicts_with_all = ["decline", "cancel"])]
    pub(super) yes: bool,
}

#[derive(Debug, Args)]
pub(super) struct LogoutArgs {
    /// Only forget the pairing here: for an agent or relay that is gone, or a phone that was revoked
    #[arg(long)]
    pub(super) local: bool,
}

#[derive(Debug, Args)]
pub(super) struct StatusArgs {
    /// Show what is known here, without connecting
    #[arg(long)]
    pub(super) offline: bool,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn global_options_stand_before_or_behind_the_command() {
        for line in
            [["skald-phone", "--profile", "w", "--json", "inbox"], ["skald-phone", "inbox", "--profile", "w", "--json"]]
        {
            let cli = Cli::try_parse_from(line).unwrap();
            assert_eq!((cli.global.profile.as_str(), cli.global.json), ("w", true));
        }
    }

    #[test]
    fn an_id_may_look_like_an_option_and_an_answer_like_a_number() {
        let parse = |line: &[&str]| Cli::try_parse_from([&["skald-phone"], line].concat());
        let Command::Reply(args) = parse(&["reply", "--decline.b301", "--decline"]).unwrap().command else { panic!() };
        assert_eq!((args.id.as_str(), args.decline), ("--decline.b301", true));
        let Command::Answer(args) = parse(&["answer", "-q", "-5"]).unwrap().command else { panic!() };
        assert_eq!((args.id.as_str(), args.text.as_deref()), ("-q", Some("-5")));
        assert!(parse(&["answer", "q", "--chioce"]).is_err(), "a mistyped option is no answer");
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        for line in [
            &["skald-phone", "reply", "x", "--decline", "--cancel"][..],
            &["skald-phone", "reply", "x", "--yes", "--cancel"],
            &["skald-phone", "answer", "x", "text", "--choice", "1"],
            &["skald-phone", "answer", "x", "--choice", "0"],
            &["skald-phone", "approve", "x", "--bypass", "86401"],
            &["skald-phone", "approve", "x", "--bypass", "-1"],
            &["skald-phone", "--timeout", "0", "inbox"],
            &["skald-phone"],
        ] {
            assert!(Cli::try_parse_from(line).is_err(), "{line:?}");
        }
    }
}
