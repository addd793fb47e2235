//! What a socket remembers through an eviction: everything of a connection that is neither in SQL nor may be lost. A
//! protobuf message of our own, so that a later relay can read what an earlier one saved.

use prost::Message;
use skald_common::ids::{ChallengeNonce, ConnectionId, DestHash, Ed25519Public, NamespaceId, Signature};
use skald_common::pipe::PipeAuth;
use skald_common::wire::Features;

use super::conn::{Conn, Flight, Held, Phase, Sent, Session, Stall};
use super::io::{ConnId, EndId};
use super::pipes::Side;

#[derive(Clone, PartialEq, Message)]
struct Record {
    #[prost(fixed64, tag = "1")]
    conn: u64,
    #[prost(bool, tag = "2")]
    closed: bool,
    #[prost(uint64, tag = "3")]
    opened_at: u64,
    // Before authentication.
    #[prost(bytes = "vec", tag = "4")]
    challenge: Vec<u8>,
    #[prost(bytes = "vec", tag = "5")]
    namespace: Vec<u8>,
    // After it.
    #[prost(bytes = "vec", tag = "6")]
    key: Vec<u8>,
    #[prost(uint32, tag = "7")]
    member: u32,
    #[prost(uint32, tag = "8")]
    features: u32,
    #[prost(uint64, tag = "9")]
    heard_at: u64,
    #[prost(uint32, tag = "10")]
    cursor: u32,
    #[prost(bool, tag = "11")]
    greeted: bool,
    #[prost(uint64, tag = "12")]
    stalled_since: u64,
    #[prost(uint64, tag = "13")]
    stalled_at: u64,
    // What is under way, each column by differences.
    #[prost(uint32, repeated, tag = "14")]
    flight_seq: Vec<u32>,
    #[prost(uint32, repeated, tag = "15")]
    flight_size: Vec<u32>,
    #[prost(uint64, repeated, tag = "16")]
    flight_at: Vec<u64>,
    // Of a pipe's side, and of nothing else.
    #[prost(message, optional, tag = "17")]
    side: Option<SideRecord>,
    // Of a member's connection again.
    #[prost(uint32, tag = "18")]
    rung: u32,
}

#[derive(Clone, PartialEq, Message)]
struct SideRecord {
    #[prost(bytes = "vec", tag = "1")]
    connection: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "3")]
    dest: Vec<u8>,
    #[prost(bytes = "vec", tag = "4")]
    namespace: Vec<u8>,
    #[prost(string, tag = "5")]
    end: String,
    #[prost(bool, tag = "6")]
    matched: bool,
}

/// What an attachment says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Saved {
    Open(Conn),
    /// The engine has closed it.
    Closed,
}

/// The connection that an attachment belongs to; `None` if the bytes are not the engine's.
pub fn conn_of(attachment: &[u8]) -> Option<ConnId> {
    Record::decode(attachment).ok().map(|record| ConnId(record.conn))
}

/// For a connection that is being closed.
pub(super) fn closed(id: ConnId) -> Vec<u8> {
    Record { conn: id.0, closed: true, ..Record::default() }.encode_to_vec()
}

pub(super) fn encode(id: ConnId, conn: &Conn) -> Vec<u8> {
    let mut record = Record { conn: id.0, opened_at: conn.opened_at, ..Record::default() };
    match &conn.phase {
        Phase::Challenged { challenge, namespace } => {
            record.challenge = challenge.to_vec();
            record.namespace = namespace.to_vec();
        }
        Phase::Member(session) => {
            record.key = session.key.to_vec();
            record.member = session.member;
            record.features = session.features.bits();
            record.heard_at = session.heard_at;
            record.cursor = session.cursor;
            record.rung = session.rung;
            record.greeted = session.greeted;
            if let Some(stall) = session.stall {
                record.stalled_since = stall.since;
                record.stalled_at = stall.buffered;
            }
            let (mut seq, mut at) = (0, 0);
            for sent in session.flight.iter() {
                record.flight_seq.push(sent.seq.wrapping_sub(seq));
                record.flight_size.push(sent.size);
                record.flight_at.push(sent.at.wrapping_sub(at));
                (seq, at) = (sent.seq, sent.at);
            }
        }
        Phase::Pipe(side) => {
            record.side = Some(SideRecord {
                connection: side.auth.connection.to_vec(),
                key: side.auth.pubkey.to_vec(),
                dest: side.auth.dest.to_vec(),
                namespace: side.auth.namespace.to_vec(),
                end: side.end.as_str().to_owned(),
                matched: side.matched,
            });
        }
    }
    record.encode_to_vec()
}

/// Reads an attachment; `None` if it makes no sense.
pub(super) fn decode(bytes: &[u8]) -> Option<Saved> {
    let record = Record::decode(bytes).ok()?;
    if record.closed {
        return Some(Saved::Closed);
    }
    let phase = if let Some(saved) = &record.side {
        Phase::Pipe(Box::new(side(saved)?))
    } else if record.key.is_empty() {
        Phase::Challenged {
            challenge: ChallengeNonce::from_slice(&record.challenge).ok()?,
            namespace: NamespaceId::from_slice(&record.namespace).ok()?,
        }
    } else {
        Phase::Member(Box::new(session(&record)?))
    };
    Some(Saved::Open(Conn { opened_at: record.opened_at, phase }))
}

fn side(record: &SideRecord) -> Option<Side> {
    let auth = PipeAuth {
        connection: ConnectionId::from_slice(&record.connection).ok()?,
        pubkey: Ed25519Public::from_slice(&record.key).ok()?,
        dest: DestHash::from_slice(&record.dest).ok()?,
        namespace: NamespaceId::from_slice(&record.namespace).ok()?,
        signature: Signature::new([0; Signature::LEN]),
        flow: false,
    };
    Some(Side { auth, end: EndId::parse(&record.end)?, matched: record.matched })
}

fn session(record: &Record) -> Option<Session> {
    let mut flight = Flight::default();
    let (mut seq, mut at) = (0u32, 0u64);
    for ((step, size), wait) in record.flight_seq.iter().zip(&record.flight_size).zip(&record.flight_at) {
        seq = seq.wrapping_add(*step);
        at = at.wrapping_add(*wait);
        flight.push(Sent { seq, size: *size, at });
    }
    Some(Session {
        member: record.member,
        key: Ed25519Public::from_slice(&record.key).ok()?,
        features: Features::from_bits(record.features),
        heard_at: record.heard_at,
        cursor: record.cursor,
        flight,
        rung: record.rung,
        greeted: record.greeted,
        stall: (record.stalled_since > 0).then_some(Stall { since: record.stalled_since, buffered: record.stalled_at }),
        held: Held::default(),
        bucket: None,
        saved_heard_at: record.heard_at,
    })
}

#[cfg(test)]
mod tests {
    use super::super::io::MAX_ATTACHMENT;
    use super::*;

    fn member(flight: impl Iterator<Item = Sent>) -> Conn {
        let mut session = Session::new(3, Ed25519Public::new([7; 32]), Features::ALL, 1_800_000_000_000);
        session.cursor = u32::MAX;
        session.rung = u32::MAX;
        session.greeted = true;
        session.stall = Some(Stall { since: 1_800_000_000_500, buffered: 1 << 20 });
        flight.for_each(|sent| session.flight.push(sent));
        Conn { opened_at: 1_800_000_000_000, phase: Phase::Member(Box::new(session)) }
    }

    #[test]
    fn both_phases_and_a_closed_one_come_back_as_they_were() {
        let challenged = Conn {
            opened_at: 5,
            phase: Phase::Challenged { challenge: ChallengeNonce::new([1; 32]), namespace: NamespaceId::new([2; 32]) },
        };
        let flight = [(4, 10, 100), (5, 65_000, 100), (90, 1, 99)];
        let member = member(flight.into_iter().map(|(seq, size, at)| Sent { seq, size, at }));
        for conn in [challenged, member] {
            let bytes = encode(ConnId(u64::MAX), &conn);
            assert_eq!(decode(&bytes), Some(Saved::Open(conn)));
            assert_eq!(conn_of(&bytes), Some(ConnId(u64::MAX)));
        }
        let bytes = closed(ConnId(9));
        assert_eq!((decode(&bytes), conn_of(&bytes)), (Some(Saved::Closed), Some(ConnId(9))));
    }

    #[test]
    fn two_hundred_messages_spread_over_a_week_still_fit() {
        let week = 7 * 24 * 3_600_000;
        let conn = member((0..200).map(|i| Sent {
            seq: u32::MAX - 200 + i,
            size: 65_000,
            at: 1_800_000_000_000 + u64::from(i) * week / 200,
        }));
        let bytes = encode(ConnId(u64::MAX), &conn);
        assert!(bytes.len() <= MAX_ATTACHMENT, "{}", bytes.len());
        assert_eq!(decode(&bytes), Some(Saved::Open(conn)));
    }

    #[test]
    fn noise_is_no_attachment_and_no_panic() {
        assert_eq!(decode(&[0xff; 40]), None);
        assert_eq!(decode(b""), None, "neither a challenge nor a key");
        let good = encode(ConnId(1), &member(std::iter::once(Sent { seq: 1, size: 2, at: 3 })));
        for cut in 0..good.len() {
            let _ = decode(good.get(..cut).unwrap_or_default());
        }
    }
}
