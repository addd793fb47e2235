//! Hosts: their sessions, and the items that they raise and take back (socket API, Opening and Host → daemon).
//!
//! A host's word is only as fresh as its session: an item counts as asserted once this session's `inbox.sync` or
//! `inbox.requested` has named it, and only then is an answer to it delivered. When a session ends, its items linger.

use std::collections::{BTreeMap, BTreeSet};

use skald_common::payload::RawJson;
use skald_common::peer::Millis;

use super::api::{
    ApiError, CallId, CallOutcome, HostCall, HostHello, HostRequest, HostSession, HostStatus, InboxSet, Responder,
    SessionId,
};
use super::durable::{ItemRow, Write};
use super::effects::Effect;
use super::items::{Item, ItemId, Kind, MAX_ITEMS, MAX_ITEMS_PER_HOST, Origin, RequestId};
use super::{Ctx, Hub, Now, text};

/// How long an older connection has to answer a probe.
const PROBE_MS: Millis = 3_000;
/// Default of `linger_secs`.
const LINGER_SECS: u64 = 24 * 3600;
/// Longest `linger_secs`.
const MAX_LINGER_SECS: u64 = 30 * 24 * 3600;
/// After a restart of the daemon every host has this long to come back before lingering counts; milliseconds.
const RESTART_GRACE_MS: u64 = 15_000;
/// Connected hosts.
const MAX_SESSIONS: usize = 64;
/// Longest host name, and longest label, characters.
const MAX_NAME: usize = 32;
const MAX_LABEL: usize = 100;

/// A connected host.
#[derive(Debug)]
struct Session {
    hello: HostHello,
    linger_secs: u64,
    calls: BTreeMap<CallId, Call>,
}

/// What a call to a host is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Call {
    Probe,
    Resolve(ItemId),
}

/// A newcomer that waits while the older connection of its name is probed.
#[derive(Debug)]
struct Newcomer {
    hello: HostHello,
    reply: Responder<HostSession>,
    older: SessionId,
    until: Millis,
}

/// The sessions.
#[derive(Debug, Default)]
pub(crate) struct Hosts {
    sessions: BTreeMap<SessionId, Session>,
    newcomers: Vec<Newcomer>,
    last_session: u64,
    last_call: u64,
}

impl Hosts {
    #[cfg(test)]
    pub(super) fn sizes(&self) -> [(&'static str, usize, usize); 2] {
        let sessions = self.sessions.len();
        [("sessions", sessions, MAX_SESSIONS), ("newcomers", self.newcomers.len(), sessions)]
    }

    pub(crate) fn status(&self) -> Vec<HostStatus> {
        let status =
            |session: &Session| HostStatus { name: session.hello.name.clone(), version: session.hello.version.clone() };
        self.sessions.values().map(status).collect()
    }

    fn by_name(&self, name: &str) -> Option<SessionId> {
        self.sessions.iter().find(|(_, session)| session.hello.name == name).map(|(id, _)| *id)
    }
}

/// A pending item, and what is known of it in memory.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) row: ItemRow,
    /// When phones may ring for it, on the monotonic clock.
    pub(crate) notify_at: Millis,
    /// The live session that has named it.
    pub(crate) asserted: Option<SessionId>,
}

impl Hub {
    // Sessions.

    pub(super) fn open_host(&mut self, ctx: &mut Ctx<'_>, hello: HostHello, reply: Responder<HostSession>) {
        if let Err(error) = check_hello(&hello) {
            return self.reply(reply, Err(error));
        }
        match self.hosts.by_name(&hello.name) {
            None if self.hosts.sessions.len() >= MAX_SESSIONS => {
                let error = ApiError::Limit(format!("{MAX_SESSIONS} hosts are connected, which is the limit"));
                self.reply(reply, Err(error));
            }
            None => self.admit(hello, reply),
            // Its fate is being looked into for somebody else already.
            Some(_) if self.hosts.newcomers.iter().any(|newcomer| newcomer.hello.name == hello.name) => {
                self.reply(reply, Err(ApiError::NameTaken(hello.name)));
            }
            Some(older) => {
                let until = ctx.now.mono + PROBE_MS;
                self.call_host(older, Call::Probe, HostRequest::Ping);
                self.hosts.newcomers.push(Newcomer { hello, reply, older, until });
            }
        }
    }

    fn admit(&mut self, hello: HostHello, reply: Responder<HostSession>) {
        self.hosts.last_session += 1;
        let id = SessionId(self.hosts.last_session);
        let linger_secs = hello.linger_secs.unwrap_or(LINGER_SECS);
        self.host_leaves(&hello.name, None, linger_secs);
        self.hosts.sessions.insert(id, Session { hello, linger_secs, calls: BTreeMap::new() });
        self.effect(Effect::OpenSession(id, reply));
    }

    /// A host's connection has ended.
    pub(super) fn close_host(&mut self, ctx: &Ctx<'_>, id: SessionId) {
        let Some(session) = self.hosts.sessions.remove(&id) else { return };
        self.effect(Effect::CloseSession(id));
        for held in &mut self.items {
            if held.asserted == Some(id) {
                held.asserted = None;
            }
        }
        self.calls_lost(id);
        let leaves_at = ctx.now.unix.saturating_add(session.linger_secs * 1000);
        self.host_leaves(&session.hello.name, Some(leaves_at), session.linger_secs);
        let waiting = self.hosts.newcomers.iter().position(|newcomer| newcomer.older == id);
        if let Some(at) = waiting {
            let newcomer = self.hosts.newcomers.remove(at);
            self.admit(newcomer.hello, newcomer.reply);
        }
    }

    fn host_leaves(&mut self, host: &str, leaves_at: Option<u64>, linger_secs: u64) {
        let mut any = false;
        for held in self.items.iter_mut().filter(|held| held.row.item.host == host) {
            (held.row.leaves_at, held.row.linger_secs) = (leaves_at, linger_secs);
            any = true;
        }
        if any {
            self.write(Write::Leaves { host: host.to_owned(), leaves_at, linger_secs });
        }
    }

    /// Calls a host; `None`: its session is gone.
    pub(super) fn call_host(&mut self, session: SessionId, call: Call, request: HostRequest) -> Option<CallId> {
        let open = self.hosts.sessions.get_mut(&session)?;
        self.hosts.last_call += 1;
        let id = CallId(self.hosts.last_call);
        open.calls.insert(id, call);
        self.effect(Effect::CallHost(session, HostCall { id, request }));
        Some(id)
    }

    /// A host has answered a call.
    pub(super) fn call_done(&mut self, ctx: &mut Ctx<'_>, session: SessionId, id: CallId, outcome: &CallOutcome) {
        let Some(open) = self.hosts.sessions.get_mut(&session) else { return };
        match open.calls.remove(&id) {
            Some(Call::Probe) => {
                let alive = self.hosts.newcomers.iter().position(|newcomer| newcomer.older == session);
                if let Some(at) = alive {
                    let newcomer = self.hosts.newcomers.remove(at);
                    self.reply(newcomer.reply, Err(ApiError::NameTaken(newcomer.hello.name)));
                }
            }
            Some(Call::Resolve(item)) => self.resolve_done(ctx, (session, id), &item, outcome),
            None => {}
        }
    }

    fn session_name(&self, session: SessionId) -> Result<&Session, ApiError> {
        self.hosts.sessions.get(&session).ok_or(ApiError::SessionClosed)
    }

    // Items.

    /// `inbox.sync`: the whole pending set of this host.
    pub(super) fn sync(&mut self, ctx: &mut Ctx<'_>, session: SessionId, set: &InboxSet) -> Result<(), ApiError> {
        let open = self.session_name(session)?;
        let (host, label) = (open.hello.name.clone(), open.hello.label.clone());
        let origin = Origin { host: &host, label: label.as_deref() };
        let mut items = Vec::new();
        let mut names = BTreeSet::new();
        for (kind, list, name) in [
            (Kind::Approval, &set.approvals, "approvals"),
            (Kind::Clarification, &set.clarifications, "clarifications"),
            (Kind::Elicitation, &set.elicitations, "elicitations"),
        ] {
            for (at, json) in list.iter().enumerate() {
                let at = format!("{name}[{at}]");
                let item = Item::read(origin, kind, json.get(), &at, ctx.now.unix)?;
                if !names.insert((kind, item.request_id.clone())) {
                    return Err(ApiError::InvalidParams(format!("{at}: request_id is used twice")));
                }
                items.push(item);
            }
        }
        let others = self.items.iter().filter(|held| held.row.item.host != host).count();
        check_room(items.len(), others)?;
        let ids: BTreeSet<&ItemId> = items.iter().map(|item| &item.id).collect();
        let gone = self.items_where(|item| item.host == host && !ids.contains(&item.id));
        for id in gone {
            self.remove_item(&id);
        }
        for item in items {
            self.assert_item(ctx, session, item);
        }
        Ok(())
    }

    /// `inbox.requested`: one new item.
    pub(super) fn requested(
        &mut self,
        ctx: &mut Ctx<'_>,
        session: SessionId,
        kind: Kind,
        json: &RawJson,
    ) -> Result<(), ApiError> {
        let open = self.session_name(session)?;
        let (host, label) = (open.hello.name.clone(), open.hello.label.clone());
        let origin = Origin { host: &host, label: label.as_deref() };
        let item = Item::read(origin, kind, json.get(), "item", ctx.now.unix)?;
        // The same name with other content: what the host meant before is gone.
        let replaced = self
            .items_where(|old| (&old.host, old.kind, &old.request_id) == (&host, kind, &item.request_id))
            .into_iter()
            .filter(|id| *id != item.id)
            .collect::<Vec<_>>();
        if !self.items.iter().any(|held| held.row.item.id == item.id) {
            let (own, others): (Vec<_>, Vec<_>) = self.items.iter().partition(|held| held.row.item.host == host);
            check_room(own.len() - replaced.len() + 1, others.len())?;
        }
        for id in replaced {
            self.remove_item(&id);
        }
        self.assert_item(ctx, session, item);
        Ok(())
    }

    /// `inbox.resolved`: no longer pending.
    pub(super) fn resolved(&mut self, session: SessionId, kind: Kind, id: &RequestId) -> Result<(), ApiError> {
        let host = self.session_name(session)?.hello.name.clone();
        for id in self.items_where(|item| (&item.host, item.kind, &item.request_id) == (&host, kind, id)) {
            self.remove_item(&id);
        }
        Ok(())
    }

    fn items_where(&self, mut wanted: impl FnMut(&Item) -> bool) -> Vec<ItemId> {
        self.items.iter().map(|held| &held.row.item).filter(|item| wanted(item)).map(|item| item.id.clone()).collect()
    }

    /// The host says that this item is pending now. An answer that waits for that is delivered.
    fn assert_item(&mut self, ctx: &mut Ctx<'_>, session: SessionId, item: Item) {
        if item.is_expired(ctx.now.unix) {
            return self.remove_item(&item.id);
        }
        let id = item.id.clone();
        if let Some(held) = self.items.iter_mut().find(|held| held.row.item.id == id) {
            held.asserted = Some(session);
        } else {
            self.add_item(ctx, session, item);
        }
        self.deliver(ctx, &id);
    }

    fn add_item(&mut self, ctx: &Ctx<'_>, session: SessionId, item: Item) {
        let linger_secs = self.hosts.sessions.get(&session).map_or(LINGER_SECS, |open| open.linger_secs);
        let row = ItemRow { item, linger_secs, leaves_at: None };
        // Answered before under the same id, yet raised again: it is a new call, and its first answer is still to come.
        self.forget_decision(&row.item.id);
        self.write(Write::PutItem(row.clone()));
        let notify_at = ctx.now.mono + self.notify_delay(row.item.kind);
        self.items.push(Held { row, notify_at, asserted: Some(session) });
        self.revision += 1;
    }

    fn notify_delay(&self, kind: Kind) -> Millis {
        match kind {
            Kind::Approval | Kind::Clarification => u64::from(self.settings.notify_delay_secs) * 1000,
            // Nobody can answer it at the computer.
            Kind::Elicitation => 0,
        }
    }

    /// Takes an item off, with any answer that waits for its host.
    pub(super) fn remove_item(&mut self, id: &str) {
        let Some(at) = self.items.iter().position(|held| held.row.item.id == id) else { return };
        self.items.remove(at);
        self.write(Write::RemoveItem(id.to_owned()));
        if self.answers.waits(id) {
            self.drop_answer(id);
            self.forget_sights(id);
        } else {
            self.item_left_view(id);
        }
        self.revision += 1;
    }

    pub(super) fn load_items(&mut self, rows: Vec<ItemRow>, now: Now) {
        let before = std::mem::take(&mut self.items);
        for mut row in rows {
            let old = before.iter().find(|held| held.row.item.id == row.item.id);
            let connected = self.hosts.by_name(&row.item.host).is_some();
            if !connected {
                // Without a word of when its host left: it left with the daemon.
                let grace = now.unix + RESTART_GRACE_MS.max(row.linger_secs * 1000);
                let earliest = now.unix + RESTART_GRACE_MS;
                row.leaves_at = Some(row.leaves_at.map_or(grace, |at| at.max(earliest)));
            }
            let waited = now.unix.saturating_sub(row.item.arrived_at);
            let notify_at = now.mono + self.notify_delay(row.item.kind).saturating_sub(waited);
            self.items.push(Held {
                notify_at: old.map_or(notify_at, |held| held.notify_at),
                asserted: old.and_then(|held| held.asserted),
                row,
            });
        }
    }

    // Time.

    pub(super) fn hosts_deadline(&self, now: Now) -> Option<Millis> {
        let probes = self.hosts.newcomers.iter().map(|newcomer| newcomer.until);
        let leaves = self.pending().filter_map(|held| held.row.leaves_at);
        let ends = self.items.iter().filter_map(|held| held.row.item.expires_at).chain(leaves);
        probes.chain(ends.map(|at| now.mono_at(at))).min()
    }

    /// Its host is away for too long. One that has its answer stays: the answer waits for the host to come back.
    fn left(&self, held: &Held, now: Now) -> bool {
        held.row.leaves_at.is_some_and(|at| at <= now.unix) && self.pending_item(&held.row.item.id).is_some()
    }

    pub(super) fn hosts_timeouts(&mut self, ctx: &Ctx<'_>) {
        let now = ctx.now;
        let silent: Vec<SessionId> =
            self.hosts.newcomers.iter().filter(|late| late.until <= now.mono).map(|late| late.older).collect();
        for session in silent {
            self.close_host(ctx, session);
        }
        let over: Vec<ItemId> = self
            .items
            .iter()
            .filter(|held| self.left(held, now) || held.row.item.is_expired(now.unix))
            .map(|held| held.row.item.id.clone())
            .collect();
        for id in over {
            self.remove_item(&id);
        }
    }
}

fn check_room(own: usize, others: usize) -> Result<(), ApiError> {
    if own > MAX_ITEMS_PER_HOST {
        return Err(ApiError::Limit(format!("a host may have {MAX_ITEMS_PER_HOST} items pending, not {own}")));
    }
    if own + others > MAX_ITEMS {
        return Err(ApiError::Limit(format!("{MAX_ITEMS} items may be pending, with those of other hosts")));
    }
    Ok(())
}

fn check_hello(hello: &HostHello) -> Result<(), ApiError> {
    let wrong = |what: String| Err(ApiError::InvalidParams(what));
    let fits = (1..=MAX_NAME).contains(&hello.name.len());
    if !fits || !hello.name.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-') {
        return wrong("name: must match [a-z0-9-]{1,32}".into());
    }
    if hello.label.as_ref().is_some_and(|label| label.chars().count() > MAX_LABEL || text::escape(label) != *label) {
        return wrong(format!("label: at most {MAX_LABEL} characters, without control characters"));
    }
    if hello.version.chars().count() > MAX_LABEL {
        return wrong(format!("version: at most {MAX_LABEL} characters"));
    }
    if hello.linger_secs.is_some_and(|secs| secs > MAX_LINGER_SECS) {
        return wrong(format!("linger_secs: at most {MAX_LINGER_SECS}"));
    }
    Ok(())
}
