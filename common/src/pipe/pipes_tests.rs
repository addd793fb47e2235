//! The negotiation of both sides against each other, in fake time: each rule, and what becomes of any history.

use std::collections::BTreeMap;

use proptest::prelude::*;
use zeroize::Zeroizing;

use super::signal::{Accept, Handshake, Invite, Reject, Signal};
use super::*;
use crate::ids::{ConnectionId, Ed25519Public, X25519Public};
use crate::limits::{PIPE_MAX_OPENING, PIPE_MAX_OPENING_ALL, PIPE_MAX_SIGNAL, PIPE_OPEN_MS};
use crate::peer::{SendError, SendFailure, SendId};
use crate::wire::ErrorCode;

const PHONE: Ed25519Public = Ed25519Public::new([1; 32]);
const AGENT: Ed25519Public = Ed25519Public::new([2; 32]);
const OTHER: Ed25519Public = Ed25519Public::new([3; 32]);
const OFFLINE: &SendFailure = &SendFailure::Offline;

fn random(n: u8) -> Zeroizing<[u8; 64]> {
    Zeroizing::new([n; 64])
}

fn secret() -> Zeroizing<[u8; 32]> {
    Zeroizing::new([99; 32])
}

/// A side and what it put out, sorted.
#[derive(Default)]
struct Side {
    pipes: Pipes,
    sent: Vec<(Ed25519Public, Signal)>,
    invited: Vec<ConnectionId>,
    opened: Vec<Agreed>,
    failed: Vec<(ConnectionId, PipeFailure)>,
}

impl Side {
    fn listening() -> Self {
        let mut side = Self::default();
        side.pipes.set_listening(true);
        side
    }

    fn drain(&mut self) {
        while let Some(output) = self.pipes.poll() {
            match output {
                PipeOutput::Send { to, connection, signal } => {
                    let signal = Signal::decode(&signal).unwrap();
                    assert_eq!(signal.connection(), connection);
                    self.sent.push((to, signal));
                }
                PipeOutput::Invited { connection, .. } => self.invited.push(connection),
                PipeOutput::Opened(agreed) => self.opened.push(agreed),
                PipeOutput::Failed { connection, why } => self.failed.push((connection, why)),
            }
        }
    }

    fn open(&mut self, now: u64, to: Ed25519Public, n: u8) -> Result<ConnectionId, OpenPipeError> {
        let opened = self.pipes.open(now, to, "test", BTreeMap::new(), &random(n));
        self.drain();
        opened
    }

    fn hear(&mut self, now: u64, from: Ed25519Public, signal: &Signal) -> Result<(), SignalDrop> {
        let heard = self.pipes.on_signal(now, from, &signal.encode());
        self.drain();
        heard
    }

    fn accept(&mut self, id: &ConnectionId) -> Result<(), InvitationGone> {
        let accepted = self.pipes.accept(id, &secret());
        self.drain();
        accepted
    }

    fn at(&mut self, now: u64) {
        self.pipes.on_timeout(now);
        self.drain();
    }

    fn last_signal(&self) -> &Signal {
        &self.sent.last().unwrap().1
    }

    fn last_failure(&self) -> &PipeFailure {
        &self.failed.last().unwrap().1
    }

    fn reason(&self) -> &str {
        match self.last_signal() {
            Signal::Reject(reject) => &reject.reason,
            other => panic!("{other:?} is no Reject"),
        }
    }
}

/// A phone that has asked, and an agent that was asked.
fn asked() -> (Side, Side, ConnectionId) {
    let (mut phone, mut agent) = (Side::default(), Side::listening());
    let id = phone.open(1000, AGENT, 7).unwrap();
    agent.hear(1000, PHONE, phone.last_signal()).unwrap();
    assert_eq!(agent.invited, [id]);
    (phone, agent, id)
}

fn invite(n: u8, change: impl FnOnce(&mut Invite)) -> Signal {
    let mut invite = Invite {
        connection: ConnectionId::new([n; 32]),
        handshake: Handshake::X25519(X25519Public::new([9; 32])),
        stream_type: "test".into(),
        compress: vec!["zlib".into(), "none".into()],
        headers: BTreeMap::new(),
    };
    change(&mut invite);
    Signal::Invite(invite)
}

fn accept_of(id: ConnectionId, change: impl FnOnce(&mut Accept)) -> Signal {
    let handshake = Handshake::X25519(X25519Public::new([9; 32]));
    let mut accept = Accept { connection: id, handshake, compress: "none".into() };
    change(&mut accept);
    Signal::Accept(accept)
}

#[test]
fn both_sides_agree_on_a_cipher_and_on_each_other() {
    let (mut phone, mut agent, id) = asked();
    agent.accept(&id).unwrap();
    phone.hear(1100, AGENT, agent.last_signal()).unwrap();
    let (mine, yours) = (phone.opened.pop().unwrap(), agent.opened.pop().unwrap());
    assert_eq!((mine.connection, mine.partner), (id, AGENT));
    assert_eq!((yours.connection, yours.partner), (id, PHONE));
    let (mut a, mut b) = (mine.cipher, yours.cipher);
    assert_eq!(b.open(&a.seal(b"to the agent").unwrap()).unwrap(), b"to the agent");
    assert_eq!(a.open(&b.seal(b"to the phone").unwrap()).unwrap(), b"to the phone");
    assert_eq!((phone.pipes.deadline(), agent.pipes.deadline()), (None, None));
    assert_eq!((phone.failed.len(), agent.failed.len()), (0, 0));
}

#[test]
fn stream_type_and_headers_reach_the_application() {
    let mut phone = Pipes::new();
    let headers = BTreeMap::from([("a".to_owned(), "b".to_owned())]);
    phone.open(0, AGENT, "http-local-proxy", headers.clone(), &random(1)).unwrap();
    let Some(PipeOutput::Send { to: AGENT, signal, .. }) = phone.poll() else { panic!("nothing sent") };
    let mut agent = Side::listening().pipes;
    agent.on_signal(0, PHONE, &signal).unwrap();
    let Some(PipeOutput::Invited { from, stream_type, headers: heard, .. }) = agent.poll() else {
        panic!("not invited")
    };
    assert_eq!((from, &*stream_type, heard), (PHONE, "http-local-proxy", headers));
}

#[test]
fn a_rejection_ends_the_open_with_its_reason() {
    let (mut phone, mut agent, id) = asked();
    agent.pipes.reject(&id, "proxy disabled").unwrap();
    agent.drain();
    phone.hear(1100, AGENT, agent.last_signal()).unwrap();
    assert_eq!(phone.failed, [(id, PipeFailure::Rejected("proxy disabled".into()))]);
    assert_eq!(phone.last_failure().to_string(), "declined: proxy disabled");
    assert_eq!(agent.pipes.accept(&id, &secret()), Err(InvitationGone));
    let rude = PipeFailure::Rejected(format!("\x1b[2J{}", "x".repeat(500))).to_string();
    assert!(rude.starts_with("declined: \\u{1b}[2Jxxx") && rude.len() < 230, "{rude}");
}

#[test]
fn an_ignored_invitation_sends_nothing_and_the_opener_gives_up_after_30_s() {
    let (mut phone, mut agent, id) = asked();
    agent.pipes.ignore(&id).unwrap();
    agent.drain();
    assert!(agent.sent.is_empty());
    assert_eq!(phone.pipes.deadline(), Some(1000 + PIPE_OPEN_MS));
    phone.at(1000 + PIPE_OPEN_MS - 1);
    assert!(phone.failed.is_empty());
    phone.at(1000 + PIPE_OPEN_MS);
    assert_eq!(phone.failed, [(id, PipeFailure::NoAnswer)]);
    assert_eq!(phone.hear(32_000, AGENT, &accept_of(id, |_| ())), Err(SignalDrop::Late));
    assert!(phone.opened.is_empty());
}

#[test]
fn an_application_that_does_not_answer_in_30_s_is_told_so() {
    let (_, mut agent, id) = asked();
    assert_eq!(agent.pipes.deadline(), Some(1000 + PIPE_OPEN_MS));
    agent.at(1000 + PIPE_OPEN_MS);
    assert_eq!(agent.failed, [(id, PipeFailure::NoAnswer)]);
    assert_eq!(agent.accept(&id), Err(InvitationGone));
    assert!(agent.sent.is_empty());
}

#[test]
fn an_absent_partner_ends_the_open_at_once() {
    let (mut phone, _, id) = asked();
    phone.pipes.on_sent(&id, Ok(SendId(5)));
    phone.pipes.on_send_failed(SendId(4), OFFLINE);
    phone.drain();
    assert!(phone.failed.is_empty(), "another message failed");
    phone.pipes.on_send_failed(SendId(5), OFFLINE);
    phone.drain();
    assert_eq!(phone.failed, [(id, PipeFailure::Offline)]);
    let second = phone.open(1000, AGENT, 8).unwrap();
    phone.pipes.on_sent(&second, Ok(SendId(6)));
    phone.pipes.on_send_failed(SendId(6), &SendFailure::Refused(Some(ErrorCode::RateLimited)));
    phone.drain();
    assert_eq!(phone.last_failure(), &PipeFailure::Refused(Some(ErrorCode::RateLimited)));
    let third = phone.open(1000, AGENT, 9).unwrap();
    phone.pipes.on_sent(&third, Err(SendError::NotConnected));
    phone.drain();
    assert_eq!(phone.last_failure(), &PipeFailure::NotSent(SendError::NotConnected));
}

#[test]
fn a_relay_that_only_names_the_absent_partner_ends_what_was_asked_of_it_and_nothing_else() {
    let (mut phone, mut agent, id) = asked();
    let other = phone.open(1000, OTHER, 8).unwrap();
    phone.pipes.on_offline(&AGENT);
    phone.drain();
    assert_eq!(phone.failed, [(id, PipeFailure::Offline)]);
    assert_eq!(phone.hear(1000, OTHER, &accept_of(other, |_| ())), Ok(()));
    agent.pipes.on_offline(&PHONE);
    agent.drain();
    assert!(agent.failed.is_empty(), "an invitation is not a question of this side");
}

#[test]
fn only_the_partner_answers() {
    let (mut phone, mut agent, id) = asked();
    assert_eq!(phone.hear(1000, OTHER, &accept_of(id, |_| ())), Err(SignalDrop::Stranger));
    let reject = Signal::Reject(Reject { connection: id, reason: "no".into() });
    assert_eq!(phone.hear(1000, OTHER, &reject), Err(SignalDrop::Stranger));
    assert_eq!(agent.hear(1000, OTHER, &reject), Err(SignalDrop::Stranger));
    // Nor does an invitation accept itself.
    assert_eq!(agent.hear(1000, PHONE, &accept_of(id, |_| ())), Err(SignalDrop::Stranger));
    agent.accept(&id).unwrap();
    phone.hear(1000, AGENT, agent.last_signal()).unwrap();
    assert_eq!((phone.opened.len(), agent.opened.len()), (1, 1));
}

#[test]
fn a_second_answer_changes_nothing() {
    let (mut phone, mut agent, id) = asked();
    agent.accept(&id).unwrap();
    assert_eq!(agent.accept(&id), Err(InvitationGone));
    let answer = agent.last_signal().clone();
    phone.hear(1000, AGENT, &answer).unwrap();
    assert_eq!(phone.hear(1000, AGENT, &answer), Err(SignalDrop::Late));
    let reject = Signal::Reject(Reject { connection: id, reason: "after all".into() });
    assert_eq!(phone.hear(1000, AGENT, &reject), Err(SignalDrop::Late));
    assert_eq!((phone.opened.len(), phone.failed.len(), agent.sent.len()), (1, 0, 1));
}

#[test]
fn an_id_is_used_once() {
    let (mut phone, mut agent, id) = asked();
    let again = invite(7, |_| ());
    assert_eq!(agent.hear(1000, PHONE, &again), Err(SignalDrop::Known), "while it is negotiated");
    assert_eq!(agent.hear(1000, OTHER, &again), Err(SignalDrop::Known), "by another");
    assert_eq!(phone.hear(1000, AGENT, &again), Err(SignalDrop::Known), "back to the opener");
    assert_eq!(phone.open(1000, AGENT, 7), Err(OpenPipeError::Repeated));
    agent.accept(&id).unwrap();
    phone.hear(1000, AGENT, agent.last_signal()).unwrap();
    assert_eq!(agent.hear(1000, PHONE, &again), Err(SignalDrop::Known), "after it was agreed on");
    assert_eq!(phone.hear(1000, AGENT, &again), Err(SignalDrop::Known));
    assert_eq!(agent.invited.len(), 1);
}

#[test]
fn without_a_consumer_invitations_are_rejected() {
    let mut agent = Side::default();
    agent.hear(0, PHONE, &invite(1, |_| ())).unwrap();
    assert_eq!((agent.reason(), agent.invited.len()), ("no pipes here", 0));
    assert_eq!(agent.pipes.negotiations(), 0);
}

#[test]
fn an_invitation_that_cannot_be_met_is_rejected_with_the_reason() {
    let mut agent = Side::listening();
    agent.hear(0, PHONE, &invite(1, |invite| invite.handshake = Handshake::Unknown { suite: "new".into() })).unwrap();
    assert_eq!(agent.reason(), "unknown suite");
    agent.hear(0, PHONE, &invite(2, |invite| invite.compress = vec!["zlib".into()])).unwrap();
    assert_eq!(agent.reason(), "only uncompressed pipes here");
    assert_eq!((agent.invited.len(), agent.pipes.negotiations()), (0, 0));
}

#[test]
fn an_answer_that_cannot_be_used_ends_the_open() {
    for (n, change) in [
        (1, (|accept| accept.handshake = Handshake::Unknown { suite: "new".into() }) as fn(&mut Accept)),
        (2, |accept| accept.compress = "zlib".into()),
        (3, |accept| accept.handshake = Handshake::X25519(X25519Public::new([0; 32]))),
    ] {
        let mut phone = Side::default();
        let id = phone.open(0, AGENT, n).unwrap();
        phone.hear(0, AGENT, &accept_of(id, change)).unwrap();
        assert!(matches!(phone.last_failure(), PipeFailure::Unusable(_)), "{n}");
        assert_eq!((phone.failed.len(), phone.opened.len()), (1, 0));
    }
}

#[test]
fn a_weak_key_in_an_invitation_is_rejected_and_told() {
    let mut agent = Side::listening();
    agent
        .hear(0, PHONE, &invite(1, |invite| invite.handshake = Handshake::X25519(X25519Public::new([0; 32]))))
        .unwrap();
    let id = agent.invited[0];
    agent.accept(&id).unwrap();
    assert_eq!(agent.reason(), "unusable key");
    assert!(matches!(agent.last_failure(), PipeFailure::Unusable(_)));
    assert!(agent.opened.is_empty());
}

#[test]
fn an_opener_may_take_its_invitation_back() {
    let (_, mut agent, id) = asked();
    let reject = Signal::Reject(Reject { connection: id, reason: "changed my mind".into() });
    agent.hear(1000, PHONE, &reject).unwrap();
    assert_eq!(agent.failed, [(id, PipeFailure::Rejected("changed my mind".into()))]);
    assert_eq!(agent.accept(&id), Err(InvitationGone));
}

#[test]
fn a_revoked_partner_is_forgotten_with_all_its_negotiations_and_hears_nothing_more() {
    let (mut phone, mut agent, id) = asked();
    let mine = agent.open(1000, PHONE, 20).unwrap();
    agent.hear(1000, OTHER, &invite(30, |_| ())).unwrap();
    agent.sent.clear();
    agent.pipes.open(1000, PHONE, "test", BTreeMap::new(), &random(21)).unwrap();
    agent.pipes.forget(&PHONE);
    agent.drain();
    assert!(agent.sent.is_empty());
    assert_eq!(agent.failed.len(), 3);
    assert!(agent.failed.iter().all(|(_, why)| *why == PipeFailure::Forgotten));
    assert!(
        agent.failed.iter().any(|(failed, _)| *failed == id) && agent.failed.iter().any(|(failed, _)| *failed == mine)
    );
    assert_eq!(agent.accept(&id), Err(InvitationGone));
    agent.accept(&ConnectionId::new([30; 32])).unwrap();
    phone.pipes.forget(&AGENT);
    phone.drain();
    assert_eq!(phone.failed, [(id, PipeFailure::Forgotten)]);
}

#[test]
fn a_partner_may_open_32_at_once_and_all_together_256() {
    let mut agent = Side::listening();
    let id = |partner: u8, n: usize| {
        invite(partner, |invite| {
            let mut id = [partner; 32];
            id[0] = u8::try_from(n).unwrap();
            invite.connection = ConnectionId::new(id);
        })
    };
    for partner in 10..18 {
        let from = Ed25519Public::new([partner; 32]);
        for n in 0..PIPE_MAX_OPENING {
            agent.hear(0, from, &id(partner, n)).unwrap();
        }
        agent.hear(0, from, &id(partner, 200)).unwrap();
        assert_eq!(agent.reason(), "too many pipes are being opened");
        assert_eq!(agent.open(0, from, 100 + partner), Err(OpenPipeError::TooMany));
    }
    assert_eq!(agent.pipes.negotiations(), PIPE_MAX_OPENING_ALL);
    assert_eq!(agent.open(0, OTHER, 99), Err(OpenPipeError::TooMany));
    // One that ends makes room.
    let ended = agent.invited[0];
    agent.accept(&ended).unwrap();
    agent.open(0, OTHER, 99).unwrap();
}

#[test]
fn what_does_not_fit_a_signal_is_not_asked() {
    let mut phone = Side::default();
    let headers = BTreeMap::from([("a".to_owned(), "b".repeat(PIPE_MAX_SIGNAL))]);
    let opened = phone.pipes.open(0, AGENT, "test", headers, &random(1));
    assert!(matches!(opened, Err(OpenPipeError::TooLarge { .. })));
    phone.drain();
    assert!(phone.sent.is_empty() && phone.pipes.negotiations() == 0);
}

#[test]
fn malformed_signals_change_nothing() {
    let (mut phone, _, _) = asked();
    assert!(matches!(phone.pipes.on_signal(0, AGENT, b"\x80"), Err(SignalDrop::Malformed(_))));
    assert_eq!((phone.pipes.negotiations(), phone.pipes.poll().is_none()), (1, true));
}

#[test]
fn debug_shows_no_secret() {
    let (phone, _, _) = asked();
    assert_eq!(format!("{:?}", phone.pipes), "Pipes { negotiations: 1, .. }");
}

#[derive(Debug, Clone)]
enum Step {
    Open(u8, u8),
    Invite(u8, u8),
    Accept(u8, u8),
    Reject(u8, u8),
    Answer(u8, u8),
    Sent(u8, u64),
    SendFailed(u64),
    Forget(u8),
    Wait(u64),
}

fn any_step() -> impl Strategy<Value = Step> {
    let (who, id) = (1..4_u8, 0..6_u8);
    prop_oneof![
        (who.clone(), id.clone()).prop_map(|(who, id)| Step::Open(who, id)),
        (who.clone(), id.clone()).prop_map(|(who, id)| Step::Invite(who, id)),
        (who.clone(), id.clone()).prop_map(|(who, id)| Step::Accept(who, id)),
        (who.clone(), id.clone()).prop_map(|(who, id)| Step::Reject(who, id)),
        (id.clone(), 0..3_u8).prop_map(|(id, how)| Step::Answer(id, how)),
        (id, 0..9_u64).prop_map(|(id, send)| Step::Sent(id, send)),
        (0..9_u64).prop_map(Step::SendFailed),
        who.prop_map(Step::Forget),
        (0..40_000_u64).prop_map(Step::Wait),
    ]
}

proptest! {
    /// Whatever happens in whatever order: an id that was asked for or announced ends once, with its own partner, in time.
    #[test]
    fn every_negotiation_ends_once_and_in_time(steps in proptest::collection::vec(any_step(), 0..60)) {
        let mut side = Side::listening();
        let (mut now, mut begun, mut silent) = (0, BTreeMap::new(), 0);
        for step in steps {
            let key = |who: u8| Ed25519Public::new([who; 32]);
            let id = |n: u8| ConnectionId::new([n; 32]);
            match step {
                Step::Open(who, n) => {
                    if side.open(now, key(who), n).is_ok() {
                        prop_assert!(begun.insert(id(n), (key(who), now)).is_none(), "asked twice");
                    }
                }
                Step::Invite(who, n) => {
                    let before = side.invited.len();
                    let _ = side.hear(now, key(who), &invite(n, |_| ()));
                    if side.invited.len() > before {
                        prop_assert!(begun.insert(id(n), (key(who), now)).is_none(), "announced twice");
                    }
                }
                Step::Accept(who, n) => {
                    let before = side.opened.len();
                    let _ = side.hear(now, key(who), &accept_of(id(n), |_| ()));
                    if side.opened.len() > before {
                        prop_assert_eq!(begun[&id(n)].0, key(who), "accepted by another");
                    }
                }
                Step::Reject(who, n) => {
                    let before = side.failed.len();
                    let _ = side.hear(now, key(who), &Signal::Reject(Reject { connection: id(n), reason: String::new() }));
                    if side.failed.len() > before {
                        prop_assert_eq!(begun[&id(n)].0, key(who), "rejected by another");
                    }
                }
                Step::Answer(n, how) => {
                    let answered = match how {
                        0 => side.accept(&id(n)).is_ok(),
                        1 => side.pipes.reject(&id(n), "no").is_ok(),
                        _ => side.pipes.ignore(&id(n)).is_ok(),
                    };
                    silent += usize::from(answered && how > 0);
                }
                Step::Sent(n, send) => side.pipes.on_sent(&id(n), Ok(SendId(send))),
                Step::SendFailed(send) => side.pipes.on_send_failed(SendId(send), OFFLINE),
                Step::Forget(who) => side.pipes.forget(&key(who)),
                Step::Wait(ms) => {
                    now += ms;
                    side.at(now);
                }
            }
            side.drain();
            prop_assert!(side.pipes.deadline().is_none_or(|at| at > now), "overdue");
            let mut ended: Vec<_> = side.failed.iter().map(|(id, _)| *id).chain(side.opened.iter().map(|pipe| pipe.connection)).collect();
            let count = ended.len();
            ended.sort();
            ended.dedup();
            prop_assert_eq!(ended.len(), count, "ended twice");
            prop_assert_eq!(begun.len(), count + silent + side.pipes.negotiations(), "one is lost");
        }
    }
}
