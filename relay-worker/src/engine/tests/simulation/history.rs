//! What happens in a run: a list of operations that is generated from a seed, replayed from the list, shrunk, and printed
//! as code. Each operation makes sense, or does nothing, whatever came before it, so that any of them can be left out.

/// The agent, and the devices from 1 on.
pub(super) const PEERS: usize = 5;

/// A run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct History {
    pub(super) setup: Setup,
    pub(super) ops: Vec<Op>,
}

/// Limits of the relay, where they differ from the defaults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Setup {
    pub(super) window: u64,
    pub(super) window_bytes: u64,
    pub(super) held: u64,
    pub(super) queue: u64,
    pub(super) queue_bytes: u64,
    /// Frames a minute of a device; of the agent, four times as many.
    pub(super) rate: u64,
    pub(super) pending: u64,
    pub(super) pipes: u64,
    /// Push services that are on: 1 Apple's, 2 Google's, 4 those of browsers.
    pub(super) services: u8,
}

/// How a peer comes in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Route {
    Front,
    Direct,
}

/// How a peer leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Exit {
    Normal,
    Away,
    Cut,
    /// Without a trace: the socket stays open.
    Vanish,
}

/// The state of a peer's socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wire {
    Open,
    /// What the relay writes waits in the platform's buffer.
    Slow,
    /// Nothing arrives on either side; the first `room` bytes that the relay writes go unnoticed.
    Dead {
        room: u32,
    },
}

/// How a handshake goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fraud {
    /// Says nothing.
    Silence,
    Chat,
    Noise,
    Huge,
    /// Signed by somebody else.
    Forged,
    /// For another namespace, by a direct route.
    Astray,
    /// A frame that is no `Auth`.
    Early,
}

/// What a member sends that is wrong or odd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Oddity {
    Malformed,
    Unknown,
    Empty,
    Word,
    Misplaced,
    ShortNonce,
    NoCiphertext,
    LongTag,
    ToNobody,
    ToOneself,
    AckOfNothing,
    StoredTooLarge,
    LiveTooLarge,
}

/// What a pairing device shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Token {
    /// Of the last window that was asked for.
    Newest,
    /// Of the one before.
    Older,
    Wrong,
}

/// What a push service says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Sent,
    Gone,
    Refused,
    /// With the Retry-After, milliseconds; 0 for none.
    Busy(u64),
}

/// A message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Text {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) size: u32,
    pub(super) live: bool,
    pub(super) tag: Option<u8>,
    pub(super) quiet: bool,
}

impl Text {
    /// Whether this one, the newer, takes the other's place.
    pub(super) fn replaces(&self, old: &Self) -> bool {
        self.tag.is_some() && (self.from, self.to, self.tag) == (old.from, old.to, old.tag)
    }
}

/// One thing that happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Op {
    /// Dials, authenticates, and repeats what the relay has not accepted.
    Connect {
        peer: usize,
        features: u32,
        route: Route,
    },
    Impostor {
        peer: usize,
        fraud: Fraud,
    },
    Leave {
        peer: usize,
        exit: Exit,
    },
    Say(Text),
    /// Connects without features, sends, closes with 1000, never reads.
    OneShot(Text),
    /// Asks again and again who is there.
    Flood {
        peer: usize,
        frames: u32,
    },
    Odd {
        peer: usize,
        oddity: Oddity,
    },
    Presence {
        peer: usize,
    },
    Read {
        peer: usize,
        frames: u32,
    },
    Ack {
        peer: usize,
    },
    SetWire {
        peer: usize,
        wire: Wire,
    },
    /// So many bytes of a slow socket's buffer arrive.
    Trickle {
        peer: usize,
        bytes: u32,
    },
    /// The agent puts a device on its list, or takes it off, and sends the list.
    Authorize {
        device: usize,
        on: bool,
    },
    OpenWindow {
        ttl: u32,
    },
    CloseWindow,
    Pair {
        device: usize,
        token: Token,
        route: Route,
    },
    /// A peer opens its side of a pipe.
    Join {
        pipe: u8,
        peer: usize,
        partner: usize,
    },
    /// A peer's side of a pipe is over.
    Part {
        pipe: u8,
        peer: usize,
    },
    /// A device gets another push token; it tells the relay when it next connects. With platform 0 it has none.
    Equip {
        device: usize,
        platform: i32,
    },
    /// A push service answers one of the pushes that it was asked for; `again`: one that it has answered before.
    Answer {
        nth: u8,
        verdict: Verdict,
        again: bool,
    },
    /// Time passes; timer and alarm fire on the way.
    Pass {
        ms: u64,
    },
    /// The clock jumps.
    Jump {
        ms: i64,
    },
    /// The platform reports the sockets that the relay has closed.
    Reap,
    /// The platform notices one of the sockets that a peer has left behind.
    Notice,
    Evict,
    /// A statement of the next operation fails; `done`: though it was carried out.
    Fault {
        statement: u32,
        done: bool,
    },
    /// The object panics at a statement of the next operation.
    CrashAtStatement {
        statement: u32,
    },
    /// The object panics in the next operation, after it has carried out so many outputs of one drain.
    CrashAfterOutputs {
        outputs: u32,
    },
}

impl History {
    /// As a test that can be pasted.
    pub(super) fn as_code(&self, name: &str) -> String {
        let ops: Vec<_> = self.ops.iter().map(|op| format!("        {op:?},\n")).collect();
        let ops = ops.concat();
        format!(
            "#[test]\nfn {name}() {{\n    let setup = {:?};\n    let ops = vec![\n{ops}    ];\n    holds(setup, ops);\n}}\n",
            self.setup
        )
    }
}
