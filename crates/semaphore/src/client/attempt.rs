//! One attempt to acquire: choose a slot, take it, update its record, and wait for the
//! lock delay if its last holder ended uncleanly. See `lock` for repeated attempts.

use std::time::Duration;

use lockkeeper_net::clock::Moment;
use lockkeeper_plan::record::SlotRecord;

use super::error::AcquireError;
use super::facts::facts;
use super::lock::Lock;
use super::memory::Memory;
use super::options::{AcquireOptions, Start};
use super::permit::{Permit, PermitParts, now};
use super::pool::HoldConnection;
use super::records::replace;
use super::resting;
use super::search::{Search, search};
use crate::error::BrokerError;
use crate::protocol::claim::{Claim, Claimed, ClientProtocol, MUTEX_SLOT};
use crate::protocol::hold::HeldClaim;
use crate::session::offered;
use lockkeeper_amqp::channel::Channel;

/// Maximum of the one random pause after a first lost race.
pub const SKEW: Duration = Duration::from_millis(50);

/// Which slots to try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Any slot, according to the options, without a probe where that pays.
    Any,
    /// The same for a client that can wait instead. After a lost race for one of few free
    /// slots, it lets the waiters have them.
    OrWait {
        /// Number of races that this acquisition has lost before.
        lost: u32,
    },
    /// Any free slot found by a search, if more than `others` slots are free. Otherwise
    /// the client waits to be woken.
    Search {
        /// Number of other waiters, each of which may be about to take a slot.
        others: u32,
    },
    /// Only this slot, for which the client was woken. It is taken without a probe,
    /// because another client is rarely faster.
    Slot(u32),
}

/// A slot that was taken.
struct TakenSlot {
    connection: HoldConnection,
    held: Box<dyn HeldClaim>,
    slot: u32,
    has_record: bool,
    sent: Moment,
}

/// A slot to try.
pub struct Choice {
    slot: u32,
    /// A probe has just seen the slot existing and free.
    looked: bool,
    /// Other slots were free as well.
    more: bool,
    /// There were no more free slots than lost races. A client that can wait then joins the
    /// wait queue if it loses this race too.
    few: bool,
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

/// A search after lost races ends when it has found more free slots than this for each of them.
/// The client chooses one at random, so that it rarely meets another client again.
const CHOICES_PER_RACE: u32 = 4;

/// Such a search also ends after this number of slots, if one of them is free and the client has
/// held a slot before. Clients that have not all begin at the first slot, and would meet there.
const SAMPLE: u32 = 20;

/// Attempts that may collide with the remains of a holder that has just died.
const COLLISIONS: u32 = 5;

impl Lock {
    /// Tries once. Also returns whether more slots were free.
    pub(super) async fn attempt(
        &self,
        how: &dyn ClientProtocol,
        options: &AcquireOptions,
        id: &str,
        place: Place,
        until: Option<Moment>,
    ) -> Result<(Permit, bool), AcquireError> {
        for _ in 0..COLLISIONS {
            match self.attempt_once(how, options, id, place, until).await {
                // The collision closed the connection, so the next attempt uses another
                // one.
                Err(AcquireError::Broker(error)) if error.is_collision() => {}
                done => return done,
            }
            tokio::time::sleep(rand::random_range(Duration::ZERO..=SKEW)).await;
        }
        self.attempt_once(how, options, id, place, until).await
    }

    async fn attempt_once(
        &self,
        how: &dyn ClientProtocol,
        options: &AcquireOptions,
        id: &str,
        place: Place,
        until: Option<Moment>,
    ) -> Result<(Permit, bool), AcquireError> {
        let mut connection = self.shared().pool.take().await?;
        offered::check(connection.connection().features, self.name())?;
        let place = match place {
            // It has only one.
            Place::Any | Place::OrWait { .. } if !self.name().has_slots() => {
                Place::Slot(MUTEX_SLOT)
            }
            place => place,
        };
        let mut guess = match place {
            Place::Any | Place::OrWait { .. } => self.guess(options),
            Place::Slot(slot) => Some(slot),
            Place::Search { .. } => None,
        };
        let any = matches!(place, Place::Any | Place::OrWait { .. });
        let mut lost = if let Place::OrWait { lost } = place { lost } else { 0 };
        let (mut races, mut down) = (0, 0);
        loop {
            let choice = match guess.take() {
                Some(slot) => Choice { slot, looked: false, more: false, few: false },
                None => self.choose(how, options, place, lost).await?,
            };
            let tried = self.claim(how, &mut connection, &choice, options, id).await;
            if let Ok(ClaimOutcome::Held { held, has_record, sent }) = tried {
                self.remember(|memory| {
                    // If others were free too, this slot will probably be free again next
                    // time.
                    memory.calm = races == 0 || choice.more;
                    memory.last = Some(choice.slot);
                });
                let got = TakenSlot { connection, held, slot: choice.slot, has_record, sent };
                return Ok((self.permit(got, options, id, until).await?, choice.more));
            }
            self.remember(|memory| memory.calm = false);
            if let ClaimOutcome::NodeDown(error) = tried? {
                down += 1;
                if down > NODES_DOWN || !any {
                    return Err(error.into());
                }
                // Something may be left declared on the other one.
                connection = self.shared().pool.take().await?;
                continue;
            }
            if !connection.connection().is_usable() {
                // The refusal ended it.
                connection = self.shared().pool.take().await?;
            }
            if choice.looked || options.start == Start::Last {
                lost += 1;
            }
            if !any && !choice.more {
                // The faster client wakes a waiter when it releases.
                return Err(self.full());
            }
            if choice.few && matches!(place, Place::OrWait { .. }) {
                self.remember(|memory| memory.crowded = Some(Moment::now()));
                return Err(AcquireError::Contended { lock: self.name().to_string() });
            }
            if choice.looked {
                races += 1;
                if races >= options.max_races.max(1) {
                    return Err(AcquireError::Contended { lock: self.name().to_string() });
                }
                if races == 1 {
                    // Once, as the source document proposes, so that the losers of a race
                    // do not collide again.
                    tokio::time::sleep(rand::random_range(Duration::ZERO..=SKEW)).await;
                }
            }
        }
    }

    /// Returns a slot to take without a probe. That saves a round trip if it is free, and
    /// costs a channel if it isn't.
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

    /// The error for the case that all known slots are held.
    fn full(&self) -> AcquireError {
        let slots = if self.name().has_slots() { self.recall().slots } else { MUTEX_SLOT };
        AcquireError::Full { lock: self.name().to_string(), slots }
    }

    /// Searches for a free slot. Chooses none unless there are more free slots than other
    /// waiters. For a client among waiters, `more` is then certain. For one that has not
    /// looked for waiters, the first free slot ends the search, or after lost races some more,
    /// if it can wait.
    pub(super) async fn choose(
        &self,
        how: &dyn ClientProtocol,
        options: &AcquireOptions,
        place: Place,
        lost: u32,
    ) -> Result<Choice, AcquireError> {
        let memory = self.recall();
        let from = match options.start {
            Start::Random if memory.slots > 1 => rand::random_range(1..=memory.slots),
            // The slot that was just lost is held.
            Start::Last => memory.last.map_or(1, |slot| slot + u32::from(lost > 0)),
            _ => 1,
        };
        let spread = if options.start == Start::Random { lost.max(1) } else { lost };
        let (others, more_than) = match place {
            Place::Search { others } => (others, others.saturating_add(1)),
            Place::OrWait { .. } => (0, CHOICES_PER_RACE.saturating_mul(lost)),
            Place::Any | Place::Slot(_) => (0, 0),
        };
        let samples = matches!(place, Place::OrWait { .. }) && lost > 0 && memory.last.is_some();
        let sample = if samples { SAMPLE } else { u32::MAX };
        let width = first_width(&memory, from, more_than, spread);
        let wanted = Search { from, width, more_than, sample, known_end: memory.known_end() };
        let found = search(how, self.shared().probe_context(), self.name(), wanted).await?;
        let free = found.free;
        self.remember(|memory| {
            memory.slots = found.slots.unwrap_or(memory.slots).max(highest(&free));
            memory.complete = found.slots.is_some() || memory.complete;
            memory.end = found.confirmed_end.map(|slot| (slot, Moment::now())).or(memory.end);
            if free.len() > others as usize + 1 {
                memory.crowded = None;
            } else if found.slots.is_some() {
                memory.crowded = Some(Moment::now());
            }
        });
        if free.is_empty()
            && found.held == 0
            && let Some(error) = found.unknown
        {
            return Err(error.into());
        }
        if found.slots == Some(0) && free.is_empty() {
            return Err(AcquireError::NoSlots { lock: self.name().to_string() });
        }
        if free.len() <= others as usize {
            return Err(self.full());
        }
        // After a lost race, a random slot, because the other clients take the first.
        let first = spread == 0 && others == 0;
        let at = if first { 0 } else { rand::random_range(0..free.len()) };
        // Of 64 clients that began together on 10 slots, each lost 8 races without this limit. But
        // each client in the wait queue makes all others search: with four free slots for each
        // lost race, 64 clients on 100 slots of which half were held took 1.3 times as long.
        let few = found.slots.is_some() && free.len() <= lost as usize;
        Ok(Choice { slot: free[at], looked: true, more: free.len() > 1, few })
    }

    /// Takes the slot. If another client holds it, nothing is left declared on the
    /// connection.
    async fn claim(
        &self,
        how: &dyn ClientProtocol,
        connection: &mut HoldConnection,
        choice: &Choice,
        options: &AcquireOptions,
        id: &str,
    ) -> Result<ClaimOutcome, AcquireError> {
        let sent = Moment::now();
        connection.begin();
        let claim = how.claim(Claim {
            connection: connection.connection(),
            lock: self.name(),
            slot: choice.slot,
            looked: choice.looked,
            id,
            facts: facts(id, options),
            checked: &self.shared().checked,
        });
        let (claimed, has_record, protocol) =
            futures::join!(claim, self.has_record(choice.slot), self.check_protocol(choice.slot));
        match claimed {
            Ok(Claimed::Yes(held)) => {
                protocol?;
                Ok(ClaimOutcome::Held { held, has_record: has_record?, sent })
            }
            Ok(missing_or_locked) => {
                connection.settle();
                if matches!(missing_or_locked, Claimed::NoSlot) {
                    self.check_missing(choice.slot).await?;
                }
                Ok(ClaimOutcome::Lost)
            }
            Err(error @ BrokerError::NodeDown { .. }) => Ok(ClaimOutcome::NodeDown(error)),
            Err(error) => Err(error.into()),
        }
    }

    /// Creates the permit of a slot that was just taken. Replaces its record, and waits
    /// for the lock delay if its last holder ended uncleanly.
    async fn permit(
        &self,
        got: TakenSlot,
        options: &AcquireOptions,
        id: &str,
        until: Option<Moment>,
    ) -> Result<Permit, AcquireError> {
        let (mut record, mut rest) = (None, Duration::ZERO);
        if let Some(queue) = got.has_record.then(|| self.name().record_queue(got.slot)).flatten() {
            let next = |found: Option<&SlotRecord>| {
                if found.is_none() {
                    tracing::warn!(
                        queue,
                        "Slot record lost: the fencing token continues from the clock"
                    );
                }
                SlotRecord::acquired(found, id, now(), micros(), options.lock_delay)
            };
            let mut channel = Channel::take(got.connection.connection()).await?;
            if let Some((replaced, wait)) =
                replace(&mut channel, &self.shared().publisher, &queue, next).await?
            {
                (record, rest) = (Some((queue, replaced)), wait);
            }
        }
        let TakenSlot { connection: hold, held, slot, sent, .. } = got;
        let rested = record.as_ref().map_or(Duration::ZERO, |(_, record)| record.rested());
        let permit = Permit::begin(
            self.shared(),
            PermitParts {
                id: id.to_owned(),
                fence: record.as_ref().map(|(_, record)| record.token),
                slot: Some(slot),
                has_number: self.name().has_slots(),
                token_id: None,
                hold,
                held,
                sent,
                wait_queue: self.name().wait_queue(),
                record,
            },
        );
        if rest.is_zero() {
            return Ok(permit);
        }
        resting::rest(permit, self.name().as_str(), rested, rest, until).await
    }

    pub(super) fn recall(&self) -> Memory {
        self.shared().memory(self.name(), |memory| *memory)
    }

    pub(super) fn remember(&self, change: impl FnOnce(&mut Memory)) {
        self.shared().memory(self.name(), change);
    }
}

/// Returns how many slots a search probes first. One slot suits a lock that is mostly
/// free, and all known slots one that is mostly held. In between, it is a few more than
/// other clients are about to take: losers of a race spread over four times as many slots
/// as before it.
fn first_width(memory: &Memory, from: u32, more_than: u32, spread: u32) -> u32 {
    // Include the slot after the last, which reveals the end.
    let rest = memory.slots.saturating_add(2).saturating_sub(from);
    if memory.is_crowded() {
        return rest;
    }
    let width = more_than.saturating_add(1).saturating_mul(4_u32.saturating_pow(spread));
    width.min(if memory.complete { rest } else { rest.saturating_mul(4) })
}

fn highest(slots: &[u32]) -> u32 {
    slots.iter().copied().max().unwrap_or_default()
}

fn micros() -> u64 {
    u64::try_from(jiff::Timestamp::now().as_microsecond()).unwrap_or_default()
}
