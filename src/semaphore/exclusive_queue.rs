//! Protocol `ExclusiveQueue`, the source document's "persistent semaphore": who
//! holds slot `i` has declared `B[i]` exclusive to its connection. True mutexes are
//! held in the same way, by a queue that carries the lock's name. What slots are,
//! and which one to take, is `slots`' and the client's.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use lapin::options::{QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::FieldTable;

use super::broker::Inner;
use super::connect::Conn;
use super::converge::Change;
use super::error::BrokerError;
use super::lane::{Declared, Lane, Standing, exclusive, short};
use super::protocol::{Claim, Claimed, Eyes, Hold, HolderSeen, Holding, Looked, Waiters};
use crate::plan::naming::LockName;

/// The protocol.
pub(super) struct ExclusiveQueue;

impl Holding for ExclusiveQueue {
    fn claim<'a>(&'a self, claim: Claim<'a>) -> BoxFuture<'a, Result<Claimed, BrokerError>> {
        take(claim).boxed()
    }

    fn look<'a>(
        &'a self,
        eyes: Eyes<'a>,
        lock: &'a LockName,
        slots: RangeInclusive<u32>,
        holders: RangeInclusive<u32>,
        _draining: bool,
    ) -> BoxFuture<'a, Result<Looked, BrokerError>> {
        async move {
            let count = slots.clone().count();
            let names: Vec<String> = slots
                .map(|slot| lock.slot_queue(slot))
                .chain(holders.map(|slot| lock.holder_queue(slot)))
                .collect();
            let mut exist = eyes.prober.exist(&names).await?;
            let held = |held| if held { HolderSeen::Held } else { HolderSeen::Absent };
            let holders = exist.split_off(count).into_iter().map(held).collect();
            Ok(Looked { slots: exist, holders })
        }
        .boxed()
    }

    fn declare_slot<'a>(
        &'a self,
        lane: &'a mut Lane,
        lock: &'a LockName,
        slot: u32,
    ) -> BoxFuture<'a, Result<(), BrokerError>> {
        async move { lane.declare_slot(&lock.slot_queue(slot), lock.profile()).await }.boxed()
    }

    fn can_be_held<'a>(
        &'a self,
        _: &'a Inner,
        _: &'a LockName,
        _: RangeInclusive<u32>,
    ) -> BoxFuture<'a, Result<bool, BrokerError>> {
        // Whoever holds makes what it holds by.
        futures::future::ready(Ok(true)).boxed()
    }

    fn tidy<'a>(
        &'a self,
        _: &'a Change,
        _: &'a mut Lane,
        _: u32,
    ) -> BoxFuture<'a, Result<u32, BrokerError>> {
        // Holder queues go with their holders.
        futures::future::ready(Ok(0)).boxed()
    }
}

/// A queue that is exclusive to the connection that holds.
pub(super) struct HeldQueue {
    pub conn: Arc<Conn>,
    pub holder_queue: String,
    /// None for a true mutex.
    pub slot_queue: Option<String>,
}

impl Hold for HeldQueue {
    fn verify(&self, limit: Duration) -> BoxFuture<'_, Result<Standing, BrokerError>> {
        async move {
            let mut lane = Lane::take(&self.conn).await?;
            lane.set_limit(limit);
            match &self.slot_queue {
                Some(slot) => lane.verify(&self.holder_queue, slot).await,
                None => match lane.look(&self.holder_queue).await? {
                    Some(Declared::Ok) => Ok(Standing::Held),
                    _ => Ok(Standing::Gone),
                },
            }
        }
        .boxed()
    }

    fn give_back<'a>(
        &'a self,
        wait_queue: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Waiters, BrokerError>> {
        async move {
            let mut lane = Lane::take(&self.conn).await?;
            let channel = lane.channel().await?;
            let options = QueueDeleteOptions::default();
            let delete = channel.queue_delete(short(&self.holder_queue)?, options);
            lane.do_and_count(delete, &self.holder_queue, wait_queue).await
        }
        .boxed()
    }
}

/// How declaring a holder queue ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taken {
    /// The holder queue is ours, and the slot existed after that.
    Yes,
    /// There is no such slot. Nothing was declared.
    NoSlot,
    /// Another connection has the holder queue.
    Locked,
    /// The holder queue is ours, but the slot was deleted meanwhile: give it
    /// back (hazard A8: 1,500 of 1,500 forced races).
    SlotWent,
}

async fn take(claim: Claim<'_>) -> Result<Claimed, BrokerError> {
    let Claim { conn, lock, slot, looked, mut facts, .. } = claim;
    let (slot_queue, holder_queue) = (lock.slot_queue(slot), lock.holder_queue(slot));
    exclusive(&mut facts);
    let mut lane = Lane::take(conn).await?;
    let taken = lane.take_slot(&slot_queue, looked, &holder_queue, facts).await?;
    let claimed = match taken {
        Taken::Yes => {
            let conn = Arc::clone(conn);
            let held = HeldQueue { conn, holder_queue, slot_queue: Some(slot_queue) };
            return Ok(Claimed::Yes(Box::new(held)));
        }
        Taken::SlotWent => {
            lane.delete(&holder_queue).await?;
            Claimed::NoSlot
        }
        Taken::NoSlot => Claimed::NoSlot,
        Taken::Locked => Claimed::Locked,
    };
    // The refusal closed the channel: who wants one next is not to wait for it.
    lane.channel().await?;
    Ok(claimed)
}

impl Lane {
    /// Declares `holder` exclusive to this connection, and looks that `slot`
    /// exists before (unless `looked`: somebody just did) and after it. Three
    /// methods, one round trip.
    async fn take_slot(
        &mut self,
        slot: &str,
        looked: bool,
        holder: &str,
        facts: FieldTable,
    ) -> Result<Taken, BrokerError> {
        let channel = self.channel().await?;
        self.count_declares(3);
        let passive = QueueDeclareOptions::default().passive();
        let before = async {
            if looked {
                return Ok(());
            }
            channel.queue_declare(short(slot)?, passive, FieldTable::default()).await?;
            Ok(())
        };
        let exclusive = QueueDeclareOptions::exclusive();
        let declare = async {
            channel.queue_declare(short(holder)?, exclusive, facts).await?;
            Ok(())
        };
        let after = async {
            channel.queue_declare(short(slot)?, passive, FieldTable::default()).await?;
            Ok(())
        };
        // A refusal closes the channel, and what was sent after it is not done:
        // so the first error is the one that counts.
        let all = async { Ok(futures::join!(before, declare, after)) };
        let (before, declare, after): (Step, Step, Step) =
            match self.answer("to queue.declare", holder, all).await? {
                Ok(answers) => answers,
                Err(refused) => return Err(refused.error),
            };
        let (error, queue, on_404, on_405) = match (before, declare, after) {
            (Ok(()), Ok(()), Ok(())) => return Ok(Taken::Yes),
            (Err(error), _, _) => (error, slot, Taken::NoSlot, None),
            (_, Err(error), _) => (error, holder, Taken::Locked, Some(Taken::Locked)),
            (_, _, Err(error)) => (error, slot, Taken::SlotWent, Some(Taken::Yes)),
        };
        let error = match error {
            StepError::Name(error) => return Err(error),
            StepError::Lapin(error) => error,
        };
        let refused = self.refused(&error, queue)?;
        match (refused.code, on_405, refused.error) {
            (404, _, error @ BrokerError::NodeDown { .. }) => Err(error),
            (404, _, _) => Ok(on_404),
            (405, Some(claimed), _) => Ok(claimed),
            (_, _, error) => Err(error),
        }
    }
}

type Step = Result<(), StepError>;

enum StepError {
    Name(BrokerError),
    Lapin(lapin::Error),
}

impl From<BrokerError> for StepError {
    fn from(error: BrokerError) -> Self {
        Self::Name(error)
    }
}

impl From<lapin::Error> for StepError {
    fn from(error: lapin::Error) -> Self {
        Self::Lapin(error)
    }
}
