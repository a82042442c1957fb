//! Parses the replies of the scripts and of `INFO`. Pure: the server's bytes in, typed
//! values out. All foreign text is sanitized here.

use lockkeeper_plan::clean_text;
use lockkeeper_plan::pressure_queue::{ObservedQueue, Role};
use redis::{FromRedisValue, Value};

use super::StoreError;
use super::scripts::label;

/// Number of the key `:bound`.
const BOUND: usize = 2;

/// Whether the scripts accept this text as a bound: `bound_of` in `shared.lua`.
fn is_bound(text: &str) -> bool {
    (1..=19).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Maximum length of a client id that leaves this module, in bytes.
const ID_BYTES: usize = 256;

/// The server's identity. All fields are `None` if an ACL forbids `INFO`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreIdentity {
    /// Random for each start of the server process: a new one means a restart.
    pub run_id: Option<String>,
    /// The server's version, for example `7.0.15`.
    pub version: Option<String>,
    /// Whether the server is a cluster node. Every queue name must then contain braces.
    pub cluster_enabled: Option<bool>,
    /// `master` or `slave`, as Redis names them.
    pub role: Option<String>,
    /// The eviction policy at the memory limit: see [`Self::eviction`].
    pub maxmemory_policy: Option<String>,
}

impl StoreIdentity {
    /// Returns the eviction policy if it may remove a queue's keys. The policies
    /// `volatile-…` only remove keys that expire, which a queue's never do.
    #[must_use]
    pub fn eviction(&self) -> Option<&str> {
        self.maxmemory_policy.as_deref().filter(|policy| policy.starts_with("allkeys-"))
    }

    pub(super) fn from_info(info: &str) -> Self {
        let get = |wanted: &str| {
            info.lines()
                .filter_map(|line| line.split_once(':'))
                .find(|(key, _)| *key == wanted)
                .map(|(_, value)| clean_text(value.trim(), 128))
        };
        Self {
            run_id: get("run_id"),
            version: get("redis_version"),
            cluster_enabled: get("cluster_enabled").map(|value| value == "1"),
            role: get("role"),
            maxmemory_policy: get("maxmemory_policy"),
        }
    }
}

/// Sanitizes a client id for a status field.
pub(super) fn clean_id(bytes: &[u8]) -> String {
    clean_text(&String::from_utf8_lossy(bytes), ID_BYTES)
}

/// The reply of `observe.lua`.
pub(super) type Observation =
    (Vec<usize>, Vec<usize>, Vec<Option<Vec<u8>>>, Vec<Option<Vec<u8>>>, Vec<u64>);

/// Converts the reply of `observe.lua`.
pub(super) fn queue_seen(reply: Observation) -> Result<ObservedQueue, StoreError> {
    let (present, wrong, numbers, ids, lengths) = reply;
    let (Ok(numbers), Ok(ids), Ok(lengths)) =
        (<[_; 5]>::try_from(numbers), <[_; 2]>::try_from(ids), <[u64; 7]>::try_from(lengths))
    else {
        return Err(StoreError::unexpected("an observation of another shape"));
    };
    let mut wrong_types: Vec<String> = wrong.iter().map(|number| label(*number)).collect();
    // A bound that is not a number still is a string, so its type does not reveal it.
    let mut parse = |number: usize, text: Option<Vec<u8>>| {
        let text = text?;
        let text = std::str::from_utf8(&text).ok();
        let parsed = text.filter(|text| number != BOUND || is_bound(text));
        let parsed = parsed.and_then(|text| text.parse::<u64>().ok());
        if parsed.is_none() {
            wrong_types.push(label(number));
        }
        parsed
    };
    let [bound, produced_messages, produced_bytes, consumed_messages, consumed_bytes] = numbers;
    let bound_is_there = bound.is_some();
    let bound = parse(BOUND, bound);
    let produced_messages = parse(7, produced_messages).unwrap_or_default();
    let produced_bytes = parse(8, produced_bytes).unwrap_or_default();
    let consumed_messages = parse(9, consumed_messages).unwrap_or_default();
    let consumed_bytes = parse(10, consumed_bytes).unwrap_or_default();
    let leftovers = if bound_is_there {
        Vec::new()
    } else {
        present.iter().map(|number| label(*number)).collect()
    };
    let [producer, consumer] = ids;
    let [length, producer_free, consumer_free, not_full, closed_tokens, in_flight, leases_ended] =
        lengths;
    let role = |id: Option<Vec<u8>>, free: u64| Role {
        id: id.map(|id| clean_id(&id)),
        busy: bound_is_there && free == 0,
    };
    Ok(ObservedQueue {
        bound,
        length,
        closed: closed_tokens > 0,
        closed_tokens,
        not_full,
        producer: role(producer, producer_free),
        consumer: role(consumer, consumer_free),
        producer_free,
        consumer_free,
        produced_messages,
        produced_bytes,
        consumed_messages,
        consumed_bytes,
        in_flight,
        leases_ended,
        leftovers,
        wrong_types,
    })
}

/// The reply of a script that changes something: a word, then its values.
pub(super) struct Verdict {
    pub(super) word: String,
    rest: Vec<Value>,
}

impl FromRedisValue for Verdict {
    fn from_redis_value(value: Value) -> Result<Self, redis::ParsingError> {
        let mut values = Vec::<Value>::from_redis_value(value)?.into_iter();
        let word = String::from_redis_value(values.next().unwrap_or(Value::Nil))?;
        Ok(Self { word, rest: values.collect() })
    }
}

impl Verdict {
    /// Returns the display names of the keys whose numbers follow the word.
    pub(super) fn labels(&self) -> Vec<String> {
        self.rest
            .iter()
            .filter_map(|value| match value {
                Value::Int(number) => usize::try_from(*number).ok().map(label),
                _ => None,
            })
            .collect()
    }

    /// Returns the number at `index` after the word.
    pub(super) fn number(&self, index: usize) -> Option<u64> {
        match self.rest.get(index) {
            Some(Value::Int(number)) => u64::try_from(*number).ok(),
            _ => None,
        }
    }

    /// Returns the sanitized text at `index` after the word.
    pub(super) fn text(&self, index: usize) -> Option<String> {
        match self.rest.get(index) {
            Some(Value::BulkString(bytes)) => Some(clean_id(bytes)),
            _ => None,
        }
    }

    /// Returns the elements from `index` after the word on.
    pub(super) fn elements(self, index: usize) -> Vec<Vec<u8>> {
        let elements = self.rest.into_iter().skip(index);
        elements
            .filter_map(|value| match value {
                Value::BulkString(bytes) => Some(bytes),
                _ => None,
            })
            .collect()
    }

    /// Converts this reply to an error if no better explanation exists.
    pub(super) fn into_error(self, data_key: &str) -> StoreError {
        let first = || self.labels().into_iter().next();
        match self.word.as_str() {
            "wrong" => StoreError::WrongType {
                key: match first() {
                    Some(label) if label.starts_with(':') => format!("{data_key}{label}"),
                    _ => data_key.to_owned(),
                },
            },
            word => StoreError::unexpected(word),
        }
    }
}
