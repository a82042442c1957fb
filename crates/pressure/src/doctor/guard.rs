//! A connection that watches the keys of one subject of one queue by `WATCH`, and applies
//! a repair by `EXEC`. The server thus detects whether any client has touched the keys in
//! between, however often and over any connection.

use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper_plan::naming::QueueName;
use lockkeeper_plan::pressure_queue::QueueRole;
use lockkeeper_plan::pressure_queue::doctor::{Guarded, Subject};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use super::super::connection::Connection;
use super::super::doctor_state::{Listing, WATCHING};
use super::super::reply::Verdict;
use super::super::scripts::Call;
use super::super::store::first_refusal;
use super::super::{Store, StoreError, scripts};
use super::keys::{CONSUMER, CONSUMER_FREE, PRODUCER, PRODUCER_FREE};

/// Time after which a guard is tried again, if the ACL refused one.
const REFUSAL_LASTS: Duration = Duration::from_mins(1);

/// The number of the last guard.
static NUMBERS: AtomicU64 = AtomicU64::new(0);

/// Watched keys.
pub(super) struct Guard {
    pub(super) subject: Subject,
    number: u64,
    /// A moment after the server started to watch.
    since: Instant,
    name: String,
    connection: Connection,
    /// Its permit from the store's limit of guards.
    _place: OwnedSemaphorePermit,
}

impl Guard {
    /// Starts to watch, or returns why that is not possible. A failure is not an error:
    /// the queue itself can be observed, and the next observation tries again.
    pub(super) async fn set(
        store: &Store,
        queue: &QueueName,
        subject: Subject,
    ) -> Result<Self, Guarded> {
        let shared = store.shared();
        let refused = || shared.refused.lock().unwrap_or_else(PoisonError::into_inner);
        if refused().is_some_and(|at| at.elapsed() < REFUSAL_LASTS) {
            return Err(Guarded::Forbidden);
        }
        let Ok(place) = shared.guards.clone().try_acquire_owned() else {
            return Err(Guarded::NotYet);
        };
        let name = format!("{WATCHING}{:016x}", rand::random::<u64>());
        match watch(store, queue, subject, &name).await {
            Ok(connection) => {
                let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
                let since = Instant::now();
                Ok(Self { subject, number, since, name, connection, _place: place })
            }
            Err(StoreError::PermissionDenied { .. } | StoreError::Protocol { .. }) => {
                *refused() = Some(Instant::now());
                Err(Guarded::Forbidden)
            }
            Err(error) => {
                tracing::debug!(%error, %queue, "can't be watched for now");
                Err(Guarded::NotYet)
            }
        }
    }

    /// Whether it is the guard of this number over this subject.
    pub(super) fn is(&self, subject: Subject, number: u64) -> bool {
        self.subject == subject && self.number == number
    }

    /// Combines the state of the guard and a list of the server's connections.
    pub(super) async fn state(&mut self, listing: &Listing) -> Guarded {
        let Some(others) = &listing.others else { return Guarded::Forbidden };
        // Also keeps a server with a `timeout` from closing the connection.
        let pong: Result<(), _> = redis::cmd("PING").query_async(&mut self.connection).await;
        // A user without permission for PING gets an answer too: an error with a code.
        let is_open = pong.map_or_else(|error| error.code().is_some(), |()| true);
        // A list that is older than the guard may lack the holder.
        let is_after = listing.asked >= self.since;
        if !is_open || is_after && !listing.is_untouched(&self.name) {
            return Guarded::Touched;
        }
        let connections = is_after.then(|| others.clone());
        Guarded::Untouched { guard: self.number, connections }
    }

    /// Runs a script unless a client has touched the watched keys. In that case nothing
    /// is run, and there is no verdict. Ends the watch in any case.
    pub(super) async fn run(mut self, call: &Call) -> Result<Option<Verdict>, StoreError> {
        let command = call.known(&mut self.connection).await?;
        let mut transaction = redis::pipe();
        transaction.atomic().add_command(command);
        let done = transaction.query_async(&mut self.connection).await;
        let done: Option<(Verdict,)> = done.map_err(first_refusal)?;
        Ok(done.map(|(verdict,)| verdict))
    }
}

/// Opens a connection of this name that watches the subject's keys. Also fails if a
/// transaction would be refused later.
async fn watch(
    store: &Store,
    queue: &QueueName,
    subject: Subject,
    name: &str,
) -> Result<Connection, StoreError> {
    let mut connection = store.open_own(queue).await?;
    let mut commands = redis::pipe();
    commands.cmd("CLIENT").arg("SETNAME").arg(name).ignore();
    commands.cmd("MULTI").ignore().cmd("EXEC").ignore();
    commands.cmd("WATCH").arg(keys(queue, subject)).ignore();
    let () = commands.query_async(&mut connection).await.map_err(first_refusal)?;
    Ok(connection)
}

/// Returns the keys that the subject's holder changes when it continues, and only then.
fn keys(queue: &QueueName, subject: Subject) -> Vec<String> {
    let numbers: &[usize] = match subject {
        Subject::Role(QueueRole::Producer) => &[PRODUCER, PRODUCER_FREE],
        Subject::Role(QueueRole::Consumer) => &[CONSUMER, CONSUMER_FREE],
        Subject::Creation | Subject::Deletion => return scripts::keys(queue),
    };
    let all = scripts::keys(queue);
    numbers.iter().filter_map(|number| all.get(number - 1)).cloned().collect()
}
