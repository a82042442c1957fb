//! The clients of a schedule: ours, one that follows the protocol's text and one that
//! follows its pseudo-code, behind one interface that distinguishes their results.

use std::time::Duration;

use lockkeeper_pressure::{
    Awaited, Limit, PutBatchError, Queue, QueueError, QueueOptions, QueueRole, Wait,
};
use lockkeeper_testkit::pressure_pseudo::{PseudoClient, PseudoError};
use lockkeeper_testkit::pressure_text::{TextClient, TextError};
use lockkeeper_testkit::pressure_text_unblocked::{UnblockedClient, UnblockedError};
use lockkeeper_testkit::redis::TestQueue;
use rand::RngExt;
use rand::rngs::SmallRng;

use crate::queue::text_queue;

/// The implementation of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Ours,
    Text,
    Pseudo,
}

impl Kind {
    pub fn any(random: &mut SmallRng) -> Self {
        [Self::Ours, Self::Text, Self::Pseudo][random.random_range(0..3)]
    }
}

/// How an operation waits.
#[derive(Clone, Copy, Debug)]
pub enum Mode {
    Blocked,
    Unblocked,
    Timed(Duration),
}

impl Mode {
    pub fn any(random: &mut SmallRng) -> Self {
        match random.random_range(0..4) {
            0 | 1 => Self::Blocked,
            2 => Self::Unblocked,
            _ => Self::Timed(Duration::from_millis(random.random_range(1..30))),
        }
    }

    fn wait(self) -> Wait {
        match self {
            Self::Blocked => Wait::Forever,
            Self::Unblocked => Wait::No,
            Self::Timed(time) => Wait::For(time),
        }
    }

    fn time(self) -> Option<Duration> {
        if let Self::Timed(time) = self { Some(time) } else { None }
    }
}

/// Reason why an operation failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    Closed,
    Missing,
    Full,
    Empty,
    InUse(QueueRole, Option<String>),
    TimedOut(Option<Awaited>),
    /// A result that must never occur.
    Broken(String),
}

impl From<QueueError> for Refusal {
    fn from(err: QueueError) -> Self {
        match err {
            QueueError::Closed => Self::Closed,
            QueueError::DoesNotExist => Self::Missing,
            QueueError::Full => Self::Full,
            QueueError::Empty => Self::Empty,
            QueueError::InUse { role, who } => Self::InUse(role, who),
            QueueError::TimedOut { awaited } => Self::TimedOut(Some(awaited)),
            other => Self::Broken(format!("{other:?}")),
        }
    }
}

impl From<TextError> for Refusal {
    fn from(err: TextError) -> Self {
        match err {
            TextError::Closed => Self::Closed,
            TextError::DoesNotExist => Self::Missing,
            other => Self::Broken(format!("{other:?}")),
        }
    }
}

/// With the role that the operation required.
impl From<(UnblockedError, QueueRole)> for Refusal {
    fn from((err, role): (UnblockedError, QueueRole)) -> Self {
        match err {
            UnblockedError::Closed => Self::Closed,
            UnblockedError::DoesNotExist => Self::Missing,
            UnblockedError::Full => Self::Full,
            UnblockedError::Empty => Self::Empty,
            UnblockedError::InUse => Self::InUse(role, None),
            UnblockedError::TimedOut => Self::TimedOut(None),
            UnblockedError::Redis(err) => Self::Broken(format!("{err:?}")),
        }
    }
}

impl From<(PseudoError, QueueRole)> for Refusal {
    fn from((err, role): (PseudoError, QueueRole)) -> Self {
        match err {
            PseudoError::Closed => Self::Closed,
            PseudoError::DoesNotExist => Self::Missing,
            PseudoError::Full => Self::Full,
            PseudoError::InUse => Self::InUse(role, None),
            PseudoError::AlreadyExists => Self::Broken("AlreadyExists".to_owned()),
            PseudoError::Redis(err) => Self::Broken(format!("{err:?}")),
        }
    }
}

/// One client.
pub enum Client {
    Ours(Queue),
    Text(Box<TextClient>, UnblockedClient),
    Pseudo(PseudoClient),
}

impl Client {
    pub async fn connect(kind: Kind, place: &TestQueue, id: &str) -> Self {
        let (url, data) = (place.url.as_str(), place.queue.data());
        match kind {
            Kind::Ours => {
                // A loaded machine may keep Redis from answering for some seconds.
                let limit = Duration::from_mins(1);
                let options =
                    QueueOptions::default().with_client_id(id).with_response_timeout(limit);
                Self::Ours(Queue::new(place.settings(), place.queue.clone(), options))
            }
            Kind::Text => Self::Text(
                Box::new(TextClient::connect(&text_queue(place), id).await.unwrap()),
                UnblockedClient::connect(url, &data, id).await.unwrap(),
            ),
            Kind::Pseudo => Self::Pseudo(PseudoClient::connect(url, &data, id).await.unwrap()),
        }
    }

    /// Returns the `CLIENT ID` of the connection on which a foreign client may wait
    /// forever.
    pub fn connection(&self) -> Option<i64> {
        match self {
            Self::Ours(_) => None,
            Self::Text(client, _) => Some(client.client),
            Self::Pseudo(client) => Some(client.client),
        }
    }

    pub fn kind(&self) -> Kind {
        match self {
            Self::Ours(_) => Kind::Ours,
            Self::Text(..) => Kind::Text,
            Self::Pseudo(_) => Kind::Pseudo,
        }
    }

    /// Returns whether it keeps its role after this refusal.
    pub fn keeps_role(&self, refusal: &Refusal) -> bool {
        matches!((self, refusal), (Self::Pseudo(_), Refusal::Closed | Refusal::Full))
    }

    pub async fn create(&mut self, bound: u64) -> Result<(), Refusal> {
        match self {
            Self::Ours(queue) => Ok(queue.create(bound).await?),
            Self::Text(client, _) => Ok(client.create(bound).await?),
            Self::Pseudo(client) => {
                client.create(bound).await.map_err(|err| (err, QueueRole::Producer).into())
            }
        }
    }

    /// Puts the first of these elements, or with our client all of them in one batch.
    /// Returns how many it put.
    pub async fn put(&mut self, elements: &[String], mode: Mode) -> (usize, Result<(), Refusal>) {
        let role = QueueRole::Producer;
        let result = match self {
            Self::Ours(queue) => {
                return match queue.put_batch(elements, mode.wait()).await {
                    Ok(()) => (elements.len(), Ok(())),
                    Err(PutBatchError { put, error, .. }) => (put, Err(error.into())),
                };
            }
            Self::Text(client, unblocked) => match mode {
                Mode::Blocked => client.put(&elements[0]).await.map_err(Refusal::from),
                _ => {
                    unblocked.put(&elements[0], mode.time()).await.map_err(|err| (err, role).into())
                }
            },
            Self::Pseudo(client) => match mode {
                Mode::Unblocked => client.try_put(&elements[0]).await,
                _ => client.put(&elements[0]).await,
            }
            .map_err(|err| (err, role).into()),
        };
        (usize::from(result.is_ok()), result)
    }

    /// Gets an element, or with our client up to `most`.
    pub async fn get(&mut self, most: usize, mode: Mode) -> Result<Vec<String>, Refusal> {
        let role = QueueRole::Consumer;
        let element = match self {
            Self::Ours(queue) => {
                let limit = Limit { elements: most, bytes: usize::MAX >> 12 };
                let taken = queue.get_batch(limit, mode.wait()).await?;
                let text = |element: Vec<u8>| String::from_utf8(element).unwrap();
                return Ok(taken.into_elements().into_iter().map(text).collect());
            }
            Self::Text(client, unblocked) => match mode {
                Mode::Blocked => client.get().await?,
                _ => unblocked.get(mode.time()).await.map_err(|err| Refusal::from((err, role)))?,
            },
            Self::Pseudo(client) => match mode {
                Mode::Unblocked => client
                    .try_get()
                    .await
                    .map_err(|err| Refusal::from((err, role)))?
                    .ok_or(Refusal::Empty)?,
                _ => client.get().await.map_err(|err| Refusal::from((err, role)))?,
            },
        };
        Ok(vec![element])
    }

    pub async fn close(&mut self) -> Result<(), Refusal> {
        match self {
            Self::Ours(queue) => Ok(queue.close(Wait::Forever).await?),
            Self::Text(client, _) => Ok(client.close().await?),
            Self::Pseudo(client) => {
                client.close().await.map_err(|err| (err, QueueRole::Producer).into())
            }
        }
    }

    pub async fn delete(&mut self) -> Result<(), Refusal> {
        match self {
            Self::Ours(queue) => Ok(queue.delete(Wait::Forever).await?),
            Self::Text(client, _) => Ok(client.delete().await?),
            Self::Pseudo(client) => {
                client.delete().await.map_err(|err| (err, QueueRole::Consumer).into())
            }
        }
    }
}
