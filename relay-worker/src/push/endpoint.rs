//! Where a Web Push may go (push protocol, Web Push). An endpoint is whatever a device says, so it is let through only if
//! nothing about it can be read in two ways: it must be what a WHATWG parser makes of it, and that must have the one plain
//! shape below, with a host on the list of known push services.

/// Hosts of push services, exactly.
const HOSTS: [&str; 3] = ["fcm.googleapis.com", "android.googleapis.com", "web.push.apple.com"];
/// Push services that name their machines: whatever is below.
const PARENTS: [&str; 3] = ["push.services.mozilla.com", "notify.windows.com", "push.apple.com"];
/// Longest host name, and longest label of one, bytes (RFC 1035).
const MAX_HOST: usize = 253;
const MAX_LABEL: usize = 63;

/// Why a push does not go there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// No absolute URL, or one with characters that have no business there.
    #[error("no URL")]
    Malformed,
    /// Not https.
    #[error("not https")]
    Scheme,
    /// It has a user name or a password.
    #[error("a user name in it")]
    Userinfo,
    /// Another port than 443.
    #[error("another port than 443")]
    Port,
    /// An address in place of a name.
    #[error("an address in place of a name")]
    Address,
    /// The relay itself.
    #[error("the relay itself")]
    Own,
    /// No push service that is known here.
    #[error("no push service that is known here")]
    Host,
}

impl EndpointError {
    pub(super) const fn code(self) -> &'static str {
        match self {
            Self::Malformed => "endpoint-malformed",
            Self::Scheme => "endpoint-scheme",
            Self::Userinfo => "endpoint-userinfo",
            Self::Port => "endpoint-port",
            Self::Address => "endpoint-address",
            Self::Own => "endpoint-own",
            Self::Host => "endpoint-host",
        }
    }
}

/// What the operator says about endpoints.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    /// Suffixes on label boundaries, beside the known services.
    allow: Vec<String>,
    /// Names of this relay, and parents of such names.
    own: Vec<String>,
}

/// An entry of a list of hosts is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no host name of two labels or more")]
pub struct NoHost(String);

impl Rules {
    /// From two comma-separated lists of host names, which may begin with `*.`.
    pub fn new(allow: &str, own: &str) -> Result<Self, NoHost> {
        Ok(Self { allow: hosts(allow)?, own: hosts(own)? })
    }

    fn judge(&self, host: &str) -> Result<(), EndpointError> {
        if self.own.iter().any(|own| is_or_is_below(host, own)) {
            return Err(EndpointError::Own);
        }
        let known = HOSTS.contains(&host) || PARENTS.iter().any(|parent| is_below(host, parent));
        if known || self.allow.iter().any(|suffix| is_or_is_below(host, suffix)) {
            Ok(())
        } else {
            Err(EndpointError::Host)
        }
    }
}

/// An endpoint that a push may go to.
#[derive(Clone, PartialEq, Eq)]
pub struct Endpoint {
    href: String,
    host_len: usize,
}

const SCHEME: &str = "https://";

impl Endpoint {
    /// Checks what a WHATWG parser (its `href`) makes of an endpoint.
    pub fn check(href: String, rules: &Rules) -> Result<Self, EndpointError> {
        let rest = href.strip_prefix(SCHEME).ok_or(EndpointError::Scheme)?;
        let (authority, path) = rest.split_once('/').ok_or(EndpointError::Malformed)?;
        if authority.contains('@') {
            return Err(EndpointError::Userinfo);
        }
        if authority.contains(['[', ']']) {
            return Err(EndpointError::Address);
        }
        if authority.contains(':') {
            return Err(EndpointError::Port);
        }
        if is_address(authority) {
            return Err(EndpointError::Address);
        }
        if !is_host(authority) || !path.bytes().all(is_plain) {
            return Err(EndpointError::Malformed);
        }
        rules.judge(authority)?;
        let host_len = authority.len();
        Ok(Self { href, host_len })
    }

    /// What is fetched.
    pub fn href(&self) -> &str {
        &self.href
    }

    /// Scheme and host, for whom a VAPID token is made.
    pub fn origin(&self) -> &str {
        self.href.get(..SCHEME.len() + self.host_len).unwrap_or(SCHEME)
    }
}

/// Names as a parser leaves them: lower case, no empty label, so no dot at the end.
fn is_host(host: &str) -> bool {
    let is_label = |label: &str| {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        (1..=MAX_LABEL).contains(&label.len()) && label.bytes().all(plain)
    };
    host.len() <= MAX_HOST && host.split('.').all(is_label)
}

/// A parser writes every IPv4 address in decimal; a name never ends in a number (WHATWG URL, ends in a number checker).
fn is_address(host: &str) -> bool {
    let last = host.trim_end_matches('.').rsplit('.').next().unwrap_or_default();
    !last.is_empty() && (last.bytes().all(|byte| byte.is_ascii_digit()) || last.starts_with("0x"))
}

/// What a path and a query consist of (RFC 3986); no `#`, since a fragment goes nowhere.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@/?%".contains(&byte)
}

fn is_below(host: &str, parent: &str) -> bool {
    host.strip_suffix(parent).is_some_and(|rest| rest.ends_with('.'))
}

fn is_or_is_below(host: &str, parent: &str) -> bool {
    host == parent || is_below(host, parent)
}

fn hosts(list: &str) -> Result<Vec<String>, NoHost> {
    let entries = list.split(',').map(str::trim).filter(|entry| !entry.is_empty());
    let host = |entry: &str| {
        let host = entry.trim_start_matches('*').trim_start_matches('.').to_ascii_lowercase();
        let fine = is_host(&host) && !is_address(&host) && host.contains('.');
        if fine { Ok(host) } else { Err(NoHost(entry.to_owned())) }
    };
    entries.map(host).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The way of an endpoint: a WHATWG parser (here that of the `url` crate, in the runtime the platform's), then the check.
    fn check(text: &str, rules: &Rules) -> Result<Endpoint, EndpointError> {
        let url = url::Url::parse(text).map_err(|_| EndpointError::Malformed)?;
        Endpoint::check(url.into(), rules)
    }

    fn refused(text: &str) -> EndpointError {
        match check(text, &Rules::default()) {
            Err(error) => error,
            Ok(endpoint) => panic!("{text} leads to {}", endpoint.href),
        }
    }

    #[test]
    fn endpoints_of_the_known_services_pass_unchanged() {
        for endpoint in [
            "https://fcm.googleapis.com/fcm/send/dGhpcw:APA91bH-x_y",
            "https://fcm.googleapis.com/wp/abc",
            "https://android.googleapis.com/gcm/send/abc",
            "https://updates.push.services.mozilla.com/wpush/v2/gAAAAABk_-",
            "https://wns2-par02p.notify.windows.com/w/?token=BQYAAAD%2b%2fx",
            "https://web.push.apple.com/QGuQyavXutnMH",
            "https://eu.push.apple.com/x",
        ] {
            let checked = check(endpoint, &Rules::default()).unwrap();
            assert_eq!(checked.href(), endpoint);
            let host = endpoint.split('/').nth(2).unwrap();
            assert_eq!(checked.origin(), format!("https://{host}"));
        }
    }

    #[test]
    fn what_a_parser_makes_equal_is_equal() {
        for same in [
            "HTTPS://FCM.GoogleApis.com:443/a",
            "https:\\\\fcm.googleapis.com\\a",
            "https:/fcm.googleapis.com/a",
            "ht\ttps://fcm.goo\ngleapis.com/a",
            "  https://fcm.googleapis.com/x/../a ",
            "https://%66cm.googleapis.com/a",
            "https://ｆcm.googleapis.com/a",
        ] {
            let checked = check(same, &Rules::default()).unwrap();
            assert_eq!(checked.href(), "https://fcm.googleapis.com/a", "{same:?}");
        }
    }

    #[test]
    fn only_https_passes() {
        for endpoint in [
            "http://fcm.googleapis.com/a",
            "ftp://fcm.googleapis.com/a",
            "file:///etc/passwd",
            "data:,x",
            "javascript:fetch('https://fcm.googleapis.com/')",
            "blob:https://fcm.googleapis.com/a",
            "wss://fcm.googleapis.com/a",
        ] {
            assert_eq!(refused(endpoint), EndpointError::Scheme, "{endpoint}");
        }
    }

    #[test]
    fn only_port_443_passes() {
        for endpoint in [
            "https://fcm.googleapis.com:22/",
            "https://fcm.googleapis.com:80/",
            "https://fcm.googleapis.com:0/",
            "https://fcm.googleapis.com:8443/",
        ] {
            assert_eq!(refused(endpoint), EndpointError::Port, "{endpoint}");
        }
        assert_eq!(refused("https://fcm.googleapis.com:99999/"), EndpointError::Malformed);
    }

    #[test]
    fn a_user_name_hides_no_other_host() {
        for endpoint in [
            "https://fcm.googleapis.com@internal.example/",
            "https://fcm.googleapis.com:443@internal.example/",
            "https://fcm.googleapis.com%2f@internal.example/",
            "https://user:password@fcm.googleapis.com/",
            "https://fcm.googleapis.com\t@127.0.0.1/",
        ] {
            assert_eq!(refused(endpoint), EndpointError::Userinfo, "{endpoint}");
        }
        // An empty one is none, and a parser drops it.
        assert!(check("https://@fcm.googleapis.com/", &Rules::default()).is_ok());
    }

    #[test]
    fn a_backslash_a_fragment_or_a_query_hides_no_other_host() {
        for endpoint in [
            "https://internal.example\\@fcm.googleapis.com/",
            "https://internal.example\\.fcm.googleapis.com/",
            "https://internal.example/.fcm.googleapis.com",
            "https://internal.example?.fcm.googleapis.com",
            "https://internal.example#.fcm.googleapis.com",
            "https://internal.example#@fcm.googleapis.com/",
        ] {
            assert!(matches!(refused(endpoint), EndpointError::Host | EndpointError::Malformed), "{endpoint}");
        }
        assert_eq!(refused("https://fcm.googleapis.com/a#b"), EndpointError::Malformed);
    }

    #[test]
    fn no_address_passes_however_it_is_written() {
        for endpoint in [
            "https://127.0.0.1/",
            "https://127.1/",
            "https://2130706433/",
            "https://0x7f000001/",
            "https://0177.0.0.1/",
            "https://127.0.0.1./",
            "https://1.1.1.1/",
            "https://[::1]/",
            "https://[::ffff:127.0.0.1]/",
            "https://[fd00::1]/",
            "https://%31%32%37.0.0.1/",
            "https://１２７.0.0.1/",
            "https://169.254.169.254/latest/meta-data/",
        ] {
            assert_eq!(refused(endpoint), EndpointError::Address, "{endpoint}");
            // Not even where the operator allows everything that looks alike.
            let rules = Rules::new("fcm.example", "").unwrap();
            assert!(check(endpoint, &rules).is_err());
        }
        // A scope is no part of an address in a URL.
        assert_eq!(refused("https://[fe80::1%25eth0]/"), EndpointError::Malformed);
    }

    #[test]
    fn a_host_is_on_the_list_only_on_label_boundaries() {
        for endpoint in [
            "https://localhost/",
            "https://relay.internal/",
            "https://metadata.google.internal/",
            "https://googleapis.com/",
            "https://storage.googleapis.com/",
            "https://x.fcm.googleapis.com/",
            "https://evilfcm.googleapis.com/",
            "https://fcm.googleapis.com.evil.example/",
            "https://push.services.mozilla.com/",
            "https://evilpush.services.mozilla.com/",
            "https://push.services.mozilla.com.evil.example/",
            "https://notify.windows.com/",
            "https://evilnotify.windows.com/",
            "https://push.apple.com/",
            "https://evilpush.apple.com/",
            "https://xn--fcm-tna.googleapis.com/",
            "https://fcm。googleapis。com.evil.example/",
            "https://fcm-googleapis.com/",
        ] {
            assert_eq!(refused(endpoint), EndpointError::Host, "{endpoint}");
        }
        for endpoint in ["https://fcm.googleapis.com./", "https://x..push.apple.com/", "https://.push.apple.com/"] {
            assert_eq!(refused(endpoint), EndpointError::Malformed, "{endpoint}");
        }
    }

    #[test]
    fn names_in_other_scripts_do_not_pass_for_a_known_one() {
        // Cyrillic е and с, and a zero-width joiner.
        for endpoint in
            ["https://fcm.googlеapis.com/", "https://fсm.googleapis.com/", "https://fcm\u{200d}.googleapis.com/"]
        {
            assert!(check(endpoint, &Rules::default()).is_err(), "{endpoint}");
        }
    }

    #[test]
    fn an_operator_adds_suffixes_on_label_boundaries() {
        let rules = Rules::new(" Push.Example.org, *.ntfy.example ,", "").unwrap();
        for endpoint in ["https://push.example.org/a", "https://x.push.example.org/a", "https://ntfy.example/up"] {
            assert!(check(endpoint, &rules).is_ok(), "{endpoint}");
        }
        for endpoint in ["https://example.org/", "https://evilpush.example.org/", "https://push.example.org.x.example/"]
        {
            assert_eq!(check(endpoint, &rules).err(), Some(EndpointError::Host), "{endpoint}");
        }
        for wrong in
            ["com", "*", "127.0.0.1", "https://x.example", "x.example:8443", "x..example", "[::1]", "a b.example"]
        {
            assert!(Rules::new(wrong, "").is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_relay_does_not_push_to_itself_whatever_is_allowed() {
        let rules = Rules::new("example.org", "relay.example.org").unwrap();
        assert!(check("https://push.example.org/a", &rules).is_ok());
        for endpoint in
            ["https://relay.example.org/", "https://RELAY.example.org/v1/ws", "https://ns.relay.example.org/"]
        {
            assert_eq!(check(endpoint, &rules).err(), Some(EndpointError::Own), "{endpoint}");
        }
    }

    proptest! {
        #[test]
        fn what_passes_is_fetched_as_it_was_checked(text in prop_oneof![
            any::<String>(),
            r"(https|HTTPS|http)?:?[/\\]{0,3}([a-z0-9.@:\[\]%\\-]{0,12})(fcm\.googleapis\.com|a\.push\.apple\.com|127\.1)[ -~]{0,20}",
        ]) {
            let rules = Rules::new("example.org", "relay.example.org").unwrap();
            if let Ok(endpoint) = check(&text, &rules) {
                // Whatever the fetch makes of it once more, it is the same and leads to the host that was checked.
                let again = url::Url::parse(endpoint.href()).unwrap();
                prop_assert_eq!(again.as_str(), endpoint.href());
                prop_assert_eq!(again.origin().ascii_serialization(), endpoint.origin());
                prop_assert_eq!(again.scheme(), "https");
                prop_assert_eq!(again.port(), None);
                prop_assert!(again.username().is_empty() && again.password().is_none());
                let url::Host::Domain(host) = again.host().unwrap() else { panic!("an address") };
                prop_assert!(rules.judge(host).is_ok());
                prop_assert!(endpoint.href().bytes().all(|byte| byte.is_ascii_graphic()));
            }
        }
    }
}
