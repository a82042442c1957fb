//! Requests the list of a server's connections. See `doctor_state` for the list, and
//! [`lockkeeper_plan::pressure_queue::doctor`] for how it is used.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_plan::naming::QueueName;
use tokio::time::Instant;

use super::super::doctor_state::Listing;
use super::super::{Store, StoreError};

impl Store {
    /// Returns the connections of the queue's server, at most `most` old.
    pub(super) async fn listing(
        &self,
        queue: &QueueName,
        most: Duration,
    ) -> Result<Arc<Listing>, StoreError> {
        let listings = &self.shared().listings;
        let over = self.attempt(queue);
        let _flight = listings.flight.lock().await;
        if let Some(known) = listings.known(over, most) {
            return Ok(known);
        }
        let mut listing = Listing::new(Instant::now(), over);
        let mut command = redis::cmd("CLIENT");
        command.arg("LIST");
        match self.command::<Vec<u8>>(Some(queue), command).await {
            Ok(list) => listing.read(&String::from_utf8_lossy(&list)),
            Err(StoreError::PermissionDenied { .. } | StoreError::Protocol { .. }) => {}
            Err(err) => return Err(err),
        }
        Ok(listings.remember(listing))
    }
}
