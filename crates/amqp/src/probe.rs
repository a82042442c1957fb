//! Probes which queues exist, by publishing to them. This module handles the
//! unreliability of a single answer. See `asking` for the requests. The caller interprets
//! the result.

mod asking;

use std::collections::BTreeSet;
use std::slice;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::stream;
use futures::{StreamExt, TryStreamExt};
use lapin::types::ShortString;
use tokio::sync::{Mutex, mpsc, oneshot};

use self::asking::Heard;
use super::channel::{Channel, short};
use super::connection::Connection;
use super::lazy::LazyConnection;
use super::unanswered::no_answer_of;
use crate::error::AmqpError;
use crate::refusal::is_deleted_meanwhile;

/// Read-only access to the broker.
#[derive(Clone, Copy)]
pub struct ProbeContext<'a> {
    /// Finds out which queues exist.
    pub prober: &'a Prober,
    /// The connection that the prober uses.
    pub connection: &'a LazyConnection,
}

/// Maximum number of probes in flight on one channel.
const BATCH: usize = 1000;

/// Number of probing channels. While the answers to one batch are read, the broker
/// already has the next one.
const WORKERS: usize = 2;

/// Maximum number of probes per channel, except for its last batch. With statistics on
/// (the management plugin), the broker counts a channel's publishes by name, also for
/// missing queues. It walks the counts of all channels at each deletion of any queue.
/// With 100,000 of them, a minute's probes for many names, each deletion took 0.1 to 0.9 s
/// (3.10). It drops the counts of a closed channel within 5 s. After 64 clients had
/// searched a lock of 100 slots, they handed the only free one over in 15 ms if channels
/// were kept for 1,000 probes, and in 5 ms with this limit.
const CHANNEL: usize = 100;

/// Maximum time to wait for the answers to a batch. Each queue whose probe was not answered
/// is then inspected, with the same limit.
const SETTLED_WITHIN: Duration = Duration::from_secs(3);

/// How often a batch is probed at most if a queue of it is deleted in the same moment.
const ATTEMPTS: usize = 3;

/// Number of queues that are inspected concurrently for one caller.
pub const INSPECTED_TOGETHER: usize = 8;

/// Probes over a connection without other traffic. The broker blocks a publishing
/// connection during an alarm, and traffic on other connections then still passes (hazard
/// A10).
///
/// Tasks that own the channels combine the callers' requests into batches. Probing is
/// therefore cancel safe: a batch is always awaited to its end, and its answers can't be
/// mistaken for those of the next one.
pub struct Prober {
    lazy: Arc<LazyConnection>,
    workers: OnceLock<mpsc::Sender<Question>>,
}

struct Question {
    names: Vec<ShortString>,
    answer: oneshot::Sender<Result<Vec<Seen>, AmqpError>>,
}

/// What a probe shows of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// It exists.
    Yes,
    /// A publish does not reach it: it does not exist, or its node is down and the broker
    /// stores its metadata in Mnesia. A passive declare distinguishes the two.
    No,
    /// Its node is down, or it does not answer.
    Unknown,
}

impl Prober {
    /// Creates a prober on `lazy` without starting anything.
    pub fn new(lazy: Arc<LazyConnection>) -> Self {
        Self { lazy, workers: OnceLock::new() }
    }

    /// Probes whether each queue exists, in the order of `names`.
    ///
    /// Cancel safe.
    ///
    /// # Errors
    ///
    /// [`AmqpError::NodeDown`] if that is unknown for one of them, and the errors of
    /// [`Prober::see`].
    pub async fn exist(&self, names: &[String]) -> Result<Vec<bool>, AmqpError> {
        let seen = self.see(names).await?;
        let exists = |(name, seen): (&String, Seen)| match seen {
            Seen::Yes => Ok(true),
            Seen::No => Ok(false),
            Seen::Unknown => Err(no_answer_of(slice::from_ref(name))),
        };
        names.iter().zip(seen).map(exists).collect()
    }

    /// Probes each queue, in the order of `names`. A queue that does not answer delays none
    /// of the other callers, except once, until that is noticed.
    ///
    /// Cancel safe.
    ///
    /// # Errors
    ///
    /// An error of the connection or an unreliable answer makes the whole batch fail.
    pub async fn see(&self, names: &[String]) -> Result<Vec<Seen>, AmqpError> {
        let mut waiting = Vec::with_capacity(names.len().div_ceil(BATCH));
        for chunk in names.chunks(BATCH) {
            let names = chunk.iter().map(|name| short(name)).collect::<Result<_, _>>()?;
            let (answer, reply) = oneshot::channel();
            self.ask(Question { names, answer }).await?;
            waiting.push(reply);
        }
        let mut seen = Vec::with_capacity(names.len());
        for reply in waiting {
            seen.extend(reply.await.map_err(|_| stopped())??);
        }
        Ok(seen)
    }

    async fn ask(&self, question: Question) -> Result<(), AmqpError> {
        let workers = self.workers.get_or_init(|| {
            let (questions, asked) = mpsc::channel(64);
            let asked = Arc::new(Mutex::new(asked));
            for _ in 0..WORKERS {
                let worker = Worker { lazy: Arc::clone(&self.lazy), open: None, probes: 0 };
                tokio::spawn(worker.run(Arc::clone(&asked)));
            }
            questions
        });
        workers.send(question).await.map_err(|_| stopped())
    }
}

fn stopped() -> AmqpError {
    // The tasks end only with the runtime.
    AmqpError::Interrupted
}

/// The answers to a batch of probes.
struct Batch {
    lazy: Arc<LazyConnection>,
    connection: Arc<Connection>,
    heard: Heard,
}

/// A task that owns one channel.
struct Worker {
    lazy: Arc<LazyConnection>,
    open: Option<(Arc<Connection>, lapin::Channel)>,
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
            if batch.is_empty() {
                continue;
            }
            let probed = self.probe_all(&batch).await.map(Arc::new);
            for question in batch {
                match &probed {
                    Ok(batch) => settle(batch, question),
                    // If the caller has given up, it doesn't need the answer.
                    Err(error) => drop(question.answer.send(Err(error.clone()))),
                }
            }
        }
    }

    /// Probes the queues of these questions. If the broker closes the connection because one
    /// of them is deleted in the same moment, all are probed again over another one. The other
    /// worker's probes are lost with that connection too.
    async fn probe_all(&mut self, questions: &[Question]) -> Result<Batch, AmqpError> {
        let names = || questions.iter().flat_map(|question| &question.names);
        for _ in 1..ATTEMPTS {
            match self.probe(names()).await {
                Err(error) if is_deleted_meanwhile(&error) => {
                    tracing::debug!(%error, "probing again: a queue was deleted in that moment");
                }
                probed => return probed,
            }
        }
        self.probe(names()).await
    }

    /// Probes these queues.
    async fn probe(
        &mut self,
        names: impl Iterator<Item = &ShortString>,
    ) -> Result<Batch, AmqpError> {
        // Taken out, and put back only after a batch without any doubt.
        let (connection, raw) = match self.open.take() {
            Some((connection, raw)) if connection.is_usable() && raw.status().connected() => {
                (connection, raw)
            }
            _ => self.connect().await?,
        };
        if connection.is_blocked() {
            // The probes would wait for the end of the alarm, and pile up until then.
            self.open = Some((connection, raw));
            return Err(AmqpError::Blocked);
        }
        // In a fixed order: the prover repeats an interleaving only if a client repeats its
        // requests.
        let names: BTreeSet<&ShortString> =
            names.filter(|name| !connection.unanswered.contains(name.as_str())).collect();
        let asked = names.len();
        let mut heard = Heard::of(&names);
        let asking = asking::ask(&raw, connection.features, names, &mut heard);
        match tokio::time::timeout(SETTLED_WITHIN.min(connection.operation_timeout), asking).await {
            Ok(Ok(true)) => self.keep(Arc::clone(&connection), raw, asked).await,
            Ok(Err(error)) => return Err(connection.found_cause(error).await),
            // Only this channel's answers are lost. When the alarm ends, the connection
            // continues.
            Err(_) if connection.is_blocked() => return Err(AmqpError::Blocked),
            Ok(Ok(false)) | Err(_) => {}
        }
        Ok(Batch { lazy: Arc::clone(&self.lazy), connection, heard })
    }

    /// Keeps the channel for the next batch, unless it has had enough probes.
    async fn keep(&mut self, connection: Arc<Connection>, raw: lapin::Channel, asked: usize) {
        self.probes += asked;
        if self.probes < CHANNEL {
            self.open = Some((connection, raw));
        } else if let Err(error) = raw.close(200, "OK".into()).await {
            tracing::debug!(%error, "a channel that probed was closed already");
        }
    }

    async fn connect(&mut self) -> Result<(Arc<Connection>, lapin::Channel), AmqpError> {
        self.probes = 0;
        let connection = self.lazy.get().await?;
        if connection.is_blocked() {
            // Don't open a new connection: its first probe would block it as well, and
            // the broker would keep both.
            return Err(AmqpError::Blocked);
        }
        let limit = connection.operation_timeout;
        let opening = asking::open(&connection);
        match tokio::time::timeout(limit, opening).await {
            Ok(Ok(raw)) => Ok((connection, raw)),
            Ok(Err(error)) => Err(connection.found_cause(AmqpError::operating(&error, "")).await),
            Err(_) if connection.is_blocked() => Err(AmqpError::Blocked),
            Err(_) => {
                Err(connection.fail(AmqpError::Timeout { what: "to a new channel", after: limit }))
            }
        }
    }
}

/// Answers a caller. If a probe was refused or not answered, a task of its own inspects this
/// caller's queues, so that the other callers need not wait for that.
///
/// A refusal means that the queue rejects messages, so it exists, or that its node is down
/// (Khepri). It does not show which, nor reliably which queue it concerns (hazard A4).
fn settle(batch: &Arc<Batch>, question: Question) {
    let is_settled = |name: &ShortString| {
        batch.heard.missing.contains(name.as_str())
            || !batch.heard.refused
                && !batch.heard.unanswered.contains(name.as_str())
                && !batch.connection.unanswered.contains(name.as_str())
    };
    if question.names.iter().all(is_settled) {
        let seen = |name: &ShortString| {
            if batch.heard.missing.contains(name.as_str()) { Seen::No } else { Seen::Yes }
        };
        let _ = question.answer.send(Ok(question.names.iter().map(seen).collect()));
        return;
    }
    let batch = Arc::clone(batch);
    tokio::spawn(async move {
        let Question { names, answer } = question;
        let inspecting = stream::iter(names)
            .map(|name| {
                let batch = Arc::clone(&batch);
                async move { batch.inspect(name.as_str()).await }
            })
            .buffered(INSPECTED_TOGETHER)
            .try_collect();
        let _ = answer.send(inspecting.await);
    });
}

impl Batch {
    async fn inspect(&self, name: &str) -> Result<Seen, AmqpError> {
        if self.heard.missing.contains(name) {
            return Ok(Seen::No);
        }
        let connection = if self.connection.features.refusal_ends_connection() {
            &self.lazy.separate().await?
        } else {
            &self.connection
        };
        let mut channel = Channel::take(connection).await?;
        channel.set_limit(SETTLED_WITHIN.min(self.connection.operation_timeout));
        match channel.look(name).await {
            Ok(Some(_)) => Ok(Seen::Yes),
            Ok(None) => Ok(Seen::No),
            Err(AmqpError::NodeDown { .. }) => Ok(Seen::Unknown),
            Err(error) => Err(error),
        }
    }
}
