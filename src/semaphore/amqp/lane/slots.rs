//! Declares and inspects slot queues, also those of other administrators. See `inspecting`
//! for the other queues.

use lapin::options::QueueDeclareOptions;
use lapin::types::FieldTable;

use super::{Lane, slot_queue};
use crate::plan::naming::Profile;
use crate::semaphore::error::BrokerError;

impl Lane {
    /// Declares the slot queue `name` with the properties of `profile`. In profile Guideline,
    /// an existing durable queue without arguments is adopted, because the source document
    /// names no arguments ([`Lane::adopt`]).
    ///
    /// # Errors
    ///
    /// [`BrokerError::IncompatibleQueue`] for an existing queue with other properties.
    pub async fn declare_slot(&mut self, name: &str, profile: Profile) -> Result<(), BrokerError> {
        let (options, arguments) = slot_queue(profile);
        let refused = match self.declare(name, options, arguments.clone()).await {
            Err(error @ BrokerError::IncompatibleQueue { .. }) => error,
            declared => return declared,
        };
        match self.adopt(name, profile, refused).await? {
            Some(_) => Ok(()),
            // It was deleted in the meantime.
            None => self.declare(name, options, arguments).await,
        }
    }

    /// Inspects the slot queue `name` of that profile. `None` if it is missing.
    ///
    /// # Errors
    ///
    /// Those of [`Lane::declare_slot`].
    pub async fn inspect_slot(
        &mut self,
        name: &str,
        profile: Profile,
    ) -> Result<Option<lapin::Queue>, BrokerError> {
        let (options, arguments) = slot_queue(profile);
        match self.inspect(name, options, arguments).await {
            Err(error @ BrokerError::IncompatibleQueue { .. }) => {
                self.adopt(name, profile, error).await
            }
            inspected => inspected,
        }
    }

    /// Returns the durable queue without arguments that was refused because of its
    /// arguments, or else the error `refused`. A queue with messages or consumers is in use
    /// for something else. `None` if it is missing.
    async fn adopt(
        &mut self,
        name: &str,
        profile: Profile,
        refused: BrokerError,
    ) -> Result<Option<lapin::Queue>, BrokerError> {
        if profile != Profile::Guideline {
            return Err(refused);
        }
        match self.inspect(name, QueueDeclareOptions::durable(), FieldTable::default()).await {
            Ok(Some(queue)) if queue.message_count() > 0 || queue.consumer_count() > 0 => {
                Err(BrokerError::IncompatibleQueue {
                    queue: name.to_owned(),
                    why: "a queue with messages or consumers has the name of a slot".to_owned(),
                })
            }
            Err(BrokerError::IncompatibleQueue { .. }) => Err(refused),
            other => other,
        }
    }
}
