//! The name of a pressure queue, and its Redis keys.

use std::fmt;

use super::rules::{NameError, check_common};

/// The suffixes of a pressure queue's keys: those of pressure 0.15 in
/// its order, then the two of elements in flight, which are Lockkeeper's. The data list
/// itself has none.
pub const KEY_SUFFIXES: [&str; 13] = [
    ":bound",
    ":producer",
    ":consumer",
    ":producer_free",
    ":consumer_free",
    ":stats:produced_messages",
    ":stats:produced_bytes",
    ":stats:consumed_messages",
    ":stats:consumed_bytes",
    ":not_full",
    ":closed",
    ":in_flight",
    ":leases",
];

/// Default key prefix of pressure 0.15.
pub const DEFAULT_PREFIX: &str = "__pressure__";

/// A pressure queue's name and prefix, with which its Redis keys start.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QueueName {
    prefix: String,
    name: String,
}

impl QueueName {
    /// Checks the naming rules. A name that ends in a key suffix is rejected:
    /// `jobs:closed` would write into the closed list of `jobs`, and so would `closed`
    /// under a prefix that ends in `:jobs`.
    ///
    /// # Errors
    ///
    /// [`NameError`]: the rule that the name breaks.
    pub fn new(prefix: impl Into<String>, name: impl Into<String>) -> Result<Self, NameError> {
        let (prefix, name) = (prefix.into(), name.into());
        check_common(&prefix).map_err(NameError::of_prefix)?;
        check_common(&name)?;
        let queue = Self { prefix, name };
        let data = queue.data();
        // The rest is another queue's data list if it contains a colon.
        let is_key = |suffix: &&&str| data.strip_suffix(**suffix).is_some_and(|d| d.contains(':'));
        if let Some(suffix) = KEY_SUFFIXES.iter().find(is_key) {
            return Err(NameError::new(
                &data,
                format!("prefix and names that end in {suffix} are keys of another queue"),
            ));
        }
        Ok(queue)
    }

    /// Returns the name without prefix.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.name
    }

    /// Returns the prefix of every key.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Returns the data list, `PREFIX:NAME`, with which all other keys start.
    #[must_use]
    pub fn data(&self) -> String {
        format!("{}:{}", self.prefix, self.name)
    }

    /// Returns the part of the queue's keys that a Redis Cluster hashes. It is the text
    /// between the first opening brace and the next closing one, unless empty. Without it
    /// each key is hashed whole, and the keys are stored on different nodes.
    #[must_use]
    pub fn hash_tag(&self) -> Option<String> {
        let data = self.data();
        let (_, after) = data.split_once('{')?;
        let (tag, _) = after.split_once('}')?;
        (!tag.is_empty()).then(|| tag.to_owned())
    }

    /// Returns the cluster slot, from 0 to 16383, of all keys of the queue. `None` if
    /// they are in different slots.
    #[must_use]
    pub fn cluster_slot(&self) -> Option<u16> {
        Some(crc16(self.hash_tag()?.as_bytes()) % 16384)
    }
}

/// CRC-16/XMODEM, by which Redis Cluster distributes keys.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    })
}

impl fmt::Display for QueueName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_s_keys_lie_together_where_prefix_or_name_has_a_hash_tag() {
        let tag = |prefix: &str, name: &str| QueueName::new(prefix, name).unwrap().hash_tag();
        assert_eq!(tag("p", "{jobs}").as_deref(), Some("jobs"));
        assert_eq!(tag("{p}", "{jobs}").as_deref(), Some("p"));
        assert_eq!(tag("p", "a{b{c}d}").as_deref(), Some("b{c"));
        assert_eq!(tag("{p", "jobs}").as_deref(), Some("p:jobs"));
        for (prefix, name) in [("p", "jobs"), ("p", "{}{jobs}"), ("p", "}jobs{"), ("p", "{jobs")] {
            assert_eq!(tag(prefix, name), None, "{prefix}:{name}");
            assert_eq!(QueueName::new(prefix, name).unwrap().cluster_slot(), None);
        }
        // The check value of the Redis Cluster specification.
        assert_eq!(crc16(b"123456789"), 0x31C3);
    }
}
