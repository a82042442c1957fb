//! One attempt to acquire: choose a slot, take it, update its record, and wait for the
//! lock delay if its last holder ended uncleanly. See `acquire` for
//! repeated attempts.

use std::time::Duration;

use lockkeeper_amqp::channel::Channel;
use lockkeeper_net::clock::Moment;
use lockkeeper_plan::record::SlotRecord;

use super::acquisition::{Acquisition, Place};
use super::choice::{Choice, choose, guess};
use super::error::AcquireError;
use super::facts::{facts, now};
use super::options::Start;
use super::permit::{Permit, PermitParts};
use super::pool::HoldConnection;
use super::recorded::has_record;
use super::records::replace;
use super::resting;
use super::same_protocol::{check_missing, check_protocol};
use crate::error::BrokerError;
use crate::protocol::claim::{Claim, Claimed, MUTEX_SLOT};
use crate::protocol::hold::HeldClaim;
use crate::session::offered;

/// Maximum of the one random pause after a first lost race.
pub const SKEW: Duration = Duration::from_millis(50);

/// A slot that was taken.
struct TakenSlot {
    connection: HoldConnection,
    held: Box<dyn HeldClaim>,
    slot: u32,
    has_record: bool,
    sent: Moment,
}

/// The result of trying to take a slot.
enum ClaimOutcome {
    Held {
        held: Box<dyn HeldClaim>,
        has_record: bool,
        sent: Moment,
    },
    /// Another client holds it, or it does not exist.
    Lost,
    /// Its node is down. Other slots may be on other nodes.
    NodeDown(BrokerError),
}

/// Number of slots whose nodes are down that one attempt tries to take. A search finds
/// others.
const NODES_DOWN: u32 = 2;

/// Attempts that may collide with the remains of a holder that has just died.
const COLLISIONS: u32 = 5;

/// What went wrong in one attempt so far.
struct Losses {
    place: Place,
    /// Number of races that this acquisition has lost.
    lost: u32,
    /// Number of races lost in this attempt for a slot that a probe had seen free.
    races: u32,
    /// Number of slots whose nodes are down.
    down: u32,
}

impl Losses {
    fn new(place: Place) -> Self {
        let lost = if let Place::OrWait { lost } = place { lost } else { 0 };
        Self { place, lost, races: 0, down: 0 }
    }

    /// Whether the attempt may try any slot.
    fn is_free(&self) -> bool {
        matches!(self.place, Place::Any | Place::OrWait { .. })
    }

    /// Counts a slot whose node is down. Returns the error if no other one is tried.
    fn node_down(&mut self, error: BrokerError) -> Result<(), AcquireError> {
        self.down += 1;
        if self.down > NODES_DOWN || !self.is_free() { Err(error.into()) } else { Ok(()) }
    }

    /// Counts a slot that another client took first. Returns whether to pause before the next
    /// one, or the error if no other one is tried.
    fn lost(
        &mut self,
        acquisition: &Acquisition<'_>,
        choice: &Choice,
    ) -> Result<bool, AcquireError> {
        let options = acquisition.options;
        if choice.looked || options.start == Start::Last {
            self.lost += 1;
        }
        if !self.is_free() && !choice.more {
            // The faster client wakes a waiter when it releases.
            return Err(acquisition.full());
        }
        if choice.few && matches!(self.place, Place::OrWait { .. }) {
            acquisition.remember(|memory| memory.crowded = Some(Moment::now()));
            return Err(acquisition.contended());
        }
        if choice.looked {
            self.races += 1;
            if self.races >= options.max_races.max(1) {
                return Err(acquisition.contended());
            }
        }
        // Once, as the amqp-locks guideline proposes, so that the losers of a race do not collide
        // again.
        Ok(choice.looked && self.races == 1)
    }
}

impl Acquisition<'_> {
    /// Tries once. Also returns whether more slots were free.
    pub(super) async fn attempt(&self, place: Place) -> Result<(Permit, bool), AcquireError> {
        for _ in 0..COLLISIONS {
            match self.attempt_once(place).await {
                // The collision closed the connection, so the next attempt uses another
                // one.
                Err(AcquireError::Broker(error)) if error.is_collision() => {}
                done => return done,
            }
            tokio::time::sleep(rand::random_range(Duration::ZERO..=SKEW)).await;
        }
        self.attempt_once(place).await
    }

    async fn attempt_once(&self, place: Place) -> Result<(Permit, bool), AcquireError> {
        let mut connection = self.client.pool.take().await?;
        offered::check(connection.connection().features, self.lock)?;
        let mut losses = Losses::new(match place {
            // It has only one.
            Place::Any | Place::OrWait { .. } if !self.lock.has_slots() => Place::Slot(MUTEX_SLOT),
            place => place,
        });
        let mut guess = match losses.place {
            Place::Any | Place::OrWait { .. } => guess(self),
            Place::Slot(slot) => Some(slot),
            Place::Search { .. } => None,
        };
        loop {
            let choice = match guess.take() {
                Some(slot) => Choice { slot, looked: false, more: false, few: false },
                None => choose(self, losses.place, losses.lost).await?,
            };
            let tried = self.claim(&mut connection, &choice).await;
            if let Ok(ClaimOutcome::Held { held, has_record, sent }) = tried {
                self.remember(|memory| {
                    // If others were free too, this slot will probably be free again next
                    // time.
                    memory.calm = losses.races == 0 || choice.more;
                    memory.last = Some(choice.slot);
                });
                let taken = TakenSlot { connection, held, slot: choice.slot, has_record, sent };
                return Ok((self.permit(taken).await?, choice.more));
            }
            self.remember(|memory| memory.calm = false);
            if let ClaimOutcome::NodeDown(error) = tried? {
                losses.node_down(error)?;
                // Something may be left declared on the other one.
                connection = self.client.pool.take().await?;
                continue;
            }
            if !connection.connection().is_usable() {
                // The refusal ended it.
                connection = self.client.pool.take().await?;
            }
            if losses.lost(self, &choice)? {
                tokio::time::sleep(rand::random_range(Duration::ZERO..=SKEW)).await;
            }
        }
    }

    /// Takes the slot. If another client holds it, nothing is left declared on the
    /// connection.
    async fn claim(
        &self,
        connection: &mut HoldConnection,
        choice: &Choice,
    ) -> Result<ClaimOutcome, AcquireError> {
        let (client, lock, slot) = (self.client, self.lock, choice.slot);
        let sent = Moment::now();
        connection.begin();
        let claim = self.protocol.claim(Claim {
            side: &client.side,
            connection: connection.connection(),
            lock,
            slot,
            looked: choice.looked,
            id: &self.id,
            facts: facts(&self.id, self.options),
            checked: &client.checked,
        });
        let (claimed, has_record, protocol) = futures::join!(
            claim,
            has_record(client, lock, slot),
            check_protocol(client, lock, slot)
        );
        match claimed {
            Ok(Claimed::Yes(held)) => {
                protocol?;
                Ok(ClaimOutcome::Held { held, has_record: has_record?, sent })
            }
            Ok(missing_or_locked) => {
                connection.settle();
                if matches!(missing_or_locked, Claimed::NoSlot) {
                    check_missing(client, lock, slot).await?;
                }
                Ok(ClaimOutcome::Lost)
            }
            Err(error @ BrokerError::NodeDown { .. }) => Ok(ClaimOutcome::NodeDown(error)),
            Err(error) => Err(error.into()),
        }
    }

    /// Creates the permit of a slot that was just taken. Replaces its record, and waits
    /// for the lock delay if its last holder ended uncleanly.
    async fn permit(&self, taken: TakenSlot) -> Result<Permit, AcquireError> {
        let (mut record, mut rest) = (None, Duration::ZERO);
        if let Some(queue) = taken.has_record.then(|| self.lock.record_queue(taken.slot)).flatten()
        {
            let next = |found: Option<&SlotRecord>| {
                if found.is_none() {
                    tracing::warn!(
                        queue,
                        "slot record lost: the fencing token continues from the clock"
                    );
                }
                SlotRecord::acquired(found, &self.id, now(), micros(), self.options.lock_delay)
            };
            let mut channel = Channel::take(taken.connection.connection()).await?;
            if let Some((replaced, wait)) =
                replace(&mut channel, &self.client.publisher, &queue, next).await?
            {
                (record, rest) = (Some((queue, replaced)), wait);
            }
        }
        let TakenSlot { connection: hold, held, slot, sent, .. } = taken;
        let rested = record.as_ref().map_or(Duration::ZERO, |(_, record)| record.rested());
        let permit = Permit::begin(
            self.client,
            PermitParts {
                id: self.id.clone(),
                fence: record.as_ref().map(|(_, record)| record.token),
                slot: Some(slot),
                has_number: self.lock.has_slots(),
                token_id: None,
                hold,
                held,
                sent,
                wait_queue: self.lock.wait_queue(),
                record,
            },
        );
        if rest.is_zero() {
            return Ok(permit);
        }
        resting::rest(permit, self.lock.as_str(), rested, rest, self.until).await
    }
}

fn micros() -> u64 {
    u64::try_from(jiff::Timestamp::now().as_microsecond()).unwrap_or_default()
}
