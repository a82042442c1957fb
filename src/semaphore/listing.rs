//! Which slot queues a virtual host has, by the management API: one list serves the
//! sweeps of all its locks, where probing would cost two AMQP methods for each slot
//! that might be there. Only for looking: what is to be changed is observed again,
//! over AMQP and under the mutex.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Mutex;

use super::broker::{Broker, Inner};
use super::error::BrokerError;
use super::management::Management;
use crate::plan::naming::{LockName, Protocol};
use crate::plan::semaphore::SlotsSeen;

/// The last list. Who needs a newer one while it is asked for waits for it.
#[derive(Default)]
pub(super) struct Listing(Mutex<Option<Listed>>);

struct Listed {
    /// When it was asked for: what was made later isn't in it.
    at: Instant,
    /// None: the API gave none, and is left alone until this is old.
    queues: Option<Arc<HashSet<Box<str>>>>,
}

impl Listing {
    /// The slot queues, as of after `since` and no longer ago than `interval`.
    async fn get(
        &self,
        management: &Management,
        interval: Duration,
        since: Option<Instant>,
    ) -> Option<Arc<HashSet<Box<str>>>> {
        let mut listed = self.0.lock().await;
        if listed.as_ref().is_none_or(|listed| listed.at.elapsed() >= interval) {
            let at = Instant::now();
            let queues = management.queue_names().await.ok();
            let queues = queues.map(|names| {
                let slots = names.into_iter().filter(|name| may_be_slot(name));
                Arc::new(slots.map(String::into_boxed_str).collect())
            });
            *listed = Some(Listed { at, queues });
        }
        let listed = listed.as_ref()?;
        listed.queues.clone().filter(|_| since.is_none_or(|since| listed.at > since))
    }
}

/// Whether it ends as the names of slot queues do, in either order.
fn may_be_slot(queue: &str) -> bool {
    let numbered = |name: &str| name.ends_with(|c: char| c.is_ascii_digit());
    queue.strip_suffix("-A").is_some_and(numbered)
        || queue.trim_end_matches(|c: char| c.is_ascii_digit()).ends_with("-A-")
}

impl Inner {
    /// The slots among 1 to `slots_to` that were listed since then, where lists tell.
    async fn listed_slots(
        &self,
        lock: &LockName,
        slots_to: u32,
        since: Option<Instant>,
    ) -> Option<BTreeSet<u32>> {
        let management = self.facts.management()?;
        // Of consumers there is more to be seen than slot queues, and tokens have none.
        if !matches!(lock.protocol(), Protocol::ExclusiveQueue(_)) {
            return None;
        }
        let queues = self.listing.get(management, self.options.list_interval, since).await?;
        let exists = |slot: &u32| queues.contains(lock.slot_queue(*slot).as_str());
        Some((1..=slots_to).filter(exists).collect())
    }
}

impl Broker {
    /// [`Broker::observe`] for a look that may find drift: slots may be those of a list
    /// that is up to [`BrokerOptions::list_interval`](super::BrokerOptions) old, but not
    /// older than `since`, when they were last made or looked at. What it seems to find
    /// may have been put right meanwhile. Cancel safe.
    pub async fn sweep(
        &self,
        lock: &LockName,
        slots_to: u32,
        holders_to: u32,
        since: Option<Instant>,
    ) -> Result<SlotsSeen, BrokerError> {
        match self.inner().listed_slots(lock, slots_to, since).await {
            Some(slots) => {
                let held = self.observe(lock, 0, holders_to).await?;
                Ok(SlotsSeen { swept_to: slots_to, slots, ..held })
            }
            None => self.observe(lock, slots_to, holders_to).await,
        }
    }
}
