//! One attempt to acquire: choose a slot, take it, renew its record, let it rest
//! if its last holder ended uncleanly. Waiting for another attempt is `lock`'s.

use std::sync::Arc;
use std::time::Duration;

use super::lock::{Kind, Lock};
use super::moment::Moment;
use super::permit::{Begin, Permit, now};
use super::pool::HoldConn;
use super::records::replace;
use super::search::{Found, is_free, search};
use super::{AcquireError, AcquireOptions, Start};
use crate::plan::record::SlotRecord;
use crate::semaphore::error::BrokerError;
use crate::semaphore::exclusive_queue::HeldQueue;
use crate::semaphore::lane::{Declared, Lane, exclusive};
use crate::semaphore::protocol::{Claim, Claimed, Hold, Holding};
use lapin::types::{AMQPValue, FieldTable};

/// Longest of the one random pause after a first lost race.
pub(super) const SKEW: Duration = Duration::from_millis(50);

/// What is remembered of a lock between two acquisitions.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Memory {
    /// The slot last held.
    last: Option<u32>,
    /// It was free when it was last wanted: take it without looking.
    calm: bool,
    /// How many slots there seemed to be.
    slots: u32,
    /// Whether its slots had records, and when that was found out.
    records: Option<(bool, Moment)>,
}

/// How long that is believed without looking again: a look costs more than all else
/// that an acquisition sends. So long after records were added to a lock, a client
/// that uses it all the time may still go without.
const RECORDS_BELIEVED: Duration = Duration::from_secs(1);

/// Where to try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Wherever the options say, without looking first where that pays.
    Any,
    /// Wherever a look finds a free slot. We wait for a call otherwise.
    Search,
    /// This slot only, which we were called for: the first time without looking,
    /// because nobody is likely to be faster.
    Slot {
        /// The slot.
        slot: u32,
        /// We have been called before, and somebody was faster.
        again: bool,
    },
}

/// What was taken.
struct Got {
    conn: HoldConn,
    held: Box<dyn Hold>,
    slot: Option<u32>,
    has_record: bool,
    sent: Moment,
}

/// A slot that was found.
struct Choice {
    slot: u32,
    /// It was just seen to exist and to be free.
    looked: bool,
    /// Others were free as well.
    more: bool,
}

/// Attempts that may meet what is left of a holder that has just died.
const COLLISIONS: u32 = 5;

impl Lock {
    /// Tries once; tells also whether more slots were free.
    pub(super) async fn attempt(
        &self,
        how: &dyn Holding,
        options: &AcquireOptions,
        id: &str,
        place: Place,
        until: Option<Moment>,
    ) -> Result<(Permit, bool), AcquireError> {
        for _ in 0..COLLISIONS {
            match self.attempt_once(how, options, id, place, until).await {
                // It cost the connection, so the next one is another.
                Err(AcquireError::Broker(error)) if error.is_collision() => {}
                done => return done,
            }
            tokio::time::sleep(rand::random_range(Duration::ZERO..=SKEW)).await;
        }
        self.attempt_once(how, options, id, place, until).await
    }

    async fn attempt_once(
        &self,
        how: &dyn Holding,
        options: &AcquireOptions,
        id: &str,
        place: Place,
        until: Option<Moment>,
    ) -> Result<(Permit, bool), AcquireError> {
        let mut conn = self.shared().pool.take().await?;
        if self.kind() == Kind::Mutex {
            return Ok((self.attempt_mutex(conn, options, id).await?, false));
        }
        let mut guess = match place {
            Place::Any => self.guess(options),
            Place::Slot { slot, again: false } => Some(slot),
            Place::Slot { .. } | Place::Search => None,
        };
        let mut races = 0;
        loop {
            let choice = match (guess.take(), place) {
                (Some(slot), _) => Choice { slot, looked: false, more: false },
                (None, Place::Slot { slot, .. }) => self.choose_slot(how, slot).await?,
                (None, _) => self.choose(how, options, races).await?,
            };
            let (got, has_record, sent) = self.claim(how, &mut conn, &choice, options, id).await?;
            if let Some(held) = got {
                self.remember(|memory| {
                    // Where others were free too, this one will be ours again.
                    memory.calm = races == 0 || choice.more;
                    memory.last = Some(choice.slot);
                });
                let got = Got { conn, held, slot: Some(choice.slot), has_record, sent };
                return Ok((self.permit(got, options, id, until).await?, choice.more));
            }
            self.remember(|memory| memory.calm = false);
            if place != Place::Any && !choice.more {
                // Whoever was faster will call when it is done.
                return Err(self.full());
            }
            if choice.looked {
                races += 1;
                if races >= options.max_races.max(1) {
                    return Err(AcquireError::Contended { lock: self.name().to_string() });
                }
                if races == 1 {
                    // Once, as the source document proposes: those who lost together
                    // should not meet again.
                    tokio::time::sleep(rand::random_range(Duration::ZERO..=SKEW)).await;
                }
            }
        }
    }

    /// A slot to take without looking first: that saves a round trip when it is
    /// free, and costs a channel when it isn't.
    fn guess(&self, options: &AcquireOptions) -> Option<u32> {
        match options.start {
            Start::At(slot) => Some(slot.max(1)),
            Start::Last => {
                let memory = self.recall();
                memory.last.filter(|_| memory.calm)
            }
            Start::First | Start::Random => None,
        }
    }

    /// Looks whether the slot is free that we were called for. If somebody was
    /// faster, no other is looked for: for others, others are called.
    async fn choose_slot(&self, how: &dyn Holding, slot: u32) -> Result<Choice, AcquireError> {
        if is_free(how, self.shared().eyes(), self.name(), slot).await? {
            return Ok(Choice { slot, looked: true, more: false });
        }
        Err(self.full())
    }

    /// All are held, as far as we know without looking again.
    fn full(&self) -> AcquireError {
        AcquireError::Full { lock: self.name().to_string(), slots: self.recall().slots }
    }

    /// Looks for a free slot.
    async fn choose(
        &self,
        how: &dyn Holding,
        options: &AcquireOptions,
        races: u32,
    ) -> Result<Choice, AcquireError> {
        let memory = self.recall();
        let from = match options.start {
            Start::Random if memory.slots > 1 => rand::random_range(1..=memory.slots),
            Start::Last => memory.last.unwrap_or(1),
            _ => 1,
        };
        let expected = if memory.calm { 0 } else { memory.slots };
        match search(how, self.shared().eyes(), self.name(), from, expected).await? {
            Found::Free(free) => {
                let highest = free.last().copied().unwrap_or(1);
                self.remember(|memory| memory.slots = memory.slots.max(highest));
                // After a lost race not the one that everybody else takes.
                let at = if races == 0 && options.start != Start::Random {
                    0
                } else {
                    rand::random_range(0..free.len())
                };
                Ok(Choice { slot: free[at], looked: true, more: free.len() > 1 })
            }
            Found::Full(0) => Err(AcquireError::NoSlots { lock: self.name().to_string() }),
            Found::Full(slots) => {
                self.remember(|memory| memory.slots = slots);
                Err(AcquireError::Full { lock: self.name().to_string(), slots })
            }
        }
    }

    /// Takes the slot; tells also whether it has a record, and when it was asked
    /// for. Nothing is left on the connection unless it is ours.
    async fn claim(
        &self,
        how: &dyn Holding,
        conn: &mut HoldConn,
        choice: &Choice,
        options: &AcquireOptions,
        id: &str,
    ) -> Result<(Option<Box<dyn Hold>>, bool, Moment), AcquireError> {
        let sent = Moment::now();
        conn.begin();
        let claim = how.claim(Claim {
            conn: conn.conn(),
            lock: self.name(),
            slot: choice.slot,
            looked: choice.looked,
            id,
            facts: facts(id, options),
            checked: &self.shared().checked,
        });
        let (claimed, has_record) = futures::join!(claim, self.has_record(choice.slot));
        match claimed? {
            Claimed::Yes(held) => Ok((Some(held), has_record?, sent)),
            Claimed::NoSlot | Claimed::Locked => {
                conn.settle();
                Ok((None, false, sent))
            }
        }
    }

    async fn has_record(&self, slot: u32) -> Result<bool, BrokerError> {
        let Some(queue) = self.name().record_queue(slot) else { return Ok(false) };
        match self.recall().records {
            Some((known, since)) if since.elapsed() < RECORDS_BELIEVED => Ok(known),
            _ => {
                let asked = Moment::now();
                // A record queue refuses what it has no room for, so this can't displace
                // the record.
                let found = self.shared().prober.exist(&[queue]).await? == [true];
                self.remember(|memory| memory.records = Some((found, asked)));
                Ok(found)
            }
        }
    }

    async fn attempt_mutex(
        &self,
        mut conn: HoldConn,
        options: &AcquireOptions,
        id: &str,
    ) -> Result<Permit, AcquireError> {
        let queue = self.name().admin_mutex().to_owned();
        let mut lane = Lane::take(conn.conn()).await?;
        let sent = Moment::now();
        conn.begin();
        let mut facts = facts(id, options);
        exclusive(&mut facts);
        match lane.declare_exclusive(&queue, facts).await? {
            Declared::Ok => {
                let held = Box::new(HeldQueue {
                    conn: Arc::clone(conn.conn()),
                    holder_queue: queue,
                    slot_queue: None,
                });
                let got = Got { conn, held, slot: None, has_record: false, sent };
                self.permit(got, options, id, None).await
            }
            Declared::Locked(_) => {
                conn.settle();
                Err(AcquireError::Full { lock: self.name().to_string(), slots: 1 })
            }
        }
    }

    /// The permit for what was just taken: its record is replaced, and the slot
    /// rested if its last holder ended uncleanly.
    async fn permit(
        &self,
        got: Got,
        options: &AcquireOptions,
        id: &str,
        until: Option<Moment>,
    ) -> Result<Permit, AcquireError> {
        let (mut record, mut rest) = (None, Duration::ZERO);
        if let Some(queue) =
            got.slot.filter(|_| got.has_record).and_then(|slot| self.name().record_queue(slot))
        {
            let next = |found: Option<&SlotRecord>| {
                SlotRecord::acquired(found, id, now(), micros(), options.lock_delay)
            };
            let mut lane = Lane::take(got.conn.conn()).await?;
            if let Some((replaced, wait)) =
                replace(&mut lane, &self.shared().publisher, &queue, next).await?
            {
                (record, rest) = (Some((queue, replaced)), wait);
            }
        }
        let Got { conn: hold, held, slot, sent, .. } = got;
        let permit = Permit::begin(
            self.shared(),
            Begin {
                id: id.to_owned(),
                fence: record.as_ref().map(|(_, record)| record.token),
                slot,
                token_id: None,
                hold,
                held,
                sent,
                wait_queue: slot.and_then(|_| self.name().wait_queue()),
                record,
            },
        );
        if rest.is_zero() {
            return Ok(permit);
        }
        self.rest(permit, rest, until).await
    }

    /// Lets the slot rest in our hands before it is used.
    async fn rest(
        &self,
        mut permit: Permit,
        rest: Duration,
        until: Option<Moment>,
    ) -> Result<Permit, AcquireError> {
        // Given up meanwhile, the slot must not be called cleanly released: the
        // last holder's time to end is not over.
        let record = permit.take_record();
        let rested = Moment::now() + rest;
        tokio::select! {
            reason = permit.lost() => return Err(AcquireError::Lost { reason }),
            () = rested.min(until.unwrap_or(rested)).reached() => {}
        }
        if rested.left().is_zero() {
            permit.put_record(record);
            return Ok(permit);
        }
        let slot = permit.slot().unwrap_or_default();
        let error = AcquireError::Resting { lock: self.name().to_string(), slot, rest };
        // It goes on resting for the next one, who would have to begin anew.
        tokio::spawn(async move {
            tokio::select! {
                _ = permit.lost() => {}
                () = rested.reached() => permit.put_record(record),
            }
            // Lost meanwhile: the next one finds that out.
            let _ = permit.release().await;
        });
        Err(error)
    }

    /// Whether there was no slot to be had at once the last time.
    pub(super) fn is_contended(&self) -> bool {
        let memory = self.recall();
        self.kind() == Kind::Semaphore && !memory.calm && memory.last.is_some()
    }

    fn recall(&self) -> Memory {
        self.shared().memory(self.name(), |memory| *memory)
    }

    fn remember(&self, change: impl FnOnce(&mut Memory)) {
        self.shared().memory(self.name(), change);
    }
}

fn micros() -> u64 {
    u64::try_from(jiff::Timestamp::now().as_microsecond()).unwrap_or_default()
}

/// What a holder says of itself, as arguments of what it holds by.
pub(in crate::semaphore) fn facts(id: &str, options: &AcquireOptions) -> FieldTable {
    let mut arguments = FieldTable::default();
    let mut write = |key: &str, text: &str| {
        arguments.insert(key.into(), AMQPValue::LongString(text.into()));
    };
    write("x-lockkeeper-id", id);
    write("x-lockkeeper-since", &now());
    let given = [
        ("x-lockkeeper-identity", &options.identity),
        ("x-lockkeeper-reason", &options.reason),
        ("x-lockkeeper-url", &options.url),
    ];
    for (key, text) in given {
        if let Some(text) = text {
            write(key, text);
        }
    }
    arguments
}
