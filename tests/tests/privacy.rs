//! Where content and secrets are not: in logs, in anything of the relay, in what phone and daemon keep.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit};
use serde_json::{Value, json};
use skald_tests::{
    Call, DaemonOptions, Host, Http, Phone, Process, Relay, Stream, Tunnel, World, canary, checksum, command,
    containing, full, read_all, text, traces,
};

/// The texts of one run, each a word that stands nowhere else.
struct Canaries {
    content: Vec<String>,
    secret: String,
}

impl Canaries {
    fn content(&mut self, what: &str) -> String {
        self.content.push(canary(what));
        self.content.last().expect("just pushed").clone()
    }

    fn all(&self) -> impl Iterator<Item = &String> {
        self.content.iter().chain([&self.secret])
    }
}

/// Raises and answers items of every kind, with the phone online and offline.
async fn lively_evening(world: &mut World) -> (Host, Phone, Canaries) {
    let (host, phone, canaries, call, replying) = until_the_secret_is_out(world).await;
    call.answer(true).await;
    let replied = replying.finished().await.ok();
    assert_eq!(traces((replied.out + &replied.err).as_bytes(), &canaries.secret), [""; 0], "the phone's own output");
    (host, phone, canaries)
}

/// The evening up to the moment in which the daemon has given the secret to the host, and nobody has said thanks.
async fn until_the_secret_is_out(world: &mut World) -> (Host, Phone, Canaries, Call, Process) {
    let mut canaries = Canaries { content: Vec::new(), secret: canary("secret") };
    let mut host = world.host("skald").await;
    let phone = Phone::new(&canaries.content("device"));
    let qr = world.control.pairing_code().await;
    canaries.content.push(pairing_token(&qr));
    let paired = phone.pair(&qr).await.ok();
    assert_eq!(traces((paired.out + &paired.err).as_bytes(), &pairing_token(&qr)), [""; 0], "the phone's own output");

    let approval = json!({
        "request_id": 1, "tool_name": canaries.content("tool"), "summary": canaries.content("summary"),
        "detail": canaries.content("detail"), "agent_label": canaries.content("label"),
        "arguments": {canaries.content("name"): canaries.content("argument")}, "blocks": [canaries.content("block")],
    });
    let question = json!({
        "request_id": 2, "question": canaries.content("question"), "context": canaries.content("context"),
        "suggested_answers": [canaries.content("suggestion")],
    });
    let prompt = Host::secret(3, &canaries.content("prompt"), "password");
    host.sync(&[approval], &[question], &[prompt]).await;
    let notification = json!({"title": canaries.content("title"), "body": canaries.content("body")});
    host.call("notification.send", notification).await;

    let inbox = phone.inbox().await;
    let id = |n: &str| {
        let items = inbox["items"].as_array().expect("a list");
        let ids = items.iter().filter_map(|item| item["request_id"].as_str());
        ids.into_iter().find(|id| id.starts_with(n)).expect("pending").to_owned()
    };
    let rejecting = phone.start(&["reject", &id("1."), "--reason", &canaries.content("reason")]);
    host.answered().await;
    rejecting.finished().await.ok();
    let answering = phone.start(&["answer", &id("2."), &canaries.content("answer")]);
    host.answered().await;
    answering.finished().await.ok();
    let mut replying = phone.start(&["reply", &id("3.")]);
    replying.write(&canaries.secret);
    replying.close_stdin();
    let call = host.next_call().await;
    assert_eq!(call.params["content"]["password"], canaries.secret.as_str());
    // While the host holds the secret, the daemon does too: now would be the moment to find it on its disk.
    assert_eq!(containing(world.daemon.folder(), &canaries.secret), Vec::<std::path::PathBuf>::new());
    (host, phone, canaries, call, replying)
}

fn pairing_token(qr: &str) -> String {
    let code: Value = serde_json::from_str(qr).expect("JSON");
    code["pairing_token"].as_str().expect("hex").to_owned()
}

#[tokio::test]
async fn no_content_and_no_secret_is_in_the_logs_of_daemon_and_relay() {
    if !Relay::controllable() {
        return;
    }
    let relay = Arc::new(Relay::with(&["--verbose"]).await);
    let mut world = World::on(relay, &DaemonOptions::default()).await;
    let (_host, phone, mut canaries) = lively_evening(&mut world).await;
    for kind in ["android", "web"] {
        let canary = canaries.content("token");
        let (option, value) = match kind {
            "web" => ("--push-url", format!("https://updates.push.services.mozilla.com/{canary}")),
            platform => ("--push-token", format!("{platform}:{canary}")),
        };
        let told = phone.run(&["status", option, &value]).await.ok();
        assert_eq!(traces((told.out + &told.err).as_bytes(), &canary), [""; 0], "the phone's own output");
    }
    world.crash().await;
    world.daemon.stop().await;
    let (daemon, relay) = (world.daemon.log(), world.relay.log());
    assert!(daemon.contains("ready"), "the log is there, at its finest level");
    for text in canaries.all() {
        assert_eq!(traces(daemon.as_bytes(), text), [""; 0], "the daemon logged {text}");
        assert_eq!(traces(relay.as_bytes(), text), [""; 0], "the relay logged {text}");
    }
}

#[tokio::test]
async fn the_relays_files_hold_what_waits_for_a_phone_and_none_of_its_plaintext() {
    let mut world = World::new().await;
    let Some(data) = world.relay.data() else {
        eprintln!("skipped: the files of another relay are out of reach");
        return;
    };
    let (host, _phone, mut canaries) = lively_evening(&mut world).await;
    // The phone is away: these stay in the relay's queue.
    let waiting = canaries.content("waiting");
    host.request("clarification", &Host::question(9, &waiting, &[])).await;
    let sent = host.call("notification.send", json!({"title": waiting, "body": waiting})).await;
    assert_eq!(sent["devices"], 1);
    // Live traffic comes behind stored: once a new phone has its snapshot, the relay has taken what was before it.
    let mut other = world.raw_phone("Other").await;
    other.inbox().await;

    let device = world.control.devices().await[0]["pubkey"].as_str().expect("a key").to_owned();
    let key = skald_common::ids::Ed25519Public::from_hex(&device).expect("hex").to_vec();
    let files = read_all(&data);
    let knows = |content: &Vec<u8>| content.windows(key.len()).any(|window| window == key);
    assert!(files.iter().any(|(_, content)| knows(content)), "these are the files: they name the phone's key");
    // The pairing token is no content: the relay is told it, to compare.
    for text in canaries.all().filter(|text| text.starts_with("canary")) {
        assert_eq!(containing(&data, text), Vec::<std::path::PathBuf>::new(), "{text}");
    }
}

#[tokio::test]
async fn secrets_are_on_no_disk_of_daemon_and_phone() {
    let mut world = World::new().await;
    let (_host, phone, canaries) = lively_evening(&mut world).await;
    for moment in ["running", "crashed", "stopped"] {
        match moment {
            "crashed" => world.crash().await,
            "stopped" => world.daemon.stop().await,
            _ => {}
        }
        assert!(!read_all(&world.daemon.state()).is_empty() && !read_all(&phone.state()).is_empty());
        let token = canaries.content.iter().find(|text| !text.starts_with("canary")).expect("the pairing token");
        for text in [&canaries.secret, token] {
            assert_eq!(containing(world.daemon.folder(), text), Vec::<std::path::PathBuf>::new(), "{text}, {moment}");
            assert_eq!(containing(phone.folder(), text), Vec::<std::path::PathBuf>::new(), "{text}, {moment}");
        }
    }
}

#[tokio::test]
async fn what_goes_through_a_tunnel_is_in_no_log_and_no_file() {
    if !Relay::controllable() {
        return;
    }
    let mut tunnel = Tunnel::on(Arc::new(Relay::with(&["--verbose"]).await)).await;
    let (path, body, refused) = (canary("path"), canary("body"), canary("refused"));
    let mut http = Http::connect(tunnel.address()).await;
    let answer = http.get(&format!("/data/{path}")).await.expect("an answer");
    assert!(text(answer).await.expect("whole").contains(&path), "it went to the site and back");
    let answer = http.post("/up", full(body.clone())).await.expect("an answer");
    assert_eq!(text(answer).await.expect("whole"), checksum([body.clone().into()]));
    // In the middle of it everybody may have it in hand.
    let mut held = Http::connect(tunnel.address()).await;
    let asking = async { held.post(&format!("/slow?{refused}"), full(refused.clone())).await };
    let stopping = async {
        tunnel.site.until("the last request", |visits| visits.requests == 3).await;
        tunnel.world.daemon.stop().await;
    };
    let (answer, ()) = tokio::join!(asking, stopping);
    // The phone says in the site's place why there is none.
    assert!(answer.is_ok_and(|answer| answer.status() == 502));
    tunnel.proxy.process.terminate();
    let phone = tunnel.proxy.process.finished().await;
    let logs =
        [("daemon", tunnel.world.daemon.log()), ("relay", tunnel.world.relay.log()), ("phone", phone.out + &phone.err)];
    let folders = [
        Some(tunnel.world.daemon.folder().to_owned()),
        tunnel.world.relay.data(),
        Some(tunnel.phone.folder().to_owned()),
    ];
    for text in [path, body, refused] {
        for (whose, log) in &logs {
            assert!(!log.is_empty());
            assert_eq!(traces(log.as_bytes(), &text), [""; 0], "the {whose} logged {text}");
        }
        for folder in folders.iter().flatten() {
            assert!(!read_all(folder).is_empty());
            assert_eq!(containing(folder, &text), Vec::<std::path::PathBuf>::new(), "{text}");
        }
    }
}

#[tokio::test]
async fn errors_quote_no_content() {
    let mut world = World::new().await;
    let host = world.host("skald").await;
    let text = canary("wrong");
    for item in [
        json!({"request_id": 1, "tool_name": {text.clone(): 1}, "summary": "s"}),
        json!({"request_id": 1, "tool_name": "t", "summary": [text.clone()]}),
        json!({"request_id": [text.clone()], "tool_name": "t", "summary": "s"}),
        json!({"request_id": 1, "tool_name": "t", "summary": "s", "created_at": text.clone()}),
    ] {
        let failure = host.try_call("inbox.requested", json!({"kind": "approval", "item": item})).await;
        let failure = failure.expect_err("refused");
        assert!(!failure.message.contains(&text) && !failure.data.to_string().contains(&text), "{failure:?}");
    }
    let mut phone = world.raw_phone("Ann").await;
    phone.send("approval_response", json!({"request_id": text, "decision": text})).await;
    phone.send("elicitation_response", json!({"request_id": "1", "action": "accept", "content": text})).await;
    phone.send("hello", json!({"device_info": {"platform": [text]}})).await;
    phone.send(&text, json!({})).await;
    phone.inbox().await;
    assert!(!world.daemon.log().contains(&text));
}

/// A command that starts this one where a core dump may be as large as it likes.
fn dumpable(command: &Command, folder: &Path) -> Command {
    let mut shell = skald_tests::command("sh");
    shell.args(["-c", r#"ulimit -c unlimited 2>/dev/null; exec "$@""#, "sh"]).arg(command.get_program());
    shell.args(command.get_args()).current_dir(folder);
    shell.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    shell
}

/// Ends it by a signal whose default is a core dump, after allowing one as far as this user may. True: there was one.
async fn dumps(process: &Process, signal: Signal) -> bool {
    // Fails unless we are root: then the program's own limit stands.
    let _ = prlimit(Pid::from_raw(process.pid()), Resource::Core, Rlimit { current: None, maximum: None });
    process.signal(signal);
    let status = process.finished().await.status;
    assert_eq!(status.signal(), Some(signal.as_raw()), "{status}");
    status.core_dumped()
}

/// Whether anything can be dumped on this machine, and a dump is searched: a program that keeps nothing private.
async fn dumps_are_possible(folder: &Path) {
    let text = canary("control");
    let mut shell = command("sh");
    shell.args(["-c", r#"secret=$1; echo "${#secret}"; read -r line"#, "sh", &text]);
    let process = Process::spawn("a program without secrets", dumpable(&shell, folder));
    process.wrote(Stream::Out, "31").await;
    if !dumps(&process, Signal::QUIT).await {
        eprintln!("nothing on this machine leaves a core dump: that ours do not proves little");
    } else if containing(folder, &text).is_empty() {
        eprintln!("core dumps go elsewhere on this machine: their content is not searched");
    }
    for (path, content) in read_all(folder) {
        if !traces(&content, &text).is_empty() {
            std::fs::remove_file(path).expect("it is ours");
        }
    }
}

#[tokio::test]
async fn a_daemon_that_crashes_with_a_secret_in_hand_leaves_no_trace_of_it() {
    let mut world = World::new().await;
    dumps_are_possible(world.daemon.folder()).await;
    world.daemon.stop().await;
    world.daemon.start_by(dumpable(&world.daemon.command(), world.daemon.folder())).await;
    world.reconnect().await;
    let (_host, _phone, canaries, _call, _replying) = until_the_secret_is_out(&mut world).await;
    assert!(!dumps(world.daemon.process(), Signal::ABORT).await, "a core dump");
    world.daemon.end().await;
    let log = world.daemon.log();
    for text in canaries.all() {
        assert_eq!(traces(log.as_bytes(), text), [""; 0], "the daemon's last words hold {text}");
    }
    assert_eq!(containing(world.daemon.folder(), &canaries.secret), Vec::<std::path::PathBuf>::new());
}

#[tokio::test]
async fn none_of_our_programs_leaves_a_core_dump() {
    let mut world = World::new().await;
    let phone = world.phone("Ann").await;
    let folder = tempfile::tempdir().expect("a temporary folder");
    dumps_are_possible(folder.path()).await;
    let start = |name, command| Process::spawn(name, dumpable(&command, folder.path()));
    let skaldctl = start("skaldctl", world.skaldctl().command(&["ask", "question", "Which branch?"]));
    let watching = start("skald-phone", phone.command(&["watch"]));
    world.pending(1).await;
    watching.wrote(Stream::Out, "Which branch?").await;
    for program in [&skaldctl, &watching, world.daemon.process()] {
        assert!(!dumps(program, Signal::QUIT).await, "{}", program.report());
    }
    let left = read_all(folder.path()).into_iter().map(|(path, _)| path).collect::<Vec<_>>();
    assert_eq!(left, Vec::<std::path::PathBuf>::new());
}
