//! Revokes a slot by closing the connection of its holder, which requires an
//! administrator of the management API.

use futures::FutureExt;
use lockkeeper_plan::semaphore::HolderFacts;

use super::{LAGS, Revoke, RevokeError};
use crate::management::{Closed, Management, escaped, read};
use crate::protocol::claim::MUTEX_SLOT;

/// How a connection holds what is revoked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeldBy {
    /// By the holder queue of a slot, which belongs to it.
    HolderQueue,
    /// By an unacknowledged token.
    Token,
    /// By the queue of a true mutex, which belongs to it.
    Mutex,
}

/// The connection to close, and the objects by which it holds the slot.
#[derive(PartialEq, Eq)]
struct Target {
    connection: String,
    holding: Vec<String>,
    unacknowledged: u32,
}

impl Revoke<'_> {
    /// Closes the connection of the holder, which holds the slot as `by` says.
    pub async fn by_closing(&self, by: HeldBy) -> Result<(), RevokeError> {
        let administrator = self.administrator()?;
        let first = self.target(by, &administrator).await?;
        // The API may have listed this owner before the requested holder acquired the
        // slot.
        if let Some(lacking) = LAGS.checked_sub(self.what.known_for) {
            self.pause(lacking).await?;
        }
        if !self.what.force {
            let holding: Vec<&str> = first.holding.iter().map(String::as_str).collect();
            let more =
                administrator.belongings(&first.connection, &holding, first.unacknowledged).await?;
            if !more.is_empty() {
                let what = more.iter().take(5).cloned().collect::<Vec<_>>().join(", ");
                return Err(RevokeError::OwnsMore { connection: first.connection, what });
            }
        }
        if self.target(by, &administrator).await? != first {
            let why = "its connection became known only now".to_owned();
            return Err(RevokeError::Unsure { why });
        }
        self.check_cancelled()?;
        let reason = format!("revoked: {}", self.what.reason);
        match administrator.close(&first.connection, &reason).await? {
            Closed::Yes => Ok(()),
            Closed::Gone => Err(RevokeError::NotHeld),
        }
    }

    /// Finds the holder's connection.
    async fn target(&self, by: HeldBy, administrator: &Management) -> Result<Target, RevokeError> {
        self.ask_again(|| self.find_target(by, administrator).boxed()).await
    }

    async fn find_target(
        &self,
        by: HeldBy,
        administrator: &Management,
    ) -> Result<Target, RevokeError> {
        match by {
            HeldBy::Token => self.token_target(administrator).await,
            HeldBy::Mutex => {
                let queue = self.lock.holder_queue(MUTEX_SLOT);
                self.owner_of(administrator, queue, MUTEX_SLOT).await
            }
            HeldBy::HolderQueue => {
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
        let unsure = |why: &str| Err(RevokeError::Unsure { why: why.to_owned() });
        let owned = match administrator.owned(&queue).await? {
            Some(owned) => owned,
            // The management API may belong to another broker.
            None if self.access.any_exists(std::slice::from_ref(&queue)).await? => {
                return unsure("the management API does not know its queue, which is there");
            }
            None => return Err(RevokeError::NotHeld),
        };
        let Some(connection) = owned.connection else {
            return unsure("the management API does not know its connection yet");
        };
        if self.what.holder == format!("slot-{slot}") && owned.facts.id.is_none() {
            return unsure(
                "it is known only by its slot, which may be another's by now; status distinguishes holders with a managementUri",
            );
        }
        if !self.is_meant(&owned.facts, slot) {
            return Err(RevokeError::NotHeld);
        }
        Ok(Target { connection, holding: vec![queue], unacknowledged: 0 })
    }

    /// Finds the holder of a token, by the exclusive queue that announces it or by its
    /// connection.
    async fn token_target(&self, administrator: &Management) -> Result<Target, RevokeError> {
        let tokens = self.lock.token_queue();
        let name = escaped(self.lock.as_str());
        let announced = format!("^{name}-[0-9]+-B$");
        for queue in administrator.queues_matching(&announced).await? {
            if read(&queue.arguments).id.is_some_and(|id| {
                self.is_meant(&HolderFacts { id: Some(id), ..HolderFacts::default() }, 0)
            }) {
                let mut target = self.owner_of(administrator, queue.name, 0).await?;
                target.holding.push(tokens);
                return Ok(Target { unacknowledged: 1, ..target });
            }
        }
        let (consumers, unacknowledged) = futures::try_join!(
            administrator.consumers_of(&tokens),
            administrator.unacknowledged()
        )?;
        for consumer in consumers.unwrap_or_default() {
            let channel = consumer.channel_details;
            if unacknowledged.get(&channel.name).is_none_or(|count| *count == 0) {
                continue;
            }
            let shown = administrator.owner(channel.connection_name.clone()).await.connection;
            let shown = lockkeeper_plan::clean_text(shown.trim(), 128);
            let meant = &self.what.holder;
            if *meant == shown || meant.rsplit_once('#').is_some_and(|(of, _)| of == shown) {
                let connection = channel.connection_name;
                return Ok(Target { connection, holding: vec![tokens], unacknowledged: 1 });
            }
        }
        Err(RevokeError::NotHeld)
    }
}
