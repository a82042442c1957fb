//! Lists the waiters of a lock: the consumers of its wait queue, or of its tokens, from
//! the management API. The broker itself returns their number, see
//! [`Broker::waiting`](crate::Broker::waiting).
//! Clients that only poll are in neither.

use std::cmp::Reverse;

use lockkeeper_plan::clean_text;

use crate::management::{ListedConsumer, Management, ManagementError, read};

/// Maximum number of connections requested.
const MAX_OWNERS: usize = 50;

/// Prefix of the consumer tag by which a holder consumes its own wake-up. It does not wait.
pub const KEEPER: &str = "lockkeeper-keeps-";

/// Maximum length of a displayed text, in bytes.
const MAX_TEXT: usize = 128;

/// A client that waits for a slot. All fields are client input, sanitized for display.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Waiter {
    /// The consumer tag, which the client chose.
    pub id: String,
    /// The client's identity, as given by the client.
    pub identity: Option<String>,
    /// Waiters with a higher priority are served first.
    pub priority: i64,
    /// The broker's name for its connection, with the name chosen by the client.
    pub connection: Option<String>,
    /// That connection's user, if this user may see it.
    pub user: Option<String>,
}

/// Whether this consumer of a wait queue waits for a slot.
pub fn waits(consumer: &ListedConsumer) -> bool {
    !consumer.consumer_tag.starts_with(KEEPER)
}

/// Lists those consumers of the queue that wait, in the order in which they are served.
pub async fn of_queue(
    management: &Management,
    queue: &str,
    waits: impl Fn(&ListedConsumer) -> bool,
) -> Result<Vec<Waiter>, ManagementError> {
    let consumers = management.consumers().await?;
    let mut waiters = Vec::new();
    for consumer in consumers.iter().filter(|one| one.queue.name == queue && waits(one)) {
        let arguments = &consumer.arguments;
        let priority = arguments.get("x-priority").and_then(|priority| priority.parse().ok());
        let mut waiter = Waiter {
            id: clean_text(&consumer.consumer_tag, MAX_TEXT),
            identity: read(arguments).identity.map(|text| clean_text(&text, MAX_TEXT)),
            priority: priority.unwrap_or(0),
            ..Waiter::default()
        };
        if let Some(name) = consumer.connection() {
            if waiters.len() < MAX_OWNERS {
                let owner = management.owner(name).await;
                waiter.connection = Some(clean_text(&owner.connection, MAX_TEXT));
                waiter.user = owner.user.map(|user| clean_text(&user, MAX_TEXT));
            } else {
                waiter.connection = Some(clean_text(&name, MAX_TEXT));
            }
        }
        waiters.push(waiter);
    }
    waiters.sort_by_key(|waiter| Reverse(waiter.priority));
    Ok(waiters)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_holder_that_consumes_its_own_wake_up_is_no_waiter() {
        let listed = |tag: &str| {
            let listed = json!({"queue": {"name": "ci.deploy-W"}, "consumer_tag": tag});
            serde_json::from_value::<ListedConsumer>(listed).unwrap()
        };
        assert!(waits(&listed("lockkeeper-4fz")) && waits(&listed("keeps")));
        assert!(!waits(&listed(&format!("{KEEPER}4fz"))));
    }
}
