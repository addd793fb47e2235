//! Random histories against an oracle that knows only what was sent, accepted and read. Connections are cut, vanish, clog,
//! are replaced; devices are revoked and come back; storage fails; the engine is dropped between any two events.
//!
//! What must hold: on one connection a sender's messages come in the order they were sent, each once; what was accepted
//! for a device that stays authorized has been read in the end, unless a newer one of its tag took its place; nothing
//! reaches a device that it was sent before its latest authorization; once everybody has read and acknowledged everything,
//! the queue is empty and the list of those online is right. More histories: `SIMULATION_SEEDS=2000`.

use std::collections::BTreeSet;

use super::*;

/// Member 0 is the agent.
const MEMBERS: usize = 5;
const STEPS: u32 = 250;

/// `SplitMix64`.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % n as u64).unwrap()
    }

    /// True once in `n` times.
    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

fn key(member: usize) -> Ed25519Public {
    if member == 0 { AGENT_KEY } else { device(u8::try_from(member).unwrap()) }
}

/// A message as the oracle knows it.
struct Sent {
    to: usize,
    from: usize,
    /// The recipient's life in which it was sent.
    life: u32,
    at: u64,
    /// Must be read in the end.
    owed: bool,
    tag: Option<u8>,
}

/// A peer's view of its connection.
struct Link {
    conn: ConnId,
    features: Features,
    /// The last number read from each sender on this connection.
    last: [u64; MEMBERS],
    /// The highest delivery number read and not acknowledged.
    unacked: u64,
}

struct Peer {
    link: Option<Link>,
    authorized: bool,
    life: u32,
    read: BTreeSet<u64>,
}

struct Simulation {
    world: World,
    dice: Dice,
    peers: Vec<Peer>,
    sent: Vec<Sent>,
    faulty: bool,
}

impl Simulation {
    fn new(seed: u64) -> Self {
        let peer = |member| Peer { link: None, authorized: member == 0, life: 0, read: BTreeSet::new() };
        let mut dice = Dice(seed);
        let limits = Limits {
            agent_rate_per_minute: 9999,
            rate_per_minute: 9999,
            window_messages: 1 + dice.next() % 6,
            held_messages: 1 + dice.next() % 6,
            ..Limits::default()
        };
        let world = World::with(limits, false);
        let faulty = dice.one_in(3);
        Self { world, dice, peers: (0..MEMBERS).map(peer).collect(), sent: Vec::new(), faulty }
    }

    fn run(&mut self) {
        self.connect(0);
        for _ in 0..STEPS {
            if self.dice.one_in(2) {
                self.world.evict();
            }
            if self.faulty && self.dice.one_in(20) {
                let statements = u32::try_from(self.dice.below(6)).unwrap();
                self.world.sql.fail_after(statements);
            }
            let member = self.dice.below(MEMBERS);
            match self.dice.below(20) {
                0..=2 => self.connect(member),
                3 => self.leave(member),
                4..=9 => self.say(member, false),
                10 => self.say(member, true),
                11..=14 => self.look(member),
                15 => self.acknowledge(member),
                16 => self.clog(member),
                17 => self.pass(),
                18 => self.authorize(),
                _ => self.one_shot(member),
            }
            self.world.sql.heal();
            self.notice();
        }
        self.finish();
    }

    /// Peers see what the relay has closed.
    fn notice(&mut self) {
        for peer in &mut self.peers {
            let closed = |link: &mut Link| self.world.closed(link.conn).is_some();
            if let Some(link) = peer.link.take_if(closed) {
                // What was unread is lost.
                self.world.sockets.get_mut(&link.conn).unwrap().inbox.clear();
            }
        }
    }

    fn connect(&mut self, member: usize) {
        let features = Features::from_bits(u32::try_from(self.dice.below(8)).unwrap());
        self.connect_with(member, features);
    }

    fn connect_with(&mut self, member: usize, features: Features) {
        let role = if member == 0 {
            Role::Agent(AuthAgent { agent_ed25519_pub: AGENT_KEY.to_vec(), features: features.bits() })
        } else {
            Role::Client(World::client_role(u8::try_from(member).unwrap(), features))
        };
        let conn = self.world.authenticate(role);
        self.notice(); // the older one
        if self.world.closed(conn) == Some(1001) {
            return; // storage failed
        }
        let peer = &mut self.peers[member];
        match self.world.sockets.get_mut(&conn).unwrap().inbox.pop_front() {
            Some(Frame::AuthOk(_)) => assert!(peer.authorized, "{member} was let in"),
            Some(Frame::AuthError(_)) => {
                assert!(!peer.authorized, "{member} was refused");
                return;
            }
            other => panic!("{other:?}"),
        }
        peer.link = Some(Link { conn, features, last: [0; MEMBERS], unacked: 0 });
    }

    /// A peer closes, is cut, or vanishes without a trace.
    fn leave(&mut self, member: usize) {
        let how = self.dice.below(4);
        if how == 0 {
            self.read_old(member); // whoever closes properly has read what came long ago
        }
        let Some(link) = self.peers[member].link.take() else { return };
        match how {
            0 => self.world.hang_up(link.conn, 1000),
            1 => self.world.hang_up(link.conn, 1006),
            2 => self.world.hang_up(link.conn, 1001),
            _ => {} // half open
        }
    }

    fn say(&mut self, from: usize, live: bool) {
        let to = self.dice.below(MEMBERS);
        self.read_old(from); // whoever sends a frame has read what came long ago
        let Some(link) = &self.peers[from].link else { return };
        let (conn, features) = (link.conn, link.features);
        let tag = self.dice.one_in(4).then(|| u8::try_from(self.dice.below(2)).unwrap());
        let number = self.sent.len() as u64 + 1;
        let before = self.world.sockets[&conn].inbox.len();
        self.world.send(
            conn,
            Frame::Message(Message {
                live,
                r#ref: number,
                collapse: tag.map(|tag| vec![tag]).unwrap_or_default(),
                ..message(key(to), &number.to_string())
            }),
        );
        let socket = &self.world.sockets[&conn];
        let new = socket.inbox.iter().skip(before);
        let about = |frame: &&Frame| match frame {
            Frame::Accepted(accepted) => accepted.r#ref == number,
            Frame::Error(error) => !features.contains(Features::RECEIPTS) || error.r#ref == number,
            _ => false,
        };
        let answers: Vec<_> = new.filter(about).collect();
        let closed = socket.closed.is_some();
        let refused = answers.iter().any(|frame| matches!(frame, Frame::Error(_)));
        let possible = to != from && self.peers[to].authorized;
        if !closed {
            assert_eq!(refused, !possible, "{from} to {to}: {answers:?}");
            if possible && !live {
                assert_eq!(answers.len(), usize::from(features.contains(Features::RECEIPTS)), "{answers:?}");
            }
        }
        let owed = !live && !refused && (!closed || answers.iter().any(|frame| matches!(frame, Frame::Accepted(_))));
        let tag = tag.filter(|_| features.contains(Features::COLLAPSE) && !live);
        if tag.is_some() && !refused {
            let older = self.sent.iter_mut().filter(|sent| sent.tag == tag && sent.to == to && sent.from == from);
            older.for_each(|sent| sent.owed = false);
        }
        self.sent.push(Sent { to, from, life: self.peers[to].life, at: self.world.now, owed, tag });
    }

    /// Reads one frame.
    fn read_one(&mut self, member: usize) {
        let peer = &mut self.peers[member];
        let Some(link) = &mut peer.link else { return };
        let Some(frame) = self.world.sockets.get_mut(&link.conn).unwrap().inbox.pop_front() else { return };
        let Frame::Message(message) = frame else { return };
        let number: u64 = text(&message).parse().unwrap();
        let sent = &self.sent[usize::try_from(number - 1).unwrap()];
        assert_eq!((sent.to, key(sent.from).to_vec()), (member, message.peer));
        assert_eq!(sent.life, peer.life, "{number} is of another life");
        assert!(number > link.last[sent.from], "{number} came after {}", link.last[sent.from]);
        link.last[sent.from] = number;
        assert_eq!(message.delivery > 0, link.features.contains(Features::RECEIPTS) && !message.live);
        link.unacked = link.unacked.max(message.delivery);
        peer.read.insert(number);
    }

    fn look(&mut self, member: usize) {
        for _ in 0..self.dice.below(20) {
            self.read_one(member);
        }
    }

    /// Reads what has been there for two seconds.
    fn read_old(&mut self, member: usize) {
        while let Some(link) = &self.peers[member].link
            && self.world.oldest_unread(link.conn).is_some_and(|at| at + 2000 <= self.world.now)
        {
            self.read_one(member);
        }
    }

    fn acknowledge(&mut self, member: usize) {
        self.read_old(member);
        let Some(link) = &mut self.peers[member].link else { return };
        let (conn, delivery) = (link.conn, link.unacked);
        self.world.ack(conn, delivery);
    }

    fn clog(&mut self, member: usize) {
        let full = self.dice.one_in(2);
        if let Some(link) = &self.peers[member].link {
            self.world.sockets.get_mut(&link.conn).unwrap().buffered = if full { 2 << 20 } else { 0 };
        }
    }

    fn pass(&mut self) {
        let ms = match self.dice.below(12) {
            0..=5 => self.dice.below(3000),
            6..=9 => self.dice.below(90_000),
            10 => self.dice.below(3_600_000),
            _ => self.dice.below(3 * 86_400_000),
        };
        for peer in &self.peers {
            if let Some(link) = &peer.link {
                self.world.sockets.get_mut(&link.conn).unwrap().last_ping = Some(self.world.now + ms as u64);
            }
        }
        self.world.pass(ms as u64);
    }

    /// The agent changes its list; storage holds while it does.
    fn authorize(&mut self) {
        self.world.sql.heal();
        self.read_old(0);
        let Some(conn) = self.peers[0].link.as_ref().map(|link| link.conn) else { return };
        let changed = 1 + self.dice.below(MEMBERS - 1);
        let peer = &mut self.peers[changed];
        peer.authorized = !peer.authorized || self.dice.one_in(2);
        if !peer.authorized {
            peer.life += 1;
            self.sent.iter_mut().filter(|sent| sent.to == changed).for_each(|sent| sent.owed = false);
        }
        let list = (1..MEMBERS).filter(|member| self.peers[*member].authorized).map(|member| key(member).to_vec());
        let authorized = Authorize { clients: list.collect() };
        self.world.send(conn, Frame::Authorize(authorized));
        assert!(
            self.world.sockets[&conn].inbox.iter().any(|frame| matches!(frame, Frame::AuthorizeOk(_)))
                || self.world.closed(conn) == Some(4000),
        );
    }

    /// An app that connects, sends and goes without reading.
    fn one_shot(&mut self, member: usize) {
        self.connect_with(member, Features::NONE);
        self.say(member, false);
        if let Some(link) = self.peers[member].link.take() {
            self.world.hang_up(link.conn, 1000);
        }
    }

    /// Everybody comes back, reads and acknowledges everything.
    fn finish(&mut self) {
        let now = self.world.now;
        for member in 0..MEMBERS {
            self.connect_with(member, Features::ALL);
        }
        for _ in 0..100 {
            for member in 0..MEMBERS {
                self.notice();
                while self.peers[member].link.as_ref().is_some_and(|link| self.world.oldest_unread(link.conn).is_some())
                {
                    self.read_one(member);
                }
                self.acknowledge(member);
            }
        }
        for (at, sent) in self.sent.iter().enumerate() {
            let number = at as u64 + 1;
            let fresh = sent.at + self.world.limits.message_life > now;
            let came = self.peers[sent.to].read.contains(&number);
            assert!(came || !sent.owed || !fresh, "{number} from {} to {} was accepted and lost", sent.from, sent.to);
        }
        let members: BTreeSet<_> = (0..MEMBERS).filter(|member| self.peers[*member].authorized).map(key).collect();
        let agent = self.peers[0].link.as_ref().unwrap().conn;
        assert_eq!(self.world.online(agent), members.into_iter().collect::<Vec<_>>());
        assert_eq!(self.world.queued_rows(), 0);
        assert!(self.faulty || self.world.faults.is_empty(), "{:?}", self.world.faults);
    }
}

#[test]
fn random_histories_lose_nothing_reorder_nothing_and_tell_nobody_what_is_not_theirs() {
    let seeds = std::env::var("SIMULATION_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(150);
    for seed in 0..seeds {
        let result = std::panic::catch_unwind(|| Simulation::new(seed).run());
        assert!(result.is_ok(), "seed {seed}");
    }
}
