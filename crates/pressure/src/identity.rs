//! Finds out which server a store is on, and whether two stores are on the same one.

use lockkeeper_plan::naming::QueueName;

use super::reply::StoreIdentity;
use super::{Store, StoreError};

/// Time after which Redis deletes a probe key that was not deleted before.
const PROBE_EXPIRES_SECONDS: u32 = 60;

impl Store {
    /// Returns the server's identity. If the ACL forbids `INFO`, the identity is empty,
    /// which is not an error.
    ///
    /// # Errors
    ///
    /// [`StoreError`]: the server can't be reached, does not answer in time, or
    /// rejects the request.
    pub async fn identity(&self) -> Result<StoreIdentity, StoreError> {
        match self.command(None, redis::cmd("INFO")).await {
            Ok::<String, _>(info) => Ok(StoreIdentity::from_info(&info)),
            Err(StoreError::PermissionDenied { .. } | StoreError::Protocol { .. }) => {
                Ok(StoreIdentity::default())
            }
            Err(err) => Err(err),
        }
    }

    /// Whether `other` manages this queue in the same database of the same server, at any
    /// address.
    ///
    /// Sets a key with a random name that begins with the queue's over `other`, and looks
    /// for it over `self`. The server behind `other` can therefore not impersonate this
    /// one. Only a login that may write the queue's keys here can pass. The key is
    /// deleted immediately after, or expires after a minute if this future is dropped.
    ///
    /// # Errors
    ///
    /// [`StoreError`]: the server can't be reached, does not answer in time, or
    /// rejects the request.
    pub async fn is_same_as(&self, other: &Self, queue: &QueueName) -> Result<bool, StoreError> {
        if self.settings().database != other.settings().database {
            return Ok(false);
        }
        let key = format!("{}:probe:{:032x}", queue.data(), rand::random::<u128>());
        let on_key = |name: &str| {
            let mut command = redis::cmd(name);
            command.arg(&key);
            command
        };
        let mut set = on_key("SET");
        set.arg(1).arg("EX").arg(PROBE_EXPIRES_SECONDS);
        other.command::<()>(Some(queue), set).await?;
        let seen = self.command(Some(queue), on_key("EXISTS")).await;
        // If this fails, the key expires.
        let _ = other.command::<()>(Some(queue), on_key("DEL")).await;
        seen
    }
}
