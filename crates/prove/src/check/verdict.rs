//! The result of judging a history: violations, counts, and properties that were not judged. See
//! `report` for its presentation.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// The result of judging one history.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// All violations, in the order of time.
    pub violations: Vec<Violation>,
    /// Number of occurrences of each checked situation, by name, for example `grants` or
    /// `contended hand-overs`. A verdict without violations is weak evidence if these counts are
    /// low.
    pub counts: BTreeMap<String, u64>,
    /// Properties that could not be judged, with the reason.
    pub not_judged: BTreeMap<Property, String>,
}

/// One violation of a property.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Violation {
    /// The violated property.
    pub property: Property,
    /// The cause.
    pub cause: Cause,
    /// Time at which the violation became certain, in microseconds since the start of the run.
    pub at: u64,
    /// Index of the event with which the violation became certain: line `event + 2` of the file.
    #[serde(default)]
    pub event: usize,
    /// The processes that are involved.
    pub processes: Vec<u32>,
    /// Description of the violation, in one sentence.
    pub what: String,
    /// [`Property::Rule`]: the id of the rule, for example `PS-6`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
}

impl Violation {
    /// Returns the id of the violated rule, or the name of the property.
    pub fn name(&self) -> String {
        self.rule.clone().unwrap_or_else(|| format!("{:?}", self.property))
    }
}

/// A property that every implementation must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Property {
    /// The broker gives a holder queue, a consumer's queue or a token to one connection at a
    /// time.
    S1,
    /// No two processes hold the same slot or token, and there are never more holders than
    /// slots.
    S2,
    /// Only slots that exist are granted.
    S3,
    /// A grant is backed: the process's connection owned the slot at the broker before the grant
    /// was reported, and the slot existed after that.
    S4,
    /// `verify` answers "held" only if the process's connection owned the slot during the
    /// verification and received an answer, and "draining" if and only if the slot is being
    /// removed. `believes` answers "held" only within some time after the ownership ended.
    S5,
    /// A process owns at the broker only the slot or token that it was granted and has neither
    /// released nor lost. No hold of another process ends with a release.
    S6,
    /// Tokens are conserved: no client destroys a token.
    TokensConserved,
    /// Only an administrator changes slots, on a connection that holds the admin mutex.
    S9,
    /// An acquire that waits is granted if fewer processes than slots could hold one during its
    /// last 2 s, or 8 s if a slot may have become free without a wake-up.
    S10,
    /// The *must* rules of docs/protocols that frames show: see [`rules`](super::rules).
    Rule,
}

/// The cause of a violation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Cause {
    /// The broker.
    Broker,
    /// The client side of an implementation.
    Client,
    /// The administrator: the side that changes the number of slots.
    Administrator,
    /// Unknown, because the broker was not observed.
    Unknown,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Broker => "BROKER",
            Self::Client => "CLIENT",
            Self::Administrator => "ADMINISTRATOR",
            Self::Unknown => "UNKNOWN",
        })
    }
}
