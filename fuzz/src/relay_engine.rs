//! Any sequence of inputs through the engine of a namespace: connections, frames that are whole, mangled or made up, cuts,
//! evictions, failing storage, clocks that jump. [`World`] judges what comes out.

use skald_common::ids::{ChallengeNonce, Ed25519Public};
use skald_common::wire::{
    Ack, Auth, AuthAgent, AuthClient, AuthPairing, Authorize, Features, Frame, Message, PairingStart, PairingStop,
    PresenceRequest, Role, encode,
};
use skald_relay_worker::engine::{ConnId, Input, Origin};
use skald_relay_worker::push::Outcome;

use crate::relay_world::{AGENT, PEOPLE, World, namespace, person};
use crate::tape::Tape;

/// Longest history.
const MAX_STEPS: usize = 200;

/// The target.
pub fn run(data: &[u8]) {
    play(data);
}

fn play(data: &[u8]) -> World {
    let mut tape = Tape::new(data);
    let mut play = Play::over(World::new());
    for _ in 0..MAX_STEPS {
        if tape.ended() {
            break;
        }
        play.step(&mut tape);
    }
    play.world
}

/// A world and who speaks on which of its connections.
pub(crate) struct Play {
    pub(crate) world: World,
    speakers: Vec<(ConnId, Ed25519Public)>,
}

impl Play {
    pub(crate) fn over(world: World) -> Self {
        Self { world, speakers: Vec::new() }
    }

    /// One event.
    pub(crate) fn step(&mut self, tape: &mut Tape<'_>) {
        match tape.below(21) {
            0 => self.open_direct(tape),
            1 | 2 => {
                let (role, who) = role(tape);
                let auth = encode(Frame::Auth(Auth { role: Some(role), signature: vec![0; 64] }));
                let conn = self.world.open(Origin::Verified { auth: auth.into() });
                self.speakers.push((conn, person(who).ed25519_pub()));
            }
            3 => {
                let auth = tape.bytes().to_vec();
                self.world.open(Origin::Verified { auth: auth.into() });
            }
            4 => self.answer_challenge(tape),
            5 => {
                let bytes = bytes(tape);
                self.say(tape, bytes);
            }
            6..=10 => {
                let frame = frame(tape);
                self.say(tape, encode(frame));
            }
            11 => {
                if let Some(conn) = self.world.nth(tape.below(16)) {
                    self.world.step(Input::Text { conn });
                }
            }
            12 => {
                if let Some(conn) = self.world.nth(tape.below(16)) {
                    let code = [1000, 1001, 1005, 1006, 4000][tape.below(5)];
                    self.world.hang_up(conn, code);
                }
            }
            13 => self.world.step(if tape.byte() & 1 == 0 { Input::Alarm } else { Input::Wake }),
            14 => {
                let ms = tape.number() & ((1 << 40) - 1);
                self.world.pass(ms);
            }
            15 => {
                // A clock that was set: nothing fires on the way.
                let to = tape.number();
                self.world.now = if to.is_multiple_of(2) { self.world.now.saturating_sub(to) } else { to };
            }
            16 => self.world.evict(),
            17 => {
                let buffered = tape.number();
                let (at, ping) = (tape.below(16), tape.byte());
                let now = self.world.now;
                if let Some(socket) = self.world.nth(at).and_then(|conn| self.world.sockets.get_mut(&conn)) {
                    socket.buffered = buffered;
                    socket.last_ping = (ping & 1 == 1).then(|| now.saturating_sub(u64::from(ping) << 10));
                }
            }
            18 => self.world.fail_storage(u32::from(tape.byte() % 8)),
            20 => self.answer_push(tape),
            _ => {
                let conn = ConnId(u64::from(tape.byte()));
                if tape.byte() & 1 == 0 {
                    self.world.step(Input::Closed { conn, code: tape.short() });
                }
            }
        }
    }

    /// A push service answers one of the pushes, for the first time or again, or one that nobody asked for.
    fn answer_push(&mut self, tape: &mut Tape<'_>) {
        let (which, what) = (tape.below(9), tape.below(5));
        let count = self.world.asked.len();
        let id = self.world.asked.get(which % count.max(1)).copied().filter(|_| which < 8);
        let id = id.unwrap_or_else(|| tape.number());
        let outcome = match what {
            0 => Outcome::Sent,
            1 => Outcome::TokenGone,
            2 => Outcome::Refused,
            3 => Outcome::Unavailable { retry_after_ms: None },
            _ => Outcome::Unavailable { retry_after_ms: Some(tape.number()) },
        };
        self.world.step(Input::Pushed { id, outcome });
    }

    fn open_direct(&mut self, tape: &mut Tape<'_>) {
        let challenge = ChallengeNonce::new(tape.key());
        let namespace = if tape.byte() & 3 == 3 { person(PEOPLE - 1).namespace_id() } else { namespace() };
        self.world.open(Origin::Direct { challenge, namespace });
    }

    /// A signed answer, right or to another challenge.
    fn answer_challenge(&mut self, tape: &mut Tape<'_>) {
        let Some(conn) = self.world.nth(tape.below(16)) else { return };
        let (role, who) = role(tape);
        let right = self.world.sockets[&conn].challenge;
        let nonce = right.filter(|_| tape.byte() & 7 != 7).unwrap_or(ChallengeNonce::new([9; 32]));
        let signature = person(who).sign_challenge(&nonce).to_vec();
        if !self.world.sockets[&conn].admitted {
            self.speakers.push((conn, person(who).ed25519_pub()));
        }
        self.world.say(conn, None, encode(Frame::Auth(Auth { role: Some(role), signature })));
    }

    fn say(&mut self, tape: &mut Tape<'_>, bytes: Vec<u8>) {
        let Some(conn) = self.world.nth(tape.below(16)) else { return };
        let speaker = self.speakers.iter().rev().find(|(id, _)| *id == conn).map(|(_, key)| *key);
        self.world.say(conn, speaker, bytes);
    }
}

/// Who somebody says he is, and who it is.
fn role(tape: &mut Tape<'_>) -> (Role, usize) {
    let kind = tape.below(4);
    let who = tape.below(PEOPLE);
    let features = Features::from_bits(u32::from(tape.byte())).bits();
    let key = person(who).ed25519_pub().to_vec();
    let role = match kind {
        0 => {
            let agent_ed25519_pub = if who == PEOPLE - 1 { key } else { person(AGENT).ed25519_pub().to_vec() };
            let who = if who == PEOPLE - 1 { who } else { AGENT };
            return (Role::Agent(AuthAgent { agent_ed25519_pub, features }), who);
        }
        1 | 2 => Role::Client(AuthClient {
            namespace_id: namespace().to_vec(),
            client_ed25519_pub: key,
            device_token: "t".repeat(usize::from(features % 3 == 2)),
            platform: [0, 1, 2, 101, 77][tape.below(5)],
            features,
        }),
        _ => Role::Pairing(AuthPairing {
            namespace_id: namespace().to_vec(),
            client_ed25519_pub: key,
            client_x25519_pub: person(who).x25519_pub().to_vec(),
            pairing_token: tape.key().to_vec(),
            device_token: String::new(),
            platform: i32::from(tape.byte()),
        }),
    };
    (role, who)
}

/// Bytes as they are, or a good frame with one byte changed.
fn bytes(tape: &mut Tape<'_>) -> Vec<u8> {
    if tape.byte() & 1 == 0 {
        return tape.bytes().to_vec();
    }
    let mut bytes = encode(frame(tape));
    let (at, byte) = (usize::from(tape.short()), tape.byte());
    let length = bytes.len();
    if let Some(place) = bytes.get_mut(at % length.max(1)) {
        *place = byte;
    }
    bytes
}

/// A frame that says something.
fn frame(tape: &mut Tape<'_>) -> Frame {
    match tape.below(8) {
        0..=3 => {
            let (to, flags) = (tape.below(PEOPLE), tape.byte());
            Frame::Message(Message {
                ciphertext: vec![tape.byte(); usize::from(tape.short() % 5000)].into(),
                nonce: vec![flags; 12],
                peer: person(to).ed25519_pub().to_vec(),
                live: flags & 1 != 0,
                r#ref: if flags & 2 != 0 { tape.number() } else { 0 },
                delivery: if flags & 4 != 0 { tape.number() } else { 0 },
                collapse: vec![flags >> 6; usize::from((flags >> 3) & 1) * usize::from(flags >> 5)],
                quiet: flags & 16 != 0,
            })
        }
        4 => {
            let mask = tape.byte();
            let keys = (0..PEOPLE).filter(|n| mask & (1 << n) != 0).map(|n| person(n).ed25519_pub().to_vec());
            Frame::Authorize(Authorize { clients: keys.collect() })
        }
        5 => Frame::PairingStart(PairingStart { pairing_token: tape.key().to_vec(), ttl: u32::from(tape.short()) }),
        6 => Frame::Ack(Ack { delivery: tape.number() }),
        _ if tape.byte() & 1 == 0 => Frame::PresenceRequest(PresenceRequest {}),
        _ => Frame::PairingStop(PairingStop {}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seeds;

    #[test]
    fn the_seeds_get_as_far_as_messages_and_pairings() {
        let reached = |name: &str| {
            let seeds = seeds::all();
            let seed = seeds.iter().find(|seed| seed.target == "relay_engine" && seed.name == name).unwrap();
            let world = play(&seed.bytes);
            let admitted = world.sockets.values().filter(|socket| socket.admitted).count();
            if name == "seed-push" {
                assert_eq!(world.asked.len(), 3, "pushed, refused for now, pushed again, answered; and the next");
            }
            (admitted, world.delivered, world.announced)
        };
        assert_eq!(reached("seed-push"), (2, 0, 0));
        assert_eq!(reached("seed-messages"), (2, 3, 0));
        assert_eq!(reached("seed-queue"), (3, 2, 0));
        assert_eq!(reached("seed-pairing"), (4, 0, 1));
        assert_eq!(reached("seed-challenge"), (2, 0, 0));
    }
}
