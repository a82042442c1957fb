//! Probes which queues exist, by publishing to them. This module handles the
//! unreliability of a single answer. The caller interprets the result.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};

use futures::future::join_all;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::ShortString;
use lapin::{BasicProperties, Channel, Confirmation};
use tokio::sync::{Mutex, mpsc, oneshot};

use super::connect::Conn;
use super::lane::{Lane, short};
use super::link::Link;
use crate::semaphore::error::BrokerError;

/// Read-only access to the broker.
#[derive(Clone, Copy)]
pub struct Eyes<'a> {
    pub prober: &'a Prober,
    /// The connection that the prober uses.
    pub link: &'a Link,
}

/// Maximum number of probes in flight on one channel.
const BATCH: usize = 1000;

/// Number of probing channels. While the answers to one batch are read, the broker
/// already has the next one.
const WORKERS: usize = 2;

/// Maximum number of probes per channel, except for its last batch. With statistics on
/// (the management plugin), the broker counts a channel's publishes by name, also for
/// missing queues. It walks the counts of all channels at each deletion of any queue.
/// With 100,000 of them, a minute's probes for new locks, each deletion took 0.1 to 0.9 s
/// (3.10). It drops the counts of a closed channel within 5 s. After 64 clients had
/// searched a lock of 100 slots, they handed the only free one over in 15 ms if channels
/// were kept for 1,000 probes, and in 5 ms with this limit.
const CHANNEL: usize = 100;

/// Probes over a connection without other traffic. The broker blocks a publishing
/// connection during an alarm, and traffic on other connections then still passes (hazard
/// A10).
///
/// Tasks that own the channels combine the callers' requests into batches. Probing is
/// therefore cancel safe: a batch is always awaited to its end, and its answers can't be
/// mistaken for those of the next one.
pub struct Prober {
    link: Arc<Link>,
    workers: OnceLock<mpsc::Sender<Question>>,
}

struct Question {
    names: Vec<ShortString>,
    answer: oneshot::Sender<Result<Vec<bool>, BrokerError>>,
}

impl Prober {
    /// Creates a prober on `link` without starting anything.
    pub fn new(link: Arc<Link>) -> Self {
        Self { link, workers: OnceLock::new() }
    }

    /// Probes whether each queue exists, in the order of `names`.
    ///
    /// An error, a timeout or an unreliable answer makes the whole batch fail. Cancel
    /// safe.
    pub async fn exist(&self, names: &[String]) -> Result<Vec<bool>, BrokerError> {
        let mut waiting = Vec::with_capacity(names.len().div_ceil(BATCH));
        for chunk in names.chunks(BATCH) {
            let names = chunk.iter().map(|name| short(name)).collect::<Result<_, _>>()?;
            let (answer, reply) = oneshot::channel();
            self.ask(Question { names, answer }).await?;
            waiting.push(reply);
        }
        let mut exist = Vec::with_capacity(names.len());
        for reply in waiting {
            exist.extend(reply.await.map_err(|_| stopped())??);
        }
        Ok(exist)
    }

    async fn ask(&self, question: Question) -> Result<(), BrokerError> {
        let workers = self.workers.get_or_init(|| {
            let (questions, asked) = mpsc::channel(64);
            let asked = Arc::new(Mutex::new(asked));
            for _ in 0..WORKERS {
                let worker = Worker { link: Arc::clone(&self.link), open: None, probes: 0 };
                tokio::spawn(worker.run(Arc::clone(&asked)));
            }
            questions
        });
        workers.send(question).await.map_err(|_| stopped())
    }
}

fn stopped() -> BrokerError {
    // The tasks end only with the runtime.
    BrokerError::Interrupted
}

/// A task that owns one channel with publisher confirms.
struct Worker {
    link: Arc<Link>,
    open: Option<(Arc<Conn>, Channel)>,
    /// Number of probes on the open channel.
    probes: usize,
}

impl Worker {
    async fn run(mut self, asked: Arc<Mutex<mpsc::Receiver<Question>>>) {
        loop {
            let mut batch = Vec::new();
            {
                // One worker waits. The requests that have piled up by then form one
                // batch.
                let mut asked = asked.lock().await;
                let Some(first) = asked.recv().await else { return };
                let mut probes = first.names.len();
                batch.push(first);
                while probes < BATCH
                    && let Ok(more) = asked.try_recv()
                {
                    probes += more.names.len();
                    batch.push(more);
                }
            }
            batch.retain(|question| !question.answer.is_closed());
            let names = batch.iter().flat_map(|question| &question.names);
            let missing = self.missing(names).await;
            for question in batch {
                let answer = missing.as_ref().map_err(Clone::clone).map(|missing| {
                    question.names.iter().map(|name| !missing.contains(name.as_str())).collect()
                });
                // The caller has given up and doesn't need the answer.
                let _ = question.answer.send(answer);
            }
        }
    }

    /// Returns the queues among `names` that don't exist.
    async fn missing(
        &mut self,
        names: impl Iterator<Item = &ShortString>,
    ) -> Result<HashSet<String>, BrokerError> {
        let names: Vec<&ShortString> = names.collect();
        if names.is_empty() {
            return Ok(HashSet::new());
        }
        let asked = names.len();
        // Taken out, and put back only after a batch without any doubt.
        let (conn, channel) = match self.open.take() {
            Some((conn, channel)) if conn.is_usable() && channel.status().connected() => {
                (conn, channel)
            }
            _ => self.connect().await?,
        };
        if conn.is_blocked() {
            // The probes would wait for the end of the alarm, and pile up until then.
            self.open = Some((conn, channel));
            return Err(BrokerError::Blocked);
        }
        let probes = names.iter().map(|name| probe(&channel, (*name).clone()));
        let limit = conn.operation_timeout;
        let Ok(answers) = tokio::time::timeout(limit, join_all(probes)).await else {
            if conn.is_blocked() {
                // Only this channel's answers are lost. When the alarm ends, the
                // connection continues.
                return Err(BrokerError::Blocked);
            }
            return Err(conn.fail(BrokerError::Timeout { what: "to probes", after: limit }));
        };

        // The message returned with an answer is often another probe's. lapin assigns
        // returns in the order in which it completes the confirms, which is not the order
        // of publishing (hazard A2; 117 to 131 of 200 batches wrong). Over the whole
        // batch, the set of returned names is correct.
        let mut missing = HashSet::new();
        let mut refused = false;
        for answer in answers {
            match answer {
                Ok(Confirmation::Ack(returned)) => {
                    missing.extend(returned.map(|m| m.routing_key.as_str().to_owned()));
                }
                Ok(Confirmation::Nack(returned)) => {
                    refused = true;
                    missing.extend(returned.map(|m| m.routing_key.as_str().to_owned()));
                }
                Ok(Confirmation::NotRequested) => {
                    return Err(BrokerError::Protocol {
                        why: "a probe without confirm".to_owned(),
                    });
                }
                Err(error) => {
                    let error = BrokerError::operating(&error, "");
                    let fatal = error.is_fatal_for_connection();
                    return Err(if fatal { conn.fail(error) } else { error });
                }
            }
        }
        if refused {
            // Either reject-publish (the queue exists) or its node is down. A nack does
            // not show which, nor reliably which queue it concerns (hazard A4).
            let mut lane = Lane::take(&conn).await?;
            for name in names {
                if !missing.contains(name.as_str()) && lane.look(name.as_str()).await?.is_none() {
                    missing.insert(name.as_str().to_owned());
                }
            }
        }
        self.probes += asked;
        if self.probes < CHANNEL {
            self.open = Some((conn, channel));
        } else if let Err(error) = channel.close(200, "OK".into()).await {
            tracing::debug!(%error, "a channel that probed was closed already");
        }
        Ok(missing)
    }

    async fn connect(&mut self) -> Result<(Arc<Conn>, Channel), BrokerError> {
        self.probes = 0;
        let conn = self.link.get().await?;
        if conn.is_blocked() {
            // Don't open a new connection: its first probe would block it as well, and
            // the broker would keep both.
            return Err(BrokerError::Blocked);
        }
        let limit = conn.operation_timeout;
        let opening = async {
            let channel = conn.lapin().create_channel().await?;
            channel.confirm_select(ConfirmSelectOptions::default()).await?;
            Ok(channel)
        };
        match tokio::time::timeout(limit, opening).await {
            Ok(Ok(channel)) => Ok((conn, channel)),
            Ok(Err(error)) => {
                let error = BrokerError::operating(&error, "");
                Err(if error.is_fatal_for_connection() { conn.fail(error) } else { error })
            }
            Err(_) if conn.is_blocked() => Err(BrokerError::Blocked),
            Err(_) => {
                Err(conn.fail(BrokerError::Timeout { what: "to a new channel", after: limit }))
            }
        }
    }
}

/// Sends one probe. It is empty, expires immediately if the queue keeps messages, and is
/// mandatory, so that the broker returns it if the queue is missing.
async fn probe(channel: &Channel, name: ShortString) -> Result<Confirmation, lapin::Error> {
    let options = BasicPublishOptions { mandatory: true, immediate: false };
    let properties = BasicProperties::default().with_expiration("0".into());
    channel.basic_publish(ShortString::default(), name, options, &[], properties).await?.await
}
