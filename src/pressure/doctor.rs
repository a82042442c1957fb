//! What the doctor needs of a server: who is connected, and a repair that is made
//! only while what it rests on is still so. What is wrong and what may be mended
//! is decided in [`crate::plan::pressure_queue::doctor`].

use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use rand::RngExt;

use super::reply::{Observation, Verdict, queue_seen};
use super::{Store, StoreError, scripts};
use crate::plan::clean_text;
use crate::plan::naming::QueueName;
use crate::plan::pressure_queue::doctor::{Connection, Connections, Doctor, Look, Repair};
use crate::plan::pressure_queue::{QueueRole, QueueSeen};

/// What became of a repair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Repaired {
    /// This was done.
    Done(Vec<Deed>),
    /// There was nothing to do.
    AlreadySo,
    /// Nothing was changed, because the queue or the server is not any more what
    /// the repair was decided upon: look again.
    Stale,
}

/// One change that a repair made, to the key with this suffix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deed {
    /// An element was pushed to the empty list.
    Pushed(String),
    /// The list was cut to one element.
    Trimmed(String),
    /// The key was removed.
    Removed(String),
}

impl fmt::Display for Deed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pushed(key) => write!(f, "pushed an element to {key}"),
            Self::Trimmed(key) => write!(f, "left one element in {key}"),
            Self::Removed(key) => write!(f, "removed {key}"),
        }
    }
}

impl Store {
    /// A doctor for a queue of this store, who lets nothing be mended on account of
    /// its client's death that was not seen unchanged for `idle`.
    #[must_use]
    pub fn doctor(&self, idle: Duration) -> Doctor {
        Doctor::new(idle, self.settings().database)
    }

    /// Who is connected to the server that has the queue, this store's own
    /// connection included. [`Connections::Forbidden`] where the ACL does not allow
    /// `CLIENT LIST`.
    pub async fn connections(&self, queue: &QueueName) -> Result<Connections, StoreError> {
        let mut command = redis::cmd("CLIENT");
        command.arg("LIST");
        let answer: Result<Vec<u8>, _> = self.command(Some(queue), command).await;
        match answer {
            Ok(list) => Ok(Connections::Listed(
                String::from_utf8_lossy(&list).lines().filter_map(connection).collect(),
            )),
            Err(StoreError::PermissionDenied { .. } | StoreError::Protocol { .. }) => {
                Ok(Connections::Forbidden)
            }
            Err(err) => Err(err),
        }
    }

    /// Makes what was just seen of a queue, at `at` on the doctor's clock, a look
    /// for its doctor. Asks who is connected only where that tells something, or
    /// `in_full`.
    pub async fn look_around(
        &self,
        queue: &QueueName,
        doctor: &Doctor,
        seen: QueueSeen,
        at: Duration,
        in_full: bool,
    ) -> Result<Look, StoreError> {
        let (mut run_id, mut connections) = (None, Connections::NotAsked);
        if in_full || doctor.needs_connections(&seen) {
            // In this order: a holder at the moment of the observation is listed
            // unless it is gone by now, and the list is not of an earlier start of
            // the server than the run id.
            run_id = self.identity_of(Some(queue)).await?.run_id;
            connections = self.connections(queue).await?;
        }
        Ok(Look { at, time: Timestamp::now(), run_id, seen, connections })
    }

    /// Makes one repair, in one script that checks all of its evidence again. Where it
    /// rests on evidence, it first looks at the queue for a second, or for as long as
    /// the evidence took, whichever is shorter.
    pub async fn repair(&self, queue: &QueueName, repair: &Repair) -> Result<Repaired, StoreError> {
        if !self.stays_so(queue, repair).await? {
            return Ok(Repaired::Stale);
        }
        let raw = self.observation(queue).await?;
        let mut expected = expected(&raw);
        if !repair.still_fits(&queue_seen(raw)?) {
            return Ok(Repaired::Stale);
        }
        let (what, evidence, ignored): (_, _, &[usize]) = match repair {
            Repair::GiveBack { role: QueueRole::Producer, evidence } => {
                ("producer", Some(evidence), &[CONSUMER, CONSUMER_FREE, NOT_FULL])
            }
            Repair::GiveBack { role: QueueRole::Consumer, evidence } => {
                ("consumer", Some(evidence), &[PRODUCER, PRODUCER_FREE, NOT_FULL])
            }
            Repair::FinishCreation { evidence } => ("creation", Some(evidence), &[]),
            Repair::FinishDeletion { evidence } => ("deletion", Some(evidence), &[]),
            Repair::SettleTokens => ("tokens", None, &[]),
        };
        for (number, expected) in (1..).zip(&mut expected) {
            if evidence.is_none() || ignored.contains(&number) {
                *expected = b"*".to_vec();
            }
        }
        let mut call = scripts::REPAIR.prepare_invoke();
        call.key(scripts::keys(queue)).arg(what);
        call.arg(evidence.map_or("", |evidence| &evidence.run_id)).arg(expected);
        let verdict = self.ask(queue, &call).await?;
        match verdict.word.as_str() {
            "done" => Ok(Repaired::Done(deeds(&verdict)?)),
            "already" => Ok(Repaired::AlreadySo),
            "stale" => Ok(Repaired::Stale),
            _ => Err(verdict.into_error(&queue.data())),
        }
    }
}

/// So often a queue is looked at just before a repair that rests on evidence.
const CHECKS: u32 = 20;

/// The longest time that this takes, but for the looks themselves.
const CHECKING: Duration = Duration::from_secs(1);

impl Store {
    /// Whether the queue stays as the repair wants it, at many moments. Looks that are
    /// far apart may each time have met a client that takes and returns a role over and
    /// over, under the same name and always over a new connection.
    async fn stays_so(&self, queue: &QueueName, repair: &Repair) -> Result<bool, StoreError> {
        let evidence = match repair {
            Repair::SettleTokens => return Ok(true),
            Repair::GiveBack { evidence, .. }
            | Repair::FinishCreation { evidence }
            | Repair::FinishDeletion { evidence } => evidence,
        };
        let pause = evidence.idle.min(CHECKING) / CHECKS;
        for _ in 0..CHECKS {
            if !repair.still_fits(&self.observe(queue).await?) {
                return Ok(false);
            }
            // At no rhythm that a client could have too.
            let pause = pause.mul_f64(rand::rng().random_range(0.0..2.0));
            tokio::time::sleep(pause).await;
        }
        Ok(true)
    }
}

// Numbers of keys, as Lua counts.
const PRODUCER: usize = 3;
const CONSUMER: usize = 4;
const PRODUCER_FREE: usize = 5;
const CONSUMER_FREE: usize = 6;
const NOT_FULL: usize = 11;

/// An observation as `repair.lua` expects it: what each key holds.
fn expected((_, _, numbers, ids, lengths): &Observation) -> Vec<Vec<u8>> {
    let string = |text: Option<&Option<Vec<u8>>>| match text {
        Some(Some(text)) => [b"=", text.as_slice()].concat(),
        _ => b"-".to_vec(),
    };
    let length = |n: usize| lengths.get(n).copied().unwrap_or_default().to_string().into_bytes();
    vec![
        length(0),
        string(numbers.first()),
        string(ids.first()),
        string(ids.get(1)),
        length(1),
        length(2),
        string(numbers.get(1)),
        string(numbers.get(2)),
        string(numbers.get(3)),
        string(numbers.get(4)),
        length(3),
        length(4),
    ]
}

fn deeds(verdict: &Verdict) -> Result<Vec<Deed>, StoreError> {
    let keys = verdict.labels();
    let words = (0..keys.len()).map(|n| verdict.text(2 * n));
    words
        .zip(keys)
        .map(|(word, key)| match word.as_deref() {
            Some("pushed") => Ok(Deed::Pushed(key)),
            Some("trimmed") => Ok(Deed::Trimmed(key)),
            Some("removed") => Ok(Deed::Removed(key)),
            _ => Err(StoreError::unexpected("a repair of another kind")),
        })
        .collect()
}

/// One line of `CLIENT LIST`; nothing if it has no number.
fn connection(line: &str) -> Option<Connection> {
    let get = |wanted: &str| {
        line.split(' ').filter_map(|field| field.split_once('=')).find(|(key, _)| *key == wanted)
    };
    let text = |wanted| get(wanted).map(|(_, value)| value).unwrap_or_default();
    let flags = text("flags");
    // With the third version of the wire protocol a subscriber may do all else too.
    let is_subscriber = flags.contains('P') && text("resp") != "3";
    Some(Connection {
        id: text("id").parse().ok()?,
        address: clean_text(text("addr"), 64),
        name: clean_text(text("name"), 64),
        age: Duration::from_secs(text("age").parse().unwrap_or_default()),
        database: text("db").parse().unwrap_or_default(),
        only_listens: is_subscriber || flags.contains(['S', 'M', 'O']),
    })
}

#[cfg(test)]
mod tests {
    use redis::FromRedisValue;

    use super::*;

    #[test]
    fn a_listed_connection_is_read_also_without_the_fields_of_newer_servers() {
        let old = connection("id=7 addr=[::1]:5 fd=8 name=a age=3 idle=0 flags=b db=2 cmd=brpop");
        let old = old.unwrap();
        assert_eq!((old.id, old.database, old.only_listens), (7, 2, false));
        assert_eq!((old.address.as_str(), old.name.as_str()), ("[::1]:5", "a"));
        assert_eq!(old.age, Duration::from_secs(3));
        assert_eq!(connection(""), None);
        assert_eq!(connection("txt:whatever"), None);
    }

    #[test]
    fn replicas_monitors_and_subscribers_only_listen_but_not_those_that_may_do_more() {
        let listens = |rest: &str| connection(&format!("id=1 {rest}")).unwrap().only_listens;
        for flags in ["S", "SO", "M", "O", "P"] {
            assert!(listens(&format!("flags={flags} resp=2")), "{flags}");
        }
        for rest in ["flags=P resp=3", "flags=N", "flags=b", "flags=x", "flags=e"] {
            assert!(!listens(rest), "{rest}");
        }
    }

    #[test]
    fn a_reply_of_a_repair_tells_each_deed_and_its_key() {
        let word = |text: &str| redis::Value::BulkString(text.as_bytes().to_vec());
        let reply = [word("done"), word("pushed"), redis::Value::Int(5), word("removed")];
        let reply = reply.into_iter().chain([redis::Value::Int(1)]).collect();
        let verdict = Verdict::from_redis_value(redis::Value::Array(reply)).unwrap();
        let texts: Vec<String> = deeds(&verdict).unwrap().iter().map(Deed::to_string).collect();
        assert_eq!(texts, ["pushed an element to :producer_free", "removed (data)"]);
    }
}
