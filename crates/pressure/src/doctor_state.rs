//! What the doctors of one store share: the limit of guards, and the last list of the
//! server's connections. One list serves all queues that request it within some time. See
//! `doctor` for how both are used.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lockkeeper_plan::clean_text;
use lockkeeper_plan::pressure_queue::doctor::{Connection, OWN_CONNECTIONS};
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// Maximum number of concurrent guards of one store. Each is a connection. A queue
/// without a free guard loses little: the guards belong to queues whose possible holders
/// are connected, and these connections prevent the release of its own role too.
const MOST_GUARDS: usize = 32;

/// The state shared by all doctors of one store.
pub struct DoctorState {
    pub guards: Arc<Semaphore>,
    pub refused: Mutex<Option<Instant>>,
    pub listings: Listings,
}

impl Default for DoctorState {
    fn default() -> Self {
        let guards = Arc::new(Semaphore::new(MOST_GUARDS));
        Self { guards, refused: Mutex::default(), listings: Listings::default() }
    }
}

/// Name prefix of the connections that watch keys.
pub const WATCHING: &str = "lockkeeper/watch-";

/// Maximum age of a list that is still of use.
const KEPT: Duration = Duration::from_mins(5);

/// The connections of one server at one moment.
pub struct Listing {
    /// A moment before the request.
    pub asked: Instant,
    /// All connections except Lockkeeper's. `None` if the ACL does not allow the list.
    pub others: Option<Arc<[Connection]>>,
    /// Lockkeeper's connections that watch keys, by name, and whether any of the keys was
    /// changed since.
    guards: HashMap<String, bool>,
    /// The number in the store of the connection that sent the request.
    over: Option<u64>,
}

impl Listing {
    pub fn new(asked: Instant, over: Option<u64>) -> Self {
        Self { asked, others: None, guards: HashMap::new(), over }
    }

    /// Parses the server's answer.
    pub fn read(&mut self, list: &str) {
        let mut others = Vec::new();
        for line in list.lines() {
            let Some((connection, is_touched)) = connection(line) else { continue };
            if connection.name.starts_with(WATCHING) {
                self.guards.insert(connection.name, is_touched);
            } else if !connection.name.starts_with(OWN_CONNECTIONS) {
                others.push(connection);
            }
        }
        self.others = Some(others.into());
    }

    /// Whether the connection of this name watches keys of this server that are
    /// unchanged.
    pub fn is_untouched(&self, name: &str) -> bool {
        self.guards.get(name) == Some(&false)
    }
}

/// The last list of each server of a store.
#[derive(Default)]
pub struct Listings {
    last: Mutex<Vec<Arc<Listing>>>,
    /// Held during a request, so that concurrent callers share one list.
    pub flight: tokio::sync::Mutex<()>,
}

impl Listings {
    pub fn known(&self, over: Option<u64>, most: Duration) -> Option<Arc<Listing>> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let is_it = |one: &&Arc<Listing>| one.over == over && one.asked.elapsed() < most;
        last.iter().find(is_it).cloned()
    }

    pub fn remember(&self, listing: Listing) -> Arc<Listing> {
        let listing = Arc::new(listing);
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.retain(|one| one.over != listing.over && one.asked.elapsed() < KEPT);
        last.push(Arc::clone(&listing));
        listing
    }
}

/// Parses one line of `CLIENT LIST`, and whether a key that it watches was changed.
/// `None` if it has no number.
fn connection(line: &str) -> Option<(Connection, bool)> {
    let get = |wanted: &str| {
        line.split(' ').filter_map(|field| field.split_once('=')).find(|(key, _)| *key == wanted)
    };
    let text = |wanted| get(wanted).map(|(_, value)| value).unwrap_or_default();
    let flags = text("flags");
    // With RESP3 a subscriber may send any other command too.
    let is_subscriber = flags.contains('P') && text("resp") != "3";
    let connection = Connection {
        id: text("id").parse().ok()?,
        address: clean_text(text("addr"), 64),
        name: clean_text(text("name"), 64),
        age: Duration::from_secs(text("age").parse().unwrap_or_default()),
        database: text("db").parse().unwrap_or_default(),
        only_listens: is_subscriber || flags.contains(['S', 'M', 'O']),
    };
    Some((connection, flags.contains('d')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listed_connection_is_read_also_without_the_fields_of_newer_servers() {
        let old = connection("id=7 addr=[::1]:5 fd=8 name=a age=3 idle=0 flags=b db=2 cmd=brpop");
        let (old, _) = old.unwrap();
        assert_eq!((old.id, old.database, old.only_listens), (7, 2, false));
        assert_eq!((old.address.as_str(), old.name.as_str()), ("[::1]:5", "a"));
        assert_eq!(old.age, Duration::from_secs(3));
        assert_eq!(connection(""), None);
        assert_eq!(connection("txt:whatever"), None);
    }

    #[test]
    fn replicas_monitors_and_subscribers_only_listen_but_not_those_that_may_do_more() {
        let listens = |rest: &str| connection(&format!("id=1 {rest}")).unwrap().0.only_listens;
        for flags in ["S", "SO", "M", "O", "P"] {
            assert!(listens(&format!("flags={flags} resp=2")), "{flags}");
        }
        for rest in ["flags=P resp=3", "flags=N", "flags=b", "flags=x", "flags=e"] {
            assert!(!listens(rest), "{rest}");
        }
    }

    #[test]
    fn a_guard_is_untouched_while_it_is_listed_without_the_mark_of_a_change() {
        let mut listing = Listing::new(Instant::now(), None);
        listing.read(
            "id=1 name=lockkeeper/watch-a flags=N\nid=2 name=lockkeeper/watch-b flags=d\n\
             id=3 name=lockkeeper/operator flags=N\nid=4 name= flags=b\n",
        );
        assert!(listing.is_untouched("lockkeeper/watch-a"));
        for name in ["lockkeeper/watch-b", "lockkeeper/watch-c", "lockkeeper/operator"] {
            assert!(!listing.is_untouched(name), "{name}");
        }
        let others: Vec<u64> = listing.others.unwrap().iter().map(|other| other.id).collect();
        assert_eq!(others, [4]);
    }
}
