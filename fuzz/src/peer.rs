//! The engine that agent and phone share, against a relay that says anything. It may be cut off, lied to and flooded; it
//! never uses a counter twice, hands on nothing that the partner did not seal, and acknowledges nothing unhandled.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use bytes::Bytes;
use skald_common::crypto::{Direction, Identity, Seed, SessionKey, split_nonce};
use skald_common::framing::{Body, Compression};
use skald_common::ids::{Ed25519Public, MessageNonce};
use skald_common::limits::MAX_DEVICES;
use skald_common::peer::{
    Config, Delivery, DialFailure, Event, Output, Partner, Peer, Receipt, Role, Routes, SendId, first_send_counter,
};
use skald_common::wire::{self, Features, Frame};

use crate::tape::Tape;

const MAX_STEPS: usize = 200;
/// What may wait for the relay.
const MAX_WAITING: usize = 256;

/// The target.
pub fn run(data: &[u8]) {
    play(data);
}

fn play(data: &[u8]) -> Bench {
    let mut tape = Tape::new(data);
    let mut bench = Bench::new(tape.byte() & 1 == 0);
    for _ in 0..MAX_STEPS {
        if tape.ended() {
            break;
        }
        bench.step(&mut tape);
    }
    bench
}

fn identity(n: u8) -> Identity {
    Identity::new(&Seed::new([n; 32]))
}

/// A peer, its driver, and its partner.
struct Bench {
    peer: Peer,
    now: u64,
    partner: Ed25519Public,
    partner_key: SessionKey,
    namespace: Vec<u8>,
    /// The driver has a socket, dialled or open.
    socket: Option<bool>,
    reserved: u64,
    /// What went out under each counter.
    used: HashMap<u64, Bytes>,
    /// What the partner sealed: counter and body.
    sealed: BTreeSet<(u64, Vec<u8>)>,
    /// Counters of messages that were handled for good.
    accepted: BTreeSet<u64>,
    /// The last counter that this connection handed on.
    heard: u64,
    open: Vec<Receipt>,
    /// The number under which the relay delivers just now, and the highest so far.
    delivering: u64,
    highest: u64,
    /// Numbered deliveries of this connection that are still being handled, by message counter.
    unhandled: BTreeMap<u64, u64>,
    acked: u64,
    sent: Vec<SendId>,
    /// How often the application was told of pushes.
    told: usize,
}

impl Bench {
    fn new(is_agent: bool) -> Self {
        let (me, other) = if is_agent { (1, 2) } else { (2, 1) };
        let namespace = identity(1).namespace_id();
        let role = if is_agent {
            Role::Agent
        } else {
            Role::Client { namespace, device_token: String::new(), platform: wire::Platform::Android }
        };
        let partner = identity(other);
        let sends = if is_agent { Direction::ClientToAgent } else { Direction::AgentToClient };
        let my = identity(me);
        let partner_key = SessionKey::agree(&partner, my.ed25519_pub(), &my.x25519_pub(), namespace, sends);
        let peer = Peer::new(Config {
            identity: my,
            role,
            routes: Routes::new("ws://relay", &namespace).expect("an address"),
            offer: if is_agent { Features::AGENT } else { Features::ALL },
            jitter_seed: 1,
        });
        let mut bench = Self {
            peer,
            now: 1000,
            partner: partner.ed25519_pub(),
            partner_key: partner_key.expect("good keys"),
            namespace: namespace.to_vec(),
            socket: None,
            reserved: 0,
            used: HashMap::new(),
            sealed: BTreeSet::new(),
            accepted: BTreeSet::new(),
            heard: 0,
            open: Vec::new(),
            delivering: 0,
            highest: 0,
            unhandled: BTreeMap::new(),
            acked: 0,
            sent: Vec::new(),
            told: 0,
        };
        bench.set_partner(0);
        bench.peer.start(bench.now);
        bench.drain();
        bench
    }

    fn set_partner(&mut self, unix_ms: u64) {
        let other = if self.partner == identity(2).ed25519_pub() { identity(2) } else { identity(1) };
        let partner = Partner {
            ed25519: self.partner,
            x25519: other.x25519_pub(),
            send_from: first_send_counter(self.reserved, 0, unix_ms),
            received: self.accepted.last().copied().unwrap_or(0),
            compression: Compression::WhenSmaller,
        };
        self.peer.set_partner(partner).expect("a good key");
        self.heard = partner.received;
    }

    fn step(&mut self, tape: &mut Tape<'_>) {
        match tape.below(18) {
            0 => {
                if self.socket == Some(false) {
                    self.socket = Some(true);
                    self.peer.on_open(self.now);
                }
            }
            1 => {
                let http_status = (tape.byte() & 1 == 0).then(|| tape.short());
                if self.socket.take_if(|open| !*open).is_some() {
                    self.peer.on_dial_failed(self.now, DialFailure { http_status, why: "no".into() });
                }
            }
            2 => self.hear(tape.bytes().to_vec()),
            3..=6 => {
                let frame = self.relay_frame(tape);
                self.hear(wire::encode(frame));
            }
            7 | 8 => self.partner_says(tape),
            9 => self.peer.on_activity(self.now),
            10 => {
                let code = (tape.byte() & 1 == 0).then(|| tape.short());
                if self.socket.take().is_some() {
                    self.forget_connection();
                    self.peer.on_closed(self.now, code);
                }
            }
            11 => {
                self.now = match tape.byte() & 1 {
                    0 => self.peer.deadline().map_or(self.now, |at| at.max(self.now)),
                    _ => self.now + (tape.number() & 0xff_ffff),
                };
                self.peer.on_timeout(self.now);
            }
            12 => self.send(tape),
            13 => self.settle(tape),
            14 => {
                let at = tape.below(16);
                if let Some(id) = self.sent.get(at) {
                    self.peer.cancel(*id);
                }
            }
            15 => match tape.below(4) {
                0 => self.peer.stop(),
                1 => self.peer.start(self.now),
                2 => self.set_partner(tape.number() & ((1 << 46) - 1)),
                _ => self.peer.remove_partner(&self.partner),
            },
            16 => {
                let devices = (tape.byte() & 1 == 0).then(|| vec![self.partner]);
                self.peer.set_authorized(devices);
            }
            _ => {
                let _ = match tape.below(3) {
                    0 => self.peer.start_pairing(&skald_common::ids::PairingToken::new(tape.key()), 60),
                    1 => self.peer.stop_pairing(),
                    _ => self.peer.request_presence(),
                };
            }
        }
        self.drain();
        assert!(self.peer.pending() <= MAX_WAITING, "the outbox has no bound");
    }

    fn hear(&mut self, bytes: Vec<u8>) {
        if self.socket != Some(true) {
            return;
        }
        let bytes = Bytes::from(bytes);
        let numbered = match wire::decode(bytes.clone()) {
            Ok(Some(Frame::Message(message))) if self.peer.is_connected() => message.delivery,
            _ => 0,
        };
        self.delivering = numbered;
        self.peer.on_binary(self.now, bytes);
        self.drain();
        self.highest = self.highest.max(numbered);
    }

    /// What a relay may say.
    fn relay_frame(&self, tape: &mut Tape<'_>) -> Frame {
        match tape.below(13) {
            0 | 1 => Frame::Challenge(wire::Challenge { nonce: vec![tape.byte(); 32 - tape.below(8) / 7] }),
            2 | 3 => {
                let namespace_id = if tape.byte() & 7 == 7 { vec![1; 32] } else { self.namespace.clone() };
                Frame::AuthOk(wire::AuthOk { namespace_id, features: u32::from(!tape.byte()) })
            }
            4 => {
                let code = String::from_utf8_lossy(tape.bytes()).into_owned();
                Frame::AuthError(wire::AuthError { code, message: String::new() })
            }
            5 => Frame::Accepted(wire::Accepted { r#ref: tape.number(), queued: tape.byte() & 1 == 1 }),
            6 => Frame::PeerOffline(wire::PeerOffline { peer: self.partner.to_vec(), r#ref: tape.number() }),
            7 => {
                let code = if tape.byte() & 1 == 0 { "queue_full" } else { "other" };
                Frame::Error(wire::Error { code: code.into(), message: String::new(), r#ref: tape.number() })
            }
            8 => Frame::AuthorizeOk(wire::AuthorizeOk { authorized: u32::from(tape.byte()) }),
            9 => Frame::ClientPaired(wire::ClientPaired {
                client_ed25519_pub: tape.bytes().to_vec(),
                client_x25519_pub: tape.key().to_vec(),
                platform: i32::from(tape.byte()),
            }),
            10 => Frame::PresenceList(wire::PresenceList { online: vec![tape.key().to_vec(), tape.bytes().to_vec()] }),
            11 => {
                let state = wire::PushState { client_ed25519_pub: tape.bytes().to_vec(), push: i32::from(tape.byte()) };
                let devices = vec![state; usize::from(tape.byte()) % 70];
                Frame::PushStatus(wire::PushStatus { devices })
            }
            _ => Frame::Message(wire::Message {
                ciphertext: Bytes::copy_from_slice(tape.bytes()),
                nonce: vec![tape.byte(); 12 - tape.below(8) / 7],
                peer: self.partner.to_vec(),
                live: tape.byte() & 1 == 1,
                delivery: tape.number(),
                ..wire::Message::default()
            }),
        }
    }

    /// A message that the partner did seal, as it is or with one byte changed; new, repeated or out of order.
    fn partner_says(&mut self, tape: &mut Tape<'_>) {
        let (counter, delivery) = (tape.number(), tape.number());
        let body = tape.bytes().to_vec();
        let framed = [&[1, 0], &*body].concat();
        let (nonce, mut sealed) = self.partner_key.seal(counter, &framed).expect("short");
        match tape.byte() {
            0 => {
                let (at, flip) = (usize::from(tape.short()), tape.byte());
                let length = sealed.len();
                sealed[at % length] ^= flip.max(1);
            }
            _ => {
                self.sealed.insert((counter, body));
            }
        }
        let frame = wire::Message {
            ciphertext: sealed.into(),
            nonce: nonce.to_vec(),
            peer: self.partner.to_vec(),
            delivery,
            ..wire::Message::default()
        };
        self.hear(wire::encode(Frame::Message(frame)));
    }

    fn send(&mut self, tape: &mut Tape<'_>) {
        let delivery = match tape.below(4) {
            0 => Delivery::Live,
            1 => Delivery::Stored { collapse: Some(tape.bytes().to_vec()), quiet: tape.byte() & 1 == 1 },
            _ => Delivery::STORED,
        };
        let json = vec![tape.byte(); usize::from(tape.byte())];
        if let Ok(id) = self.peer.send(self.now, &self.partner, &json, delivery) {
            assert!(self.sent.last().is_none_or(|last| *last < id), "an id was given twice");
            self.sent.push(id);
        }
    }

    /// Handles one of the messages that were handed on, or fails to.
    fn settle(&mut self, tape: &mut Tape<'_>) {
        if self.open.is_empty() {
            return;
        }
        let receipt = self.open.remove(tape.below(self.open.len()));
        if tape.byte() & 7 == 7 {
            self.peer.reject(self.now, receipt);
        } else {
            self.unhandled.remove(&receipt.counter);
            self.accepted.insert(receipt.counter);
            self.peer.accept(self.now, receipt);
        }
    }

    /// What was handed on and not handled comes again.
    fn forget_connection(&mut self) {
        self.open.clear();
        self.unhandled.clear();
        (self.highest, self.acked) = (0, 0);
        self.heard = self.accepted.last().copied().unwrap_or(0);
    }

    fn drain(&mut self) {
        while let Some(output) = self.peer.poll_output() {
            match output {
                Output::Dial { url } => {
                    assert!(self.socket.is_none(), "dials beside an open socket");
                    assert!(url.starts_with("ws://relay/"), "dials another address");
                    self.forget_connection();
                    self.socket = Some(false);
                }
                Output::Close => {
                    assert!(self.socket.take().is_some(), "closes nothing");
                    self.forget_connection();
                }
                Output::Send(bytes) => self.on_send(bytes.into()),
                Output::SendPing | Output::SendNativePing => {
                    assert_eq!(self.socket, Some(true), "pings without a socket");
                }
                Output::Reserve { upto, .. } => {
                    assert!(upto > self.reserved, "reserves what is reserved");
                    self.reserved = upto;
                }
                Output::Event(event) => self.on_event(event),
            }
        }
    }

    fn on_send(&mut self, bytes: Bytes) {
        assert_eq!(self.socket, Some(true), "sends without a socket");
        match wire::decode(bytes).expect("sends what can be read").expect("sends what is known") {
            Frame::Message(message) => {
                let nonce = MessageNonce::from_slice(&message.nonce).expect("12 bytes");
                let (_, counter) = split_nonce(&nonce);
                assert!(counter <= self.reserved, "a counter that was not reserved");
                let before = self.used.insert(counter, message.ciphertext.clone());
                assert!(before.is_none_or(|before| before == message.ciphertext), "a counter was used twice");
            }
            Frame::Ack(ack) => {
                assert!(ack.delivery > self.acked, "acknowledges what was acknowledged");
                assert!(
                    self.unhandled.values().all(|open| *open > ack.delivery),
                    "acknowledges what is still being handled"
                );
                self.acked = ack.delivery;
            }
            _ => {}
        }
    }

    fn on_event(&mut self, event: Event) {
        if let Event::PushStatus(states) = &event {
            assert!(self.peer.features().contains(Features::PUSH_STATUS), "hears what it did not ask for");
            assert!((1..=MAX_DEVICES).contains(&states.len()), "more devices than there can be");
            self.told += 1;
        }
        let Event::Message { receipt, body, .. } = event else { return };
        let Body::Json(body) = body else { panic!("the partner seals JSON alone") };
        assert!(self.sealed.contains(&(receipt.counter, body.to_vec())), "a message that nobody sealed");
        assert!(receipt.counter > self.heard, "a repeat was handed on");
        assert!(!self.accepted.contains(&receipt.counter), "handled a second time");
        self.heard = receipt.counter;
        self.open.push(receipt);
        // A relay numbers upwards; what does not rise has no number that an acknowledgement could mean.
        if self.delivering > self.highest {
            self.unhandled.insert(receipt.counter, self.delivering);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seeds;

    #[test]
    fn the_seeds_get_as_far_as_messages_both_ways() {
        let reached = |name: &str| {
            let seeds = seeds::all();
            let seed = seeds.iter().find(|seed| seed.target == "peer" && seed.name == name).unwrap();
            let bench = play(&seed.bytes);
            (bench.accepted.len(), bench.used.len(), bench.acked, bench.told)
        };
        assert_eq!(reached("seed-messages"), (2, 0, 2, 0));
        assert_eq!(reached("seed-sends"), (0, 2, 0, 0));
        assert_eq!(reached("seed-plain"), (1, 1, 0, 0));
        assert_eq!(reached("seed-refused"), (0, 0, 0, 0));
        assert_eq!(reached("seed-pushes"), (0, 0, 0, 1));
    }
}
