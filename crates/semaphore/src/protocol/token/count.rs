//! Counts tokens. A change that depends on their number runs under the admin mutex, and
//! the management API's figure must be proven current. See `account` for the estimate and
//! `admin` for the changes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use lockkeeper_amqp::channel::Channel;
use lockkeeper_amqp::connection::Connection;
use lockkeeper_plan::naming::{LockName, Protocol, QueueType};

use super::account::{Account, Look};
use super::queue;
use crate::error::BrokerError;
use crate::management::{Management, Totals};
use crate::session::access::Access;
use crate::session::change::Change;
use crate::session::mutex::ID;

/// Minimum time between two observations of a classic queue. The management API queries
/// the queue itself.
const CLASSIC_APART: Duration = Duration::from_millis(250);

/// The same for a quorum queue, which reports to the management API every 5 s. A figure
/// was up to 5.2 s old when measured on an idle broker, and a busy broker may be slower.
const QUORUM_APART: Duration = Duration::from_secs(8);

/// How long the API of another node may take to list a newly declared queue.
const SHOWN_WITHIN: Duration = Duration::from_secs(2);

/// Maximum time to wait for two equal observations: a few times the interval.
const PATIENCE: Duration = Duration::from_secs(35);

/// The known numbers of tokens.
#[derive(Default)]
pub struct Tokens {
    accounts: Mutex<HashMap<LockName, Account>>,
    last_id: Mutex<u64>,
    /// The connection whose broker is known to be the one behind the management API.
    proven: Mutex<Weak<Connection>>,
}

impl Tokens {
    pub fn account<T>(&self, lock: &LockName, with: impl FnOnce(&mut Account) -> T) -> T {
        let mut accounts = self.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        with(accounts.entry(lock.clone()).or_default())
    }

    pub fn forget(&self, lock: &LockName) {
        self.accounts.lock().unwrap_or_else(PoisonError::into_inner).remove(lock);
    }

    /// Verifies that the management API belongs to the broker that holds the admin mutex.
    /// It must list the mutex's queue with this change's id. Another broker may have a
    /// queue of the same name, and its count would then be applied here.
    async fn prove(&self, change: &Change, channel: &Channel) -> Result<(), BrokerError> {
        let (lock, connection) = (&change.lock, channel.connection());
        let known = || self.proven.lock().unwrap_or_else(PoisonError::into_inner);
        if known().ptr_eq(&Arc::downgrade(connection)) {
            return Ok(());
        }
        let management = management(&change.access, lock)?;
        let start = Instant::now();
        loop {
            let shown = management.arguments_of(lock.admin_mutex()).await;
            let shown = shown.map_err(|error| unknown(lock, &error.to_string()))?;
            if shown.is_some_and(|shown| shown.get(ID) == Some(change.id.as_str())) {
                *known() = Arc::downgrade(connection);
                return Ok(());
            }
            if start.elapsed() > SHOWN_WITHIN {
                let why = "the management API does not show the admin mutex that this change holds: it is another broker's, or may not show it to this user";
                return Err(unknown(lock, why));
            }
            change.pause(CLASSIC_APART).await?;
        }
    }

    /// Returns the first of `count` consecutive ids that no token has.
    pub fn new_ids(&self, count: u32) -> u64 {
        let now = u64::try_from(jiff::Timestamp::now().as_microsecond()).unwrap_or_default();
        let mut last = self.last_id.lock().unwrap_or_else(PoisonError::into_inner);
        let first = now.max(last.saturating_add(1));
        *last = first.saturating_add(count.into());
        first
    }
}

/// Returns the type of the lock's queue.
pub fn queue_type(lock: &LockName) -> QueueType {
    match lock.protocol() {
        Protocol::Token(queue_type) => queue_type,
        _ => QueueType::Classic,
    }
}

/// Returns the minimum time between two observations of the lock's queue.
pub fn apart(lock: &LockName) -> Duration {
    match queue_type(lock) {
        QueueType::Classic => CLASSIC_APART,
        QueueType::Quorum => QUORUM_APART,
    }
}

/// The error of a count that can't be made.
pub fn unknown(lock: &LockName, why: &str) -> BrokerError {
    BrokerError::CountUnknown { queue: lock.token_queue(), why: why.to_owned() }
}

fn management<'a>(access: &'a Access, lock: &LockName) -> Result<&'a Management, BrokerError> {
    let management = access.management.as_deref();
    management.ok_or_else(|| unknown(lock, "the connection has none"))
}

/// Returns the management API's figure, which may be stale.
pub async fn total(access: &Access, lock: &LockName) -> Result<u32, BrokerError> {
    let queue = lock.token_queue();
    let unknown = |why: &str| unknown(lock, why);
    let management = management(access, lock)?;
    let totals = management.totals(&queue).await.map_err(|error| unknown(&error.to_string()))?;
    let Some(Totals { kind, messages, .. }) = totals else {
        return Err(unknown("it does not know the queue yet, or may not show it to this user"));
    };
    let wanted = match queue_type(lock) {
        QueueType::Classic => "classic",
        QueueType::Quorum => "quorum",
    };
    if let Some(kind) = kind.filter(|kind| kind != wanted) {
        let why = format!(
            "it is a {kind} queue where a {wanted} one is required; without a type, the virtual host's default is made"
        );
        return Err(BrokerError::IncompatibleQueue { queue, why });
    }
    messages.ok_or_else(|| unknown("it has no figures for the queue yet"))
}

/// Counts the tokens for a change that depends on the result. One observation is enough
/// if it finds `enough` tokens, all of them free. Must run under the mutex, so that no
/// other administrator changes the number.
pub async fn count(
    tokens: &Tokens,
    change: &Change,
    channel: &mut Channel,
    enough: Option<u32>,
) -> Result<u32, BrokerError> {
    let (access, lock) = (&change.access, &change.lock);
    let (apart, start) = (apart(lock), Instant::now());
    if let Some(ours) = tokens.account(lock, |account| account.ours(start, apart)) {
        return Ok(ours);
    }
    tokens.account(lock, Account::begin);
    tokens.prove(change, channel).await?;
    loop {
        change.check_cancelled(channel)?;
        let total = total(access, lock).await?;
        // Read after the total, which only this change may modify, so the total is not
        // smaller.
        let free = queue::ready(channel, &lock.token_queue()).await?.map_or(0, |ready| ready.free);
        let seen = if total < free {
            tokens.account(lock, Account::begin);
            Look::Again(apart)
        } else if enough == Some(total) && total == free {
            // The figure may be stale, but the free tokens were counted just now.
            return Ok(total);
        } else {
            tokens.account(lock, |account| account.look(total, Instant::now(), apart))
        };
        match seen {
            Look::Settled(total) => return Ok(total),
            Look::Again(_) if start.elapsed() > PATIENCE && total < free => {
                let why = format!("it shows {total} tokens, and {free} are free");
                return Err(unknown(lock, &why));
            }
            Look::Again(_) if start.elapsed() > PATIENCE => {
                return Err(unknown(lock, "the count did not stabilise"));
            }
            Look::Again(after) => change.pause(after).await?,
        }
    }
}
