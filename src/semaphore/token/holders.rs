//! Who holds tokens, and how many wait for one: holders announce themselves, and of
//! foreign ones the management API tells which consumers have not acknowledged
//! something. How the API is asked is `management`'s.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::stream::{self, StreamExt};

use super::drain::TAG;
use crate::plan::naming::LockName;
use crate::plan::semaphore::{Holder, HolderFacts, SlotsSeen, describe_holders};
use crate::semaphore::broker::Inner;
use crate::semaphore::error::BrokerError;
use crate::semaphore::holders::{Holders, read};
use crate::semaphore::management::{Management, Owner, QueueConsumer};
use crate::semaphore::marks::escaped;

/// How long an observation waits for facts at most.
const PATIENCE: Duration = Duration::from_millis(500);

/// How long what was found out holds while something may be missing,
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// and how long something may be missing: the API knows a connection after up to 6 s,
/// and a holder announces itself after one.
const SETTLING: Duration = Duration::from_secs(12);

/// Most connections asked for in one go, and at the same time.
const MAX_OWNERS: usize = 50;
const OWNERS_AT_ONCE: usize = 8;

/// Locks that nobody asked about for this long are forgotten.
const FORGET: Duration = Duration::from_secs(600);

/// What was found out about the holders of each lock.
#[derive(Default)]
pub(super) struct Watched(Mutex<HashMap<LockName, Known>>);

/// What was found out about one lock's holders.
#[derive(Clone)]
struct Known {
    used: Instant,
    asked: Option<Instant>,
    /// When another number of them was last seen.
    changed: Instant,
    held: u32,
    list: Vec<HolderFacts>,
    error: Option<String>,
}

impl Known {
    fn new() -> Self {
        let now = Instant::now();
        Self { used: now, asked: None, changed: now, held: 0, list: Vec::new(), error: None }
    }

    /// Whether somebody is not known, or not where from.
    fn is_lacking(&self) -> bool {
        (self.list.len() as u64) < u64::from(self.held)
            || self.list.iter().any(|facts| facts.connection.is_none())
    }
}

impl Watched {
    fn lock(&self) -> MutexGuard<'_, HashMap<LockName, Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note that so many hold; whether to ask who they are.
    fn follow(&self, lock: &LockName, held: u32, interval: Duration) -> bool {
        let mut all = self.lock();
        all.retain(|_, known| known.used.elapsed() < FORGET);
        let known = all.entry(lock.clone()).or_insert_with(Known::new);
        known.used = Instant::now();
        if known.held != held {
            (known.held, known.changed) = (held, known.used);
        }
        let settling = known.error.is_none() && known.changed.elapsed() < SETTLING;
        let holds_for = if settling { ASK_AGAIN } else { interval };
        let due = known.asked.is_none_or(|asked| asked.elapsed() >= holds_for);
        if due {
            known.asked = Some(known.used);
        }
        due
    }
}

pub(super) async fn holders(
    broker: &Inner,
    lock: &LockName,
    seen: &SlotsSeen,
    slots: u32,
    limit: usize,
) -> Holders {
    let held = u32::try_from(seen.held.len()).unwrap_or(u32::MAX);
    let shown: BTreeSet<u32> = seen.held.iter().copied().take(limit).collect();
    let Some(management) = broker.facts.management() else {
        return Holders { list: describe(&shown, slots, &[]), ..Holders::default() };
    };
    let watched = &broker.tokens.watched;
    if watched.follow(lock, held, broker.options.facts_interval) && held > 0 {
        // In the background if it takes longer: then it is known the next time.
        let asking = ask(Arc::clone(management), Arc::clone(watched), lock.clone());
        let _ = tokio::time::timeout(PATIENCE, tokio::spawn(asking)).await;
    }
    let known = watched.lock().get(lock).cloned().unwrap_or_else(Known::new);
    let incomplete =
        known.error.is_none() && known.is_lacking() && known.changed.elapsed() < SETTLING;
    let list = describe(&shown, slots, &known.list);
    Holders { list, incomplete, management_error: known.error }
}

/// Holders in the terms of slots, which they don't have.
fn describe(shown: &BTreeSet<u32>, slots: u32, known: &[HolderFacts]) -> Vec<Holder> {
    let facts = |ordinal: u32| {
        let at = shown.range(..ordinal).count();
        known.get(at).cloned().unwrap_or_default()
    };
    let mut list = describe_holders(shown, slots, shown.len(), facts);
    let mut taken: BTreeSet<String> = list.iter().map(|holder| holder.id.clone()).collect();
    for holder in &mut list {
        let ordinal = holder.slot.take().unwrap_or_default();
        // Too many are a number, and nobody's in particular.
        holder.draining = false;
        let without = match &holder.connection {
            Some(name) if holder.id == format!("{name}#{ordinal}") => name.clone(),
            _ if holder.id == format!("slot-{ordinal}") => format!("token-{ordinal}"),
            _ => continue,
        };
        if taken.insert(without.clone()) {
            holder.id = without;
        }
    }
    list
}

async fn ask(management: Arc<Management>, watched: Arc<Watched>, lock: LockName) {
    let before = watched.lock().get(&lock).cloned().unwrap_or_else(Known::new);
    let asked = find(&management, &lock, &before).await;
    let mut all = watched.lock();
    let Some(known) = all.get_mut(&lock) else { return };
    match asked {
        Ok(list) => (known.list, known.error) = (list, None),
        Err(error) => known.error = Some(error),
    }
}

async fn find(
    management: &Management,
    lock: &LockName,
    before: &Known,
) -> Result<Vec<HolderFacts>, String> {
    let name = escaped(lock.as_str());
    let mut announced = management.queues_matching(&format!("^{name}-[0-9]+-B$")).await?;
    announced.sort_by(|a, b| (a.name.len(), &a.name).cmp(&(b.name.len(), &b.name)));
    let owned = stream::iter(announced.into_iter().take(MAX_OWNERS)).map(async |queue| {
        let facts = read(queue.arguments);
        let known = before.list.iter().find(|known| known.id.is_some() && known.id == facts.id);
        if let Some(known) = known.filter(|known| known.connection.is_some()) {
            return Ok(known.clone());
        }
        let owner = management.owner_of(&queue.name).await?;
        Ok::<_, String>(with_owner(facts, owner))
    });
    let owned: Vec<_> = owned.buffered(OWNERS_AT_ONCE).collect().await;
    let mut list = owned.into_iter().collect::<Result<Vec<_>, _>>()?;
    if (list.len() as u64) < u64::from(before.held) {
        list.extend(foreign(management, lock, &list).await?);
    }
    Ok(list)
}

fn with_owner(facts: HolderFacts, owner: Option<Owner>) -> HolderFacts {
    let (connection, user) = owner.map(|owner| (owner.connection, owner.user)).unzip();
    HolderFacts { connection, user: user.flatten(), ..facts }
}

/// Those who hold and didn't say so, by a consumer that has not acknowledged something.
async fn foreign(
    management: &Management,
    lock: &LockName,
    announced: &[HolderFacts],
) -> Result<Vec<HolderFacts>, String> {
    let queue = lock.token_queue();
    let (consumers, unacknowledged) =
        futures::try_join!(management.consumers_of(&queue), management.unacknowledged())?;
    let is_announced = |consumer: &QueueConsumer| {
        let name = &consumer.channel_details.connection_name;
        let given = format!("{name} - ");
        let of = |shown: &String| shown == name || shown.starts_with(&given);
        announced.iter().filter_map(|facts| facts.connection.as_ref()).any(of)
    };
    let mut holding: Vec<String> = consumers
        .into_iter()
        .filter(|consumer| consumer.consumer_tag != TAG && !is_announced(consumer))
        .filter(|consumer| holds(consumer, &unacknowledged))
        .map(|consumer| consumer.channel_details.connection_name)
        .take(MAX_OWNERS)
        .collect();
    holding.sort();
    let owned = stream::iter(holding)
        .map(async |name| with_owner(HolderFacts::default(), Some(management.owner(name).await)));
    Ok(owned.buffered(OWNERS_AT_ONCE).collect().await)
}

fn holds(consumer: &QueueConsumer, unacknowledged: &HashMap<String, u32>) -> bool {
    unacknowledged.get(&consumer.channel_details.name).is_some_and(|count| *count > 0)
}

/// How many consume without having a token; `None` where nobody tells who has one.
pub(super) async fn waiting(broker: &Inner, lock: &LockName) -> Result<Option<u32>, BrokerError> {
    let queue = lock.token_queue();
    let Some(ready) = broker.publisher().await?.ready(&queue).await? else { return Ok(None) };
    if ready.consumers == 0 || ready.free > 0 {
        return Ok(Some(0));
    }
    let Some(management) = broker.facts.management() else { return Ok(None) };
    let asking =
        futures::future::try_join(management.consumers_of(&queue), management.unacknowledged());
    let Ok((consumers, unacknowledged)) = asking.await else { return Ok(None) };
    let waiting = consumers
        .iter()
        .filter(|consumer| consumer.consumer_tag != TAG && !holds(consumer, &unacknowledged));
    Ok(u32::try_from(waiting.count()).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_is_called_by_what_it_announced_else_by_its_connection_else_by_a_number() {
        let known = |id: Option<&str>, connection: Option<&str>| HolderFacts {
            id: id.map(str::to_owned),
            connection: connection.map(str::to_owned),
            ..HolderFacts::default()
        };
        let list = [known(Some("a"), Some("c1")), known(None, Some("c2")), known(None, Some("c2"))];
        let described = describe(&(1..=5).collect(), 2, &list);
        let ids: Vec<&str> = described.iter().map(|holder| holder.id.as_str()).collect();
        assert_eq!(ids, ["a", "c2", "c2#3", "token-4", "token-5"]);
        assert!(described.iter().all(|holder| holder.slot.is_none() && !holder.draining));
    }
}
