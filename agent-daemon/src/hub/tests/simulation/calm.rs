//! After every history all troubles end: the relay is there, the disk writes, hosts and phones are connected. Then nothing
//! may be missing anywhere, and a daemon without work is silent.

use std::collections::BTreeSet;

use super::demand;
use super::disk::{Loss, Trouble};
use super::history::{ALL, Op, Reaction};
use super::phone::Phone;
use super::world::World;
use crate::hub::api::DeviceState;
use crate::hub::durable::Origin;

const MINUTE: u64 = 60_000;

pub(super) fn check(world: &mut World) {
    heal(world);
    everybody_comes(world);
    nothing_is_missing(world);
    all_is_done(world);
    silence(world);
}

fn heal(world: &mut World) {
    world.disk.trouble(Trouble::Over);
    {
        let mut relay = world.relay.borrow_mut();
        (relay.crash_in, relay.refuse) = (None, 0);
        relay.power(true);
    }
    if world.disk.get().durable.origin == Origin::Lost {
        world.act(Op::ClearsDevices);
    }
    world.act(Op::StopsWindow);
    world.flow(ALL);
    // Longer than any pause of the connection.
    world.wait(6 * MINUTE);
    let calm = world.relay.borrow().is_calm();
    demand(calm, || "the daemon does not come back to its relay".into());
}

fn everybody_comes(world: &mut World) {
    world.forget_expired();
    for host in 0..world.hosts.len() {
        let number = u8::try_from(host).unwrap();
        // Ones that do not answer any more make place for others.
        for _ in 0..3 {
            world.act(Op::HostVanishes { host: number });
            world.act(Op::HostConnects { host: number, linger: 0 });
            world.wait(3_000);
        }
        demand(world.hosts[host].session.is_some(), || format!("{} is not let in", world.hosts[host].name));
    }
    for phone in &mut world.phones {
        phone.awake = true;
    }
    // Notifications have their delay, calls that failed and messages that were refused their pauses.
    for _ in 0..4 {
        take_calls(world);
        world.wait(8 * MINUTE);
    }
    take_calls(world);
}

fn take_calls(world: &mut World) {
    world.flow(ALL);
    for host in 0..world.hosts.len() {
        while world.take_call(host, Reaction::Act) {
            world.flow(ALL);
        }
    }
}

/// What hosts wait for, and what phones show.
fn nothing_is_missing(world: &mut World) {
    world.forget_expired();
    let open: BTreeSet<String> =
        world.hosts.iter().flat_map(|host| host.open.values().map(|open| open.tag.clone())).collect();
    let devices = world.disk.get().durable.devices.clone();
    for at in 0..world.phones.len() {
        let phone = &world.phones[at];
        let row = devices.iter().find(|row| (row.ed25519, row.x25519) == (phone.key, phone.x25519));
        let authorized = row.is_some_and(|row| row.state == DeviceState::Authorized);
        let key = phone.key;
        let online = world.relay.borrow().is_online(&key);
        demand(authorized == online || row.is_none(), || {
            format!("phone {at}: authorized {authorized}, online {online}")
        });
        if !authorized {
            continue;
        }
        // Of a relay that loses messages no more can be asked than an answer to a question.
        if world.oracle.old_relay || world.unnoted {
            world.act(Op::AsksForInbox { phone: u8::try_from(at).unwrap() });
            world.flow(ALL);
        }
        let shown: BTreeSet<String> = world.phones[at].inbox.iter().map(|item| item.tag.clone()).collect();
        demand(shown == open, || format!("phone {at} shows {shown:?}, hosts wait for {open:?}"));
    }
}

fn all_is_done(world: &mut World) {
    for host in 0..world.hosts.len() {
        while !world.hosts[host].open.is_empty() {
            world.act(Op::Withdraw { host: u8::try_from(host).unwrap(), which: 0 });
        }
    }
    let pending: Vec<_> = world.disk.get().durable.devices.clone();
    for row in pending.iter().filter(|row| row.state == DeviceState::Pending) {
        let phone = world.phones.iter().position(|phone| phone.key == row.ed25519).unwrap();
        world.act(Op::Revokes { phone: u8::try_from(phone).unwrap() });
    }
    for _ in 0..2 {
        world.flow(ALL);
        world.wait(20 * MINUTE);
    }
    let disk = world.disk.get();
    let left = (disk.durable.items.len(), disk.durable.answers.len(), disk.durable.sights.len());
    demand(left == (0, 0, 0), || format!("items, answers and sights stay behind: {left:?}"));
    let phones = &world.phones;
    // One that has come under its name with another key is what the daemon writes to now: it itself can read nothing more.
    let is_read_by =
        |phone: &&Phone| disk.durable.devices.iter().any(|row| (row.ed25519, row.x25519) == (phone.key, phone.x25519));
    let online = |phone: &&Phone| world.relay.borrow().is_online(&phone.key);
    let shown = phones.iter().filter(online).filter(is_read_by).find(|phone| !phone.inbox.is_empty());
    let told = shown.is_none() || world.oracle.old_relay || world.unnoted;
    demand(told, || "a phone shows what is done".into());
}

/// Nothing is written, and the hub has nothing to wake up for.
fn silence(world: &mut World) {
    let before = world.disk.get().made;
    let now = world.now();
    let deadline = world.core.hub.deadline(now);
    demand(deadline.is_none(), || format!("an idle hub wants to be woken at {deadline:?}, now is {now:?}"));
    world.wait(60 * MINUTE);
    let after = world.disk.get().made;
    demand(before == after, || format!("{} writes in an idle hour", after - before));
    world.no_tunnel_is_forgotten();
    // And what it holds is what it would find after a restart.
    world.die(Loss::Nothing);
    world.wait(MINUTE);
    demand(world.relay.borrow().is_calm(), || "the daemon does not find its relay after a restart".into());
}
