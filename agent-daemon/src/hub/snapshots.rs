//! Inbox snapshots as JSON text, cut down to what the relay and a push can carry (socket API, Snapshots and push policy).
//!
//! Items go in as the text they are kept as, so that numbers reach the phone as the host wrote them. Only an item that
//! stands in a snapshot in full counts as shown.

use skald_common::framing::{Compression, frame_json};
use skald_common::limits::{MAX_SEALED_LIVE, MAX_SEALED_STORED};
use skald_common::payload::VERSION;

use super::canonical::{self, Fields};
use super::items::{Item, ItemId, Kind};
use super::text;

/// Above this sealed size a push service cannot carry the snapshot itself, and the notification would say nothing.
const MAX_PUSHED: usize = 2_600;
/// Length of the tag that sealing adds, bytes.
const TAG: usize = 16;
/// Stands in place of what does not fit even a live snapshot.
const TOO_LARGE: &str = "Too large for a phone: look at it, and answer it, on the computer.";
/// What long texts are cut to where the whole does not fit, and where not even that fits; characters.
const CUT: usize = 2_000;
const CUT_SHORT: usize = text::MAX_SUMMARY;

/// How the snapshot travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// In the relay's queue, and in a push: readable there, details left out if need be.
    Stored,
    /// To a device that is connected: everything.
    Live,
}

/// A snapshot, ready to be sealed.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) json: Vec<u8>,
    /// Items that are in it with all of their content.
    pub(crate) full: Vec<ItemId>,
    /// Items that are in it without some of their content.
    pub(crate) partial: Vec<ItemId>,
}

/// The envelope's variable parts.
#[derive(Debug, Clone)]
pub(crate) struct Envelope {
    /// UUID v4.
    pub(crate) id: String,
    /// Unix milliseconds.
    pub(crate) ts: u64,
}

/// The snapshot of `items`, oldest first, for a device with this compression.
pub(crate) fn build(items: &[&Item], envelope: &Envelope, form: Form, compression: Compression) -> Snapshot {
    let mut draft = Draft {
        entries: items.iter().map(|item| Entry { item, text: item.json.clone(), full: true }).collect(),
        badge: items.len(),
        envelope,
        compression,
    };
    match form {
        Form::Live => {
            draft.reduce(MAX_SEALED_LIVE, |item| bare(item, CUT, Some(TOO_LARGE)));
            draft.reduce(MAX_SEALED_LIVE, |item| bare(item, CUT_SHORT, Some(TOO_LARGE)));
            draft.truncate(MAX_SEALED_LIVE);
        }
        Form::Stored => {
            draft.reduce(MAX_PUSHED, without_details);
            draft.reduce(MAX_SEALED_STORED, |item| bare(item, CUT, None));
            draft.reduce(MAX_SEALED_STORED, |item| bare(item, CUT_SHORT, None));
            draft.truncate(MAX_SEALED_STORED);
        }
    }
    draft.finish()
}

#[derive(Clone)]
struct Entry<'a> {
    item: &'a Item,
    text: String,
    full: bool,
}

#[derive(Clone)]
struct Draft<'a> {
    entries: Vec<Entry<'a>>,
    badge: usize,
    envelope: &'a Envelope,
    compression: Compression,
}

/// A leaner form of one entry.
struct Lean {
    at: usize,
    gain: usize,
    text: String,
}

impl Draft<'_> {
    /// Replaces items by a leaner form, those first that gain most by it, until the sealed size is within `limit`.
    fn reduce(&mut self, limit: usize, lean: impl Fn(&Item) -> String) {
        if self.fits(limit) {
            return;
        }
        let mut leaner: Vec<Lean> = Vec::new();
        for (at, entry) in self.entries.iter().enumerate() {
            let text = lean(entry.item);
            if let Some(gain) = entry.text.len().checked_sub(text.len()).filter(|gain| *gain > 0) {
                leaner.push(Lean { at, gain, text });
            }
        }
        leaner.sort_by_key(|lean| std::cmp::Reverse(lean.gain));
        let count = smallest(leaner.len(), |count| self.with(&leaner[..count]).fits(limit));
        *self = self.with(&leaner[..count]);
    }

    fn with(&self, leaner: &[Lean]) -> Self {
        let mut draft = self.clone();
        for lean in leaner {
            draft.entries[lean.at].text.clone_from(&lean.text);
            draft.entries[lean.at].full = false;
        }
        draft
    }

    /// Leaves out the newest items: the badge still counts them.
    fn truncate(&mut self, limit: usize) {
        let all = self.entries.len();
        let dropped = smallest(all, |dropped| {
            let mut draft = self.clone();
            draft.entries.truncate(all - dropped);
            draft.fits(limit)
        });
        self.entries.truncate(all - dropped);
    }

    fn fits(&self, limit: usize) -> bool {
        frame_json(&self.json(), self.compression).len() + TAG <= limit
    }

    fn json(&self) -> Vec<u8> {
        let list = |kind: Kind| {
            let texts: Vec<&str> =
                self.entries.iter().filter(|entry| entry.item.kind == kind).map(|entry| entry.text.as_str()).collect();
            texts.join(",")
        };
        format!(
            r#"{{"v":{VERSION},"kind":"inbox_update","id":{},"ts":{},"badge":{},"approvals":[{}],"clarifications":[{}],"elicitations":[{}]}}"#,
            canonical::string(&self.envelope.id),
            self.envelope.ts,
            self.badge,
            list(Kind::Approval),
            list(Kind::Clarification),
            list(Kind::Elicitation),
        )
        .into_bytes()
    }

    fn finish(self) -> Snapshot {
        let json = self.json();
        let (full, partial): (Vec<_>, Vec<_>) = self.entries.into_iter().partition(|entry| entry.full);
        let ids = |entries: Vec<Entry<'_>>| entries.into_iter().map(|entry| entry.item.id.clone()).collect();
        Snapshot { json, full: ids(full), partial: ids(partial) }
    }
}

/// The smallest number up to `max` for which `enough` holds, given that it stays true once it is; `max` if it never does.
/// By halving, since each try compresses everything.
fn smallest(max: usize, enough: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, max);
    while low < high {
        let middle = low.midpoint(high);
        if enough(middle) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    high
}

/// Without what is long and not needed to see what is asked. `partial` tells our phones that there is more to fetch.
fn without_details(item: &Item) -> String {
    let mut fields = item.fields();
    let removed = fields.remove("arguments").is_some() | fields.remove("detail").is_some();
    if removed {
        fields.insert("partial".into(), "true".into());
    }
    canonical::object(&fields)
}

/// Only what a phone must have, long texts cut, with a note where there is room for one.
fn bare(item: &Item, max: usize, note: Option<&str>) -> String {
    let all = item.fields();
    let mut fields = Fields::new();
    let kept: &[&str] = match item.kind {
        Kind::Approval => &["request_id", "tool_name", "agent_label", "summary", "created_at", "expires_at"],
        Kind::Clarification => &["request_id", "agent_label", "created_at", "expires_at"],
        Kind::Elicitation => {
            &["request_id", "server_name", "field_name", "sensitive", "is_confirmation", "created_at", "expires_at"]
        }
    };
    for name in kept {
        if let Some(value) = all.get(*name) {
            fields.insert((*name).to_owned(), value.clone());
        }
    }
    let (text, note_field) = match item.kind {
        Kind::Approval => (None, "detail"),
        Kind::Clarification => (Some("question"), "context"),
        Kind::Elicitation => (Some("message"), "detail"),
    };
    if let Some(name) = text {
        let whole = item.text(name).unwrap_or_default();
        fields.insert(name.to_owned(), canonical::string(&text::cut(&whole, max)));
    }
    if let Some(note) = note {
        fields.insert(note_field.to_owned(), canonical::string(note));
    }
    fields.insert("partial".into(), "true".into());
    canonical::object(&fields)
}

#[cfg(test)]
mod tests {
    use skald_common::payload::{Payload, ToDevice};

    use super::super::items::Origin;
    use super::*;

    const NOW: u64 = 1_750_000_000_000;

    fn item(kind: Kind, id: usize, fields: &str) -> Item {
        let json = format!(r#"{{"request_id":{id},{fields}}}"#);
        Item::read(Origin { host: "skald", label: None }, kind, &json, "item", NOW).unwrap()
    }

    fn approval(id: usize, extra: &str) -> Item {
        item(Kind::Approval, id, &format!(r#""tool_name":"t","summary":"s"{extra}"#))
    }

    fn envelope() -> Envelope {
        Envelope { id: "e".into(), ts: NOW }
    }

    fn parsed(snapshot: &Snapshot) -> skald_common::payload::InboxUpdate {
        match Payload::<ToDevice>::parse(&snapshot.json, NOW).unwrap().content {
            ToDevice::InboxUpdate(update) => update,
            _ => panic!("not a snapshot"),
        }
    }

    fn make(items: &[Item], form: Form) -> Snapshot {
        build(&items.iter().collect::<Vec<_>>(), &envelope(), form, Compression::Off)
    }

    /// Text that does not compress away.
    fn noise(len: usize) -> String {
        let mut state = 1_u32;
        (0..len)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                char::from(b'a' + u8::try_from(state >> 24).unwrap() % 26)
            })
            .collect()
    }

    #[test]
    fn a_small_inbox_goes_out_whole_in_either_form() {
        let items = [
            approval(1, r#","arguments":{"n":1.10},"blocks":[1]"#),
            item(Kind::Clarification, 2, r#""question":"q""#),
            item(Kind::Elicitation, 3, r#""server_name":"s","message":"m","sensitive":true,"is_confirmation":false"#),
        ];
        for form in [Form::Stored, Form::Live] {
            let snapshot = make(&items, form);
            assert_eq!((snapshot.full.len(), snapshot.partial.len()), (3, 0));
            let update = parsed(&snapshot);
            assert_eq!((update.badge, update.count()), (3, 3));
            assert_eq!(update.approvals[0].arguments.as_ref().unwrap().get(), r#"{"n":1.10}"#);
            assert!(String::from_utf8_lossy(&snapshot.json).contains(r#""blocks":[1]"#));
        }
    }

    #[test]
    fn nothing_pending_is_three_empty_lists() {
        let update = parsed(&make(&[], Form::Live));
        assert_eq!((update.badge, update.count()), (0, 0));
    }

    #[test]
    fn a_stored_snapshot_over_the_limit_of_pushes_loses_the_details_of_the_largest_items_first() {
        let items = [
            approval(1, r#","arguments":{"keep":1}"#),
            approval(2, &format!(r#","arguments":{{"big":"{}"}}"#, noise(3000))),
            approval(3, &format!(r#","detail":"{}""#, noise(500))),
        ];
        let snapshot = make(&items, Form::Stored);
        let update = parsed(&snapshot);
        assert!(update.approvals[0].arguments.is_some());
        assert!(update.approvals[1].arguments.is_none());
        assert!(update.approvals[2].detail.is_some());
        assert_eq!(snapshot.partial, [items[1].id.clone()]);
        assert_eq!(snapshot.full, [items[0].id.clone(), items[2].id.clone()]);
        assert!(frame_json(&snapshot.json, Compression::Off).len() + TAG <= MAX_PUSHED);
        assert_eq!(make(&items, Form::Live).full.len(), 3, "live, everything is there");
    }

    #[test]
    fn what_shrinks_enough_by_compression_stays_whole() {
        let items = [approval(1, &format!(r#","detail":"{}""#, "x".repeat(5000)))];
        let refs: Vec<&Item> = items.iter().collect();
        let of = |compression| build(&refs, &envelope(), Form::Stored, compression).full.len();
        assert_eq!((of(Compression::WhenSmaller), of(Compression::Off)), (1, 0));
    }

    #[test]
    fn a_stored_snapshot_of_many_long_questions_still_fits_the_relay() {
        let question = |id| item(Kind::Clarification, id, &format!(r#""question":"{}""#, noise(3000)));
        let items: Vec<Item> = (0..60).map(question).collect();
        let snapshot = make(&items, Form::Stored);
        assert!(frame_json(&snapshot.json, Compression::Off).len() + TAG <= MAX_SEALED_STORED);
        let update = parsed(&snapshot);
        assert_eq!((update.badge, update.count()), (60, 60));
        assert!(!snapshot.partial.is_empty());
    }

    #[test]
    fn what_does_not_fit_even_live_says_so_and_does_not_count_as_shown() {
        let large = |id| approval(id, &format!(r#","arguments":{{"x":"{}"}}"#, noise(200_000)));
        let items = [large(1), large(2), large(3), approval(4, r#","arguments":{"small":true}"#)];
        let snapshot = make(&items, Form::Live);
        assert!(frame_json(&snapshot.json, Compression::Off).len() + TAG <= MAX_SEALED_LIVE);
        assert_eq!((snapshot.full.len(), snapshot.partial.len()), (3, 1));
        assert!(snapshot.full.contains(&items[3].id));
        let update = parsed(&snapshot);
        let told = update.approvals.iter().find(|approval| approval.request_id == snapshot.partial[0]).unwrap();
        assert_eq!((told.detail.as_deref(), told.arguments.is_none()), (Some(TOO_LARGE), true));
    }

    #[test]
    fn the_fullest_inbox_fits_with_the_newest_left_out_and_counted() {
        let label = "ü".repeat(200);
        let item = |id: usize| {
            let fields = format!(r#""question":"{}","agent_label":"{label}""#, noise(2000));
            item(Kind::Clarification, 1_000_000_000 + id, &fields)
        };
        let items: Vec<Item> = (0..500).map(item).collect();
        let snapshot = make(&items, Form::Stored);
        assert!(frame_json(&snapshot.json, Compression::Off).len() + TAG <= MAX_SEALED_STORED);
        let update = parsed(&snapshot);
        assert_eq!(update.badge, 500);
        assert!(update.count() > 50 && update.count() < 500, "{}", update.count());
        assert_eq!(update.clarifications[0].request_id, items[0].id);
    }

    #[test]
    fn one_item_of_the_largest_size_fits_a_live_snapshot() {
        let room = super::super::items::MAX_ITEM - 100;
        let items = [approval(1, &format!(r#","detail":"{}""#, noise(room)))];
        assert_eq!(make(&items, Form::Live).full.len(), 1);
    }
}
