//! JSON-RPC 2.0 in lines over a Unix socket, both sides calling: the client's end, written for tests.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, oneshot};

use crate::within;

/// An error object of the daemon.
#[derive(Debug, Clone, PartialEq)]
pub struct RpcFailure {
    /// Its code.
    pub code: i64,
    /// Its words.
    pub message: String,
    /// For programs; null without.
    pub data: Value,
}

type Reply = Result<Value, RpcFailure>;
type Waiting = Arc<Mutex<HashMap<u64, oneshot::Sender<Reply>>>>;
type Writer = Arc<tokio::sync::Mutex<OwnedWriteHalf>>;

/// One connection.
#[derive(Debug)]
pub struct Rpc {
    writer: Writer,
    waiting: Waiting,
    last_id: AtomicU64,
    incoming: mpsc::UnboundedReceiver<Value>,
    deaf: Arc<AtomicBool>,
    reader: tokio::task::JoinHandle<()>,
}

impl Rpc {
    /// Connects; says nothing yet.
    pub async fn connect(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).await;
        let stream = stream.unwrap_or_else(|error| panic!("{}: {error}", socket.display()));
        let (reader, writer) = stream.into_split();
        let writer = Arc::new(tokio::sync::Mutex::new(writer));
        let waiting = Waiting::default();
        let deaf = Arc::new(AtomicBool::new(false));
        let (sender, incoming) = mpsc::unbounded_channel();
        let reader = tokio::spawn(read(reader, Arc::clone(&waiting), sender, Arc::clone(&writer), Arc::clone(&deaf)));
        Self { writer, waiting, last_id: AtomicU64::new(0), incoming, deaf, reader }
    }

    /// Calls a method and waits for its answer.
    pub async fn call(&self, method: &str, params: Value) -> Reply {
        let reply = self.begin(method, params).await;
        within(&format!("the answer to {method}"), reply)
            .await
            .unwrap_or_else(|_| panic!("{method}: connection closed"))
    }

    /// Calls a method; the answer comes on the channel, which is closed if the connection ends first.
    pub async fn begin(&self, method: &str, params: Value) -> oneshot::Receiver<Reply> {
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        let (sender, receiver) = oneshot::channel();
        self.waiting.lock().expect("no panic").insert(id, sender);
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})).await;
        receiver
    }

    /// Sends one message.
    pub async fn send(&self, message: &Value) {
        self.send_line(&message.to_string()).await;
    }

    /// Sends any line. A connection that the daemon has closed takes it without complaint.
    pub async fn send_line(&self, line: &str) {
        write(&self.writer, line).await;
    }

    /// The next message that is no answer to a call of ours; `None` once the connection is closed.
    pub async fn next(&mut self) -> Option<Value> {
        within("a message of the daemon", self.incoming.recv()).await
    }

    /// Waits until the daemon has closed the connection; gives the messages before.
    pub async fn closed(&mut self) -> Vec<Value> {
        let mut rest = Vec::new();
        while let Some(message) = self.next().await {
            rest.push(message);
        }
        rest
    }

    /// From now on `ping` is not answered, as by a host that hangs.
    pub fn play_deaf(&self) {
        self.deaf.store(true, Ordering::Relaxed);
    }

    pub(crate) fn writer(&self) -> Writer {
        Arc::clone(&self.writer)
    }
}

impl Drop for Rpc {
    fn drop(&mut self) {
        // Its half of the socket goes with it, whatever calls still wait.
        self.reader.abort();
    }
}

pub(crate) async fn write(writer: &tokio::sync::Mutex<OwnedWriteHalf>, line: &str) {
    let line = format!("{line}\n");
    let mut writer = writer.lock().await;
    let _ = within("the daemon to read", writer.write_all(line.as_bytes())).await;
}

async fn read(
    reader: OwnedReadHalf,
    waiting: Waiting,
    incoming: mpsc::UnboundedSender<Value>,
    writer: Writer,
    deaf: Arc<AtomicBool>,
) {
    let mut lines = BufReader::new(reader).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let mut message: Value = serde_json::from_str(&line).expect("the daemon writes JSON");
        assert_eq!(message["jsonrpc"], "2.0", "{message}");
        if message["method"] == "ping" {
            if !deaf.load(Ordering::Relaxed) {
                let pong = json!({"jsonrpc": "2.0", "id": message["id"], "result": {}});
                write(&writer, &pong.to_string()).await;
            }
            continue;
        }
        let reply = message.get("method").is_none();
        let sender =
            message["id"].as_u64().filter(|_| reply).and_then(|id| waiting.lock().expect("no panic").remove(&id));
        match sender {
            Some(sender) => {
                let _ = sender.send(match message.get_mut("error") {
                    None => Ok(message["result"].take()),
                    Some(error) => Err(RpcFailure {
                        code: error["code"].as_i64().expect("an error has a code"),
                        message: error["message"].as_str().expect("an error has a message").to_owned(),
                        data: error["data"].take(),
                    }),
                });
            }
            None => {
                let _ = incoming.send(message);
            }
        }
    }
    waiting.lock().expect("no panic").clear();
}
