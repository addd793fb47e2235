//! A connection to the daemon: hello, calls, and the daemon's own calls.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use zeroize::Zeroizing;

use crate::paths::{process_env, socket_candidates};
use crate::rpc::{Call, LineReader, Message, RpcError, codes, encode, parse_params};
use crate::server::{PROTOCOL, Socket, VERSION};

/// How long the daemon may take to answer a call. It waits up to 10 s for the relay.
const ANSWER: Duration = Duration::from_secs(30);

/// What goes wrong between us and the daemon.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens.
    #[error(
        "the daemon is not running: start it with `skald-agentd run` or `systemctl start skald-agentd`; looked for {}",
        list(.0)
    )]
    NotRunning(Vec<PathBuf>),
    /// The socket's file does not let us.
    #[error("you may not use {}: it is for {users}", path.display())]
    NotPermitted {
        /// Which.
        path: PathBuf,
        /// Whom it is for.
        users: &'static str,
    },
    /// The path is too long for a socket.
    #[error("{} is too long a path for a socket: give --dir or SKALD_AGENTD_DIR a shorter folder", .0.display())]
    TooLong(PathBuf),
    /// The system said no.
    #[error("cannot connect to {}: {error}", path.display())]
    Connect {
        /// To what.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// The daemon speaks another protocol.
    #[error("the daemon ({0}) and skaldctl {VERSION} do not understand each other: update the older one")]
    Protocol(String),
    /// The daemon refused, in its own words.
    #[error("{0}")]
    Refused(RpcError),
    /// The connection ended.
    #[error("the daemon closed the connection: see its log, and `skaldctl status`")]
    Closed,
    /// No answer.
    #[error("the daemon does not answer: see its log, and restart it if need be")]
    Silent,
    /// An answer that we cannot read.
    #[error("the daemon's answer to {method} cannot be read ({what}): are skaldctl and daemon of the same version?")]
    Unreadable {
        /// To what.
        method: String,
        /// What is wrong.
        what: String,
    },
}

/// What we say of ourselves.
#[derive(Debug, Clone, Serialize)]
pub struct Hello<'a> {
    protocol: u64,
    name: &'a str,
    version: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    label: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    linger_secs: Option<u64>,
}

impl<'a> Hello<'a> {
    /// For the control socket.
    pub const fn new(name: &'a str) -> Self {
        Self { protocol: PROTOCOL, name, version: VERSION, label: None, linger_secs: None }
    }

    /// For a host whose items go when its connection does.
    pub const fn foreground(name: &'a str, label: &'a str) -> Self {
        Self { label: Some(label), linger_secs: Some(0), ..Self::new(name) }
    }
}

/// A connection after `hello`.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    lines: LineReader,
    next_id: u64,
    incoming: VecDeque<Call>,
    daemon_version: String,
}

#[derive(Deserialize)]
struct Welcome {
    daemon: Daemon,
}

#[derive(Deserialize)]
struct Daemon {
    version: String,
}

impl Client {
    /// Finds the daemon, connects, and says hello.
    pub async fn connect(socket: Socket, dir: Option<&Path>, hello: &Hello<'_>) -> Result<Self, ClientError> {
        let candidates = socket_candidates(dir, socket.name(), &process_env);
        let stream = open(socket, candidates).await?;
        let daemon_version = String::new();
        let mut client =
            Self { stream, lines: LineReader::new(), next_id: 0, incoming: VecDeque::new(), daemon_version };
        let welcome: Welcome = client.call("hello", hello).await.map_err(|error| match error {
            ClientError::Refused(error) if error.code == codes::PROTOCOL => ClientError::Protocol(error.message),
            error => error,
        })?;
        client.daemon_version = welcome.daemon.version;
        Ok(client)
    }

    /// The daemon's own version.
    pub fn daemon_version(&self) -> &str {
        &self.daemon_version
    }

    /// Calls and reads the result as `T`.
    pub async fn call<T: DeserializeOwned>(&mut self, method: &str, params: &impl Serialize) -> Result<T, ClientError> {
        let text = self.call_text(method, params).await?;
        let unreadable = |error: RpcError| ClientError::Unreadable { method: method.to_owned(), what: error.message };
        parse_params(&text).map_err(unreadable)
    }

    /// Calls; the result is JSON text. The daemon's calls that come in between wait for [`Client::next_call`].
    pub async fn call_text(&mut self, method: &str, params: &impl Serialize) -> Result<Zeroizing<String>, ClientError> {
        let id = self.next_id;
        self.next_id += 1;
        self.write(&encode::request(id, method, params)).await?;
        let answer = async {
            loop {
                match self.read().await? {
                    Message::Reply(reply) if reply.id == Some(id) => {
                        return reply.outcome.map_err(ClientError::Refused);
                    }
                    // An error without an id tells that the daemon could not read our line at all.
                    Message::Reply(reply) => reply.outcome.map(drop).map_err(ClientError::Refused)?,
                    Message::Call(call) => self.incoming.push_back(call),
                }
            }
        };
        tokio::time::timeout(ANSWER, answer).await.map_err(|_| ClientError::Silent)?
    }

    /// The daemon's next call. Pings are answered on the way. Cancel safe.
    pub async fn next_call(&mut self) -> Result<Call, ClientError> {
        loop {
            let call = match self.incoming.pop_front() {
                Some(call) => call,
                None => match self.read().await? {
                    Message::Call(call) => call,
                    Message::Reply(_) => continue,
                },
            };
            if call.method == "ping" {
                self.answer(&call, &json!({})).await?;
            } else {
                return Ok(call);
            }
        }
    }

    /// Answers a call of the daemon.
    pub async fn answer(&mut self, call: &Call, result: &impl Serialize) -> Result<(), ClientError> {
        match &call.id {
            Some(id) => self.write(&encode::result(id, &encode::value(result))).await,
            None => Ok(()),
        }
    }

    async fn write(&mut self, line: &[u8]) -> Result<(), ClientError> {
        self.stream.write_all(line).await.map_err(|_| ClientError::Closed)
    }

    async fn read(&mut self) -> Result<Message, ClientError> {
        loop {
            if let Some(line) = self.lines.next_line() {
                let message = line
                    .map_err(|error| error.to_string())
                    .and_then(|line| Message::parse(&line).map_err(|error| error.message));
                return message.map_err(|what| ClientError::Unreadable { method: "a call".into(), what });
            }
            if !matches!(self.lines.fill(&mut self.stream).await, Ok(true)) && !self.lines.has_line() {
                return Err(ClientError::Closed);
            }
        }
    }
}

async fn open(socket: Socket, candidates: Vec<PathBuf>) -> Result<UnixStream, ClientError> {
    for path in &candidates {
        match UnixStream::connect(path).await {
            Ok(stream) => return Ok(stream),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {}
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                let users = match socket {
                    Socket::Hosts => "the daemon's user and members of the group skald",
                    Socket::Control => "the daemon's user and members of the group skald-admin",
                };
                return Err(ClientError::NotPermitted { path: path.clone(), users });
            }
            // That is how the path itself is refused.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                return Err(ClientError::TooLong(path.clone()));
            }
            Err(error) => return Err(ClientError::Connect { path: path.clone(), error }),
        }
    }
    Err(ClientError::NotRunning(candidates))
}

fn list(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" and ")
}
