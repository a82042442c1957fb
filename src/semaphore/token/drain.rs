//! Waiting for held tokens that are too many: a consumer that the broker gives every
//! free token to first, for as long as there are more than wished for. Each is counted
//! again under the admin mutex before it is removed, so it doesn't matter who else
//! drains or dies. Free ones go at once, by `admin`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use futures::{FutureExt, StreamExt};
use lapin::options::{
    BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicQosOptions, BasicRejectOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{Channel, Consumer};
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::account::Account;
use super::admin::count;
use crate::plan::naming::LockName;
use crate::plan::semaphore::SlotWish;
use crate::semaphore::broker::Inner;
use crate::semaphore::converge::Change;
use crate::semaphore::error::BrokerError;
use crate::semaphore::lane::{Lane, short};

/// Higher than any client's, whose are 0 to 255 or what they like.
const PRIORITY: i32 = i32::MAX;

/// Pause after something went wrong.
const PAUSE: Duration = Duration::from_secs(1);

/// The consumers of one handle on a broker. They end with it.
#[derive(Default)]
pub(super) struct Drains(Mutex<HashMap<LockName, Running>>);

struct Running {
    wish: SlotWish,
    task: JoinHandle<()>,
    stop: DropGuard,
}

impl Drains {
    /// Down to how many tokens `lock` is being drained.
    pub fn wish(&self, lock: &LockName) -> Option<u32> {
        let running = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        running.get(lock).filter(|drain| !drain.task.is_finished()).map(|drain| drain.wish.slots)
    }

    /// Drains `lock` until there are no more tokens than wished for.
    pub fn start(&self, broker: &Arc<Inner>, lock: &LockName, wish: SlotWish) {
        let stop = CancellationToken::new();
        let drain = Drain { broker: Arc::downgrade(broker), lock: lock.clone(), wish };
        let task = tokio::spawn(drain.run(stop.clone()));
        let running = Running { wish, task, stop: stop.drop_guard() };
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, drain| !drain.task.is_finished());
        all.insert(lock.clone(), running);
    }

    /// Ends draining `lock`: what was taken for it is free again.
    pub async fn stop(&self, lock: &LockName) {
        let running = self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(lock);
        if let Some(Running { task, stop, .. }) = running {
            drop(stop);
            let _ = task.await;
        }
    }
}

struct Drain {
    /// Weak: it ends with the handle.
    broker: Weak<Inner>,
    lock: LockName,
    wish: SlotWish,
}

impl Drain {
    async fn run(self, stop: CancellationToken) {
        loop {
            match self.consume(&stop).await {
                Ok(()) => return,
                Err(error) => {
                    tracing::debug!(%error, lock = %self.lock, "Draining tokens was cut short");
                }
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(PAUSE) => {}
            }
        }
    }

    /// Ends when there are as many as wished for, or when told to.
    async fn consume(&self, stop: &CancellationToken) -> Result<(), BrokerError> {
        let Some(broker) = self.broker.upgrade() else { return Ok(()) };
        let mut lane = Lane::fresh(&broker.admin_of(&self.lock).get().await?).await?;
        drop(broker);
        // Whatever happens, it is closed in the end: then nothing is taken.
        let channel = lane.channel().await?;
        let limit = lane.conn().operation_timeout;
        let drained = tokio::select! {
            () = stop.cancelled() => Ok(()),
            drained = self.drain(&mut lane, &channel, stop) => drained,
        };
        let close = channel.close(200, "OK".into());
        if !matches!(tokio::time::timeout(limit, close).await, Ok(Ok(()))) && drained.is_ok() {
            lane.conn().kill();
        }
        drained
    }

    async fn drain(
        &self,
        lane: &mut Lane,
        channel: &Channel,
        stop: &CancellationToken,
    ) -> Result<(), BrokerError> {
        let queue = self.lock.token_queue();
        let mut consumer = self.join(lane, channel, &queue).await?;
        while let Some(token) = consumer.next().await {
            let token = token.map_err(|error| BrokerError::operating(&error, &queue))?;
            let (tag, taken_on) = (token.delivery_tag, channel.clone());
            let Some(broker) = self.broker.upgrade() else { return Ok(()) };
            let change = Change::new(broker, self.lock.clone(), self.wish, stop);
            let left = change.run(move |change, lane| remove(change, lane, taken_on, tag).boxed());
            if left.await? == 0 {
                return Ok(());
            }
        }
        // The queue is gone: that is fewer than wished for.
        Ok(())
    }

    async fn join(
        &self,
        lane: &mut Lane,
        channel: &Channel,
        queue: &str,
    ) -> Result<Consumer, BrokerError> {
        let mut arguments = FieldTable::default();
        arguments.insert("x-priority".into(), AMQPValue::LongInt(PRIORITY));
        let (name, tag) = (short(queue)?, tag());
        let qos = channel.basic_qos(1, BasicQosOptions::default());
        let consume = channel.basic_consume(name, tag, BasicConsumeOptions::default(), arguments);
        let both = async { futures::try_join!(qos, consume) };
        let joined = lane.answer("to basic.consume", queue, both).await?;
        joined.map(|((), consumer)| consumer).map_err(|refused| refused.error)
    }
}

/// What a drain's consumer is called.
pub(super) const TAG: &str = "lockkeeper-drain";

fn tag() -> ShortString {
    TAG.into()
}

/// Removes the token that was delivered on `channel` if it is one too many; returns how
/// many are too many then.
async fn remove(
    change: &Change,
    lane: &mut Lane,
    channel: Channel,
    delivery_tag: u64,
) -> Result<u32, BrokerError> {
    let (lock, wish) = (&change.lock, change.wish.slots);
    let total = count(change, lane, None).await?;
    change.go_on(lane)?;
    let left = total.saturating_sub(wish).saturating_sub(1);
    let tokens = &change.broker.tokens;
    let removing = async {
        if left == 0 {
            // First, or another one would come.
            channel.basic_cancel(tag(), BasicCancelOptions { nowait: true }).await?;
        }
        if total > wish {
            tokens.account(lock, Account::forget);
            channel.basic_ack(delivery_tag, BasicAckOptions::default()).await?;
        } else {
            channel.basic_reject(delivery_tag, BasicRejectOptions { requeue: true }).await?;
        }
        // The answer comes after it was done.
        channel.basic_qos(1, BasicQosOptions::default()).await
    };
    let limit = lane.conn().operation_timeout;
    match tokio::time::timeout(limit, removing).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => return Err(BrokerError::operating(&error, &lock.token_queue())),
        Err(_) => {
            let error = BrokerError::Timeout { what: "to basic.ack", after: limit };
            return Err(lane.conn().fail(error));
        }
    }
    if total > wish {
        tokens.account(lock, |account| account.changed(total - 1, Instant::now()));
    }
    Ok(left)
}
