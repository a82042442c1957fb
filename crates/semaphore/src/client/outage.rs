//! Waits for a slot through obstacles: an outage of the broker, a limit on its connections,
//! and a lock that was deleted. Decides which errors an acquisition survives, how often it
//! retries, and when its time is up. See `acquire` for the steps of one acquisition.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lockkeeper_net::clock::Moment;

use super::acquire::acquire_slot;
use super::error::AcquireError;
use super::lock::Lock;
use super::options::AcquireOptions;
use super::permit::Permit;
use super::same_protocol::why_no_slots;
use super::token::acquire_token;
use crate::error::BrokerError;
use crate::management::{Management, nodes};
use crate::protocol::interface::Wait;
use crate::protocol::{self, Claiming};

/// First and longest pause before a retry. The second half of each is random, so that the
/// waiters of a broker don't reconnect all together.
const PAUSES: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));

/// After this time of waiting without an error, the next error starts a new outage.
const CALM: Duration = Duration::from_secs(30);

/// Minimum time for the first connection, also if the limit of the acquisition is shorter.
const FIRST_CONNECTION: Duration = Duration::from_secs(3);

/// Minimum time for the first attempt, also if the limit of the acquisition is shorter.
const FIRST_ATTEMPT: Duration = Duration::from_secs(5);

/// Time after the limit for the last attempt over open connections. It determines the error.
const LAST_ATTEMPT: Duration = Duration::from_secs(2);

/// How long an administrator may take to create a lock. A client then waits for it.
const BEING_MADE: Duration = Duration::from_secs(5);

/// Receives each error that the acquisition survives, before the pause that it causes.
pub type Report<'a> = &'a (dyn Fn(&AcquireError) + Sync);

/// An acquisition in progress, counted in `Shared::acquiring`.
struct Counted<'a>(&'a AtomicUsize);

impl<'a> Counted<'a> {
    fn new(acquiring: &'a AtomicUsize) -> Self {
        acquiring.fetch_add(1, Ordering::AcqRel);
        Self(acquiring)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Lock {
    /// Acquires a slot. While waiting, survives broker restarts, closed connections,
    /// failovers, a limit on connections, and the deletion of a lock that it has found.
    /// Ends soon after the limit, whatever the broker does.
    ///
    /// Nothing is held across an outage: a slot whose connection was lost is lost.
    ///
    /// # Errors
    ///
    /// As [`Self::acquire`], for the last attempt.
    pub async fn acquire_through_outages(
        &self,
        options: &AcquireOptions,
        wait: Wait,
        report: Report<'_>,
    ) -> Result<Permit, AcquireError> {
        let _counted = Counted::new(&self.shared().acquiring);
        let last = Mutex::new(None);
        let began = Moment::now();
        tokio::select! {
            // A slot that was acquired in time counts.
            biased;
            acquired = self.keep_trying(options, wait, report, &last) => acquired,
            () = self.time_is_up(wait, began) => {
                let last = last.into_inner().unwrap_or_else(PoisonError::into_inner);
                Err(self.no_answer(began, last))
            }
        }
    }

    async fn keep_trying(
        &self,
        options: &AcquireOptions,
        wait: Wait,
        report: Report<'_>,
        last: &Mutex<Option<BrokerError>>,
    ) -> Result<Permit, AcquireError> {
        let mut pause = PAUSES.0;
        let (first, mut existed) = (Moment::now(), false);
        loop {
            let began = Moment::now();
            let acquired = match protocol::claiming(self.name()) {
                Claiming::Slot(how) => {
                    acquire_slot(self.shared(), self.name(), how, options, wait, &mut existed).await
                }
                Claiming::Token => {
                    acquire_token(self.shared(), self.name(), options, wait, &mut existed).await
                }
            };
            let mut is_made = false;
            let acquired = match acquired {
                Err(AcquireError::NoSlots { .. }) => {
                    let (error, changes) = why_no_slots(self.shared(), self.name(), existed).await;
                    is_made = changes && first.elapsed() < BEING_MADE;
                    Err(error)
                }
                acquired => acquired,
            };
            let error = match acquired {
                Err(error) if self.survives(&error, wait, existed || is_made) => error,
                Err(AcquireError::Broker(error)) => {
                    return Err(AcquireError::Broker(self.name_node(error).await));
                }
                acquired => return acquired,
            };
            if began.elapsed() > CALM {
                pause = PAUSES.0;
            }
            let left = wait.until().map_or(pause, Moment::left);
            if left.is_zero() {
                return Err(self.unavailable(error).await);
            }
            tracing::debug!(%error, lock = %self.name(), "trying again");
            report(&error);
            if let AcquireError::Broker(error) = error {
                if error.is_limit_of_clients() {
                    self.give_way().await;
                }
                *last.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            }
            tokio::time::sleep(rand::random_range(pause / 2..=pause).min(left)).await;
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    /// Whether waiting continues after this error. A client that was never connected is
    /// more likely to have the wrong address, and one that never found the lock to have the
    /// wrong name. A limit on connections needs no such evidence: the broker names it, and
    /// clients that start together after a restart meet it first.
    fn survives(&self, error: &AcquireError, wait: Wait, existed: bool) -> bool {
        wait != Wait::No
            && match error {
                AcquireError::NoSlots { .. } => existed,
                AcquireError::Broker(error) if error.is_limit_of_clients() => true,
                AcquireError::Broker(
                    BrokerError::Unreachable { .. }
                    | BrokerError::ConnectionLost { .. }
                    | BrokerError::Timeout { .. }
                    | BrokerError::NodeDown { .. }
                    | BrokerError::Blocked,
                ) => self.was_connected(),
                _ => false,
            }
    }

    fn was_connected(&self) -> bool {
        self.shared().endpoint.was_connected()
    }

    /// Closes the connections that nothing uses. Otherwise clients that each have one, and
    /// need another one, would block each other indefinitely.
    async fn give_way(&self) {
        let shared = self.shared();
        shared.pool.close().await;
        // Each permit has a reference too.
        let is_alone = Arc::strong_count(&shared.publisher) == 1;
        if is_alone && shared.acquiring.load(Ordering::Acquire) == 1 {
            shared.side.close().await;
        }
    }

    /// Returns when an acquisition with this limit must have ended, whatever it waits for.
    async fn time_is_up(&self, wait: Wait, began: Moment) {
        let Some(until) = wait.until() else { return std::future::pending().await };
        until.max(began + FIRST_CONNECTION).reached().await;
        if self.was_connected() {
            (until + LAST_ATTEMPT).max(began + FIRST_ATTEMPT).reached().await;
        }
    }

    /// Returns the error for an acquisition whose time was up during a request.
    fn no_answer(&self, began: Moment, last: Option<BrokerError>) -> AcquireError {
        let after = Duration::from_secs(began.elapsed().as_secs().max(1));
        if last.is_none() && !self.was_connected() {
            return AcquireError::Broker(self.shared().endpoint.no_answer(after).into());
        }
        let error = last.unwrap_or(BrokerError::Timeout { what: "the last requests", after });
        AcquireError::Unavailable { lock: self.name().to_string(), error }
    }

    /// Returns the error for an acquisition whose limit has passed.
    async fn unavailable(&self, error: AcquireError) -> AcquireError {
        match error {
            AcquireError::Broker(error) => {
                let error = self.name_node(error).await;
                AcquireError::Unavailable { lock: self.name().to_string(), error }
            }
            error => error,
        }
    }

    /// Names the node in an error about a node that is down, if the settings have a
    /// management API.
    async fn name_node(&self, error: BrokerError) -> BrokerError {
        if !matches!(error, BrokerError::NodeDown { .. }) {
            return error;
        }
        let management = Management::new(&self.shared().settings);
        nodes::name_in(error, management.as_ref()).await
    }
}
