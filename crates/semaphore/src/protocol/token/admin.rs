//! Observes the number of tokens and converges it: publishes missing tokens and removes
//! surplus ones. Everything except observing runs under the admin mutex. See `count` for
//! the number and `drain` for surplus tokens that are held.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use lapin::options::QueueDeclareOptions;
use lockkeeper_amqp::channel::Channel;
use lockkeeper_plan::naming::{LockName, QueueType};
use lockkeeper_plan::semaphore::{Observed, ObservedTokens, TokenPlan, plan_tokens};

use super::account::Account;
use super::count::{Tokens, apart, count, queue_type, total, unknown};
use super::drain::Drains;
use super::queue::{self, Ready, arguments, release};
use crate::error::BrokerError;
use crate::protocol::fault::Fault;
use crate::protocol::mismatch;
use crate::session::access::Access;
use crate::session::change::{Change, Converged};

/// Each token that is not free is held.
fn seen(total: u32, ready: Ready) -> ObservedTokens {
    ObservedTokens { total, held: total.saturating_sub(ready.free) }
}

/// Observes the tokens without changes.
pub async fn observe(
    access: &Access,
    tokens: &Tokens,
    lock: &LockName,
) -> Result<ObservedTokens, BrokerError> {
    let ready = queue::ready(&mut access.publisher().await?, &lock.token_queue()).await?;
    let Some(ready) = ready else { return Ok(ObservedTokens::default()) };
    let ours = tokens.account(lock, |account| account.ours(Instant::now(), apart(lock)));
    let total = match ours {
        Some(total) => total,
        // At least the free tokens exist, however old or foreign the figures are.
        None => total(access, lock).await?.max(ready.free),
    };
    Ok(seen(total, ready))
}

/// Returns the tokens, counted as those that a running drain will leave.
pub async fn survey(
    (tokens, drains): (&Tokens, &Drains),
    change: &Change,
    channel: &mut Channel,
) -> Result<ObservedTokens, BrokerError> {
    mismatch::check(&change.access, &change.lock, &BTreeSet::new(), 0).await?;
    let Some(ready) = queue::ready(channel, &change.lock.token_queue()).await? else {
        return Ok(ObservedTokens::default());
    };
    let total = match drains.desired(&change.lock) {
        Some(desired) => desired,
        None => count(tokens, change, channel, None).await?,
    };
    Ok(seen(total, ready))
}

/// Applies the change.
pub async fn apply(
    (tokens, drains): (&Arc<Tokens>, &Drains),
    change: &Change,
    channel: &mut Channel,
) -> Result<Converged, BrokerError> {
    let (access, lock) = (&change.access, &change.lock);
    let (queue, desired) = (lock.token_queue(), change.desired.slots);
    change.check_cancelled(channel)?;
    let none = BTreeSet::new();
    if change.destroy {
        mismatch::check_removal(access, lock, &none, 0).await?;
    } else {
        mismatch::check(access, lock, &none, 0).await?;
    }
    // The drain has another target. Its token must be free again.
    drains.stop(lock).await;
    let mut done = Converged {
        seen: Observed::Counted(ObservedTokens::default()),
        declared: 0,
        deleted: 0,
        seeded: 0,
        waiting: None,
        left: 0,
        mutex_wait: change.mutex_wait,
    };
    if queue::ready(channel, &queue).await?.is_none() {
        tokens.forget(lock);
        if change.destroy {
            return Ok(done);
        }
        let version = access.identity().await?.version;
        change.check_cancelled(channel)?;
        let arguments = arguments(queue_type(lock), release(&version));
        channel.declare(&queue, QueueDeclareOptions::durable(), arguments).await?;
        tokens.account(lock, |account| account.changed(0, Instant::now()));
    }
    let total;
    (total, done.declared, done.deleted) = set_number(tokens, change, channel).await?;
    done.left = total.saturating_sub(desired);
    if change.destroy && total == 0 {
        tokens.forget(lock);
        if !queue::delete_tokens(channel, &queue, queue_type(lock)).await? {
            return Err(unknown(lock, "another client has published one concurrently"));
        }
        return Ok(done);
    }
    if done.left > 0 {
        drains.start(access, tokens, lock, change.desired);
    }
    if let Some(ready) = queue::ready(channel, &queue).await? {
        done.seen = Observed::Counted(seen(total, ready));
    }
    Ok(done)
}

/// Publishes missing tokens, or removes surplus ones that are free. Returns the number of tokens
/// after that, and how many were published and removed.
async fn set_number(
    tokens: &Tokens,
    change: &Change,
    channel: &mut Channel,
) -> Result<(u32, u32, u32), BrokerError> {
    let (lock, desired) = (&change.lock, change.desired.slots);
    let total = count(tokens, change, channel, Some(desired)).await?;
    change.check_cancelled(channel)?;
    if total != desired {
        // Until the outcome of the change is known.
        tokens.account(lock, Account::forget);
    }
    let plan = plan_tokens(desired, total);
    let (total, added, removed) = if plan.add > 0 {
        add(tokens, change, channel, total).await?;
        (desired, plan.add, 0)
    } else if plan.remove > 0 {
        let removed = queue::remove_free(channel, &lock.token_queue(), plan.remove).await?;
        (total - removed, 0, removed)
    } else {
        (total, 0, 0)
    };
    if added > 0 || removed > 0 {
        tokens.account(lock, |account| account.changed(total, Instant::now()));
    }
    Ok((total, added, removed))
}

/// Publishes the tokens that are missing from `total`. A confirm only shows that the queue
/// received a token: with a policy it may drop it, or another one.
async fn add(
    tokens: &Tokens,
    change: &Change,
    channel: &mut Channel,
    total: u32,
) -> Result<(), BrokerError> {
    let (queue, desired) = (change.lock.token_queue(), change.desired.slots);
    let limited = |kept: u64| {
        let queue = queue.clone();
        BrokerError::TokensLimited { queue, kept, desired }
    };
    let effects = match &change.access.management {
        Some(management) => management.policy_effects(&queue).await.ok(),
        None => None,
    };
    if let Some(kept) = effects.and_then(|effects| effects.token_limit)
        && kept < desired.into()
    {
        return Err(limited(kept));
    }
    let free = |ready: Option<Ready>| ready.map_or(0, |ready| ready.free);
    let before = free(queue::ready(channel, &queue).await?);
    let count_of_new = desired.saturating_sub(total);
    let first_id = tokens.new_ids(count_of_new);
    let accepted = queue::publish_tokens(channel, &queue, first_id, count_of_new).await?;
    let after = free(queue::ready(channel, &queue).await?);
    // Clients may have taken some. The figure of a quorum queue is seconds old.
    let is_certain = after >= before.saturating_add(count_of_new)
        || effects.is_some_and(|effects| !effects.any())
            && queue_type(&change.lock) == QueueType::Quorum;
    if accepted && is_certain {
        return Ok(());
    }
    match count(tokens, change, channel, Some(desired)).await? {
        kept if kept < desired => Err(limited(kept.into())),
        _ => Ok(()),
    }
}

/// Lists the faults of the lock. Changes nothing.
pub async fn check(
    (tokens, drains): (&Tokens, &Drains),
    change: &Change,
    channel: &mut Channel,
    slots: Option<u32>,
) -> Result<Vec<Fault>, BrokerError> {
    let mismatch = mismatch::check(&change.access, &change.lock, &BTreeSet::new(), 0).await;
    if let Some(fault) = Fault::of_protocol(mismatch)? {
        return Ok(vec![fault]);
    }
    if channel.look(&change.lock.token_queue()).await?.is_none() {
        return Ok(vec![Fault::Absent]);
    }
    let total = match drains.desired(&change.lock) {
        Some(desired) if slots.is_none() => desired,
        _ => match count(tokens, change, channel, slots).await {
            Ok(total) => total,
            Err(BrokerError::IncompatibleQueue { why, .. }) => {
                return Ok(vec![Fault::ForeignTokenQueue { why }]);
            }
            Err(error) => return Err(error),
        },
    };
    let TokenPlan { add, remove } = plan_tokens(slots.unwrap_or(total), total);
    if (add, remove) == (0, 0) {
        return Ok(Vec::new());
    }
    Ok(vec![Fault::TokenCount { missing: add, surplus: remove }])
}
