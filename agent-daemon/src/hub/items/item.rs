//! One item: read once, on arrival. It is checked, brought into canonical form, given the id that phones see, and kept as
//! the text that phones get. The id binds decisions to the content (socket API, Host → daemon): it is looked up whole and
//! never parsed.

use std::fmt;

use sha2::{Digest, Sha256};

use super::{Kind, RequestId};
use crate::hub::api::ApiError;
use crate::hub::canonical::{self, Fields};
use crate::hub::text;

/// Largest item, bytes of canonical JSON: one of them always fits a live snapshot.
pub(crate) const MAX_ITEM: usize = 256 * 1024;
/// Longest name or label inside an item (tool, server, field, agent label), characters.
const MAX_NAME: usize = 200;
/// Separates the hash from others made of the same bytes.
const ID_DOMAIN: &[u8] = b"skald-item-v1";

/// The id that phones see: `<request_id>.<16 hex digits of the content's hash>`.
pub(crate) type ItemId = String;

/// An item as it is kept: what it is called, where it came from, and what phones get.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Item {
    pub(crate) id: ItemId,
    pub(crate) host: String,
    pub(crate) kind: Kind,
    /// The host's name for it.
    pub(crate) request_id: RequestId,
    /// Canonical JSON, as phones get it in full.
    pub(crate) json: String,
    /// Unix milliseconds.
    pub(crate) created_at: u64,
    /// When the daemon got it, Unix milliseconds.
    pub(crate) arrived_at: u64,
    /// Unix milliseconds; after it the item is gone.
    pub(crate) expires_at: Option<u64>,
}

impl fmt::Debug for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Item({} {}, {} bytes)", self.kind, self.id, self.json.len())
    }
}

/// Who raised an item, for [`Item::read`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Origin<'a> {
    pub(crate) host: &'a str,
    pub(crate) label: Option<&'a str>,
}

impl Item {
    /// Reads what a host gave. `at` names the place in the parameters, for errors; `now` in Unix milliseconds.
    pub(crate) fn read(origin: Origin<'_>, kind: Kind, json: &str, at: &str, now: u64) -> Result<Self, ApiError> {
        let wrong = |what: &dyn fmt::Display| ApiError::InvalidParams(format!("{at}: {what}"));
        let mut fields = canonical::fields(json).map_err(|error| wrong(&error))?;
        let request_id = fields.get("request_id").ok_or_else(|| wrong(&"request_id is missing"))?;
        let request_id = RequestId::from_json(request_id).map_err(|error| wrong(&error))?;
        let given = canonical::object(&fields);
        if given.len() > MAX_ITEM {
            return Err(wrong(&format!("the item has {} bytes, at most {MAX_ITEM} are allowed", given.len())));
        }
        let id = bind(origin.host, kind, &request_id, &given);
        let mut reader = Reader { fields: &mut fields };
        reader.check(kind, origin).map_err(|error| wrong(&error))?;
        let created_at = reader.time("created_at").map_err(|error| wrong(&error))?.map_or(now, |at| at.min(now));
        let expires_at = reader.time("expires_at").map_err(|error| wrong(&error))?;
        fields.insert("request_id".into(), canonical::string(&id));
        fields.insert("created_at".into(), created_at.to_string());
        match expires_at {
            Some(at) => fields.insert("expires_at".into(), at.to_string()),
            None => fields.remove("expires_at"),
        };
        let json = canonical::object(&fields);
        let host = origin.host.to_owned();
        Ok(Self { id, host, kind, request_id, json, created_at, arrived_at: now, expires_at })
    }

    /// The fields as phones get them. The text was made here or came from our own database; were it spoilt, the item
    /// would show nothing but its id.
    pub(crate) fn fields(&self) -> Fields {
        canonical::fields(&self.json).unwrap_or_default()
    }

    /// A string field, as text.
    pub(crate) fn text(&self, name: &str) -> Option<String> {
        self.fields().get(name).and_then(|json| serde_json::from_str(json).ok())
    }

    /// Whether the time for an answer is over.
    pub(crate) fn is_expired(&self, now: u64) -> bool {
        self.expires_at.is_some_and(|at| at <= now)
    }
}

/// Binds an id to content: host, kind, `request_id` and every field that the host gave.
fn bind(host: &str, kind: Kind, request_id: &RequestId, given: &str) -> ItemId {
    let mut hash = Sha256::new();
    // None of the parts before the last can contain a zero byte, so that no two lists of parts hash alike.
    for part in [ID_DOMAIN, host.as_bytes(), kind.as_str().as_bytes(), request_id.json().as_bytes()] {
        hash.update(part);
        hash.update([0]);
    }
    hash.update(given.as_bytes());
    let digest: [u8; 32] = hash.finalize().into();
    format!("{}.{}", request_id.display(), hex::encode(&digest[..8]))
}

/// Checks and completes the fields of one item.
struct Reader<'a> {
    fields: &'a mut Fields,
}

/// A field is missing or not what it should be.
#[derive(Debug, thiserror::Error)]
enum FieldError {
    #[error("{0} is missing")]
    Missing(&'static str),
    #[error("{0} must be {1}")]
    Type(&'static str, &'static str),
    #[error("{0} is longer than {MAX_NAME} characters")]
    Long(&'static str),
}

impl Reader<'_> {
    fn check(&mut self, kind: Kind, origin: Origin<'_>) -> Result<(), FieldError> {
        match kind {
            Kind::Approval => {
                self.name("tool_name")?;
                self.label(origin)?;
                self.optional_text("detail")?;
                self.summary()?;
                self.arguments();
            }
            Kind::Clarification => {
                self.required_text("question")?;
                self.label(origin)?;
                self.optional_text("context")?;
                self.suggested_answers()?;
            }
            Kind::Elicitation => {
                self.name("server_name")?;
                self.required_text("message")?;
                if self.optional_text("field_name")?.is_some() {
                    self.name("field_name")?;
                }
                self.boolean("sensitive")?;
                self.boolean("is_confirmation")?;
            }
        }
        Ok(())
    }

    fn required_text(&self, name: &'static str) -> Result<String, FieldError> {
        let json = self.fields.get(name).ok_or(FieldError::Missing(name))?;
        serde_json::from_str(json).map_err(|_| FieldError::Type(name, "a string"))
    }

    /// A string, or absent; `null` counts as absent.
    fn optional_text(&mut self, name: &'static str) -> Result<Option<String>, FieldError> {
        match self.fields.get(name).map(String::as_str) {
            None => Ok(None),
            Some("null") => {
                self.fields.remove(name);
                Ok(None)
            }
            Some(_) => self.required_text(name).map(Some),
        }
    }

    fn name(&self, name: &'static str) -> Result<(), FieldError> {
        let text = self.required_text(name)?;
        if text.chars().count() > MAX_NAME { Err(FieldError::Long(name)) } else { Ok(()) }
    }

    fn label(&mut self, origin: Origin<'_>) -> Result<(), FieldError> {
        if self.optional_text("agent_label")?.is_some() {
            return self.name("agent_label");
        }
        let label = match origin.label {
            Some(label) => label,
            None if origin.host == "skald" => "Skald",
            None => origin.host,
        };
        self.fields.insert("agent_label".into(), canonical::string(label));
        Ok(())
    }

    /// One safe line. What is cut off must not be lost to the person who decides: it stands in `detail`, unless the host
    /// gave one.
    fn summary(&mut self) -> Result<(), FieldError> {
        let whole = text::escape(&self.required_text("summary")?);
        let short = text::cut(&whole, text::MAX_SUMMARY);
        if short != whole && !self.fields.contains_key("detail") {
            self.fields.insert("detail".into(), canonical::string(&whole));
        }
        self.fields.insert("summary".into(), canonical::string(&short));
        Ok(())
    }

    /// Phones fail on arguments that are no object (wire protocol, Known peers).
    fn arguments(&mut self) {
        if let Some(arguments) = self.fields.get_mut("arguments")
            && !arguments.starts_with('{')
        {
            *arguments = format!(r#"{{"value":{arguments}}}"#);
        }
    }

    fn suggested_answers(&mut self) -> Result<(), FieldError> {
        const NAME: &str = "suggested_answers";
        match self.fields.get(NAME).map(String::as_str) {
            None => {}
            Some("null") => {
                self.fields.remove(NAME);
            }
            Some(json) => {
                serde_json::from_str::<Vec<String>>(json).map_err(|_| FieldError::Type(NAME, "an array of strings"))?;
            }
        }
        Ok(())
    }

    fn boolean(&self, name: &'static str) -> Result<(), FieldError> {
        match self.fields.get(name).map(String::as_str) {
            Some("true" | "false") => Ok(()),
            Some(_) => Err(FieldError::Type(name, "true or false")),
            None => Err(FieldError::Missing(name)),
        }
    }

    fn time(&self, name: &'static str) -> Result<Option<u64>, FieldError> {
        match self.fields.get(name).map(String::as_str) {
            None | Some("null") => Ok(None),
            Some(json) => {
                text::unix_ms(json).map(Some).ok_or(FieldError::Type(name, "Unix milliseconds or an RFC 3339 time"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_750_000_000_000;
    const SKALD: Origin<'_> = Origin { host: "skald", label: None };

    fn read(kind: Kind, json: &str) -> Result<Item, ApiError> {
        Item::read(SKALD, kind, json, "item", NOW)
    }

    fn approval(extra: &str) -> Item {
        read(Kind::Approval, &format!(r#"{{"request_id":"a1","tool_name":"t","summary":"s"{extra}}}"#)).unwrap()
    }

    fn field(item: &Item, name: &str) -> String {
        item.fields().get(name).cloned().unwrap_or_default()
    }

    #[test]
    fn the_id_is_bound_to_host_kind_id_and_every_field_but_not_to_their_order() {
        let base = approval("");
        assert!(base.id.starts_with("a1.") && base.id.len() == 3 + 16, "{}", base.id);
        let reordered = read(Kind::Approval, r#"{ "summary":"s", "tool_name":"t", "request_id":"a1" }"#).unwrap();
        assert_eq!(base.id, reordered.id);
        let other_host = Origin { host: "ask", label: None };
        let same = r#"{"request_id":"a1","tool_name":"t","summary":"s"}"#;
        let mut ids = vec![
            base.id.clone(),
            approval(r#","unknown":1"#).id,
            approval(r#","unknown":1.0"#).id,
            approval(r#","arguments":{"a":{"b":1}}"#).id,
            approval(r#","arguments":{"a":{"b":2}}"#).id,
            approval(r#","created_at":5"#).id,
            Item::read(other_host, Kind::Approval, same, "item", NOW).unwrap().id,
        ];
        let count = ids.len();
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), count);
        let text = read(Kind::Clarification, r#"{"request_id":"7","question":"q"}"#).unwrap();
        let number = read(Kind::Clarification, r#"{"request_id":7,"question":"q"}"#).unwrap();
        assert!(text.id.starts_with("7.") && number.id.starts_with("7.") && text.id != number.id);
        assert_eq!((text.request_id.json(), number.request_id.json()), (r#""7""#, "7"));
    }

    #[test]
    fn the_id_does_not_depend_on_when_it_arrived() {
        let json = r#"{"request_id":1,"question":"q"}"#;
        let later = Item::read(SKALD, Kind::Clarification, json, "item", NOW + 5).unwrap();
        assert_eq!(read(Kind::Clarification, json).unwrap().id, later.id);
    }

    #[test]
    fn phones_get_the_whole_item_with_unknown_fields_and_numbers_as_given() {
        let item = approval(r#","blocks":[{"z":1.50,"a":1e999}],"arguments":{"n":10000000000000000001}"#);
        assert_eq!(field(&item, "blocks"), r#"[{"a":1e999,"z":1.50}]"#);
        assert_eq!(field(&item, "arguments"), r#"{"n":10000000000000000001}"#);
        assert_eq!(field(&item, "request_id"), canonical::string(&item.id));
        assert_eq!(field(&item, "created_at"), NOW.to_string());
    }

    #[test]
    fn arguments_that_are_no_object_are_wrapped() {
        for (given, got) in [("[1]", r#"{"value":[1]}"#), ("null", r#"{"value":null}"#), (r#""x""#, r#"{"value":"x"}"#)]
        {
            assert_eq!(field(&approval(&format!(r#","arguments":{given}"#)), "arguments"), got);
        }
        assert_eq!(field(&approval(r#","arguments":{}"#), "arguments"), "{}");
        assert_eq!(field(&approval(""), "arguments"), "");
    }

    #[test]
    fn labels_default_to_the_hosts() {
        let json = r#"{"request_id":1,"question":"q"}"#;
        let label = |host, label| {
            let item = Item::read(Origin { host, label }, Kind::Clarification, json, "item", NOW).unwrap();
            item.text("agent_label").unwrap()
        };
        assert_eq!(label("skald", None), "Skald");
        assert_eq!(label("backup", None), "backup");
        assert_eq!(label("backup", Some("Backup job")), "Backup job");
        assert_eq!(field(&approval(r#","agent_label":"mine""#), "agent_label"), r#""mine""#);
    }

    #[test]
    fn a_long_or_misleading_summary_becomes_one_safe_line_and_the_rest_moves_to_detail() {
        let json = |summary: &str| {
            let summary = canonical::string(summary);
            format!(r#"{{"request_id":1,"tool_name":"t","summary":{summary}}}"#)
        };
        let long = read(Kind::Approval, &json(&"x".repeat(200))).unwrap();
        assert_eq!(long.text("summary").unwrap().chars().count(), 120);
        assert_eq!(long.text("detail").unwrap(), "x".repeat(200));
        let odd = read(Kind::Approval, &json("pay \u{202e}001")).unwrap();
        assert_eq!((odd.text("summary").unwrap().as_str(), odd.text("detail")), ("pay \\u202e001", None));
    }

    #[test]
    fn times_have_an_upper_bound_and_two_forms() {
        assert_eq!(approval(&format!(r#","created_at":{}"#, NOW + 9)).created_at, NOW);
        assert_eq!(approval(r#","created_at":"2025-06-15T15:06:39Z""#).created_at, NOW - 1000);
        let item = approval(r#","expires_at":"2025-06-15T15:06:41Z""#);
        assert_eq!((item.expires_at, field(&item, "expires_at").as_str()), (Some(NOW + 1000), "1750000001000"));
        assert!(!item.is_expired(NOW + 999) && item.is_expired(NOW + 1000));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        for (kind, json, expected) in [
            (Kind::Approval, "[]", "item: "),
            (Kind::Approval, r#"{"tool_name":"t","summary":"s"}"#, "item: request_id is missing"),
            (Kind::Approval, r#"{"request_id":1.5,"tool_name":"t","summary":"s"}"#, "item: request_id must be"),
            (Kind::Approval, r#"{"request_id":"","tool_name":"t","summary":"s"}"#, "item: request_id must be"),
            (Kind::Approval, r#"{"request_id":1,"summary":"s"}"#, "item: tool_name is missing"),
            (Kind::Approval, r#"{"request_id":1,"tool_name":"t","summary":3}"#, "item: summary must be a string"),
            (Kind::Approval, r#"{"request_id":1,"tool_name":"t","tool_name":"u","summary":"s"}"#, "twice"),
            (
                Kind::Clarification,
                r#"{"request_id":1,"question":"q","suggested_answers":[1]}"#,
                "suggested_answers must",
            ),
            (Kind::Clarification, r#"{"request_id":1,"question":"q","created_at":-1}"#, "created_at must be"),
            (
                Kind::Elicitation,
                r#"{"request_id":1,"server_name":"s","message":"m","sensitive":true}"#,
                "is_confirmation",
            ),
        ] {
            let error = read(kind, json).unwrap_err();
            assert!(matches!(error, ApiError::InvalidParams(_)) && error.to_string().contains(expected), "{error}");
        }
    }

    #[test]
    fn an_item_has_a_size_limit() {
        let json = format!(r#"{{"request_id":1,"question":"{}"}}"#, "x".repeat(MAX_ITEM));
        let error = read(Kind::Clarification, &json).unwrap_err().to_string();
        assert!(error.contains("at most 262144"), "{error}");
    }

    #[test]
    fn request_ids_keep_their_type_and_value() {
        let id: RequestId = serde_json::from_str("12345678901234567890123").unwrap();
        assert_eq!(serde_json::to_string(&id).unwrap(), "12345678901234567890123");
        assert_eq!(RequestId::from_json(r#""\u0061""#), RequestId::from_json(r#""a""#));
        for bad in ["null", "1e3", "-", "[1]", "true", ""] {
            assert!(RequestId::from_json(bad).is_err(), "{bad}");
        }
        assert!(RequestId::from_json(&format!("\"{}\"", "x".repeat(255))).is_err());
    }
}
