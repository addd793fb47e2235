//! What each operation does, and what the answers to commands mean.

use skald_common::ids::{Ed25519Public, X25519Public};
use skald_common::payload::{Decision, ElicitationAction, Notification, SecretObject};

use super::demand;
use super::history::{Op, Reaction, Tap};
use super::host::{Asked, Host, asked};
use super::phone::{Phone, Shown};
use super::world::World;
use crate::hub::api::{AnswerContent, ApiError, CallOutcome, Command, HostRequest, ResolveParams};
use crate::hub::durable::ItemRow;
use crate::hub::items::{Kind, RequestId};
use crate::hub::tests::{names, raw};

const KINDS: [Kind; 3] = [Kind::Approval, Kind::Clarification, Kind::Elicitation];

/// What a command was for.
pub(super) enum Meaning {
    /// The host has raised an item in place of another, or of none.
    Raised {
        host: usize,
        number: (Kind, u8),
        before: Option<Asked>,
    },
    Synced {
        host: usize,
    },
    /// Devices were to be revoked that had been let in so many times.
    Revoked(Vec<(Ed25519Public, u64)>),
    Answered {
        payload: String,
        secret: bool,
    },
    Other,
}

impl World {
    pub(super) fn act(&mut self, op: Op) {
        let (hosts, phones) = (self.hosts.len(), self.phones.len());
        let host = |number: u8| usize::from(number) % hosts;
        let phone = |number: u8| usize::from(number) % phones;
        match op {
            Op::HostConnects { host: at, linger } => self.connect_host(host(at), linger),
            Op::HostVanishes { host: at } => self.vanish(host(at)),
            Op::HostSyncs { host: at } => self.sync(host(at)),
            Op::Raise { host: at, kind, number, content, large, life } => {
                let kind = KINDS[usize::from(kind) % KINDS.len()];
                let expires_at = (life > 0).then(|| (self.now().unix / 1000 + u64::from(life) * 100) * 1000);
                let item = asked(self.hosts[host(at)].name, kind, number, content, large, expires_at);
                self.raise(host(at), (kind, number), &item);
            }
            Op::Withdraw { host: at, which } => self.withdraw(host(at), which),
            Op::Call { host: at, reaction } => drop(self.take_call(host(at), reaction)),
            Op::Notify { copies, .. } => (0..copies).for_each(|_| {
                let notification = Notification { title: "t".into(), body: "b".into() };
                self.ask(Meaning::Other, |reply| Command::Notify(notification, reply));
            }),
            Op::PhoneWakes { phone: at } => self.phones[phone(at)].awake = true,
            Op::PhoneSleeps { phone: at } => {
                let sleeper = &mut self.phones[phone(at)];
                sleeper.awake = false;
                self.relay.borrow_mut().go(sleeper.key);
            }
            Op::Tapped { phone: at, which, tap } => {
                let phone = &self.phones[phone(at)];
                if let Some(item) = nth(&phone.inbox, which).cloned() {
                    self.tap(at, &item, tap);
                }
            }
            Op::TappedOld { phone: at, which, tap } => {
                let known: Vec<_> = self.phones[phone(at)].known.values().cloned().collect();
                if let Some(item) = nth(&known, which) {
                    self.tap(at, item, tap);
                }
            }
            Op::SaidAgain { phone: at } => {
                let phone = &mut self.phones[phone(at)];
                if let Some((payload, json)) = phone.last.clone() {
                    phone.say(&json, false);
                    self.oracle.said_again(&payload);
                }
            }
            Op::SentTwice { phone: at } => {
                let phone = &mut self.phones[phone(at)];
                phone.outbox.extend(phone.last_letter.clone());
            }
            Op::AsksForInbox { phone: at } => self.say(at, "inbox_request", "", true),
            Op::LogsOut { phone: at } => self.say(at, "logout", "", false),
            Op::Invites { phone: at, known, live } => {
                let stream_type = if known { "http-local-proxy" } else { "other" };
                let connection = self.machine.borrow_mut().invited(self.phones[phone(at)].key);
                self.phones[phone(at)].invite(connection, stream_type, live);
            }
            Op::InvitesAgain { phone: at } => {
                if let Some(connection) = self.machine.borrow().last_invited(&self.phones[phone(at)].key) {
                    self.phones[phone(at)].invite(connection, "http-local-proxy", true);
                }
            }
            Op::ServerAnswers { which, well } => {
                let dialling = self.machine.borrow().dialling();
                if let Some(connection) = nth(&dialling, which) {
                    let news = self.machine.borrow_mut().answers(*connection, well);
                    self.call(|core| core.tunnel_news(news));
                }
            }
            Op::TunnelEnds { which } => {
                let open = self.machine.borrow().open();
                if let Some(connection) = nth(&open, which) {
                    let news = self.machine.borrow_mut().ends(*connection);
                    self.call(|core| core.tunnel_news(news));
                }
            }
            Op::Pairs { phone: at } => self.pair(phone(at)),
            Op::PairsWithOtherKey { phone: at } => self.pair_with_other_key(phone(at)),
            Op::RelayPower { up } => self.relay.borrow_mut().power(up),
            Op::RelayFeatures { modern } => {
                self.relay.borrow_mut().modern = modern;
                self.oracle.old_relay |= !modern;
            }
            Op::Cut { replaced } => self.relay.borrow_mut().cut(replaced.then_some(4001)),
            Op::Refuses { messages } => self.relay.borrow_mut().refuse = messages,
            Op::Disk(trouble) => self.disk.trouble(trouble),
            Op::CrashOnWire { after } => self.relay.borrow_mut().crash_in = Some(after),
            Op::Restart(loss) => self.die(loss),
            Op::Waits { ms } => self.wait(ms),
            Op::ClockJumps { ms } => self.jump(ms),
            op => self.act_as_owner(op),
        }
    }

    fn act_as_owner(&mut self, op: Op) {
        match op {
            Op::OpensWindow => self.ask(Meaning::Other, |reply| Command::PairingStart(None, reply)),
            Op::StopsWindow => self.ask(Meaning::Other, Command::PairingStop),
            Op::Authorizes { phone } => {
                let key = self.phones[usize::from(phone)].key;
                self.oracle.let_in(key);
                self.ask(Meaning::Other, |reply| Command::DevicesAuthorize(key.to_hex(), reply));
            }
            Op::Revokes { phone } => {
                let key = self.phones[usize::from(phone)].key;
                self.revoke(&[key], |reply| Command::DevicesRevoke(key.to_hex(), reply));
            }
            Op::ClearsDevices => {
                let keys: Vec<_> = self.phones.iter().map(|phone| phone.key).collect();
                self.revoke(&keys, Command::DevicesClear);
            }
            Op::Restores => {
                self.let_all_in();
                self.ask(Meaning::Other, Command::DevicesRestore);
            }
            Op::Answers { which, tap } => self.answer_here(which, tap),
            Op::Settings { confirm, delay } => {
                self.settings.require_device_confirmation = confirm;
                self.settings.notify_delay_secs = if delay { 20 } else { 0 };
                let settings = self.settings.clone();
                self.ask(Meaning::Other, |reply| Command::Settings(settings, reply));
            }
            Op::WebPort { on } => {
                self.settings.web_port = on.then_some(8080);
                let settings = self.settings.clone();
                self.ask(Meaning::Other, |reply| Command::Settings(settings, reply));
            }
            op => unreachable!("{op:?} is not the owner's"),
        }
    }

    // Hosts.

    fn connect_host(&mut self, at: usize, linger: u8) {
        if self.hosts[at].opening.is_some() {
            return;
        }
        self.hosts[at].linger_secs = [None, Some(0), Some(60), Some(200_000)][usize::from(linger) % 4];
        let (sender, receiver) = tokio::sync::oneshot::channel();
        self.hosts[at].opening = Some(receiver);
        let hello = self.hosts[at].hello();
        self.call(|core| core.command(Command::OpenHost(hello, sender)));
    }

    fn vanish(&mut self, at: usize) {
        self.hosts[at].session = None;
        // The daemon hears of it.
        self.call(|_| Ok(()));
    }

    /// `inbox.sync`, with all that the host waits for.
    pub(super) fn sync(&mut self, at: usize) {
        let Some(session) = self.hosts[at].session.as_ref().map(|session| session.id) else { return };
        let set = self.hosts[at].set();
        self.ask(Meaning::Synced { host: at }, |reply| Command::InboxSync(session, set, reply));
    }

    fn raise(&mut self, at: usize, number: (Kind, u8), item: &Asked) {
        let Some(session) = self.hosts[at].session.as_ref().map(|session| session.id) else { return };
        if self.hosts[at].open.get(&number).is_none_or(|open| open.tag != item.tag) {
            // What was answered under this number is heard before the number is given to something else.
            self.act_on_calls(at);
        }
        let kind = number.0;
        let json = raw(&item.json);
        self.oracle.raised(&item.tag);
        let before = self.hosts[at].open.insert(number, item.clone());
        if let Some(before) = before.as_ref().filter(|before| before.tag != item.tag) {
            self.oracle.ended(&before.tag);
        }
        let meaning = Meaning::Raised { host: at, number, before };
        self.ask(meaning, |reply| Command::InboxRequested(session, kind, json, reply));
    }

    fn withdraw(&mut self, at: usize, which: u8) {
        let Some(session) = self.hosts[at].session.as_ref().map(|session| session.id) else { return };
        let open: Vec<_> = self.hosts[at].open.keys().copied().collect();
        let Some(number) = nth(&open, which).copied() else { return };
        let gone = self.hosts[at].open.remove(&number).unwrap();
        self.oracle.ended(&gone.tag);
        let id = RequestId::from_json(&number.1.to_string()).unwrap();
        self.ask(Meaning::Other, |reply| Command::InboxResolved(session, number.0, id, reply));
    }

    /// The next call of a host, if there is one.
    pub(super) fn take_call(&mut self, at: usize, reaction: Reaction) -> bool {
        let (call, closed) = self.hosts[at].next_call();
        if closed {
            self.hosts[at].session = None;
        }
        let (Some(call), Some(session)) = (call, self.hosts[at].session.as_ref().map(|session| session.id)) else {
            return false;
        };
        let outcome = match call.request {
            HostRequest::Ping if reaction == Reaction::Ignore => return true,
            HostRequest::Ping => CallOutcome::Pong,
            HostRequest::Resolve(params) => {
                let number = Host::number(&params);
                let open = self.hosts[at].open.get(&number).cloned();
                self.called(at, open.as_ref(), &params);
                match reaction {
                    Reaction::Vanish => {
                        self.vanish(at);
                        return true;
                    }
                    Reaction::Ignore => return true,
                    Reaction::Fail => CallOutcome::Failed(-32_000),
                    Reaction::Act | Reaction::ActAndVanish => {
                        let new = self.hosts[at].acted.insert(params.answer_id);
                        if let Some(open) = open.filter(|_| new) {
                            self.hosts[at].open.remove(&number);
                            self.oracle.ended(&open.tag);
                        }
                        if reaction == Reaction::ActAndVanish {
                            self.vanish(at);
                            return true;
                        }
                        let asks_again = !new && self.hosts[at].open.contains_key(&number);
                        self.call(|core| {
                            core.command(Command::CallDone(session, call.id, CallOutcome::Resolved(true)))
                        });
                        if asks_again {
                            self.sync(at);
                        }
                        return true;
                    }
                }
            }
        };
        self.call(|core| core.command(Command::CallDone(session, call.id, outcome)));
        true
    }

    /// The host acts on every answer that is on its way to it, and says nothing: its connection, or its question, ends.
    pub(super) fn act_on_calls(&mut self, at: usize) {
        while let (Some(call), _) = self.hosts[at].next_call() {
            let HostRequest::Resolve(params) = call.request else { continue };
            let number = Host::number(&params);
            let Some(open) = self.hosts[at].open.get(&number).cloned() else { continue };
            self.called(at, Some(&open), &params);
            if self.hosts[at].acted.insert(params.answer_id) {
                self.hosts[at].open.remove(&number);
                self.oracle.ended(&open.tag);
            }
        }
    }

    /// One that the host has acted on already is no news: it was for an earlier question of the same words.
    fn called(&mut self, at: usize, open: Option<&Asked>, params: &ResolveParams) {
        if let Some(open) = open.filter(|_| !self.hosts[at].acted.contains(&params.answer_id)) {
            self.oracle.called(&open.tag, params);
        }
    }

    /// Hosts drop what nobody has answered in time.
    pub(super) fn forget_expired(&mut self) {
        let now = self.now().unix;
        for host in &mut self.hosts {
            let over = |open: &Asked| open.expires_at.is_some_and(|at| at <= now);
            for (_, open) in host.open.extract_if(.., |_, open| over(open)) {
                self.oracle.ended(&open.tag);
            }
        }
    }

    // Phones.

    /// A payload with its envelope; gives its id.
    fn payload(&mut self, kind: &str, fields: &str) -> (String, String) {
        self.said += 1;
        let (id, ts) = (format!("p{}", self.said), self.now().unix);
        let fields = fields.replace("WORDS", &id);
        let comma = if fields.is_empty() { "" } else { "," };
        let json = format!(r#"{{"v":1,"kind":"{kind}","id":"{id}","ts":{ts}{comma}{fields}}}"#);
        (id, json)
    }

    fn say(&mut self, at: u8, kind: &str, fields: &str, live: bool) {
        let (_, json) = self.payload(kind, fields);
        self.phones[usize::from(at)].say(&json, live);
    }

    fn tap(&mut self, at: u8, item: &Shown, tap: Tap) {
        let (kind, fields) = match (item.kind, tap) {
            (Kind::Approval, Tap::Yes) => ("approval_response", r#""decision":"approved","reason":"WORDS""#),
            (Kind::Approval, Tap::No) => ("approval_response", r#""decision":"rejected","reason":"WORDS""#),
            (Kind::Clarification, Tap::Yes | Tap::No) | (Kind::Approval, Tap::Nonsense) => {
                ("clarification_response", r#""answer":"WORDS""#)
            }
            (Kind::Clarification, Tap::Nonsense) => ("clarification_response", r#""answer":7"#),
            (Kind::Elicitation, Tap::Yes) => {
                ("elicitation_response", r#""action":"accept","content":{"password":"WORDS"}"#)
            }
            (Kind::Elicitation, Tap::No) => ("elicitation_response", r#""action":"decline""#),
            (Kind::Elicitation, Tap::Nonsense) => {
                ("elicitation_response", r#""action":"accept","content":{"other":"WORDS"}"#)
            }
        };
        let (payload, json) = self.payload(kind, &format!(r#""request_id":"{}",{fields}"#, item.id));
        let phone = &mut self.phones[usize::from(at)];
        self.oracle.answered(&payload, phone.key, item);
        phone.say(&json, false);
        phone.inbox.retain(|shown| shown.id != item.id);
        phone.last = Some((payload, json));
        phone.last_letter = phone.outbox.back().cloned();
    }

    fn pair(&mut self, at: usize) {
        let phone = &mut self.phones[at];
        if !self.relay.borrow_mut().pair(phone.key, phone.x25519, phone.platform) {
            return;
        }
        phone.forget();
        let version = if phone.ours { r#","app_version":"skald-phone/0.1""# } else { "" };
        let fields = format!(r#""device_info":{{"platform":"android"{version},"device_name":"Phone {at}"}}"#);
        self.say(u8::try_from(at).unwrap(), "hello", &fields, false);
    }

    /// Under a known name, with a key that is not the phone's, or no key at all.
    fn pair_with_other_key(&mut self, at: usize) {
        let x25519 = if at.is_multiple_of(2) { X25519Public::new([0; 32]) } else { Phone::new(77).x25519 };
        let key = self.phones[at].key;
        self.relay.borrow_mut().pair(key, x25519, self.phones[at].platform);
    }

    // The owner.

    fn let_all_in(&mut self) {
        for phone in &self.phones {
            self.oracle.let_in(phone.key);
        }
    }

    fn revoke(
        &mut self,
        keys: &[Ed25519Public],
        command: impl FnOnce(crate::hub::api::Responder<crate::hub::api::Applied>) -> Command,
    ) {
        let meaning = keys.iter().map(|key| (*key, self.oracle.times_let_in(key))).collect();
        self.ask(Meaning::Revoked(meaning), command);
    }

    fn answer_here(&mut self, which: u8, tap: Tap) {
        let items: Vec<ItemRow> = self.disk.get().durable.items.clone();
        let Some(row) = nth(&items, which) else { return };
        self.said += 1;
        let payload = format!("p{}", self.said);
        let content = match row.item.kind {
            Kind::Approval => AnswerContent::Approval {
                decision: if tap == Tap::Yes { Decision::Approved } else { Decision::Rejected },
                reason: Some(payload.clone()),
                bypass_secs: None,
            },
            Kind::Clarification => AnswerContent::Clarification { answer: payload.clone() },
            Kind::Elicitation => AnswerContent::Elicitation {
                action: ElicitationAction::Accept,
                content: Some(SecretObject::single("password", payload.clone())),
            },
        };
        let tag = ["summary", "question", "message"].iter().find_map(|name| row.item.text(name)).unwrap();
        let shown = Shown { id: row.item.id.clone(), tag, kind: row.item.kind, whole: true };
        self.oracle.answered(&payload, names().ed25519, &shown);
        let meaning = Meaning::Answered { payload, secret: row.item.kind == Kind::Elicitation };
        self.ask(meaning, |reply| Command::InboxAnswer(row.item.id.clone(), content, reply));
    }

    // Answers to commands: what they promise is on the disk already.

    pub(super) fn heard(&mut self, meaning: Meaning, answer: Result<(), ApiError>) {
        match (meaning, answer) {
            (Meaning::Raised { host, number, .. }, Ok(())) => self.is_stored(host, number),
            (Meaning::Raised { host, number, before }, Err(_)) => self.take_back(host, number, before),
            (Meaning::Synced { host }, Ok(())) => {
                let numbers: Vec<_> = self.hosts[host].open.keys().copied().collect();
                for number in numbers {
                    self.is_stored(host, number);
                }
            }
            (Meaning::Revoked(devices), Ok(())) => {
                for (key, let_in) in devices {
                    self.oracle.revoked(key, let_in);
                }
            }
            (Meaning::Answered { payload, secret }, Ok(())) => {
                let stored = self.disk.get().durable.answers.iter().any(|row| match &row.content {
                    AnswerContent::Approval { reason, .. } => reason.as_deref() == Some(&payload),
                    AnswerContent::Clarification { answer } => *answer == payload,
                    AnswerContent::Elicitation { .. } => false,
                });
                demand(stored || secret, || format!("{payload} was taken, and is not on the disk"));
                self.oracle.told(&payload, "accepted");
            }
            (Meaning::Answered { payload, .. }, Err(_)) => self.oracle.told(&payload, "refused"),
            (Meaning::Synced { .. } | Meaning::Revoked(_) | Meaning::Other, _) => {}
        }
    }

    fn is_stored(&self, host: usize, number: (Kind, u8)) {
        let host = &self.hosts[host];
        let Some(open) = host.open.get(&number) else { return };
        let over = open.expires_at.is_some_and(|at| at <= self.now().unix);
        let tag = format!("\"{}\"", open.tag);
        let stored = self.disk.get().durable.items.iter().any(|row| row.item.json.contains(&tag));
        demand(stored || over, || format!("{tag} was raised, and is not on the disk"));
    }

    /// The daemon has refused an item: what was there before is still there.
    fn take_back(&mut self, host: usize, number: (Kind, u8), before: Option<Asked>) {
        let Some(refused) = self.hosts[host].open.remove(&number) else { return };
        let same = before.as_ref().is_some_and(|before| before.tag == refused.tag);
        if !same {
            self.oracle.ended(&refused.tag);
        }
        if let Some(before) = before {
            self.oracle.raised(&before.tag);
            self.hosts[host].open.insert(number, before);
        }
    }
}

fn nth<T>(list: &[T], which: u8) -> Option<&T> {
    if list.is_empty() { None } else { list.get(usize::from(which) % list.len()) }
}
