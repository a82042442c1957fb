//! Observes through the management API what makes a broker unsafe for locks: partitions of
//! its cluster, and policies. All locks of a virtual host share the lists of nodes and
//! policies. See `plan::semaphore::risk` for their meaning.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lockkeeper_plan::naming::LockName;
use lockkeeper_plan::semaphore::risk::{PolicyEffect, PolicyEffects, Risk, sampled_queues};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::sync::Mutex;

use super::answer::List;
use super::nodes::{self, Node};
use super::{Management, ManagementError};

/// Maximum number of policies of a virtual host.
const MAX_POLICIES: usize = 10_000;

/// A policy, or an operator policy.
#[derive(Deserialize)]
struct Policy {
    #[serde(default)]
    definition: Definition,
}

#[derive(Deserialize)]
struct QueuesPolicy {
    #[serde(default)]
    effective_policy_definition: Definition,
}

/// The keys of a policy that harm a lock. The API sends an empty list instead of an empty
/// object, from which no field is read.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Definition {
    #[serde(rename = "dead-letter-exchange")]
    dead_letters: Option<IgnoredAny>,
    #[serde(rename = "message-ttl")]
    messages_expire: Option<IgnoredAny>,
    #[serde(rename = "expires")]
    queue_expires: Option<IgnoredAny>,
    #[serde(rename = "max-length")]
    max_length: Option<u64>,
    #[serde(rename = "max-length-bytes")]
    max_bytes: Option<u64>,
}

impl Definition {
    fn effects(&self) -> PolicyEffects {
        PolicyEffects {
            dead_letters: self.dead_letters.is_some(),
            messages_expire: self.messages_expire.is_some(),
            queue_expires: self.queue_expires.is_some(),
            token_limit: PolicyEffects::limit_of_tokens(self.max_length, self.max_bytes),
        }
    }
}

/// The risks found, and whether partitions could be found at all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Risks {
    /// The risks, the worst first.
    pub found: Vec<Risk>,
    /// Whether the user may list the nodes, which requires the tag `monitoring`. Otherwise
    /// a partition is not found.
    pub nodes_are_visible: bool,
}

/// The last lists of nodes and policies. A caller that needs newer ones waits for a request
/// that is already running.
#[derive(Default)]
pub struct RiskCache(Mutex<Option<(Instant, Arc<Shared>)>>);

/// What concerns all locks of a virtual host.
struct Shared {
    /// The nodes. `None` if they can't be listed.
    nodes: Option<Vec<Node>>,
    /// Whether a policy of the virtual host could harm a lock. `None` if the policies can't
    /// be listed.
    policies_may_harm: Option<bool>,
}

impl RiskCache {
    /// Returns the risks of the lock, from lists that are at most `interval` old. `None` if
    /// the API shows nothing. Cancel safe.
    pub async fn of(
        &self,
        management: &Management,
        interval: Duration,
        lock: &LockName,
    ) -> Option<Risks> {
        let shared = self.shared(management, interval).await;
        let mut found: Vec<Risk> = shared.nodes.iter().flatten().filter_map(partition).collect();
        if shared.policies_may_harm? {
            for (queue, keeps_messages) in sampled_queues(lock) {
                let effects = management.policy_effects(&queue).await.ok()?;
                let harmful = effects.harmful(keeps_messages).into_iter();
                let limit = effects.token_limit.filter(|_| !lock.has_slots());
                let limited = limit.map(|to| PolicyEffect::LimitsTokens { to });
                let harmful = harmful.chain(limited);
                found.extend(harmful.map(|effect| Risk::Policy { effect, queue: queue.clone() }));
            }
        }
        Some(Risks { found, nodes_are_visible: shared.nodes.is_some() })
    }

    async fn shared(&self, management: &Management, interval: Duration) -> Arc<Shared> {
        let mut last = self.0.lock().await;
        match last.as_ref() {
            Some((at, shared)) if at.elapsed() < interval => Arc::clone(shared),
            _ => {
                let at = Instant::now();
                let (nodes, may_harm) =
                    tokio::join!(nodes::nodes(management), management.policies_may_harm());
                let shared =
                    Arc::new(Shared { nodes: nodes.ok(), policies_may_harm: may_harm.ok() });
                *last = Some((at, Arc::clone(&shared)));
                shared
            }
        }
    }
}

/// Returns the partition that this node is in.
fn partition(node: &Node) -> Option<Risk> {
    let Node { name, lost, .. } = node;
    (!lost.is_empty()).then(|| Risk::Partitioned { node: name.clone(), from: lost.clone() })
}

impl Management {
    /// Whether a policy of the virtual host has an effect that harms a lock.
    async fn policies_may_harm(&self) -> Result<bool, ManagementError> {
        for kind in ["policies", "operator-policies"] {
            let path = format!("{kind}/{}", self.vhost);
            let policies: List<Policy, MAX_POLICIES> = self.list(&path).await?;
            if policies.0.iter().any(|policy| policy.definition.effects().any()) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the effects of the policies that apply to a queue. None for a missing queue.
    pub async fn policy_effects(&self, queue: &str) -> Result<PolicyEffects, ManagementError> {
        let queue = utf8_percent_encode(queue, NON_ALPHANUMERIC);
        let path = format!("queues/{}/{queue}?columns=effective_policy_definition", self.vhost);
        let policy: Option<QueuesPolicy> = self.get(&path).await?;
        Ok(policy.map(|policy| policy.effective_policy_definition.effects()).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keys_of_a_definition_are_found_whatever_their_values() {
        let effects = |json: &str| {
            serde_json::from_str::<QueuesPolicy>(json).map(|policy| {
                let PolicyEffects { dead_letters, messages_expire, queue_expires, token_limit } =
                    policy.effective_policy_definition.effects();
                (dead_letters, messages_expire, queue_expires, token_limit)
            })
        };
        for empty in
            ["{}", r#"{"effective_policy_definition":[]}"#, r#"{"effective_policy_definition":{}}"#]
        {
            assert_eq!(effects(empty).unwrap(), (false, false, false, None), "{empty}");
        }
        let all = r#"{"effective_policy_definition":{"message-ttl":1,"max-length":3,"expires":2,"dead-letter-exchange":""}}"#;
        assert_eq!(effects(all).unwrap(), (true, true, true, Some(3)));
    }
}
