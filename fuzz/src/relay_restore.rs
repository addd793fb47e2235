//! An engine that is restored from attachments and rows that it never wrote: of a later relay, of a damaged disk. It may
//! misjudge what it finds; it must not panic, spin, or write what the platform does not take.

use skald_relay_worker::engine::Origin;
use skald_relay_worker::store::{Param, Sql as _, Store};

use crate::relay_engine::Play;
use crate::relay_world::{AGENT, Oracle, World, namespace, person};
use crate::tape::Tape;

const MAX_STEPS: usize = 60;
const TABLES: [(&str, usize); 4] = [("namespace", 8), ("member", 7), ("queue", 7), ("push", 2)];

/// The target.
pub fn run(data: &[u8]) {
    let mut tape = Tape::new(data);
    let mut world = World::new();
    world.oracle = Oracle::Forged;
    found(&mut world);
    let mut play = Play::over(world);
    for _ in 0..MAX_STEPS {
        if tape.ended() {
            break;
        }
        match tape.below(8) {
            0 => {
                attach(&mut play.world, &mut tape);
                play.world.evict();
            }
            1 | 2 => {
                forge_row(&play.world, &mut tape);
                play.world.evict();
            }
            _ => play.step(&mut tape),
        }
    }
}

/// A namespace with its tables.
fn found(world: &mut World) {
    use skald_common::wire::{Auth, AuthAgent, Features, Frame, Role, encode};
    let agent = AuthAgent { agent_ed25519_pub: person(AGENT).ed25519_pub().to_vec(), features: Features::ALL.bits() };
    let auth = encode(Frame::Auth(Auth { role: Some(Role::Agent(agent)), signature: vec![0; 64] }));
    world.open(Origin::Verified { auth: auth.into() });
    // The table that comes with the first push.
    let store = Store::new(std::rc::Rc::clone(&world.sql));
    store.put_push(1, &[]).expect("nothing told it to fail");
}

/// Gives a socket another attachment: noise, or a record with the fields of the engine's own.
fn attach(world: &mut World, tape: &mut Tape<'_>) {
    let fresh = tape.byte() & 1 == 0;
    let at = tape.below(16);
    let conn = if fresh {
        let challenge = skald_common::ids::ChallengeNonce::new([1; 32]);
        Some(world.open(Origin::Direct { challenge, namespace: namespace() }))
    } else {
        world.nth(at)
    };
    let Some(conn) = conn else { return };
    let bytes = if tape.byte() & 1 == 0 { tape.bytes().to_vec() } else { record(conn.0, tape) };
    if let Some(socket) = world.sockets.get_mut(&conn).filter(|socket| !socket.closed) {
        socket.attachment = Some(bytes);
        // What it was before is of no meaning any more.
        socket.admitted = false;
        socket.challenge = None;
    }
}

/// Protobuf with the field numbers of an attachment and any values.
fn record(conn: u64, tape: &mut Tape<'_>) -> Vec<u8> {
    let mut out = vec![9];
    out.extend(conn.to_le_bytes());
    for _ in 0..tape.below(16) {
        let field = 2 + tape.below(15) as u64;
        match field {
            4..=6 => {
                let bytes = if tape.byte() & 1 == 0 {
                    let who = tape.below(6);
                    if field == 5 { namespace().to_vec() } else { person(who).ed25519_pub().to_vec() }
                } else {
                    tape.bytes().to_vec()
                };
                varint(&mut out, field << 3 | 2);
                varint(&mut out, bytes.len() as u64);
                out.extend(bytes);
            }
            14..=16 => {
                let mut packed = Vec::new();
                for _ in 0..tape.below(256) {
                    varint(&mut packed, tape.number());
                }
                varint(&mut out, field << 3 | 2);
                varint(&mut out, packed.len() as u64);
                out.extend(packed);
            }
            _ => {
                varint(&mut out, field << 3);
                varint(&mut out, if tape.byte() & 1 == 0 { tape.long() } else { tape.number() });
            }
        }
    }
    out
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    loop {
        let [low, ..] = value.to_le_bytes();
        value >>= 7;
        out.push(if value == 0 { low } else { low | 0x80 });
        if value == 0 {
            return;
        }
    }
}

/// Writes a row of any values; what the tables' own types refuse is no row.
fn forge_row(world: &World, tape: &mut Tape<'_>) {
    let (table, columns) = TABLES[tape.below(TABLES.len())];
    let texts: Vec<String> = (0..columns).map(|_| String::from_utf8_lossy(&tape.key()[..1]).into_owned()).collect();
    let key = person(tape.below(6)).ed25519_pub();
    let params: Vec<Param<'_>> = texts
        .iter()
        .map(|text| match tape.below(8) {
            0 => Param::Null,
            1 => Param::Text(text),
            2 => Param::Blob(tape.bytes()),
            3 => Param::Blob(key.as_bytes()),
            4 => Param::Int(tape.long().cast_signed()),
            5 => Param::Int(
                i64::try_from(world.now).unwrap_or(i64::MAX).saturating_add(tape.number().cast_signed() >> 20),
            ),
            6 => Param::Int((1 << 32 | u64::from(tape.byte())).cast_signed()),
            _ => Param::Int(tape.byte().into()),
        })
        .collect();
    let marks = vec!["?"; columns].join(",");
    let _ = world.sql.exec(&format!("INSERT OR REPLACE INTO {table} VALUES ({marks})"), &params);
}
