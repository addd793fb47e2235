//! What two members say to each other to open a pipe: sealed like any message, sent live (pipe protocol, Signals).

use std::collections::BTreeMap;

use super::msgpack::{Map, PipeDecodeError, Value, Writer};
use crate::ids::{ConnectionId, X25519Public};
use crate::limits::PIPE_MAX_SIGNAL;

/// The one suite there is: X25519 keys inside sealed signals.
pub const SUITE: &str = "x25519-sealed";
/// The one form of frames that is used: as they are.
pub const UNCOMPRESSED: &str = "none";

/// The sender's part of the key agreement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Handshake {
    /// [`SUITE`], with the sender's ephemeral key.
    X25519(X25519Public),
    /// A suite that this build does not know, whose handshake means nothing to it.
    Unknown {
        /// Its name.
        suite: String,
    },
}

/// A signal. `Debug` shows no header and no reason: both are the application's.
#[derive(Clone, PartialEq, Eq)]
pub enum Signal {
    /// Asks for a pipe.
    Invite(Invite),
    /// Agrees to it.
    Accept(Accept),
    /// Declines it.
    Reject(Reject),
}

/// Asks for a pipe.
#[derive(Clone, PartialEq, Eq)]
pub struct Invite {
    /// Names the pipe: random, used once.
    pub connection: ConnectionId,
    /// The opener's key.
    pub handshake: Handshake,
    /// What the pipe is for.
    pub stream_type: String,
    /// Forms of frames that the opener can read: `none`, `zlib`.
    pub compress: Vec<String>,
    /// The application's own.
    pub headers: BTreeMap<String, String>,
}

/// Agrees to a pipe.
#[derive(Clone, PartialEq, Eq)]
pub struct Accept {
    /// Which.
    pub connection: ConnectionId,
    /// The invited side's key.
    pub handshake: Handshake,
    /// The form of frames that it chose.
    pub compress: String,
}

/// Declines a pipe.
#[derive(Clone, PartialEq, Eq)]
pub struct Reject {
    /// Which.
    pub connection: ConnectionId,
    /// In words, for people.
    pub reason: String,
}

impl Signal {
    /// The pipe that it is about.
    pub const fn connection(&self) -> ConnectionId {
        match self {
            Self::Invite(Invite { connection, .. })
            | Self::Accept(Accept { connection, .. })
            | Self::Reject(Reject { connection, .. }) => *connection,
        }
    }

    /// As `MessagePack`, for [`frame_pipe_signal`](crate::framing::frame_pipe_signal).
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.map(1);
        match self {
            Self::Invite(invite) => {
                begin(&mut writer, "Invite", 6, invite.connection);
                write_handshake(&mut writer, &invite.handshake);
                writer.text("stream_type").text(&invite.stream_type);
                writer.text("compress").list(invite.compress.len());
                for form in &invite.compress {
                    writer.text(form);
                }
                writer.text("headers").map(invite.headers.len());
                for (name, value) in &invite.headers {
                    writer.text(name).text(value);
                }
            }
            Self::Accept(accept) => {
                begin(&mut writer, "Accept", 4, accept.connection);
                write_handshake(&mut writer, &accept.handshake);
                writer.text("compress").text(&accept.compress);
            }
            Self::Reject(reject) => {
                begin(&mut writer, "Reject", 2, reject.connection);
                writer.text("reason").text(&reject.reason);
            }
        }
        writer.finish()
    }

    /// Reads a signal: byte fields as arrays of integers or as bin, unknown keys ignored, at most [`PIPE_MAX_SIGNAL`] bytes.
    pub fn decode(message: &[u8]) -> Result<Self, PipeDecodeError> {
        let tagged = Value::whole(message, PIPE_MAX_SIGNAL)?.map("signal")?;
        let (Some((tag, fields)), 1) = (tagged.entries().next(), tagged.len()) else {
            return Err(PipeDecodeError::Type { field: "signal" });
        };
        let tag = tag.text("signal")?;
        if !matches!(tag, "Invite" | "Accept" | "Reject") {
            return Err(PipeDecodeError::Unknown);
        }
        let fields = fields.map("signal")?;
        let connection = ConnectionId::new(fields.get("connection_id")?.bytes("connection_id")?);
        Ok(match tag {
            "Invite" => Self::Invite(Invite {
                connection,
                handshake: read_handshake(fields)?,
                stream_type: owned(fields, "stream_type")?,
                compress: fields
                    .get("compress")?
                    .list("compress")?
                    .map(|form| form.text("compress").map(str::to_owned))
                    .collect::<Result<_, _>>()?,
                headers: read_headers(fields)?,
            }),
            "Accept" => Self::Accept(Accept {
                connection,
                handshake: read_handshake(fields)?,
                compress: owned(fields, "compress")?,
            }),
            _ => Self::Reject(Reject { connection, reason: owned(fields, "reason")? }),
        })
    }
}

impl std::fmt::Debug for Signal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = match self {
            Self::Invite(_) => "Invite",
            Self::Accept(_) => "Accept",
            Self::Reject(_) => "Reject",
        };
        f.debug_tuple(name).field(&self.connection()).finish()
    }
}

fn begin(writer: &mut Writer, tag: &str, fields: usize, connection: ConnectionId) {
    writer.text(tag).map(fields);
    writer.text("connection_id").bytes(connection.as_bytes());
}

fn write_handshake(writer: &mut Writer, handshake: &Handshake) {
    match handshake {
        Handshake::X25519(key) => writer.text("suite").text(SUITE).text("handshake").bytes(key.as_bytes()),
        Handshake::Unknown { suite } => writer.text("suite").text(suite).text("handshake").bytes(&[]),
    };
}

fn read_handshake(fields: Map<'_>) -> Result<Handshake, PipeDecodeError> {
    let suite = owned(fields, "suite")?;
    let handshake = fields.get("handshake")?;
    if suite == SUITE {
        Ok(Handshake::X25519(X25519Public::new(handshake.bytes("handshake")?)))
    } else {
        Ok(Handshake::Unknown { suite })
    }
}

/// May be absent, or nil.
fn read_headers(fields: Map<'_>) -> Result<BTreeMap<String, String>, PipeDecodeError> {
    let Some(headers) = fields.find("headers")?.filter(|value| !value.is_nil()) else { return Ok(BTreeMap::new()) };
    headers
        .map("headers")?
        .entries()
        .map(|(name, value)| Ok((name.text("headers")?.to_owned(), value.text("headers")?.to_owned())))
        .collect()
}

fn owned(fields: Map<'_>, field: &'static str) -> Result<String, PipeDecodeError> {
    fields.get(field)?.text(field).map(str::to_owned)
}
