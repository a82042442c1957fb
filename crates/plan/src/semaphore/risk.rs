//! States of a broker in which a lock's guarantees do not hold: a partitioned cluster, and
//! policies that remove the lock's messages or queues. Pure. See `semaphore::management`
//! for where they are observed.

use std::fmt;

use crate::naming::LockName;

/// A state of the broker in which the guarantees of a lock do not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Risk {
    /// A node of the broker's cluster has lost others that still run. Clients on both sides
    /// can hold the same slot.
    Partitioned {
        /// The node.
        node: String,
        /// The nodes that it has lost.
        from: Vec<String>,
    },
    /// A policy applies to one of the lock's queues.
    Policy {
        /// What the policy does.
        effect: PolicyEffect,
        /// A queue that it applies to.
        queue: String,
    },
}

/// What a policy does to a queue that a lock does not survive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyEffect {
    /// `dead-letter-exchange`: each probe is published again, to another queue.
    DeadLetters,
    /// `message-ttl`: the queue loses its message, which is a record or a token.
    MessagesExpire,
    /// `expires`: the queue is deleted while no client uses it.
    QueueExpires,
    /// `max-length` or `max-length-bytes`: the queue keeps a limited number of tokens.
    LimitsTokens {
        /// Maximum number of free tokens.
        to: u64,
    },
}

/// Length of a token's body, a number of microseconds since 1970.
const TOKEN_BYTES: u64 = 16;

/// The effects of the policies that apply to a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PolicyEffects {
    /// See [`PolicyEffect::DeadLetters`].
    pub dead_letters: bool,
    /// See [`PolicyEffect::MessagesExpire`].
    pub messages_expire: bool,
    /// See [`PolicyEffect::QueueExpires`].
    pub queue_expires: bool,
    /// See [`PolicyEffect::LimitsTokens`].
    pub token_limit: Option<u64>,
}

impl PolicyEffects {
    /// Whether any lock could be affected.
    #[must_use]
    pub fn any(self) -> bool {
        self.dead_letters
            || self.messages_expire
            || self.queue_expires
            || self.token_limit.is_some()
    }

    /// Returns the greatest number of tokens of a queue with these limits.
    #[must_use]
    pub fn limit_of_tokens(max_length: Option<u64>, max_bytes: Option<u64>) -> Option<u64> {
        let by_bytes = max_bytes.map(|bytes| bytes / TOKEN_BYTES);
        max_length.into_iter().chain(by_bytes).min()
    }

    /// Returns the effects that harm a queue which keeps messages, or does not.
    #[must_use]
    pub fn harmful(self, keeps_messages: bool) -> Vec<PolicyEffect> {
        let effects = [
            (self.messages_expire && keeps_messages, PolicyEffect::MessagesExpire),
            (self.queue_expires, PolicyEffect::QueueExpires),
            (self.dead_letters, PolicyEffect::DeadLetters),
        ];
        effects.into_iter().filter(|(harms, _)| *harms).map(|(_, effect)| effect).collect()
    }
}

/// Returns one queue of each sort that the lock has, and whether it keeps messages. A
/// policy applies to queues by a pattern, so it usually applies to all of a sort.
#[must_use]
pub fn sampled_queues(lock: &LockName) -> Vec<(String, bool)> {
    if !lock.has_slots() {
        return vec![(lock.token_queue(), true)];
    }
    let mut queues = vec![(lock.slot_queue(1), false), (lock.holder_queue(1), false)];
    queues.extend(lock.record_queue(1).map(|queue| (queue, true)));
    queues.extend(lock.wait_queue().map(|queue| (queue, false)));
    queues
}

impl Risk {
    /// Whether it harms a lock with this number of slots or tokens.
    #[must_use]
    pub fn harms(&self, slots: u32) -> bool {
        match self {
            Self::Policy { effect: PolicyEffect::LimitsTokens { to }, .. } => *to < slots.into(),
            _ => true,
        }
    }

    /// Returns the name for conditions. It is part of the API and never renamed.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Partitioned { .. } => "BrokerPartitioned",
            Self::Policy { effect, .. } => match effect {
                PolicyEffect::DeadLetters => "PolicyDeadLetters",
                PolicyEffect::MessagesExpire => "PolicyExpiresMessages",
                PolicyEffect::QueueExpires => "PolicyExpiresQueues",
                PolicyEffect::LimitsTokens { .. } => "PolicyLimitsTokens",
            },
        }
    }
}

impl fmt::Display for Risk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Partitioned { node, from } => write!(
                f,
                "The broker's cluster is partitioned: node {node} has lost {}, which still run. Clients on both sides can hold the same slot. Restart the nodes of one side",
                from.join(", ")
            ),
            Self::Policy { effect: PolicyEffect::LimitsTokens { to }, queue } => write!(
                f,
                "A policy with max-length or max-length-bytes applies to the queue {queue}, which then keeps at most {to} free tokens. Exclude the lock's queues from the policy"
            ),
            Self::Policy { effect, queue } => {
                let (key, harm) = match effect {
                    PolicyEffect::DeadLetters => (
                        "dead-letter-exchange",
                        "publishes each probe of a client to that exchange",
                    ),
                    PolicyEffect::MessagesExpire => {
                        ("message-ttl", "deletes its records or tokens")
                    }
                    PolicyEffect::QueueExpires | PolicyEffect::LimitsTokens { .. } => {
                        ("expires", "deletes it while it is not in use")
                    }
                };
                write!(
                    f,
                    "A policy with {key} applies to the queue {queue} and {harm}. Exclude the lock's queues from the policy"
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::naming::{Profile, Protocol, QueueType};

    #[test]
    fn a_policy_harms_a_queue_by_its_removals() {
        let all = PolicyEffects {
            dead_letters: true,
            messages_expire: true,
            queue_expires: true,
            token_limit: None,
        };
        let [ttl, expires, letters] =
            [PolicyEffect::MessagesExpire, PolicyEffect::QueueExpires, PolicyEffect::DeadLetters];
        assert_eq!(all.harmful(true), [ttl, expires, letters]);
        assert_eq!(all.harmful(false), [expires, letters], "it has no messages to lose");
        let ttl = PolicyEffects { messages_expire: true, ..PolicyEffects::default() };
        assert!(ttl.any() && ttl.harmful(false).is_empty());
        assert!(!PolicyEffects::default().any());
    }

    #[test]
    fn a_policy_that_limits_a_queue_harms_a_lock_with_more_tokens() {
        let limit = PolicyEffects::limit_of_tokens;
        assert_eq!(limit(None, None), None);
        assert_eq!(limit(Some(5), None), Some(5));
        assert_eq!(limit(None, Some(50)), Some(3), "the fourth has no room");
        assert_eq!(limit(Some(5), Some(1)), Some(0));
        let effect = PolicyEffect::LimitsTokens { to: 5 };
        let risk = Risk::Policy { effect, queue: "ci.x.semaphore".to_owned() };
        assert!(risk.harms(6) && !risk.harms(5));
        assert_eq!(risk.reason(), "PolicyLimitsTokens");
        assert!(risk.to_string().contains("at most 5 free tokens"), "{risk}");
    }

    #[test]
    fn each_sort_of_queue_of_a_lock_is_sampled() {
        let queues = |protocol| {
            let lock = LockName::new("ci.x").unwrap().with_protocol(protocol);
            let queues = sampled_queues(&lock).into_iter();
            let sign = |keeps: bool| if keeps { "+" } else { "" };
            queues.map(|(queue, keeps)| queue + sign(keeps)).collect::<Vec<_>>().join(" ")
        };
        let guideline = Protocol::ExclusiveQueue(Profile::Guideline);
        assert_eq!(queues(guideline), "ci.x-1-A ci.x-1-B ci.x-1-F+ ci.x-W");
        let python = Protocol::ExclusiveQueue(Profile::AmqpLocksPython);
        assert_eq!(queues(python), "ci.x-A-1 ci.x-B-1");
        assert_eq!(queues(Protocol::ExclusiveConsumer), "ci.x-1-A ci.x-1-C ci.x-1-F+ ci.x-W");
        assert_eq!(queues(Protocol::Token(QueueType::Quorum)), "ci.x.semaphore+");
    }
}
