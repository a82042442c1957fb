//! The work of a schedule's clients until they end, and which of their results are right
//! when. A foreign client that keeps a role announces it. From then on the right result
//! for the others is to wait.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lockkeeper_pressure::QueueRole;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tokio::task::JoinHandle;

use super::clients::{Client, Kind, Mode, Refusal};

/// State that is shared by all clients of a schedule.
#[derive(Debug, Default)]
pub struct Shared {
    pub close_begun: AtomicBool,
    pub close_done: AtomicBool,
    pub delete_begun: AtomicBool,
    pub gone: AtomicBool,
    /// No client starts another operation.
    pub stop: AtomicBool,
    /// A client closes twice.
    pub closes_twice: bool,
    /// Whether a client of the queue is foreign. Our clients never hold a role.
    pub has_foreign: bool,
    /// The foreign client that keeps the role forever.
    pub stuck_producer: Mutex<Option<String>>,
    pub stuck_consumer: Mutex<Option<String>>,
    /// Elements that a client tried to put, and elements that were certainly put.
    pub offered: Mutex<BTreeSet<String>>,
    pub put: Mutex<Vec<String>>,
    pub got: Mutex<Vec<Got>>,
}

/// An element that a client got, and the time of that operation.
#[derive(Clone, Debug)]
pub struct Got {
    pub by: String,
    pub element: String,
    pub begun: Instant,
    pub ended: Instant,
}

pub fn is(flag: &AtomicBool) -> bool {
    flag.load(Ordering::SeqCst)
}

pub fn set(flag: &AtomicBool) {
    flag.store(true, Ordering::SeqCst);
}

impl Shared {
    pub fn stuck(&self, role: QueueRole) -> Option<String> {
        match role {
            QueueRole::Producer => self.stuck_producer.lock().unwrap().clone(),
            QueueRole::Consumer => self.stuck_consumer.lock().unwrap().clone(),
        }
    }

    pub fn is_stuck(&self) -> bool {
        self.stuck(QueueRole::Producer).is_some() || self.stuck(QueueRole::Consumer).is_some()
    }

    fn note(&self, client: &Client, id: &str, role: QueueRole, refusal: &Refusal) {
        if client.keeps_role(refusal) {
            let stuck = match role {
                QueueRole::Producer => &self.stuck_producer,
                QueueRole::Consumer => &self.stuck_consumer,
            };
            *stuck.lock().unwrap() = Some(id.to_owned());
        }
    }

    /// Returns whether a refusal is a right result, and whether the client ends with it.
    fn judge(&self, client: &Client, mode: Mode, refusal: &Refusal) -> Result<bool, String> {
        let is_ours = client.kind() == Kind::Ours;
        let closed = is(&self.close_begun) || (!is_ours && is(&self.delete_begun));
        let is_blocked = match mode {
            Mode::Blocked => true,
            Mode::Unblocked => false,
            Mode::Timed(_) => client.kind() == Kind::Pseudo,
        };
        let is_right = match refusal {
            Refusal::Closed => closed,
            Refusal::Missing => is(&self.delete_begun),
            Refusal::InUse(..) => !is_blocked && self.has_foreign,
            Refusal::Full | Refusal::Empty => !is_blocked,
            Refusal::TimedOut(_) => matches!(mode, Mode::Timed(_)),
            Refusal::Broken(_) => false,
        };
        if !is_right {
            return Err(format!("{refusal:?} with {mode:?} by {:?}", client.kind()));
        }
        let is_end = matches!(refusal, Refusal::Closed | Refusal::Missing);
        Ok(is_end || client.keeps_role(refusal))
    }

    fn ends(&self) -> (bool, bool) {
        (is(&self.close_done), is(&self.gone))
    }
}

/// Checks that a successful operation was possible in the state before it started.
fn may_succeed((closed, gone): (bool, bool), is_put: bool) -> Result<(), String> {
    if gone || (closed && is_put) {
        return Err(format!("success after the end, closed {closed}, gone {gone}"));
    }
    Ok(())
}

/// A running client.
pub struct Worker {
    pub id: String,
    pub kind: Kind,
    pub role: QueueRole,
    /// The connection on which a foreign client may wait forever.
    pub connection: Option<i64>,
    pub task: JoinHandle<Result<(), String>>,
}

fn random_mode(client: &Client, random: &mut SmallRng) -> Mode {
    let mode = Mode::any(random);
    let is_pseudo = client.kind() == Kind::Pseudo;
    // Its non-blocking operations fail without releasing the role, so they are used less
    // often.
    if is_pseudo && matches!(mode, Mode::Unblocked) && random.random_bool(0.6) {
        return Mode::Blocked;
    }
    mode
}

async fn pause(random: &mut SmallRng) {
    tokio::time::sleep(Duration::from_millis(random.random_range(0..4))).await;
}

/// Puts `ID/0`, `ID/1` and so on.
pub fn produce(
    mut client: Client,
    id: String,
    count: usize,
    seed: u64,
    shared: Arc<Shared>,
) -> Worker {
    let (kind, connection) = (client.kind(), client.connection());
    let role = QueueRole::Producer;
    let name = id.clone();
    let task = tokio::spawn(async move {
        let mut random = SmallRng::seed_from_u64(seed);
        let all: Vec<String> = (0..count).map(|number| format!("{id}/{number}")).collect();
        let mut next = 0;
        while next < count && !is(&shared.stop) {
            let mode = random_mode(&client, &mut random);
            let end = count.min(next + random.random_range(1..7));
            let ends = shared.ends();
            shared.offered.lock().unwrap().extend(all[next..end].iter().cloned());
            let (put, result) = client.put(&all[next..end], mode).await;
            shared.put.lock().unwrap().extend_from_slice(&all[next..next + put]);
            next += put;
            if put > 0 {
                may_succeed(ends, true)?;
            }
            if let Err(refusal) = result {
                shared.note(&client, &id, role, &refusal);
                if shared.judge(&client, mode, &refusal)? {
                    return Ok(());
                }
                pause(&mut random).await;
            }
        }
        Ok(())
    });
    Worker { id: name, kind, role, connection, task }
}

/// Gets until the queue is closed or gone.
pub fn consume(mut client: Client, id: String, seed: u64, shared: Arc<Shared>) -> Worker {
    let (kind, connection) = (client.kind(), client.connection());
    let role = QueueRole::Consumer;
    let name = id.clone();
    let task = tokio::spawn(async move {
        let mut random = SmallRng::seed_from_u64(seed);
        while !is(&shared.stop) {
            let mode = random_mode(&client, &mut random);
            let most = random.random_range(1..4);
            let (ends, begun) = (shared.ends(), Instant::now());
            match client.get(most, mode).await {
                Ok(elements) => {
                    let ended = Instant::now();
                    let got = elements.into_iter().map(|element| {
                        let by = id.clone();
                        Got { by, element, begun, ended }
                    });
                    shared.got.lock().unwrap().extend(got);
                    may_succeed(ends, false)?;
                    if random.random_bool(0.2) {
                        pause(&mut random).await;
                    }
                }
                Err(refusal) => {
                    shared.note(&client, &id, role, &refusal);
                    if shared.judge(&client, mode, &refusal)? {
                        return Ok(());
                    }
                    pause(&mut random).await;
                }
            }
        }
        Ok(())
    });
    Worker { id: name, kind, role, connection, task }
}

/// Closes the queue once `when` is true.
pub fn close(
    mut client: Client,
    id: String,
    shared: Arc<Shared>,
    when: impl Future<Output = ()> + Send + 'static,
) -> Worker {
    let (kind, connection) = (client.kind(), client.connection());
    let role = QueueRole::Producer;
    let name = id.clone();
    let task = tokio::spawn(async move {
        when.await;
        set(&shared.close_begun);
        match client.close().await {
            Ok(()) => {
                set(&shared.close_done);
                Ok(())
            }
            Err(refusal) => {
                shared.note(&client, &id, role, &refusal);
                let is_right = match refusal {
                    Refusal::Closed => {
                        shared.closes_twice || (kind != Kind::Ours && is(&shared.delete_begun))
                    }
                    Refusal::Missing => is(&shared.delete_begun),
                    _ => false,
                };
                if is_right { Ok(()) } else { Err(format!("{refusal:?} of a close by {kind:?}")) }
            }
        }
    });
    Worker { id: name, kind, role, connection, task }
}
