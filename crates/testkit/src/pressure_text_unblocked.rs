//! The non-blocking operations of the foreign client in `pressure_text.rs`, and those
//! with a short timeout, as the text of pressure 0.15 describes them, command by command.
//! It uses no code of this crate. A client that reports an error releases its role first.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue, RedisError};

use super::redis::connection;

/// Reason why an operation failed.
#[derive(Debug)]
pub enum UnblockedError {
    /// There is no `:bound`.
    DoesNotExist,
    /// The queue is closed (and, for a get, empty).
    Closed,
    /// There is no capacity.
    Full,
    /// There is no element.
    Empty,
    /// Another client has the role.
    InUse,
    /// The timeout has elapsed.
    TimedOut,
    /// Redis or the connection failed.
    Redis(RedisError),
}

impl From<RedisError> for UnblockedError {
    fn from(err: RedisError) -> Self {
        Self::Redis(err)
    }
}

/// A client with one connection.
pub struct UnblockedClient {
    connection: MultiplexedConnection,
    data: String,
    id: String,
}

impl UnblockedClient {
    /// Connects to the queue whose data list is `data`.
    pub async fn connect(url: &str, data: &str, id: &str) -> Result<Self, UnblockedError> {
        let connection = connection(url).await?;
        Ok(Self { connection, data: data.to_owned(), id: id.to_owned() })
    }

    async fn send<T: FromRedisValue>(&mut self, command: &[&str]) -> Result<T, UnblockedError> {
        let mut cmd = redis::cmd(command[0]);
        cmd.arg(&command[1..]);
        Ok(cmd.query_async(&mut self.connection).await?)
    }

    fn key(&self, suffix: &str) -> String {
        format!("{}{suffix}", self.data)
    }

    async fn bound(&mut self) -> Result<Option<u64>, UnblockedError> {
        self.send(&["GET", &self.key(":bound")]).await
    }

    async fn must_exist(&mut self) -> Result<(), UnblockedError> {
        self.bound().await?.map(drop).ok_or(UnblockedError::DoesNotExist)
    }

    async fn is_closed(&mut self) -> Result<bool, UnblockedError> {
        self.send(&["EXISTS", &self.key(":closed")]).await
    }

    /// Pops from one of the lists, immediately or within this time.
    async fn pop(
        &mut self,
        suffixes: &[&str],
        wait: Option<Duration>,
    ) -> Result<Option<(String, String)>, UnblockedError> {
        let keys: Vec<String> = suffixes.iter().map(|suffix| self.key(suffix)).collect();
        let Some(wait) = wait else {
            let popped: Option<String> = self.send(&["RPOP", &keys[0]]).await?;
            return Ok(popped.map(|element| (keys[0].clone(), element)));
        };
        let mut command = vec!["BRPOP"];
        command.extend(keys.iter().map(String::as_str));
        // 0 would block forever.
        let seconds = format!("{:.3}", wait.as_secs_f64().max(0.001));
        command.push(&seconds);
        self.send(&command).await
    }

    async fn push(&mut self, suffix: &str, element: &str) -> Result<u64, UnblockedError> {
        self.send(&["LPUSH", &self.key(suffix), element]).await
    }

    async fn signal_room(&mut self) -> Result<(), UnblockedError> {
        let Some(bound) = self.bound().await? else { return Ok(()) };
        let length: u64 = self.send(&["LLEN", &self.key("")]).await?;
        if (bound == 0 || length < bound) && self.push(":not_full", "0").await? > 1 {
            let () = self.send(&["LTRIM", &self.key(":not_full"), "0", "0"]).await?;
        }
        Ok(())
    }

    async fn count(&mut self, what: &str, element: &str) -> Result<(), UnblockedError> {
        let () = self.send(&["INCR", &self.key(&format!(":stats:{what}_messages"))]).await?;
        let (key, bytes) = (self.key(&format!(":stats:{what}_bytes")), element.len().to_string());
        self.send(&["INCRBY", &key, &bytes]).await
    }

    /// Put. Without `wait` it does not block; otherwise it waits for this time at each
    /// step.
    pub async fn put(
        &mut self,
        element: &str,
        wait: Option<Duration>,
    ) -> Result<(), UnblockedError> {
        self.must_exist().await?;
        if self.is_closed().await? {
            return Err(UnblockedError::Closed);
        }
        if self.pop(&[":producer_free"], wait).await?.is_none() {
            return Err(wait.map_or(UnblockedError::InUse, |_| UnblockedError::TimedOut));
        }
        let () = self.send(&["SET", &self.key(":producer"), &self.id.clone()]).await?;
        if self.pop(&[":not_full"], wait).await?.is_none() {
            self.push(":producer_free", "0").await?;
            return Err(wait.map_or(UnblockedError::Full, |_| UnblockedError::TimedOut));
        }
        self.push("", element).await?;
        self.count("produced", element).await?;
        self.signal_room().await?;
        self.push(":producer_free", "0").await?;
        Ok(())
    }

    /// Get. Without `wait` it does not block; otherwise it waits for this time at each
    /// step.
    pub async fn get(&mut self, wait: Option<Duration>) -> Result<String, UnblockedError> {
        self.must_exist().await?;
        if self.pop(&[":consumer_free"], wait).await?.is_none() {
            return Err(wait.map_or(UnblockedError::InUse, |_| UnblockedError::TimedOut));
        }
        let () = self.send(&["SET", &self.key(":consumer"), &self.id.clone()]).await?;
        let mut popped = self.pop(&[""], None).await?;
        let mut error = UnblockedError::Closed;
        if popped.is_none() && !self.is_closed().await? {
            error = UnblockedError::Empty;
            if wait.is_some() {
                popped = self.pop(&["", ":closed"], wait).await?;
                error = match popped {
                    Some(_) => UnblockedError::Closed,
                    None => UnblockedError::TimedOut,
                };
            }
        }
        let Some((_, element)) = popped.filter(|(from, _)| *from == self.key("")) else {
            self.push(":consumer_free", "0").await?;
            return Err(error);
        };
        self.signal_room().await?;
        self.count("consumed", &element).await?;
        self.push(":consumer_free", "0").await?;
        Ok(element)
    }
}
