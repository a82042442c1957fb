//! Who waits for a lock: the consumers of its wait queue, or of its tokens, as the
//! management API lists them. How many wait is told by the broker itself, see
//! [`Broker::waiting`]; those who only look from time to time are in neither.

use std::collections::HashMap;

use super::broker::Broker;
use super::holders::read;
use super::management::ListedConsumer;
use super::token::is_our_drain;
use crate::plan::clean_text;
use crate::plan::naming::LockName;

/// Most connections asked for.
const MAX_OWNERS: usize = 50;

/// Longest text shown, in bytes.
const MAX_TEXT: usize = 128;

/// Who waits for a slot. All of it is what clients say, made fit to be shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Waiter {
    /// The name of its consumer, which the client chose.
    pub id: String,
    /// Who, in the client's words.
    pub identity: Option<String>,
    /// Those with a higher one are served first.
    pub priority: i64,
    /// The broker's name for its connection, with the client's own for it.
    pub connection: Option<String>,
    /// That connection's user, where we may see it.
    pub user: Option<String>,
}

impl Broker {
    /// Who waits for `lock`, the first to be served first; `None` without a management
    /// API. What the API tells is some seconds old. Cancel safe.
    ///
    /// # Errors
    ///
    /// Why the API didn't answer.
    pub async fn waiters(&self, lock: &LockName) -> Result<Option<Vec<Waiter>>, String> {
        let Some(management) = self.inner().facts.management() else { return Ok(None) };
        let wait_queue = lock.wait_queue();
        // Those of amqp-locks-python only look from time to time.
        if wait_queue.is_none() && lock.has_slots() {
            return Ok(Some(Vec::new()));
        }
        // Tokens are waited for in their own queue, as they are held.
        let holding = match wait_queue {
            Some(_) => HashMap::new(),
            None => management.unacknowledged().await?,
        };
        let queue = wait_queue.unwrap_or_else(|| lock.token_queue());
        let waits = |consumer: &ListedConsumer| {
            let holds = consumer.channel().and_then(|channel| holding.get(channel));
            consumer.queue.name == queue
                && !is_our_drain(&consumer.consumer_tag)
                && holds.is_none_or(|unacknowledged| *unacknowledged == 0)
        };
        let consumers = management.consumers().await?;
        let mut waiters = Vec::new();
        for consumer in consumers.iter().filter(|consumer| waits(consumer)) {
            let arguments = consumer.arguments();
            let priority = arguments.get("x-priority").and_then(serde_json::Value::as_i64);
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
        waiters.sort_by_key(|waiter| std::cmp::Reverse(waiter.priority));
        Ok(Some(waiters))
    }
}
