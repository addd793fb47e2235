//! The negotiation of pipes, on whatever partners, relay and application do, in any order: each negotiation ends once, with
//! its own partner and in time.

use std::collections::{BTreeMap, BTreeSet};

use skald_common::ids::{ConnectionId, Ed25519Public, X25519Public};
use skald_common::limits::{PIPE_MAX_OPENING, PIPE_OPEN_MS};
use skald_common::peer::SendError;
use skald_common::pipe::signal::{Accept, Handshake, Invite, Reject, Signal};
use skald_common::pipe::{PipeOutput, Pipes};
use zeroize::Zeroizing;

use crate::tape::Tape;

/// The record of what must come of it.
#[derive(Default)]
struct World {
    pipes: Pipes,
    now: u64,
    listening: bool,
    /// What has begun and not ended: with whom, and since when.
    open: BTreeMap<ConnectionId, (Ed25519Public, u64)>,
    ended: BTreeSet<ConnectionId>,
}

/// The target.
pub fn run(data: &[u8]) {
    let mut tape = Tape::new(data);
    let mut world = World::default();
    while !tape.ended() {
        world.step(&mut tape);
        world.check();
    }
    world.now += PIPE_OPEN_MS;
    world.pipes.on_timeout(world.now);
    world.drain(None);
    assert!(world.open.is_empty(), "without an end");
    assert!(world.pipes.deadline().is_none());
}

fn partner(tape: &mut Tape<'_>) -> Ed25519Public {
    Ed25519Public::new([tape.byte() % 3 + 1; 32])
}

fn id(tape: &mut Tape<'_>) -> ConnectionId {
    ConnectionId::new(tape.key())
}

fn handshake(tape: &mut Tape<'_>) -> Handshake {
    match tape.below(4) {
        0 => Handshake::X25519(X25519Public::new([0; 32])),
        1 => Handshake::Unknown { suite: "new".into() },
        _ => Handshake::X25519(X25519Public::new([9; 32])),
    }
}

fn form(tape: &mut Tape<'_>) -> String {
    if tape.below(4) == 0 { "zlib".into() } else { "none".into() }
}

impl World {
    fn step(&mut self, tape: &mut Tape<'_>) {
        match tape.below(12) {
            0 => {
                let (to, random) = (partner(tape), Zeroizing::new([tape.byte(); 64]));
                if let Ok(connection) = self.pipes.open(self.now, to, "test", BTreeMap::new(), &random) {
                    self.begin(connection, to);
                }
                self.drain(Some(to));
            }
            1 => {
                let (from, connection) = (partner(tape), id(tape));
                let (handshake, compress) = (handshake(tape), vec![form(tape)]);
                let (stream_type, headers) = ("test".to_owned(), BTreeMap::new());
                self.hear(from, &Signal::Invite(Invite { connection, handshake, stream_type, compress, headers }));
            }
            2 => {
                let (from, connection) = (partner(tape), id(tape));
                let (handshake, compress) = (handshake(tape), form(tape));
                self.hear(from, &Signal::Accept(Accept { connection, handshake, compress }));
            }
            3 => {
                let (from, connection) = (partner(tape), id(tape));
                self.hear(from, &Signal::Reject(Reject { connection, reason: "no".into() }));
            }
            4 => {
                let from = partner(tape);
                let _ = self.pipes.on_signal(self.now, from, tape.bytes());
                self.drain(Some(from));
            }
            5 => {
                let connection = id(tape);
                let before = self.open.get(&connection).map(|(partner, _)| *partner);
                let accepted = self.pipes.accept(&connection, &Zeroizing::new([99; 32]));
                assert!(accepted.is_err() || before.is_some(), "accepts what nobody asked");
                self.drain(before);
            }
            6 => {
                let connection = id(tape);
                if self.pipes.reject(&connection, "no").is_ok() {
                    self.end(connection);
                }
                self.drain(None);
            }
            7 => {
                let connection = id(tape);
                if self.pipes.ignore(&connection).is_ok() {
                    self.end(connection);
                }
                self.drain(None);
            }
            8 => {
                self.pipes.on_sent(&id(tape), Err(SendError::NotConnected));
                self.drain(None);
            }
            9 => {
                let offline = partner(tape);
                if tape.below(2) == 0 {
                    self.pipes.on_offline(&offline);
                    self.drain(Some(offline));
                } else {
                    self.pipes.forget(&offline);
                    self.drain(Some(offline));
                    assert!(!self.open.values().any(|(partner, _)| *partner == offline), "not forgotten");
                }
            }
            10 => {
                self.listening = tape.below(2) == 0;
                self.pipes.set_listening(self.listening);
            }
            _ => {
                self.now += u64::from(tape.short());
                self.pipes.on_timeout(self.now);
                self.drain(None);
            }
        }
    }

    fn hear(&mut self, from: Ed25519Public, signal: &Signal) {
        let _ = self.pipes.on_signal(self.now, from, &signal.encode());
        self.drain(Some(from));
    }

    fn begin(&mut self, connection: ConnectionId, partner: Ed25519Public) {
        assert!(!self.ended.contains(&connection), "an id is used twice");
        assert!(self.open.insert(connection, (partner, self.now)).is_none(), "an id is used twice at once");
    }

    fn end(&mut self, connection: ConnectionId) -> Ed25519Public {
        let (partner, _) = self.open.remove(&connection).expect("ends what has not begun, or has ended");
        // No more than are remembered, so that using one again must be noticed.
        self.ended.insert(connection);
        partner
    }

    /// Takes what came out; `with`: whoever was at work, and so the only one whom it may be about.
    fn drain(&mut self, with: Option<Ed25519Public>) {
        while let Some(output) = self.pipes.poll() {
            match output {
                PipeOutput::Send { to, connection, signal } => {
                    let signal = Signal::decode(&signal).expect("sends what cannot be read");
                    assert_eq!(signal.connection(), connection);
                    assert!(with.is_none_or(|with| with == to), "writes to somebody else");
                }
                PipeOutput::Invited { from, connection, .. } => {
                    assert!(self.listening, "nobody is there to be invited");
                    assert_eq!(Some(from), with, "invited by somebody else");
                    self.begin(connection, from);
                }
                PipeOutput::Opened(agreed) => {
                    assert_eq!(self.end(agreed.connection), agreed.partner, "opened with somebody else");
                    assert_eq!(Some(agreed.partner), with);
                }
                PipeOutput::Failed { connection, .. } => {
                    let partner = self.end(connection);
                    assert!(with.is_none_or(|with| with == partner), "failed by somebody else");
                }
            }
        }
    }

    fn check(&self) {
        assert_eq!(self.pipes.negotiations(), self.open.len());
        let due = self.open.values().map(|(_, since)| since + PIPE_OPEN_MS).min();
        assert_eq!(self.pipes.deadline(), due);
        for who in 1..4 {
            let partner = Ed25519Public::new([who; 32]);
            let count = self.open.values().filter(|(with, _)| *with == partner).count();
            assert!(count <= PIPE_MAX_OPENING, "{count} at once");
        }
    }
}
