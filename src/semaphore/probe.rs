//! Looking which queues exist, by publishing to them: the only place that
//! publishes, and the only one that knows how unreliable a single answer is.
//! What the answers mean for a semaphore is decided by others.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};

use futures::future::join_all;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::ShortString;
use lapin::{BasicProperties, Channel, Confirmation};
use tokio::sync::{Mutex, mpsc, oneshot};

use super::connect::Conn;
use super::error::BrokerError;
use super::lane::{Lane, short};
use super::link::Link;

/// Most probes in flight on one channel.
const BATCH: usize = 1000;

/// Channels that probe: while the answers to one batch are read, the next one
/// is already with the broker.
const WORKERS: usize = 2;

/// Most probes of one channel, but for the last batch. With statistics on (the management
/// plugin), the broker counts what a channel publishes by name, for missing queues too, and
/// goes through the counts of all channels at each deletion of any queue: with 100,000 of
/// them, a minute's probes for new locks, that took it 0.1 to 0.9 s each (3.10). It drops
/// those of a closed channel within 5 s.
const CHANNEL: usize = 1000;

/// Probes over a connection that does nothing else: the broker blocks a
/// connection that publishes under an alarm, and what goes over others then
/// still gets through (hazard A10).
///
/// Callers' questions are put together into batches by tasks that own the
/// channels, so asking is cancel safe: a batch is always awaited to its end,
/// and its answers can't be taken for the next one's.
pub(super) struct Prober {
    link: Arc<Link>,
    workers: OnceLock<mpsc::Sender<Question>>,
}

struct Question {
    names: Vec<ShortString>,
    answer: oneshot::Sender<Result<Vec<bool>, BrokerError>>,
}

impl Prober {
    /// Probes over `link`; nothing is started yet.
    pub fn new(link: Arc<Link>) -> Self {
        Self { link, workers: OnceLock::new() }
    }

    /// Whether each queue exists, in the order of `names`.
    ///
    /// All or nothing: an error, a timeout or an answer that can't be trusted
    /// makes the whole batch unknown. Cancel safe.
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

/// Owns one channel with publisher confirms.
struct Worker {
    link: Arc<Link>,
    open: Option<(Arc<Conn>, Channel)>,
    /// Probes of the open channel.
    probes: usize,
}

impl Worker {
    async fn run(mut self, asked: Arc<Mutex<mpsc::Receiver<Question>>>) {
        loop {
            let mut batch = Vec::new();
            {
                // One worker waits; whatever has piled up by then is one batch.
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
                // Nobody waits for it any more: then nobody needs it.
                let _ = question.answer.send(answer);
            }
        }
    }

    /// The queues among `names` that don't exist.
    async fn missing(
        &mut self,
        names: impl Iterator<Item = &ShortString>,
    ) -> Result<HashSet<String>, BrokerError> {
        let names: Vec<&ShortString> = names.collect();
        if names.is_empty() {
            return Ok(HashSet::new());
        }
        let asked = names.len();
        // Taken out: it is put back only after a batch without any doubt.
        let (conn, channel) = match self.open.take() {
            Some((conn, channel)) if conn.is_usable() && channel.status().connected() => {
                (conn, channel)
            }
            _ => self.connect().await?,
        };
        if conn.is_blocked() {
            // It would wait for the alarm to end, and pile up until then.
            self.open = Some((conn, channel));
            return Err(BrokerError::Blocked);
        }
        let probes = names.iter().map(|name| probe(&channel, (*name).clone()));
        let limit = conn.operation_timeout;
        let Ok(answers) = tokio::time::timeout(limit, join_all(probes)).await else {
            if conn.is_blocked() {
                // Only this channel's answers are lost; when the alarm ends,
                // the connection goes on.
                return Err(BrokerError::Blocked);
            }
            return Err(conn.fail(BrokerError::Timeout { what: "to probes", after: limit }));
        };

        // The message returned with an answer is often another probe's: lapin
        // hands returns out in the order it completes the confirms, which is
        // not that of publishing (hazard A2; 117 to 131 of 200 batches wrong).
        // Over the whole batch the set of returned names is right.
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
            // Reject-publish (then the queue exists) or its host is down: a
            // nack doesn't say which, nor reliably whose it is (hazard A4).
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
            // Not a new one instead: that would be blocked as well, by its
            // first probe, and the broker would be left with both.
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

/// One probe: empty, expiring at once should the queue keep messages, mandatory
/// so that a missing queue is told.
async fn probe(channel: &Channel, name: ShortString) -> Result<Confirmation, lapin::Error> {
    let options = BasicPublishOptions { mandatory: true, immediate: false };
    let properties = BasicProperties::default().with_expiration("0".into());
    channel.basic_publish(ShortString::default(), name, options, &[], properties).await?.await
}
