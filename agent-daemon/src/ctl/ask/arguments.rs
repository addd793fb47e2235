//! Arguments of an approval from the command line: `KEY=TEXT` and `KEY:=JSON`.

use std::collections::BTreeMap;

use skald_common::payload::RawJson;

/// Reads them as one JSON object; values of `KEY:=JSON` stay as they were written, numbers too.
pub(super) fn parse(arguments: &[String]) -> Result<BTreeMap<String, RawJson>, String> {
    let mut object = BTreeMap::new();
    for argument in arguments {
        let usage = || format!("{argument:?} is neither KEY=TEXT nor KEY:=JSON");
        let (key, value) = argument.split_once('=').ok_or_else(usage)?;
        let (key, value) = match key.strip_suffix(':') {
            Some(key) => {
                let value = RawJson::parse(value.to_owned());
                (key, value.map_err(|_| format!("the value of {key:?} is not JSON: quote text, or use {key}=TEXT"))?)
            }
            None => (key, text(value)?),
        };
        if key.is_empty() {
            return Err(usage());
        }
        if object.insert(key.to_owned(), value).is_some() {
            return Err(format!("{key:?} is given twice"));
        }
    }
    Ok(object)
}

fn text(value: &str) -> Result<RawJson, String> {
    serde_json::to_string(value).and_then(RawJson::parse).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(arguments: &[&str]) -> Result<String, String> {
        let arguments: Vec<String> = arguments.iter().map(|&argument| argument.into()).collect();
        parse(&arguments).map(|object| serde_json::to_string(&object).unwrap())
    }

    #[test]
    fn text_and_json_become_one_object() {
        assert_eq!(json(&["target=prod"]).unwrap(), r#"{"target":"prod"}"#);
        assert_eq!(json(&["url=http://a?b=c", "empty="]).unwrap(), r#"{"empty":"","url":"http://a?b=c"}"#);
        assert_eq!(
            json(&["n:=1.10", "l:=[1, {\"a\":null}]", "--force:=true"]).unwrap(),
            r#"{"--force":true,"l":[1, {"a":null}],"n":1.10}"#
        );
        assert_eq!(json(&[]).unwrap(), "{}");
    }

    #[test]
    fn what_is_no_argument_is_named() {
        assert!(json(&["prod"]).unwrap_err().contains("\"prod\" is neither KEY=TEXT nor KEY:=JSON"));
        assert!(json(&["=prod"]).unwrap_err().contains("neither"));
        assert!(json(&[":=1"]).unwrap_err().contains("neither"));
        assert!(json(&["n:=prod"]).unwrap_err().contains("\"n\" is not JSON"));
        assert!(json(&["n:=1 2"]).unwrap_err().contains("not JSON"));
        assert!(json(&["a=1", "a:=2"]).unwrap_err().contains("twice"));
    }
}
