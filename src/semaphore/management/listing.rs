//! Lists the slot queues of a virtual host by the management API. One list serves the
//! sweeps of all its locks, where probing would cost two AMQP methods per possible slot.
//! Only for observation: a change observes again, over AMQP and under the mutex. A list
//! of another cluster is not used.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::try_join;
use tokio::sync::Mutex;

use super::Management;

/// The last list. A caller that needs a newer one waits for a request that is already
/// running.
#[derive(Default)]
pub struct Listing(Mutex<Option<Listed>>);

struct Listed {
    /// When the list was requested. It lacks everything that was created later.
    at: Instant,
    /// `None`: the API returned no list, and is not asked again until this entry is old.
    of: Option<Arc<ListedQueues>>,
}

/// The slot queues listed by an API.
pub struct ListedQueues {
    /// The name of the API's own cluster.
    pub cluster: Option<String>,
    pub names: HashSet<Box<str>>,
}

impl Listing {
    /// Returns the slot queues, listed after `since` and at most `interval` ago.
    pub async fn get(
        &self,
        management: &Management,
        interval: Duration,
        since: Option<Instant>,
    ) -> Option<Arc<ListedQueues>> {
        let mut listed = self.0.lock().await;
        if listed.as_ref().is_none_or(|listed| listed.at.elapsed() >= interval) {
            let at = Instant::now();
            let asked = try_join!(management.queue_names(), management.cluster_name());
            let of = asked.ok().map(|(names, cluster)| {
                let slots = names.into_iter().filter(|name| may_be_slot(name));
                let names = slots.map(String::into_boxed_str).collect();
                Arc::new(ListedQueues { cluster, names })
            });
            *listed = Some(Listed { at, of });
        }
        let listed = listed.as_ref()?;
        listed.of.clone().filter(|_| since.is_none_or(|since| listed.at > since))
    }
}

/// Whether the name ends like that of a slot queue, in either order.
fn may_be_slot(queue: &str) -> bool {
    let numbered = |name: &str| name.ends_with(|c: char| c.is_ascii_digit());
    queue.strip_suffix("-A").is_some_and(numbered)
        || queue.trim_end_matches(|c: char| c.is_ascii_digit()).ends_with("-A-")
}
