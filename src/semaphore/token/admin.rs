//! How many tokens there are, and making it as many as wished: publishing those that
//! are missing, removing those that are too many. All of it under the admin mutex, but
//! for looking. What is held is waited for by `drain`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use lapin::options::QueueDeclareOptions;

use super::account::{Account, Look};
use super::drain::Drains;
use super::holders::Watched;
use super::queue::{Ready, arguments, release};
use crate::plan::naming::{LockName, MAX_SLOTS, Protocol, QueueType};
use crate::plan::semaphore::SlotsSeen;
use crate::semaphore::broker::{Broker, Inner};
use crate::semaphore::check::Fault;
use crate::semaphore::converge::{Change, Converged};
use crate::semaphore::error::BrokerError;
use crate::semaphore::lane::Lane;
use crate::semaphore::management::Totals;

/// How far apart two looks must be that are to be relied on, of a classic queue, which
/// the management API asks itself,
const CLASSIC_APART: Duration = Duration::from_millis(250);

/// and of a quorum queue, of which it knows what was up to 5.2 s ago.
const QUORUM_APART: Duration = Duration::from_secs(6);

/// Longest that two looks are waited for to see the same.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a handle on a broker keeps of its locks of protocol Token.
#[derive(Default)]
pub(in crate::semaphore) struct Tokens {
    accounts: Mutex<HashMap<LockName, Account>>,
    pub(super) drains: Drains,
    last_id: Mutex<u64>,
    pub(super) watched: Arc<Watched>,
}

impl Tokens {
    pub(super) fn account<T>(&self, lock: &LockName, with: impl FnOnce(&mut Account) -> T) -> T {
        let mut accounts = self.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        with(accounts.entry(lock.clone()).or_default())
    }

    fn forget(&self, lock: &LockName) {
        self.accounts.lock().unwrap_or_else(PoisonError::into_inner).remove(lock);
    }

    /// The first of `count` ids that no token has.
    fn new_ids(&self, count: u32) -> u64 {
        let now = u64::try_from(jiff::Timestamp::now().as_microsecond()).unwrap_or_default();
        let mut last = self.last_id.lock().unwrap_or_else(PoisonError::into_inner);
        let first = now.max(last.saturating_add(1));
        *last = first.saturating_add(count.into());
        first
    }
}

fn queue_type(lock: &LockName) -> QueueType {
    match lock.protocol() {
        Protocol::Token(queue_type) => queue_type,
        _ => QueueType::Classic,
    }
}

pub(super) fn apart(lock: &LockName) -> Duration {
    match queue_type(lock) {
        QueueType::Classic => CLASSIC_APART,
        QueueType::Quorum => QUORUM_APART,
    }
}

/// Tokens in the terms of slots: as many as there are, and as many of them held as are
/// not free. Which ordinal is whose means nothing.
fn seen(total: u32, ready: Ready) -> SlotsSeen {
    let held = total.saturating_sub(ready.free);
    SlotsSeen {
        swept_to: MAX_SLOTS.max(total),
        slots: (1..=total).collect(),
        held: (1..=held).collect(),
        ..SlotsSeen::default()
    }
}

fn nothing() -> SlotsSeen {
    seen(0, Ready { free: 0, consumers: 0 })
}

/// Looks without changing anything.
pub(super) async fn observe(broker: &Inner, lock: &LockName) -> Result<SlotsSeen, BrokerError> {
    let ready = broker.publisher().await?.ready(&lock.token_queue()).await?;
    let Some(ready) = ready else { return Ok(nothing()) };
    let ours = broker.tokens.account(lock, |account| account.ours(Instant::now(), apart(lock)));
    let total = match ours {
        Some(total) => total,
        None => total(broker, lock).await?,
    };
    Ok(seen(total, ready))
}

/// What the management API says, which may be old.
async fn total(broker: &Inner, lock: &LockName) -> Result<u32, BrokerError> {
    let queue = lock.token_queue();
    let unknown =
        |why: &str| BrokerError::CountUnknown { queue: queue.clone(), why: why.to_owned() };
    let management = broker.facts.management().ok_or_else(|| unknown("the connection has none"))?;
    let totals = management.totals(&queue).await.map_err(|why| unknown(&why))?;
    let Some(Totals { kind, messages, .. }) = totals else {
        return Err(unknown("it does not know the queue yet, or may not show it to this user"));
    };
    let wanted = match queue_type(lock) {
        QueueType::Classic => "classic",
        QueueType::Quorum => "quorum",
    };
    if let Some(kind) = kind.filter(|kind| kind != wanted) {
        let why = format!(
            "it is a {kind} queue where a {wanted} one is wished for; without a type, the virtual host's default is made"
        );
        return Err(BrokerError::IncompatibleQueue { queue, why });
    }
    messages.ok_or_else(|| unknown("it has no figures for the queue yet"))
}

/// How many tokens there are, for a change that depends on it; one look is enough if it
/// sees `enough`. Only under the mutex: so nobody else changes it.
pub(super) async fn count(
    change: &Change,
    lane: &Lane,
    enough: Option<u32>,
) -> Result<u32, BrokerError> {
    let (broker, lock) = (&change.broker, &change.lock);
    let (apart, start) = (apart(lock), Instant::now());
    if let Some(ours) = broker.tokens.account(lock, |account| account.ours(start, apart)) {
        return Ok(ours);
    }
    broker.tokens.account(lock, Account::begin);
    loop {
        change.go_on(lane)?;
        let total = total(broker, lock).await?;
        if enough == Some(total) {
            return Ok(total);
        }
        let seen =
            broker.tokens.account(lock, |account| account.look(total, Instant::now(), apart));
        match seen {
            Look::Settled(total) => return Ok(total),
            Look::Again(_) if start.elapsed() > PATIENCE => {
                let why = "two looks never saw the same".to_owned();
                return Err(BrokerError::CountUnknown { queue: lock.token_queue(), why });
            }
            Look::Again(after) => change.pause(after).await?,
        }
    }
}

/// How many there are, or are to be once those are gone that a drain waits for.
pub(super) async fn survey(
    change: &Change,
    lane: &mut Lane,
) -> Result<(u32, SlotsSeen), BrokerError> {
    let Some(ready) = lane.ready(&change.lock.token_queue()).await? else {
        return Ok((0, nothing()));
    };
    let total = match change.broker.tokens.drains.wish(&change.lock) {
        Some(wish) => wish,
        None => count(change, lane, None).await?,
    };
    Ok((total, seen(total, ready)))
}

/// Makes it as the change wishes.
pub(super) async fn make(change: &Change, lane: &mut Lane) -> Result<Converged, BrokerError> {
    let (broker, lock) = (&change.broker, &change.lock);
    let (queue, wish) = (lock.token_queue(), change.wish.slots);
    change.go_on(lane)?;
    // It has another wish in mind; and what it has taken is to be free again.
    broker.tokens.drains.stop(lock).await;
    let mut done = Converged {
        seen: nothing(),
        declared: 0,
        deleted: 0,
        seeded: 0,
        waiting: None,
        left: 0,
        mutex_wait: change.mutex_wait,
    };
    if lane.ready(&queue).await?.is_none() {
        broker.tokens.forget(lock);
        if change.is_destruction() {
            return Ok(done);
        }
        let version = Broker::of(Arc::clone(broker)).identity().await?.version;
        change.go_on(lane)?;
        let arguments = arguments(queue_type(lock), release(&version));
        lane.declare(&queue, QueueDeclareOptions::durable(), arguments).await?;
        broker.tokens.account(lock, |account| account.changed(0, Instant::now()));
    }
    let mut total = count(change, lane, Some(wish)).await?;
    change.go_on(lane)?;
    if total != wish {
        // Until it is known what the change came to.
        broker.tokens.account(lock, Account::forget);
    }
    if total < wish {
        let count = wish - total;
        lane.publish_tokens(&queue, broker.tokens.new_ids(count), count).await?;
        (done.declared, total) = (count, wish);
    } else if total > wish {
        done.deleted = lane.remove_free(&queue, total - wish).await?;
        total -= done.deleted;
    }
    if done.declared > 0 || done.deleted > 0 {
        broker.tokens.account(lock, |account| account.changed(total, Instant::now()));
    }
    done.left = total.saturating_sub(wish);
    if change.is_destruction() && total == 0 {
        broker.tokens.forget(lock);
        if !lane.delete_tokens(&queue, queue_type(lock)).await? {
            let why = "somebody has published one meanwhile".to_owned();
            return Err(BrokerError::CountUnknown { queue, why });
        }
        return Ok(done);
    }
    if done.left > 0 {
        broker.tokens.drains.start(broker, lock, change.wish);
    }
    let ready = lane.ready(&queue).await?;
    done.seen = ready.map_or_else(nothing, |ready| seen(total, ready));
    Ok(done)
}

/// What is wrong with it. Changes nothing.
pub(super) async fn check(
    change: &Change,
    lane: &mut Lane,
    slots: Option<u32>,
) -> Result<Vec<Fault>, BrokerError> {
    let exists = lane.look(&change.lock.token_queue()).await?.is_some();
    let total = match (exists, change.broker.tokens.drains.wish(&change.lock)) {
        (false, _) => 0,
        (true, Some(wish)) if slots.is_none() => wish,
        (true, _) => match count(change, lane, slots).await {
            Ok(total) => total,
            Err(BrokerError::IncompatibleQueue { why, .. }) => {
                return Ok(vec![Fault::Foreign { slot: 1, why }]);
            }
            Err(error) => return Err(error),
        },
    };
    let slots = slots.unwrap_or(total);
    let missing = (total + 1..=slots).map(|slot| Fault::Missing { slot });
    Ok(missing.chain((slots + 1..=total).map(|slot| Fault::Stray { slot })).collect())
}
