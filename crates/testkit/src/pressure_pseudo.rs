//! A foreign client of pressure 0.15 that implements the pseudo-code of its document
//! ("Redis Reference Implementation"), command by command on its own connection. It uses
//! no code of this crate. It follows the pseudo-code even where the text before it
//! differs: every get pushes to `:not_full`, the counters have no `:stats` in their
//! names, and a client that raises `QueueClosedError` or `QueueFullError` keeps its role.
//!
//! Lines that are not Redis commands are interpreted: `LPUSH :not_full` without an
//! element pushes one, and `RPOP` takes one key and no timeout. A missing `:bound` counts
//! as 0.

use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue, RedisError};

use super::redis::connection;

/// Errors that the pseudo-code raises.
#[derive(Debug)]
pub enum PseudoError {
    /// `QueueDoesNotExistError`.
    DoesNotExist,
    /// `QueueAlreadyExistsError`.
    AlreadyExists,
    /// `QueueClosedError`: the role stays taken.
    Closed,
    /// `QueueFullError`: the role stays taken.
    Full,
    /// `QueueInUseError`.
    InUse,
    /// Redis or the connection failed.
    Redis(RedisError),
}

impl From<RedisError> for PseudoError {
    fn from(err: RedisError) -> Self {
        Self::Redis(err)
    }
}

/// A client with one connection.
pub struct PseudoClient {
    connection: MultiplexedConnection,
    data: String,
    id: String,
    /// Redis's `CLIENT ID` of the connection.
    pub client: i64,
}

impl PseudoClient {
    /// Connects to the queue whose data list is `data`. The client writes `id` into
    /// `:producer` and `:consumer`.
    pub async fn connect(url: &str, data: &str, id: &str) -> Result<Self, PseudoError> {
        let mut connection = connection(url).await?;
        let client = redis::cmd("CLIENT").arg("ID").query_async(&mut connection).await?;
        Ok(Self { connection, data: data.to_owned(), id: id.to_owned(), client })
    }

    async fn send<T: FromRedisValue>(&mut self, command: &[&str]) -> Result<T, PseudoError> {
        let mut cmd = redis::cmd(command[0]);
        cmd.arg(&command[1..]);
        Ok(cmd.query_async(&mut self.connection).await?)
    }

    fn key(&self, suffix: &str) -> String {
        format!("{}{suffix}", self.data)
    }

    async fn exists(&mut self, suffix: &str) -> Result<bool, PseudoError> {
        self.send(&["EXISTS", &self.key(suffix)]).await
    }

    async fn must_exist(&mut self) -> Result<(), PseudoError> {
        if self.exists(":bound").await? { Ok(()) } else { Err(PseudoError::DoesNotExist) }
    }

    async fn lpush(&mut self, suffix: &str, element: &str) -> Result<u64, PseudoError> {
        self.send(&["LPUSH", &self.key(suffix), element]).await
    }

    async fn rpop(&mut self, suffix: &str) -> Result<Option<String>, PseudoError> {
        self.send(&["RPOP", &self.key(suffix)]).await
    }

    async fn brpop(&mut self, suffixes: &[&str]) -> Result<(String, String), PseudoError> {
        let keys: Vec<String> = suffixes.iter().map(|suffix| self.key(suffix)).collect();
        let mut command = vec!["BRPOP"];
        command.extend(keys.iter().map(String::as_str));
        command.push("0");
        self.send(&command).await
    }

    async fn del(&mut self, suffixes: &[&str]) -> Result<(), PseudoError> {
        for suffix in suffixes {
            let () = self.send(&["DEL", &self.key(suffix)]).await?;
        }
        Ok(())
    }

    async fn set_id(&mut self, suffix: &str) -> Result<(), PseudoError> {
        self.send(&["SET", &self.key(suffix), &self.id.clone()]).await
    }

    async fn push_not_full(&mut self) -> Result<(), PseudoError> {
        self.lpush(":not_full", "0").await?;
        self.send(&["LTRIM", &self.key(":not_full"), "0", "0"]).await
    }

    async fn count(&mut self, what: &str, element: &str) -> Result<(), PseudoError> {
        let () = self.send(&["INCR", &self.key(&format!(":{what}_messages"))]).await?;
        let (key, bytes) = (self.key(&format!(":{what}_bytes")), element.len().to_string());
        self.send(&["INCRBY", &key, &bytes]).await
    }

    /// Create.
    pub async fn create(&mut self, bound: u64) -> Result<(), PseudoError> {
        let is_new: bool = self.send(&["SETNX", &self.key(":bound"), &bound.to_string()]).await?;
        if !is_new {
            return Err(PseudoError::AlreadyExists);
        }
        for suffix in [":producer_free", ":consumer_free", ":not_full"] {
            self.lpush(suffix, "1").await?;
        }
        Ok(())
    }

    /// Put.
    pub async fn put(&mut self, element: &str) -> Result<(), PseudoError> {
        self.must_exist().await?;
        self.brpop(&[":producer_free"]).await?;
        self.set_id(":producer").await?;
        if self.exists(":closed").await? {
            return Err(PseudoError::Closed);
        }
        self.brpop(&[":not_full"]).await?;
        self.push(element).await
    }

    /// Put (Non-Blocking).
    pub async fn try_put(&mut self, element: &str) -> Result<(), PseudoError> {
        self.must_exist().await?;
        if self.rpop(":producer_free").await?.is_none() {
            return Err(PseudoError::InUse);
        }
        self.set_id(":producer").await?;
        if self.exists(":closed").await? {
            return Err(PseudoError::Closed);
        }
        if self.rpop(":not_full").await?.is_none() {
            return Err(PseudoError::Full);
        }
        self.push(element).await
    }

    async fn push(&mut self, element: &str) -> Result<(), PseudoError> {
        let length = self.lpush("", element).await?;
        let bound: Option<u64> = self.send(&["GET", &self.key(":bound")]).await?;
        let bound = bound.unwrap_or(0);
        if bound == 0 || length < bound {
            self.push_not_full().await?;
        }
        self.count("produced", element).await?;
        self.lpush(":producer_free", "0").await?;
        Ok(())
    }

    /// Get.
    pub async fn get(&mut self) -> Result<String, PseudoError> {
        self.must_exist().await?;
        self.brpop(&[":consumer_free"]).await?;
        self.set_id(":consumer").await?;
        let (from, element) = if self.exists(":closed").await? {
            let length: u64 = self.send(&["LLEN", &self.key("")]).await?;
            if length == 0 {
                return Err(PseudoError::Closed);
            }
            self.brpop(&[""]).await?
        } else {
            self.brpop(&["", ":closed"]).await?
        };
        if from == self.key(":closed") {
            return Err(PseudoError::Closed);
        }
        self.push_not_full().await?;
        self.count("consumed", &element).await?;
        self.lpush(":consumer_free", "0").await?;
        Ok(element)
    }

    /// Get (Non-Blocking): returns `None` if there is no element.
    pub async fn try_get(&mut self) -> Result<Option<String>, PseudoError> {
        self.must_exist().await?;
        if self.rpop(":consumer_free").await?.is_none() {
            return Err(PseudoError::InUse);
        }
        self.set_id(":consumer").await?;
        if self.exists(":closed").await? {
            let length: u64 = self.send(&["LLEN", &self.key("")]).await?;
            if length == 0 {
                return Err(PseudoError::Closed);
            }
        }
        let element = self.rpop("").await?;
        self.push_not_full().await?;
        if let Some(element) = &element {
            self.count("consumed", element).await?;
        }
        self.lpush(":consumer_free", "0").await?;
        Ok(element)
    }

    /// Close.
    pub async fn close(&mut self) -> Result<(), PseudoError> {
        self.must_exist().await?;
        self.brpop(&[":producer_free"]).await?;
        self.set_id(":producer").await?;
        if self.exists(":closed").await? {
            return Err(PseudoError::Closed);
        }
        let () = self.send(&["LPUSH", &self.key(":closed"), "0", "0"]).await?;
        self.lpush(":producer_free", "0").await?;
        Ok(())
    }

    /// Delete.
    pub async fn delete(&mut self) -> Result<(), PseudoError> {
        self.must_exist().await?;
        self.del(&[":bound"]).await?;
        self.lpush(":not_full", "0").await?;
        let () = self.send(&["LPUSH", &self.key(":closed"), "0", "0"]).await?;
        self.brpop(&[":producer_free"]).await?;
        self.del(&[":producer", ":producer_free"]).await?;
        self.brpop(&[":consumer_free"]).await?;
        self.del(&[":consumer", ":consumer_free", ":not_full", ":closed"]).await?;
        self.del(&[":stats:produced_messages", ":stats:produced_bytes"]).await?;
        self.del(&[":stats:consumed_messages", ":stats:consumed_bytes", ""]).await
    }
}
