//! Two ends of one object that put load on it and nothing else: an agent and a device of one namespace, who have shaken
//! hands and then send frames made beforehand; the same two sockets of the bare object; one socket of the native echo.

use anyhow::bail;
use bytes::Bytes;
use skald_common::crypto::{Identity, Seed};
use skald_common::ids::{ChallengeNonce, Ed25519Public, NamespaceId};
use skald_common::wire::{self, Features, Frame, Platform};

use crate::processes::Server;
use crate::wire::{Wire, masked};

/// The content of a message, bytes: what an approval and its answer have, sealed.
pub(crate) const CONTENT: usize = 300;

/// The way to an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Route {
    /// Handed over by the Worker.
    Direct,
    /// Pumped by the Worker.
    Front,
}

impl Route {
    /// In tables.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Front => "front",
        }
    }

    /// Where pipes are.
    pub(crate) fn pipe_path(self, namespace: &NamespaceId) -> String {
        match self {
            Self::Direct => format!("/ns/{}/v1/pipe", namespace.to_hex()),
            Self::Front => "/v1/pipe".to_owned(),
        }
    }

    fn path(self, namespace: &NamespaceId) -> String {
        match self {
            Self::Direct => format!("/ns/{}/v1/ws", namespace.to_hex()),
            Self::Front => "/v1/ws".to_owned(),
        }
    }
}

/// A member of a namespace on a connection of its own.
#[derive(Debug)]
pub(crate) struct Member {
    /// The connection.
    pub(crate) wire: Wire,
    /// Its name.
    pub(crate) key: Ed25519Public,
}

impl Member {
    /// The agent of the namespace of this identity.
    pub(crate) fn agent(relay: &Server, route: Route, identity: &Identity) -> anyhow::Result<Self> {
        let agent =
            wire::AuthAgent { agent_ed25519_pub: identity.ed25519_pub().to_vec(), features: Features::ALL.bits() };
        Self::enter(relay, &route.path(&identity.namespace_id()), identity, wire::Role::Agent(agent))
    }

    /// A device that the agent has authorized.
    pub(crate) fn device(
        relay: &Server,
        route: Route,
        namespace: &NamespaceId,
        identity: &Identity,
    ) -> anyhow::Result<Self> {
        let client = wire::AuthClient {
            namespace_id: namespace.to_vec(),
            client_ed25519_pub: identity.ed25519_pub().to_vec(),
            platform: Platform::Android as i32,
            features: Features::ALL.bits(),
            ..Default::default()
        };
        Self::enter(relay, &route.path(namespace), identity, wire::Role::Client(client))
    }

    fn enter(relay: &Server, path: &str, identity: &Identity, role: wire::Role) -> anyhow::Result<Self> {
        let mut member = Self { wire: Wire::open(relay.address, path)?, key: identity.ed25519_pub() };
        let Frame::Challenge(challenge) = member.next()? else { bail!("no challenge") };
        let nonce = ChallengeNonce::from_slice(&challenge.nonce)?;
        let signature = identity.sign_challenge(&nonce).to_vec();
        member.send(Frame::Auth(wire::Auth { signature, role: Some(role) }))?;
        match member.next()? {
            Frame::AuthOk(_) => Ok(member),
            other => bail!("not let in: {other:?}"),
        }
    }

    /// Tells the relay who belongs to the namespace, and waits until it knows.
    pub(crate) fn authorize(&mut self, devices: &[Ed25519Public]) -> anyhow::Result<()> {
        let clients = devices.iter().map(Ed25519Public::to_vec).collect();
        self.send(Frame::Authorize(wire::Authorize { clients }))?;
        self.skip_to(|frame| matches!(frame, Frame::AuthorizeOk(_)))
    }

    /// Sends one frame.
    pub(crate) fn send(&mut self, frame: Frame) -> anyhow::Result<()> {
        self.wire.send(&masked(&wire::encode(frame)))
    }

    /// The next frame.
    pub(crate) fn next(&mut self) -> anyhow::Result<Frame> {
        loop {
            let bytes = Bytes::copy_from_slice(self.wire.next()?);
            match wire::decode(bytes)? {
                Some(Frame::AuthError(error)) => bail!("the relay refuses: {}", error.code),
                Some(Frame::Error(error)) => bail!("the relay complains: {}", error.code),
                Some(frame) => return Ok(frame),
                None => {}
            }
        }
    }

    /// Reads up to a frame of this kind.
    pub(crate) fn skip_to(&mut self, wanted: impl Fn(&Frame) -> bool) -> anyhow::Result<()> {
        while !wanted(&self.next()?) {}
        Ok(())
    }
}

/// A fresh identity.
pub(crate) fn identity() -> Identity {
    Identity::new(&Seed::new(skald_tests::random()))
}

/// A message that nobody can read, which is none of the relay's business. `reference` 0: no receipt is asked for.
pub(crate) fn message(to: &Ed25519Public, live: bool, reference: u64) -> Vec<u8> {
    let content: [u8; CONTENT] = skald_tests::random();
    let frame = wire::Message {
        ciphertext: Bytes::copy_from_slice(&content),
        nonce: skald_tests::random::<12>().to_vec(),
        peer: to.to_vec(),
        live,
        r#ref: reference,
        ..Default::default()
    };
    wire::encode(Frame::Message(frame))
}

/// Two ends, and the message that goes from one to the other.
#[derive(Debug)]
pub(crate) struct Ends {
    from: Wire,
    /// `None`: it comes back to where it was sent.
    to: Option<Wire>,
    message: Vec<u8>,
}

impl Ends {
    /// An agent that writes to a device, live.
    pub(crate) fn of_relay(relay: &Server, route: Route) -> anyhow::Result<Self> {
        let (agent, device) = (identity(), identity());
        let mut from = Member::agent(relay, route, &agent)?;
        from.authorize(&[device.ed25519_pub()])?;
        let to = Member::device(relay, route, &agent.namespace_id(), &device)?;
        from.skip_to(|frame| matches!(frame, Frame::PresenceEvent(_)))?;
        let message = masked(&message(&to.key, true, 0));
        Ok(Self { from: from.wire, to: Some(to.wire), message })
    }

    /// Two sockets of a bare object.
    pub(crate) fn of_bare(bare: &Server, route: Route) -> anyhow::Result<Self> {
        let path = bare_path(route, &format!("{:016x}", u64::from_le_bytes(skald_tests::random())));
        let (from, to) = (Wire::open(bare.address, &path)?, Wire::open(bare.address, &path)?);
        Ok(Self { from, to: Some(to), message: blob() })
    }

    /// A socket of an object that writes each message into a row, and says so.
    pub(crate) fn of_keeper(bare: &Server) -> anyhow::Result<Self> {
        Ok(Self { from: Wire::open(bare.address, "/keep/bench/v1/ws")?, to: None, message: blob() })
    }

    /// A socket of the native echo.
    pub(crate) fn of_echo(echo: &Server) -> anyhow::Result<Self> {
        Ok(Self { from: Wire::open(echo.address, "/")?, to: None, message: blob() })
    }

    /// Sends, or sends so many at once.
    pub(crate) fn send(&mut self, frames: &[u8]) -> anyhow::Result<()> {
        self.from.send(frames)
    }

    /// The message, so many times over.
    pub(crate) fn frames(&self, count: usize) -> Vec<u8> {
        self.message.repeat(count)
    }

    /// The end at which messages arrive.
    pub(crate) fn arrivals(&mut self) -> &mut Wire {
        self.to.as_mut().unwrap_or(&mut self.from)
    }
}

/// The path of a bare object of this name.
pub(crate) fn bare_path(route: Route, name: &str) -> String {
    match route {
        Route::Direct => format!("/ns/{name}/v1/ws"),
        Route::Front => format!("/v1/ws?{name}"),
    }
}

/// As many bytes as a message to the relay has.
fn blob() -> Vec<u8> {
    masked(&message(&Ed25519Public::new([7; 32]), true, 0))
}
