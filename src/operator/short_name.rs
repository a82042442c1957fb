//! Shortens names of objects, which have up to 253 characters, where Kubernetes takes less.

/// Returns the name if it has at most `max` characters. Otherwise returns its start with a
/// hash of the whole name, which is as valid as the name: in a name of an object, and as the
/// value of a label.
pub(super) fn shortened(name: &str, max: usize) -> String {
    if name.len() <= max {
        return name.to_owned();
    }
    // FNV-1a, which stays the same in each version of the operator.
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let hash = format!("-{hash:016x}");
    let start: String = name.chars().take(max.saturating_sub(hash.len())).collect();
    // A part of a domain must not end with a dash.
    format!("{}{hash}", start.trim_end_matches(['-', '.']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_name_is_shortened_to_a_valid_one_of_its_own() {
        assert_eq!(shortened("deploy", 6), "deploy");
        let long = |end: &str| format!("{}{end}", "a".repeat(60));
        let short = shortened(&long(".a-long-name-1"), 63);
        assert_eq!(short.len(), 63);
        assert!(short.starts_with("aaa"), "{short}");
        assert_ne!(short, shortened(&long(".a-long-name-2"), 63));
        // A fixed value, because the hash must not change.
        assert_eq!(shortened("deploy-1.production", 18), "d-6a0e8495a5bb0bb1");
        assert!(!shortened(&"a.".repeat(120), 63).contains(".-"));
    }
}
