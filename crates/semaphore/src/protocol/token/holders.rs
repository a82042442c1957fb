//! The holders of tokens, and the number of waiters. Holders of this project announce
//! themselves. For foreign ones, the management API lists the consumers with
//! unacknowledged messages. See `management` for the requests.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::stream::{self, StreamExt};
use lockkeeper_plan::naming::LockName;
use lockkeeper_plan::semaphore::{Holder, HolderFacts, describe_holders};

use super::queue::{self, DRAIN_TAG};
use crate::error::BrokerError;
use crate::management::{Management, ManagementError, Owner, QueueConsumer, escaped, read};
use crate::protocol::holders::{ASK_AGAIN, FORGET, Holders, MAX_OWNERS, OWNERS_AT_ONCE, PATIENCE};
use crate::session::access::Access;

/// How long some may be missing. The API lists a connection after up to 6 s, and a holder
/// announces itself after one.
const SETTLING: Duration = Duration::from_secs(12);

/// The cached holders of each lock.
#[derive(Default)]
pub struct Watched(Mutex<HashMap<LockName, Known>>);

/// The cached holders of one lock.
#[derive(Clone)]
struct Known {
    used: Instant,
    asked: Option<Instant>,
    /// When the number of holders last changed.
    changed: Instant,
    held: u32,
    list: Vec<HolderFacts>,
    error: Option<ManagementError>,
}

impl Known {
    fn new() -> Self {
        let now = Instant::now();
        Self { used: now, asked: None, changed: now, held: 0, list: Vec::new(), error: None }
    }

    /// Whether a holder or its connection is unknown.
    fn is_lacking(&self) -> bool {
        (self.list.len() as u64) < u64::from(self.held)
            || self.list.iter().any(|facts| facts.connection.is_none())
    }
}

impl Watched {
    fn lock(&self) -> MutexGuard<'_, HashMap<LockName, Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the number of holders. Returns whether to request their facts.
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

pub async fn holders(
    access: &Access,
    watched: &Arc<Watched>,
    lock: &LockName,
    held: u32,
    limit: usize,
) -> Holders {
    let shown = held.min(u32::try_from(limit).unwrap_or(u32::MAX));
    let Some(management) = &access.management else {
        return Holders { list: describe(shown, &[]), ..Holders::default() };
    };
    if watched.follow(lock, held, access.options.facts_interval) && held > 0 {
        // Continues in the background after the limit, and is then available to the next
        // observation.
        let asking = ask(Arc::clone(management), Arc::clone(watched), lock.clone());
        let _ = tokio::time::timeout(PATIENCE, tokio::spawn(asking)).await;
    }
    let known = watched.lock().get(lock).cloned().unwrap_or_else(Known::new);
    let incomplete =
        known.error.is_none() && known.is_lacking() && known.changed.elapsed() < SETTLING;
    let list = describe(shown, &known.list);
    Holders { list, incomplete, management_error: known.error }
}

/// Describes this number of holders like those of slots, and removes the slot numbers,
/// which tokens don't have. No particular holder is draining.
fn describe(shown: u32, known: &[HolderFacts]) -> Vec<Holder> {
    let mut facts = known.iter().cloned();
    let ordinals = (1..=shown).collect();
    let mut list =
        describe_holders(&ordinals, shown, ordinals.len(), |_| facts.next().unwrap_or_default());
    let mut taken: BTreeSet<String> = list.iter().map(|holder| holder.id.clone()).collect();
    for holder in &mut list {
        let ordinal = holder.slot.take().unwrap_or_default();
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
) -> Result<Vec<HolderFacts>, ManagementError> {
    let name = escaped(lock.as_str());
    let mut announced = management.queues_matching(&format!("^{name}-[0-9]+-B$")).await?;
    announced.sort_by(|a, b| (a.name.len(), &a.name).cmp(&(b.name.len(), &b.name)));
    let owned = stream::iter(announced.into_iter().take(MAX_OWNERS)).map(async |queue| {
        let facts = read(&queue.arguments);
        let known = before.list.iter().find(|known| known.id.is_some() && known.id == facts.id);
        if let Some(known) = known.filter(|known| known.connection.is_some()) {
            return Ok(known.clone());
        }
        let owner = management.owner_of(&queue.name).await?;
        Ok::<_, ManagementError>(with_owner(facts, owner))
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

/// Returns holders that did not announce themselves, found by a consumer with an
/// unacknowledged message.
async fn foreign(
    management: &Management,
    lock: &LockName,
    announced: &[HolderFacts],
) -> Result<Vec<HolderFacts>, ManagementError> {
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
        .unwrap_or_default()
        .into_iter()
        .filter(|consumer| consumer.consumer_tag != DRAIN_TAG && !is_announced(consumer))
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

/// Counts consumers without a token. `None` without a management API, which would show
/// the holders.
pub async fn waiting(access: &Access, lock: &LockName) -> Result<Option<u32>, BrokerError> {
    let name = lock.token_queue();
    let Some(ready) = queue::ready(&mut access.publisher().await?, &name).await? else {
        return Ok(None);
    };
    if ready.consumers == 0 || ready.free > 0 {
        return Ok(Some(0));
    }
    let Some(management) = &access.management else { return Ok(None) };
    let asking =
        futures::future::try_join(management.consumers_of(&name), management.unacknowledged());
    let Ok((Some(consumers), unacknowledged)) = asking.await else { return Ok(None) };
    let waiting = consumers
        .iter()
        .filter(|consumer| consumer.consumer_tag != DRAIN_TAG && !holds(consumer, &unacknowledged));
    Ok(u32::try_from(waiting.count()).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_is_identified_by_its_id_else_its_connection_else_a_number() {
        let known = |id: Option<&str>, connection: Option<&str>| HolderFacts {
            id: id.map(str::to_owned),
            connection: connection.map(str::to_owned),
            ..HolderFacts::default()
        };
        let list = [known(Some("a"), Some("c1")), known(None, Some("c2")), known(None, Some("c2"))];
        let described = describe(5, &list);
        let ids: Vec<&str> = described.iter().map(|holder| holder.id.as_str()).collect();
        assert_eq!(ids, ["a", "c2", "c2#3", "token-4", "token-5"]);
        assert!(described.iter().all(|holder| holder.slot.is_none() && !holder.draining));
    }
}
