//! Pairing: handing this phone's keys to the agent whose code was scanned.

use skald_common::crypto::Identity;
use skald_common::pairing::PairingQr;
use skald_common::peer::{Config, Event, Output, Peer, Role, Routes};
use skald_common::wire::Features;
use skald_link::{Clock, Link, feed};
use zeroize::Zeroizing;

use super::{Manner, Phone, PhoneError, Until, drive};
use crate::model::account::{Account, AgentKeys};
use crate::store::{Store, Turn};
use crate::webpush::WebPushKeys;

/// How to pair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pairing {
    /// The name that the agent shows for this phone.
    pub name: String,
    /// Pair although there is a pairing with the same agent; the phone keeps its keys.
    pub again: bool,
}

impl Phone {
    /// Pairs. The agent's owner has yet to authorize the phone, by comparing [`fingerprint`](Self::fingerprint);
    /// [`connect`](Self::connect) waits for that.
    pub async fn pair(store: Store, qr: &PairingQr, pairing: Pairing, until: Until) -> Result<Self, PhoneError> {
        let turn = drive::take_turn(&store, Turn::Connection, Manner::Command, until).await?;
        let held = turn.ok_or(PhoneError::Busy)?;
        let agent = AgentKeys { ed25519: qr.agent_ed25519_pub, x25519: qr.agent_x25519_pub };
        let routes = Routes::new(&qr.relay_url, &qr.namespace_id)?;
        let account = match store.load()? {
            Some(old) if old.agent != agent => return Err(PhoneError::OtherAgent(store.profile().to_owned())),
            Some(_) if !pairing.again => return Err(PhoneError::AlreadyPaired(store.profile().to_owned())),
            Some(old) => old.paired_again(qr.relay_url.clone(), pairing.name, drive::unix_ms()),
            None => Account::new(agent, qr.relay_url.clone(), pairing.name, drive::unix_ms()),
        };
        let fresh = system_random()?;
        let seed = store.seed_or_new(|| fresh)?;
        // Finds an unusable key before the token is used up.
        let phone = Self::with(store, account, seed, Manner::Command, held)?;
        let peer = Peer::new(Config {
            identity: Identity::new(&phone.seed),
            role: Role::Pairing {
                namespace: qr.namespace_id,
                token: qr.pairing_token.clone(),
                device_token: phone.waking.token.to_string(),
                platform: phone.waking.platform,
            },
            routes,
            offer: Features::NONE,
            jitter_seed: rand::random(),
        });
        until.within(hand_over(peer)).await.ok_or(PhoneError::TimedOut)??;
        phone.store.create(&phone.account)?;
        Ok(phone)
    }
}

/// Drives a pairing peer to its end.
async fn hand_over(mut peer: Peer) -> Result<(), PhoneError> {
    let (clock, mut link) = (Clock::start(), Link::new());
    peer.start(clock.now());
    loop {
        while let Some(output) = peer.poll_output() {
            match link.carry_out(output) {
                Some(Output::Event(Event::Paired)) => {
                    link.finish().await;
                    return Ok(());
                }
                Some(Output::Event(Event::Disconnected { why, .. })) => return Err(PhoneError::PairingRefused(why)),
                _ => {}
            }
        }
        tokio::select! {
            event = link.next() => feed(&mut peer, clock.now(), event),
            () = clock.sleep_until(peer.deadline()) => peer.on_timeout(clock.now()),
        }
    }
}

/// The keys of a new Web Push subscription.
pub fn new_web_push_keys() -> Result<WebPushKeys, PhoneError> {
    loop {
        // About one in 2^32 is no private key.
        if let Some(keys) = WebPushKeys::new(&*system_random()?, &*system_random()?) {
            return Ok(keys);
        }
    }
}

/// The system's randomness, for secrets.
pub(super) fn system_random<const N: usize>() -> Result<Zeroizing<[u8; N]>, PhoneError> {
    use rand::TryRng as _;
    let mut bytes = Zeroizing::new([0; N]);
    rand::rngs::SysRng.try_fill_bytes(bytes.as_mut()).map_err(|error| PhoneError::Random(error.to_string()))?;
    Ok(bytes)
}
