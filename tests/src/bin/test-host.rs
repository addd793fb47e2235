//! A host as a process, to be killed: `test-host SOCKET FOLDER`. It raises each item that it reads from standard input, a
//! line `{"kind": …, "item": …}`, and keeps what it raised and what it was answered in the folder, durably before it tells
//! anybody. Started again it raises what has no answer yet.
//!
//! In FOLDER/calls each `inbox.resolve` is a line: `saw` before anything hangs on it, `took` when it is acted upon.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use skald_link::debug::crash_point;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// How often a daemon that is away is looked for.
const RETRY: Duration = Duration::from_millis(20);

struct Host {
    items: BTreeMap<String, Value>,
    taken: BTreeSet<String>,
    items_file: File,
    calls_file: File,
    last_call: u64,
}

fn main() -> Outcome<()> {
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let (Some(socket), Some(folder)) = (arguments.next(), arguments.next()) else {
        return Err("usage: test-host SOCKET FOLDER".into());
    };
    let (sender, mut orders) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let _ = sender.send(line);
        }
    });
    let mut host = Host::open(&folder)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        loop {
            let Ok(stream) = UnixStream::connect(&socket).await else {
                tokio::time::sleep(RETRY).await;
                continue;
            };
            let (reader, mut writer) = stream.into_split();
            let mut lines = BufReader::new(reader).lines();
            if !host.serve(&mut lines, &mut writer, &mut orders).await? {
                return Ok(());
            }
        }
    })
}

impl Host {
    fn open(folder: &Path) -> Outcome<Self> {
        let open = |name| -> Outcome<File> {
            let mut file = OpenOptions::new().create(true).append(true).open(folder.join(name))?;
            // The last line may have been cut by the last death.
            file.write_all(b"\n")?;
            Ok(file)
        };
        let (items_file, calls_file) = (open("items")?, open("calls")?);
        let read = |name| -> Outcome<Vec<Value>> {
            let text = std::fs::read_to_string(folder.join(name))?;
            Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
        };
        let items = read("items")?.into_iter().map(|raised| (id(&raised["item"]), raised)).collect();
        let taken =
            read("calls")?.iter().filter(|call| call["took"].is_object()).map(|call| id(&call["took"])).collect();
        Ok(Self { items, taken, items_file, calls_file, last_call: 0 })
    }

    /// Whether to connect again.
    async fn serve(
        &mut self,
        lines: &mut Lines<BufReader<OwnedReadHalf>>,
        writer: &mut OwnedWriteHalf,
        orders: &mut mpsc::UnboundedReceiver<String>,
    ) -> Outcome<bool> {
        let hello = json!({"protocol": 1, "name": "test-host", "version": "1.0", "label": "the tests' host"});
        let pending = |kind: &str| -> Vec<&Value> {
            let waits = |(id, raised): &(&String, &Value)| raised["kind"] == kind && !self.taken.contains(*id);
            self.items.iter().filter(waits).map(|(_, raised)| &raised["item"]).collect()
        };
        let (approvals, clarifications) = (pending("approval"), pending("clarification"));
        let set = json!({
            "approvals": approvals, "clarifications": clarifications, "elicitations": pending("elicitation"),
        });
        self.call(writer, "hello", hello).await;
        self.call(writer, "inbox.sync", set).await;
        loop {
            tokio::select! {
                order = orders.recv() => {
                    let Some(order) = order else { return Ok(false) };
                    let raised: Value = serde_json::from_str(&order)?;
                    append(&mut self.items_file, &raised)?;
                    self.items.insert(id(&raised["item"]), raised.clone());
                    crash_point("before-asking");
                    self.call(writer, "inbox.requested", raised).await;
                    crash_point("after-asking");
                }
                line = lines.next_line() => match line {
                    Ok(Some(line)) => self.hear(writer, serde_json::from_str(&line)?).await?,
                    _ => return Ok(true),
                },
            }
        }
    }

    async fn hear(&mut self, writer: &mut OwnedWriteHalf, mut message: Value) -> Outcome<()> {
        let result = match message["method"].as_str() {
            Some("inbox.resolve") => json!({"resolved": self.resolve(&message["params"].take())?}),
            Some("ping") => json!({}),
            Some(_) => return Ok(()),
            None if message["error"].is_null() => return Ok(()),
            None => return Err(format!("the daemon refuses: {message}").into()),
        };
        write(writer, &json!({"jsonrpc": "2.0", "id": message["id"], "result": result})).await;
        crash_point("after-answering-the-daemon");
        Ok(())
    }

    /// Whether the item was pending.
    fn resolve(&mut self, params: &Value) -> Outcome<bool> {
        append(&mut self.calls_file, &json!({"saw": params}))?;
        crash_point("before-taking-the-answer");
        let id = id(params);
        let fresh = !self.taken.contains(&id);
        if fresh {
            append(&mut self.calls_file, &json!({"took": params}))?;
            self.taken.insert(id.clone());
            println!("took {id}");
        }
        crash_point("after-taking-the-answer");
        Ok(fresh)
    }

    /// A write to a daemon that has gone is noticed by reading.
    async fn call(&mut self, writer: &mut OwnedWriteHalf, method: &str, params: Value) {
        self.last_call += 1;
        write(writer, &json!({"jsonrpc": "2.0", "id": self.last_call, "method": method, "params": params})).await;
    }
}

fn id(of: &Value) -> String {
    of["request_id"].to_string()
}

fn append(file: &mut File, line: &Value) -> Outcome<()> {
    file.write_all(format!("{line}\n").as_bytes())?;
    Ok(file.sync_data()?)
}

async fn write(writer: &mut OwnedWriteHalf, message: &Value) {
    let _ = writer.write_all(format!("{message}\n").as_bytes()).await;
}
