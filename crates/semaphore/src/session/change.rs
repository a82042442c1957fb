//! One change to one semaphore, as a task of its own under the admin mutex. See
//! `protocol` for what each protocol does in a change, and `mutex` for the mutex.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use lockkeeper_amqp::channel::Channel;
use lockkeeper_amqp::error::AmqpError;
use lockkeeper_amqp::new_id;
use lockkeeper_plan::clean_text;
use lockkeeper_plan::naming::LockName;
use lockkeeper_plan::semaphore::{DesiredSlots, Observed};
use tokio_util::sync::CancellationToken;

use super::access::Access;
use super::mutex::AdminMutex;
use crate::error::BrokerError;

/// The result of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Converged {
    /// The state observed afterwards, up to the end of the sweep.
    pub seen: Observed,
    /// Slots that were missing and were declared.
    pub declared: u32,
    /// Slots above the desired count that were deleted.
    pub deleted: u32,
    /// Slots that received their first record.
    pub seeded: u32,
    /// Number of clients that waited for a slot afterwards. `None` if there is no wait
    /// queue.
    pub waiting: Option<u32>,
    /// Number of holders that delay the removal of their queue until they release.
    /// Holders that delay nothing are not counted.
    pub left: u32,
    /// How long the change waited for the concurrency limit and the admin mutex.
    pub mutex_wait: Duration,
}

/// One change to one semaphore.
pub struct Change {
    pub access: Arc<Access>,
    pub lock: LockName,
    pub desired: DesiredSlots,
    /// The id among the arguments of the admin mutex.
    pub id: String,
    /// If true, objects that exist already are verified too.
    pub thorough: bool,
    /// If true, everything except the holders is removed.
    pub destroy: bool,
    /// How long the change waited for the concurrency limit and the mutex.
    pub mutex_wait: Duration,
    cancel: CancellationToken,
}

/// The work to run under the mutex.
pub type Work<'a, T> = BoxFuture<'a, Result<T, BrokerError>>;

impl Change {
    /// Creates a change that stops when `cancel` fires.
    pub fn new(
        access: Arc<Access>,
        lock: LockName,
        desired: DesiredSlots,
        cancel: &CancellationToken,
    ) -> Self {
        let cancel = cancel.child_token();
        Self {
            access,
            lock,
            desired,
            id: new_id(),
            thorough: false,
            destroy: false,
            mutex_wait: Duration::ZERO,
            cancel,
        }
    }

    /// Returns a channel of the connection for changes, for effects without the admin mutex.
    pub async fn channel(&self) -> Result<Channel, BrokerError> {
        Channel::take(&self.access.admin_of(&self.lock).get().await?)
            .await
            .map_err(BrokerError::from)
    }

    /// Sleeps, and fails if the change is cancelled.
    pub async fn pause(&self, length: Duration) -> Result<(), BrokerError> {
        tokio::select! {
            () = self.cancel.cancelled() => Err(BrokerError::Interrupted),
            () = tokio::time::sleep(length) => Ok(()),
        }
    }

    /// Runs the work under the mutex, as a task of its own. If this future is dropped,
    /// the task stops between two effects and releases the mutex.
    pub async fn run<T: Send + 'static>(
        mut self,
        work: impl for<'a> FnOnce(&'a mut Self, &'a mut Channel) -> Work<'a, T> + Send + 'static,
    ) -> Result<T, BrokerError> {
        let _stop_when_dropped = self.cancel.clone().drop_guard();
        let naming = Arc::clone(&self.access);
        let task = async move {
            let access = Arc::clone(&self.access);
            let start = Instant::now();
            let taken = AdminMutex::take(
                access.admin_of(&self.lock),
                &access.turns,
                &access.local_locks,
                (&self.lock, &self.id),
                access.options.mutex_patience,
                &self.cancel,
            );
            let mut mutex = match taken.await {
                Err(BrokerError::MutexBusy { queue, waited, .. }) => {
                    let holder = holder_of(&access, &queue).await;
                    return Err(BrokerError::MutexBusy { queue, holder, waited });
                }
                taken => taken?,
            };
            self.mutex_wait = start.elapsed();
            let result = work(&mut self, &mut mutex.channel).await;
            let connection = Arc::clone(mutex.channel.connection());
            let lost = !connection.is_usable();
            mutex.release().await;
            if lost && result.is_err() {
                access.set_disturbed(&self.lock);
            }
            match result {
                Err(BrokerError::ConnectionLost { why }) if lost => {
                    // Of several operations that failed together, some only found the
                    // connection closed. Another one received the reason.
                    Err(BrokerError::MutexLost {
                        why: match connection.close_reason().await {
                            Some(AmqpError::ConnectionLost { why }) => why,
                            _ => why,
                        },
                    })
                }
                result => result,
            }
        };
        match tokio::spawn(task).await.map_err(|_| BrokerError::Interrupted)? {
            Err(error) => Err(naming.name_node(error).await),
            done => done,
        }
    }

    /// Returns an error if the next effect must not start.
    pub fn check_cancelled(&self, channel: &Channel) -> Result<(), BrokerError> {
        if self.cancel.is_cancelled() || !self.access.options.may_act.now() {
            return Err(BrokerError::Interrupted);
        }
        if channel.connection().is_blocked() {
            return Err(BrokerError::Blocked);
        }
        Ok(())
    }
}

/// Returns the connection that holds the admin mutex, and its user, if the management API
/// shows them.
async fn holder_of(access: &Access, mutex: &str) -> Option<String> {
    let owner = access.management.as_ref()?.owner_of(mutex).await.ok()??;
    let user = owner.user.map(|user| format!(" of user {user}")).unwrap_or_default();
    Some(clean_text(&format!("the connection {}{user}", owner.connection), 256))
}
