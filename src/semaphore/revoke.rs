//! Taking a slot from its holder, on somebody's order: whose it is, is looked at
//! right before. Who may order that, and who is told of it, is others'.

use std::time::Duration;

use futures::FutureExt;
use tokio_util::sync::CancellationToken;

use super::broker::Broker;
use super::error::BrokerError;
use super::exclusive_consumer::revoke_message;
use super::holders::read;
use super::management::{Closed, Management};
use crate::plan::connection::RabbitmqSettings;
use crate::plan::naming::{LockName, Protocol};
use crate::plan::semaphore::{HolderFacts, SlotWish, describe_holders};

/// How long the management API may go on telling of a holder that left, or of its
/// connection: its statistics are 5 s old by default.
const LAGS: Duration = Duration::from_millis(6500);

/// While a holder that was told may still leave, look this often.
const LEAVES: Duration = Duration::from_millis(100);

/// What is to be taken from whom.
#[derive(Clone, Debug)]
pub struct Revocation {
    /// The slot; absent where a protocol has none.
    pub slot: Option<u32>,
    /// The holder's id, as [`Broker::holders`] tells it.
    pub holder: String,
    /// What the holder is told.
    pub reason: String,
    /// Also where its connection has other things, which go with it.
    pub force: bool,
    /// How long this holder is known to have the slot already.
    pub known_for: Duration,
}

/// Why nothing was taken from anybody.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RevokeError {
    /// Somebody else holds it, or nobody.
    #[error("it is not held by that holder (any more), so nothing is left to do")]
    NotHeld,
    /// Whose it is, is not known.
    #[error("who holds it is not known well enough ({why})")]
    Unsure {
        /// What is lacking.
        why: String,
    },
    /// There is no administrator.
    #[error(
        "closing a holder's connection needs the broker's administrator: give the connection's Secret the key adminUri, or the operator --admin-url for its default connection"
    )]
    NoAdministrator,
    /// More than the one slot would be taken.
    #[error(
        "the holder's connection {connection:?} also has {what}, which would go with it: if that is wanted, say force"
    )]
    OwnsMore {
        /// The broker's name for the connection.
        connection: String,
        /// What else it has.
        what: String,
    },
    /// The management API is of no help.
    #[error("{0}")]
    Management(String),
    /// The broker said no, or nothing.
    #[error(transparent)]
    Broker(#[from] BrokerError),
}

impl Broker {
    /// Takes a slot from its holder, if it is that holder's. The holder is told, as far
    /// as it listens; the slot is free afterwards, or gone if it is above `wish.slots`.
    ///
    /// What is held by a connection's exclusive queue or unacknowledged message is taken
    /// by closing the connection, which needs an administrator of the management API;
    /// what is held by a consumer, by a message to the holder and, if it stays, by
    /// making the queue again that it consumes from.
    ///
    /// Takes up to 7 s longer than [`Revocation::known_for`] lacks of that, because the
    /// management API lags behind. Calling again after an error or an end in between
    /// never takes anything from another holder.
    ///
    /// # Errors
    ///
    /// Nothing was taken; but for a connection lost in the middle.
    ///
    /// # Cancel safety
    ///
    /// Dropped, or with `cancel`, the holder may or may not have lost the slot.
    pub async fn revoke(
        &self,
        lock: &LockName,
        wish: SlotWish,
        what: &Revocation,
        cancel: &CancellationToken,
    ) -> Result<(), RevokeError> {
        let revoke = Revoke { broker: self, lock, wish, what, cancel };
        match lock.protocol() {
            Protocol::ExclusiveConsumer => revoke.consumer().await,
            Protocol::ExclusiveQueue(_) | Protocol::Token(_) => revoke.connection().await,
        }
    }
}

/// What is closed, and by which of its belongings it holds.
#[derive(PartialEq, Eq)]
struct Target {
    connection: String,
    holding: Vec<String>,
    unacknowledged: u32,
}

struct Revoke<'a> {
    broker: &'a Broker,
    lock: &'a LockName,
    wish: SlotWish,
    what: &'a Revocation,
    cancel: &'a CancellationToken,
}

impl Revoke<'_> {
    fn slot(&self) -> Result<u32, RevokeError> {
        let why = || "the request names no slot".to_owned();
        self.what.slot.ok_or_else(|| RevokeError::Unsure { why: why() })
    }

    /// Whether these are the facts of the holder that is meant.
    fn is_meant(&self, facts: &HolderFacts, slot: u32) -> bool {
        let described = describe_holders(&[slot].into(), slot, 1, |_| facts.clone());
        let Some(id) = described.into_iter().next().map(|holder| holder.id) else { return false };
        // A second one with the same id of its own is shown with its slot.
        self.what.holder == id || self.what.holder == format!("{id}#{slot}")
    }

    /// Ends early when the process is to stop.
    async fn pause(&self, length: Duration) -> Result<(), RevokeError> {
        tokio::select! {
            () = self.cancel.cancelled() => Err(BrokerError::Interrupted.into()),
            () = tokio::time::sleep(length) => Ok(()),
        }
    }

    /// Whether it may still be done.
    fn go_on(&self) -> Result<(), RevokeError> {
        let inner = self.broker.inner();
        if self.cancel.is_cancelled() || !inner.options.may_act.now() {
            return Err(BrokerError::Interrupted.into());
        }
        Ok(())
    }

    fn administrator(&self) -> Result<Management, RevokeError> {
        let settings = self.broker.inner().settings();
        let administrator = settings.administrator.clone().ok_or(RevokeError::NoAdministrator)?;
        let settings = RabbitmqSettings { management: Some(administrator), ..settings.clone() };
        Management::new(&settings).ok_or(RevokeError::NoAdministrator)
    }

    async fn connection(&self) -> Result<(), RevokeError> {
        let administrator = self.administrator()?;
        let first = self.target(&administrator).await?;
        // Whose queue this is, the API may have known before the holder came.
        if let Some(lacking) = LAGS.checked_sub(self.what.known_for) {
            self.pause(lacking).await?;
        }
        if !self.what.force {
            let holding: Vec<&str> = first.holding.iter().map(String::as_str).collect();
            let more =
                administrator.belongings(&first.connection, &holding, first.unacknowledged).await;
            let more = more.map_err(RevokeError::Management)?;
            if !more.is_empty() {
                let what = more.iter().take(5).cloned().collect::<Vec<_>>().join(", ");
                return Err(RevokeError::OwnsMore { connection: first.connection, what });
            }
        }
        if self.target(&administrator).await? != first {
            let why = "its connection became known only now".to_owned();
            return Err(RevokeError::Unsure { why });
        }
        self.go_on()?;
        let reason = format!("revoked: {}", self.what.reason);
        match administrator.close(&first.connection, &reason).await {
            Ok(Closed::Yes) => Ok(()),
            Ok(Closed::Gone) => Err(RevokeError::NotHeld),
            Err(why) => Err(RevokeError::Management(why)),
        }
    }

    async fn target(&self, administrator: &Management) -> Result<Target, RevokeError> {
        match self.lock.protocol() {
            Protocol::Token(_) => self.token_target(administrator).await,
            _ => {
                let slot = self.slot()?;
                let queue = self.lock.holder_queue(slot);
                self.owner_of(administrator, queue, slot).await
            }
        }
    }

    async fn owner_of(
        &self,
        administrator: &Management,
        queue: String,
        slot: u32,
    ) -> Result<Target, RevokeError> {
        let owned = administrator.owned(&queue).await.map_err(RevokeError::Management)?;
        let Some(owned) = owned.ok_or(RevokeError::NotHeld)? else {
            let why = "the management API does not know its connection yet".to_owned();
            return Err(RevokeError::Unsure { why });
        };
        if self.what.holder == format!("slot-{slot}") && owned.facts.id.is_none() {
            let why = "it is known only by its slot, which may be another's by now; status tells holders apart with a managementUri";
            return Err(RevokeError::Unsure { why: why.to_owned() });
        }
        if !self.is_meant(&owned.facts, slot) {
            return Err(RevokeError::NotHeld);
        }
        Ok(Target { connection: owned.connection, holding: vec![queue], unacknowledged: 0 })
    }

    /// Who holds a token said so by an exclusive queue, or is known by its connection.
    async fn token_target(&self, administrator: &Management) -> Result<Target, RevokeError> {
        let failed = RevokeError::Management;
        let tokens = self.lock.token_queue();
        let name = super::marks::escaped(self.lock.as_str());
        let announced = format!("^{name}-[0-9]+-B$");
        for queue in administrator.queues_matching(&announced).await.map_err(failed)? {
            if read(queue.arguments).id.is_some_and(|id| {
                self.is_meant(&HolderFacts { id: Some(id), ..HolderFacts::default() }, 0)
            }) {
                let mut target = self.owner_of(administrator, queue.name, 0).await?;
                target.holding.push(tokens);
                return Ok(Target { unacknowledged: 1, ..target });
            }
        }
        let (consumers, unacknowledged) =
            futures::try_join!(administrator.consumers_of(&tokens), administrator.unacknowledged())
                .map_err(RevokeError::Management)?;
        for consumer in consumers {
            let channel = consumer.channel_details;
            if unacknowledged.get(&channel.name).is_none_or(|count| *count == 0) {
                continue;
            }
            let shown = administrator.owner(channel.connection_name.clone()).await.connection;
            let shown = crate::plan::clean_text(shown.trim(), 128);
            let meant = &self.what.holder;
            if *meant == shown || meant.rsplit_once('#').is_some_and(|(of, _)| of == shown) {
                let connection = channel.connection_name;
                return Ok(Target { connection, holding: vec![tokens], unacknowledged: 1 });
            }
        }
        Err(RevokeError::NotHeld)
    }

    /// A message to the holder; and if it stays, its queue is made again.
    async fn consumer(&self) -> Result<(), RevokeError> {
        let slot = self.slot()?;
        let inner = self.broker.inner();
        let queue = self.lock.holder_queue(slot);
        let own_id = self.consumes(&queue, slot).await?.ok_or(RevokeError::NotHeld)?;
        self.go_on()?;
        let mut lane = inner.publisher().await?;
        let message = revoke_message(&self.what.reason);
        // Only whom it names obeys: the API may not know yet of who came after.
        lane.send(&queue, message.as_bytes(), 1, own_id.as_deref()).await?;
        let told = tokio::time::Instant::now();
        while told.elapsed() < LAGS {
            match lane.consumers(&queue).await? {
                None | Some(0) => return Ok(()),
                Some(_) => self.pause(LEAVES).await?,
            }
        }
        if self.consumes(&queue, slot).await?.is_none() {
            return Ok(());
        }
        let is_wanted = slot <= self.wish.slots;
        let change = self.broker.change(self.lock, self.wish, self.cancel);
        let again = queue.clone();
        let taken = change.run(move |change, lane| {
            async move {
                change.go_on(lane)?;
                lane.delete(&again).await?;
                if is_wanted {
                    lane.declare_holder_queue(&again).await?;
                }
                Ok(())
            }
            .boxed()
        });
        Ok(taken.await?)
    }

    /// Whether the holder that is meant consumes from the queue, as far as is known;
    /// the id that it gave itself.
    async fn consumes(
        &self,
        queue: &str,
        slot: u32,
    ) -> Result<Option<Option<String>>, RevokeError> {
        let inner = self.broker.inner();
        let management = match inner.facts.management() {
            Some(management) => std::sync::Arc::clone(management),
            None => std::sync::Arc::new(self.administrator().map_err(|_| {
                let why = "without managementUri nobody tells who consumes".to_owned();
                RevokeError::Unsure { why }
            })?),
        };
        let consumers = management.consumers().await.map_err(RevokeError::Management)?;
        for consumer in consumers {
            if consumer.queue.name != queue || !consumer.exclusive {
                continue;
            }
            let given = read(consumer.arguments());
            let connection = match consumer.connection() {
                Some(name) => Some(management.owner(name).await.connection),
                None => None,
            };
            let id = given.id.clone();
            let facts = HolderFacts { connection, ..given };
            return Ok(self.is_meant(&facts, slot).then_some(id));
        }
        Ok(None)
    }
}
