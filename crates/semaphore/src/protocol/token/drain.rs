//! Waits for held surplus tokens. While there are more tokens than desired, a consumer of
//! the highest priority receives every free token first. Each token is counted again
//! under the admin mutex before it is removed, so other drains or crashes do no harm. See
//! `admin` for surplus tokens that are free.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use futures::{FutureExt, StreamExt};
use lapin::Consumer;
use lapin::options::{
    BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicQosOptions, BasicRejectOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lockkeeper_amqp::channel::{Channel, short};
use lockkeeper_amqp::error::AmqpError;
use lockkeeper_plan::naming::LockName;
use lockkeeper_plan::semaphore::DesiredSlots;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::account::Account;
use super::count::{Tokens, count};
use super::queue::DRAIN_TAG;
use crate::error::BrokerError;
use crate::session::access::Access;
use crate::session::change::Change;

/// Above the range of Lockkeeper's clients, 0 to 255. Foreign clients may choose any
/// priority.
const PRIORITY: i32 = i32::MAX;

/// Pause after an error.
const PAUSE: Duration = Duration::from_secs(1);

/// The drains of one broker handle. They end with it.
#[derive(Default)]
pub struct Drains(Mutex<HashMap<LockName, Running>>);

struct Running {
    desired: DesiredSlots,
    task: JoinHandle<()>,
    stop: DropGuard,
}

impl Drains {
    /// Returns the target of the drain that runs for `lock`, if any.
    pub fn desired(&self, lock: &LockName) -> Option<u32> {
        let running = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        running.get(lock).filter(|drain| !drain.task.is_finished()).map(|drain| drain.desired.slots)
    }

    /// Starts to drain `lock` down to the desired number of tokens.
    pub fn start(
        &self,
        access: &Arc<Access>,
        tokens: &Arc<Tokens>,
        lock: &LockName,
        desired: DesiredSlots,
    ) {
        let stop = CancellationToken::new();
        let (access, tokens) = (Arc::downgrade(access), Arc::downgrade(tokens));
        let drain = Drain { access, tokens, lock: lock.clone(), desired };
        let task = tokio::spawn(drain.run(stop.clone()));
        let running = Running { desired, task, stop: stop.drop_guard() };
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, drain| !drain.task.is_finished());
        all.insert(lock.clone(), running);
    }

    /// Stops draining `lock`. A token that the drain had taken is requeued.
    pub async fn stop(&self, lock: &LockName) {
        let running = self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(lock);
        if let Some(Running { task, stop, .. }) = running {
            drop(stop);
            let _ = task.await;
        }
    }
}

struct Drain {
    /// Weak, so that the drain ends with the handle.
    access: Weak<Access>,
    tokens: Weak<Tokens>,
    lock: LockName,
    desired: DesiredSlots,
}

impl Drain {
    async fn run(self, stop: CancellationToken) {
        loop {
            match self.consume(&stop).await {
                Ok(()) => return,
                Err(error) => {
                    tracing::debug!(%error, lock = %self.lock, "draining tokens was cut short");
                }
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(PAUSE) => {}
            }
        }
    }

    /// Runs until the desired number is reached or the drain is stopped.
    async fn consume(&self, stop: &CancellationToken) -> Result<(), BrokerError> {
        let Some(access) = self.access.upgrade() else { return Ok(()) };
        let mut channel = Channel::fresh(&access.admin_of(&self.lock).get().await?).await?;
        drop(access);
        // The channel is always closed at the end, which requeues a token that was taken.
        let raw = channel.raw().await?;
        let limit = channel.connection().operation_timeout;
        let drained = match self.join(&mut channel, &raw, &self.lock.token_queue()).await {
            // Not before: closing a channel while the broker has not answered can fail, and then
            // ends the connection under the next change.
            Ok(consumer) => tokio::select! {
                () = stop.cancelled() => Ok(()),
                drained = self.drain(&raw, consumer, stop) => drained,
            },
            Err(error) => Err(error),
        };
        let close = raw.close(200, "OK".into());
        if !matches!(tokio::time::timeout(limit, close).await, Ok(Ok(()))) && drained.is_ok() {
            channel.connection().kill();
        }
        drained
    }

    async fn drain(
        &self,
        raw: &lapin::Channel,
        mut consumer: Consumer,
        stop: &CancellationToken,
    ) -> Result<(), BrokerError> {
        let queue = self.lock.token_queue();
        while let Some(token) = consumer.next().await {
            let token = token.map_err(|error| AmqpError::operating(&error, &queue))?;
            let (tag, taken_on) = (token.delivery_tag, raw.clone());
            let handle = self.access.upgrade().zip(self.tokens.upgrade());
            let Some((access, tokens)) = handle else { return Ok(()) };
            let change = Change::new(access, self.lock.clone(), self.desired, stop);
            let left = change.run(move |change, channel| {
                async move { remove(&tokens, change, channel, taken_on, tag).await }.boxed()
            });
            if left.await? == 0 {
                return Ok(());
            }
        }
        // The queue was deleted, so no surplus is left.
        Ok(())
    }

    async fn join(
        &self,
        channel: &mut Channel,
        raw: &lapin::Channel,
        queue: &str,
    ) -> Result<Consumer, BrokerError> {
        let mut arguments = FieldTable::default();
        arguments.insert("x-priority".into(), AMQPValue::LongInt(PRIORITY));
        let (name, tag) = (short(queue)?, tag());
        let qos = raw.basic_qos(1, BasicQosOptions::default());
        let consume = raw.basic_consume(name, tag, BasicConsumeOptions::default(), arguments);
        let both = async { futures::try_join!(qos, consume) };
        let joined = channel.answer("to basic.consume", queue, both).await?;
        joined
            .map(|((), consumer)| consumer)
            .map_err(|refused| refused.error)
            .map_err(BrokerError::from)
    }
}

fn tag() -> ShortString {
    DRAIN_TAG.into()
}

/// Removes the token that was delivered on `channel` if it is surplus. Returns the number
/// of remaining surplus tokens.
async fn remove(
    tokens: &Tokens,
    change: &Change,
    channel: &mut Channel,
    raw: lapin::Channel,
    delivery_tag: u64,
) -> Result<u32, BrokerError> {
    let (lock, desired) = (&change.lock, change.desired.slots);
    let total = count(tokens, change, channel, None).await?;
    change.check_cancelled(channel)?;
    let left = total.saturating_sub(desired).saturating_sub(1);
    let removing = async {
        if left == 0 {
            // Cancel first, or the broker would deliver another token.
            raw.basic_cancel(tag(), BasicCancelOptions { nowait: true }).await?;
        }
        if total > desired {
            tokens.account(lock, Account::forget);
            raw.basic_ack(delivery_tag, BasicAckOptions::default()).await?;
        } else {
            raw.basic_reject(delivery_tag, BasicRejectOptions { requeue: true }).await?;
        }
        // The answer confirms that the previous frames were processed.
        raw.basic_qos(1, BasicQosOptions::default()).await
    };
    let limit = channel.connection().operation_timeout;
    match tokio::time::timeout(limit, removing).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => return Err(AmqpError::operating(&error, &lock.token_queue()).into()),
        Err(_) => {
            let error = AmqpError::Timeout { what: "to basic.ack", after: limit };
            return Err(channel.connection().fail(error).into());
        }
    }
    if total > desired {
        tokens.account(lock, |account| account.changed(total - 1, Instant::now()));
    }
    Ok(left)
}
