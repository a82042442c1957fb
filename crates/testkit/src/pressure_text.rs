//! A foreign client of pressure 0.15 that follows the text of its document, command by
//! command on its own connections. It uses no code of this crate. Tests wake it, block it
//! and kill it.
//!
//! Where the text leaves a choice, it blocks. Where the text and the pseudo-code differ,
//! it follows the text: the consumer compares length and bound before it ensures that
//! `:not_full` has a value, and a client that reports an error releases its role first.
//! If `:bound` disappears in the middle of a put or a get, it compares nothing and pushes
//! nothing.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue, RedisError};
use tokio::task::JoinHandle;

use super::redis::connection;

/// Reason why an operation failed.
#[derive(Debug)]
pub enum TextError {
    /// There is no `:bound`.
    DoesNotExist,
    /// There is a `:bound` already.
    AlreadyExists,
    /// The queue is closed (and, for a get, empty).
    Closed,
    /// It died as requested ([`TextClient::die_after`]).
    Dead,
    /// Redis or the connection failed.
    Redis(RedisError),
}

impl From<RedisError> for TextError {
    fn from(err: RedisError) -> Self {
        Self::Redis(err)
    }
}

/// The location of a queue.
#[derive(Clone, Debug)]
pub struct TextQueue {
    /// `redis://user:password@host:port/database`.
    pub url: String,
    /// The prefix of its keys.
    pub prefix: String,
    /// Its name.
    pub name: String,
}

/// The end of a client after this number of further commands.
#[derive(Clone, Copy)]
enum Ending {
    /// It lives on.
    Lives,
    /// Its connection is cut.
    DiesAfter(usize),
    /// It stays connected but sends nothing.
    RestsAfter(usize),
}

/// A client with one connection.
pub struct TextClient {
    connection: Option<MultiplexedConnection>,
    data: String,
    id: String,
    ending: Ending,
    /// Redis's `CLIENT ID` of the connection.
    pub client: i64,
    /// Number of answered commands since it connected.
    pub answered: usize,
}

impl TextClient {
    /// Connects. The client writes `id` into `:producer` and `:consumer`.
    pub async fn connect(queue: &TextQueue, id: &str) -> Result<Self, TextError> {
        let mut connection = connection(&queue.url).await?;
        let client = redis::cmd("CLIENT").arg("ID").query_async(&mut connection).await?;
        let data = format!("{}:{}", queue.prefix, queue.name);
        let (id, connection, ending) = (id.to_owned(), Some(connection), Ending::Lives);
        Ok(Self { connection, data, id, ending, client, answered: 0 })
    }

    /// Makes it die, as with kill -9, after this number of further answered commands: its
    /// connection is closed and the operation ends with [`TextError::Dead`].
    pub fn die_after(mut self, commands: usize) -> Self {
        self.ending = Ending::DiesAfter(self.answered + commands);
        self
    }

    /// Makes it stop forever but stay connected, after this number of further answered
    /// commands.
    pub fn rest_after(mut self, commands: usize) -> Self {
        self.ending = Ending::RestsAfter(self.answered + commands);
        self
    }

    async fn send<T: FromRedisValue>(&mut self, command: &[&str]) -> Result<T, TextError> {
        match self.ending {
            Ending::DiesAfter(most) if self.answered >= most => self.connection = None,
            Ending::RestsAfter(most) if self.answered >= most => std::future::pending().await,
            _ => {}
        }
        let Some(connection) = &mut self.connection else { return Err(TextError::Dead) };
        let mut cmd = redis::cmd(command[0]);
        for arg in &command[1..] {
            cmd.arg(arg);
        }
        let answer = cmd.query_async(connection).await?;
        self.answered += 1;
        Ok(answer)
    }

    fn key(&self, suffix: &str) -> String {
        format!("{}{suffix}", self.data)
    }

    async fn check_bound(&mut self) -> Result<(), TextError> {
        match self.bound().await? {
            Some(_) => Ok(()),
            None => Err(TextError::DoesNotExist),
        }
    }

    async fn bound(&mut self) -> Result<Option<u64>, TextError> {
        self.send(&["GET", &self.key(":bound")]).await
    }

    async fn exists(&mut self, suffix: &str) -> Result<bool, TextError> {
        self.send(&["EXISTS", &self.key(suffix)]).await
    }

    /// "Compare the `:bound` key with the length of the queue. If the queue
    /// length is strictly less than the bound or the bound is zero, push a value
    /// to the `:not_full` key. If it contains more than one element after this
    /// operation, it must be reduced to one."
    async fn signal_room(&mut self) -> Result<(), TextError> {
        let Some(bound) = self.bound().await? else { return Ok(()) };
        let length: u64 = self.send(&["LLEN", &self.data.clone()]).await?;
        if bound == 0 || length < bound {
            let not_full = self.key(":not_full");
            let tokens: u64 = self.send(&["LPUSH", &not_full, "0"]).await?;
            if tokens > 1 {
                let () = self.send(&["LTRIM", &not_full, "0", "0"]).await?;
            }
        }
        Ok(())
    }

    /// Create.
    pub async fn create(&mut self, bound: u64) -> Result<(), TextError> {
        let is_new: bool = self.send(&["SETNX", &self.key(":bound"), &bound.to_string()]).await?;
        if !is_new {
            return Err(TextError::AlreadyExists);
        }
        for suffix in [":producer_free", ":consumer_free", ":not_full"] {
            let () = self.send(&["LPUSH", &self.key(suffix), "1"]).await?;
        }
        Ok(())
    }

    /// Put; waits for the role and for capacity.
    pub async fn put(&mut self, element: &str) -> Result<(), TextError> {
        self.check_bound().await?;
        if self.exists(":closed").await? {
            return Err(TextError::Closed);
        }
        let producer_free = self.key(":producer_free");
        let _: (String, String) = self.send(&["BRPOP", &producer_free, "0"]).await?;
        let () = self.send(&["SET", &self.key(":producer"), &self.id.clone()]).await?;
        let _: (String, String) = self.send(&["BRPOP", &self.key(":not_full"), "0"]).await?;
        let () = self.send(&["LPUSH", &self.data.clone(), element]).await?;
        let () = self.send(&["INCR", &self.key(":stats:produced_messages")]).await?;
        let bytes = element.len().to_string();
        let () = self.send(&["INCRBY", &self.key(":stats:produced_bytes"), &bytes]).await?;
        self.signal_room().await?;
        self.send(&["LPUSH", &producer_free, "0"]).await
    }

    /// Get; waits for the role and for an element.
    pub async fn get(&mut self) -> Result<String, TextError> {
        self.check_bound().await?;
        let consumer_free = self.key(":consumer_free");
        let _: (String, String) = self.send(&["BRPOP", &consumer_free, "0"]).await?;
        let () = self.send(&["SET", &self.key(":consumer"), &self.id.clone()]).await?;
        let data = self.data.clone();
        let closed = self.key(":closed");
        let mut element: Option<String> = self.send(&["RPOP", &data]).await?;
        if element.is_none() && !self.exists(":closed").await? {
            let (from, value): (String, String) =
                self.send(&["BRPOP", &data, &closed, "0"]).await?;
            if from == data {
                element = Some(value);
            }
        }
        let Some(element) = element else {
            let () = self.send(&["LPUSH", &consumer_free, "0"]).await?;
            return Err(TextError::Closed);
        };
        self.signal_room().await?;
        let () = self.send(&["INCR", &self.key(":stats:consumed_messages")]).await?;
        let bytes = element.len().to_string();
        let () = self.send(&["INCRBY", &self.key(":stats:consumed_bytes"), &bytes]).await?;
        let () = self.send(&["LPUSH", &consumer_free, "0"]).await?;
        Ok(element)
    }

    /// Close; waits for the producer role.
    pub async fn close(&mut self) -> Result<(), TextError> {
        self.check_bound().await?;
        let producer_free = self.key(":producer_free");
        let _: (String, String) = self.send(&["BRPOP", &producer_free, "0"]).await?;
        let () = self.send(&["SET", &self.key(":producer"), &self.id.clone()]).await?;
        let is_closed = self.exists(":closed").await?;
        if !is_closed {
            let () = self.send(&["LPUSH", &self.key(":closed"), "0", "0"]).await?;
        }
        let () = self.send(&["LPUSH", &producer_free, "0"]).await?;
        if is_closed { Err(TextError::Closed) } else { Ok(()) }
    }

    /// Delete; waits for both roles, one after the other.
    pub async fn delete(&mut self) -> Result<(), TextError> {
        self.check_bound().await?;
        let () = self.send(&["DEL", &self.key(":bound")]).await?;
        let () = self.send(&["LPUSH", &self.key(":not_full"), "0"]).await?;
        let () = self.send(&["LPUSH", &self.key(":closed"), "0", "0"]).await?;
        for role in [":producer", ":consumer"] {
            let free = self.key(&format!("{role}_free"));
            let _: (String, String) = self.send(&["BRPOP", &free, "0"]).await?;
            let () = self.send(&["DEL", &free, &self.key(role)]).await?;
        }
        for suffix in [
            ":not_full",
            ":closed",
            ":stats:produced_messages",
            ":stats:produced_bytes",
            ":stats:consumed_messages",
            ":stats:consumed_bytes",
            "",
        ] {
            let () = self.send(&["DEL", &self.key(suffix)]).await?;
        }
        Ok(())
    }
}

/// A consumer with a connection for each operation, like a script that runs repeatedly.
/// It waits for an element for `patience`, releases its role, and starts again with the
/// same id. No element may arrive. Killed when dropped.
pub struct Returning {
    tries: Arc<AtomicUsize>,
    task: JoinHandle<TextError>,
}

impl Returning {
    /// Starts the consumer.
    pub fn consume(queue: &TextQueue, id: &str, patience: Duration) -> Self {
        let tries = Arc::new(AtomicUsize::new(0));
        let (queue, id, count) = (queue.clone(), id.to_owned(), Arc::clone(&tries));
        let task = tokio::spawn(async move {
            loop {
                if let Err(error) = try_in_vain(&queue, &id, patience).await {
                    return error;
                }
                count.fetch_add(1, Ordering::SeqCst);
            }
        });
        Self { tries, task }
    }

    /// Returns how many waits have timed out.
    pub fn tries(&self) -> usize {
        assert!(!self.task.is_finished(), "the consumer goes on");
        self.tries.load(Ordering::SeqCst)
    }
}

impl Drop for Returning {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn try_in_vain(queue: &TextQueue, id: &str, patience: Duration) -> Result<(), TextError> {
    let mut client = TextClient::connect(queue, id).await?;
    client.check_bound().await?;
    let free = client.key(":consumer_free");
    let _: (String, String) = client.send(&["BRPOP", &free, "0"]).await?;
    let () = client.send(&["SET", &client.key(":consumer"), id]).await?;
    let (data, closed) = (client.data.clone(), client.key(":closed"));
    let patience = patience.as_secs_f64().to_string();
    let element: Option<(String, String)> =
        client.send(&["BRPOP", &data, &closed, &patience]).await?;
    assert!(element.is_none(), "the queue is empty and open");
    client.send(&["LPUSH", &free, "0"]).await
}

/// The work of a producer or a consumer until it ended.
#[derive(Debug)]
pub struct Record {
    /// The elements put or got, in order.
    pub elements: Vec<String>,
    /// `None` when it was stopped or had no more work.
    pub error: Option<TextError>,
}

/// A producer or a consumer in its own task. Killed when dropped.
pub struct Worker {
    /// Redis's `CLIENT ID` of its connection.
    pub client: i64,
    elements: Arc<Mutex<Vec<String>>>,
    stop: Arc<AtomicBool>,
    task: JoinHandle<Option<TextError>>,
}

impl Worker {
    /// Puts these elements, one after the other.
    pub async fn produce(
        queue: &TextQueue,
        id: &str,
        elements: impl IntoIterator<Item = String, IntoIter: Send + 'static>,
    ) -> Self {
        let mut client = TextClient::connect(queue, id).await.expect("the producer connects");
        let number = client.client;
        let mut elements = elements.into_iter();
        Self::start(number, async move |done, stop| {
            while !stop.load(Ordering::SeqCst) {
                let element = elements.next()?;
                if let Err(err) = client.put(&element).await {
                    return Some(err);
                }
                done.lock().unwrap().push(element);
            }
            None
        })
    }

    /// Gets elements until it has `most`, it is stopped, or a get fails.
    pub async fn consume(queue: &TextQueue, id: &str, most: usize) -> Self {
        let mut client = TextClient::connect(queue, id).await.expect("the consumer connects");
        let number = client.client;
        Self::start(number, async move |done, stop| {
            while !stop.load(Ordering::SeqCst) && done.lock().unwrap().len() < most {
                match client.get().await {
                    Ok(element) => done.lock().unwrap().push(element),
                    Err(err) => return Some(err),
                }
            }
            None
        })
    }

    fn start<W, F>(client: i64, work: W) -> Self
    where
        W: FnOnce(Arc<Mutex<Vec<String>>>, Arc<AtomicBool>) -> F,
        F: Future<Output = Option<TextError>> + Send + 'static,
    {
        let elements = Arc::new(Mutex::new(Vec::new()));
        let stop = Arc::new(AtomicBool::new(false));
        let task = tokio::spawn(work(Arc::clone(&elements), Arc::clone(&stop)));
        Self { client, elements, stop, task }
    }

    /// Returns the elements put or got so far.
    pub fn so_far(&self) -> Vec<String> {
        self.elements.lock().unwrap().clone()
    }

    /// Returns whether it has ended.
    pub fn is_finished(&self) -> bool {
        self.task.is_finished()
    }

    /// Makes it end after the current operation.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
    }

    /// Closes its connection at any point; a role that it holds stays taken.
    pub async fn kill(mut self) -> Vec<String> {
        self.task.abort();
        let _ = (&mut self.task).await;
        self.so_far()
    }

    /// Waits for its end.
    pub async fn join(mut self) -> Record {
        let error = (&mut self.task).await.expect("the worker does not panic");
        Record { elements: self.so_far(), error }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.task.abort();
    }
}
