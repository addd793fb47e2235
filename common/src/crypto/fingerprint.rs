//! What people compare when they authorize a device.

use sha2::{Digest, Sha256};

use super::FINGERPRINT_DOMAIN;
use crate::ids::{Ed25519Public, X25519Public};

/// The first 20 hexadecimal digits of `SHA-256(domain ‖ 00 ‖ ed25519_pub ‖ x25519_pub)` in groups of four
/// (protocol, Fingerprint).
pub fn fingerprint(ed25519: &Ed25519Public, x25519: &X25519Public) -> String {
    let mut hash = Sha256::new();
    hash.update(FINGERPRINT_DOMAIN);
    hash.update([0]);
    hash.update(ed25519.as_bytes());
    hash.update(x25519.as_bytes());
    let hash: [u8; 32] = hash.finalize().into();
    let groups: Vec<String> = hash.chunks(2).take(5).map(hex::encode).collect();
    groups.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twenty_digits_in_groups_of_four_that_depend_on_both_keys() {
        let (one, two) = (Ed25519Public::new([1; 32]), X25519Public::new([2; 32]));
        let text = fingerprint(&one, &two);
        assert_eq!(text.len(), 24);
        assert!(text.split(' ').all(|group| group.len() == 4 && group.chars().all(|c| c.is_ascii_hexdigit())));
        assert_ne!(text, fingerprint(&Ed25519Public::new([3; 32]), &two));
        assert_ne!(text, fingerprint(&one, &X25519Public::new([3; 32])));
    }
}
