//! What connections cost that say nothing: the runtime's resident memory before and after, when the objects hibernate.

use super::{Plan, progress};
use crate::members::{Member, Route, bare_path, identity};
use crate::processes::Server;
use crate::report::{Report, Section};
use crate::usage;
use crate::wire::Wire;

/// Who connects to what.
#[derive(Debug, Clone, Copy)]
enum Load {
    /// Agents, each to a namespace of its own.
    Agents(Route),
    /// An agent and a device, two to a namespace.
    Pairs(Route),
    /// Sockets of bare objects, each of its own.
    Bare(Route),
    /// Sockets of one bare object.
    BareOne(Route),
}

const LOADS: [(&str, Load); 7] = [
    ("bare objects with one socket each, direct", Load::Bare(Route::Direct)),
    ("namespaces with one agent each, direct", Load::Agents(Route::Direct)),
    ("bare objects with one socket each, front", Load::Bare(Route::Front)),
    ("namespaces with one agent each, front", Load::Agents(Route::Front)),
    ("sockets of one bare object, direct", Load::BareOne(Route::Direct)),
    ("namespaces with agent and device, direct", Load::Pairs(Route::Direct)),
    ("namespaces with agent and device, front", Load::Pairs(Route::Front)),
];

/// A server with its connections.
struct Held {
    name: &'static str,
    server: Server,
    before: f64,
    awake: f64,
    _wires: Vec<Wire>,
}

/// See the module.
pub(crate) async fn measure(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    progress("idle connections");
    let mut all = Vec::new();
    for (name, load) in LOADS {
        let server = match load {
            Load::Agents(_) | Load::Pairs(_) => Server::relay().await?,
            Load::Bare(_) | Load::BareOne(_) => Server::bare().await?,
        };
        // Code is compiled with its first use.
        let first = connect(&server, load, 2)?;
        let before = resident(&server);
        let mut wires = connect(&server, load, plan.idle)?;
        wires.extend(first);
        all.push(Held { name, before, awake: resident(&server), server, _wires: wires });
    }
    tokio::time::sleep(plan.hibernation).await;
    let mut section = Section::new("idle", format!("Memory of {} idle connections, MiB for each 1,000", plan.idle));
    for held in &all {
        #[expect(clippy::cast_precision_loss, reason = "a small count")]
        let each_1000 = |now: f64| (now - held.before) / 1024.0 * 1000.0 / plan.idle as f64;
        section.line(
            held.name,
            &[
                ("just_connected", each_1000(held.awake)),
                ("hibernating", each_1000(resident(&held.server))),
                ("runtime_alone", held.before / 1024.0),
            ],
        );
    }
    report.add(section);
    Ok(())
}

fn resident(server: &Server) -> f64 {
    usage::memory(server.pid).map_or(f64::NAN, |memory| memory.resident)
}

fn connect(server: &Server, load: Load, count: usize) -> anyhow::Result<Vec<Wire>> {
    let mut wires = Vec::with_capacity(count);
    match load {
        Load::Agents(route) => {
            for _ in 0..count {
                wires.push(Member::agent(server, route, &identity())?.wire);
            }
        }
        Load::Pairs(route) => {
            for _ in 0..count / 2 {
                let (owner, phone) = (identity(), identity());
                let mut agent = Member::agent(server, route, &owner)?;
                agent.authorize(&[phone.ed25519_pub()])?;
                wires.push(Member::device(server, route, &owner.namespace_id(), &phone)?.wire);
                wires.push(agent.wire);
            }
        }
        Load::Bare(route) | Load::BareOne(route) => {
            let name = |n: usize| if matches!(load, Load::BareOne(_)) { "one".to_owned() } else { n.to_string() };
            for n in 0..count {
                wires.push(Wire::open(server.address, &bare_path(route, &name(n)))?);
            }
        }
    }
    Ok(wires)
}
