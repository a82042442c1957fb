//! Requests of an administrator to the management API: finds the connection that holds a
//! slot, lists its other objects, and closes it. See `revoke` for when this is allowed.

use futures::stream::{self, StreamExt, TryStreamExt};
use hyper::Method;
use lockkeeper_plan::semaphore::HolderFacts;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;

use super::answer::{List, MAX_ANSWER, Texts};
use super::{ListedQueue, MAX_LISTED, MAX_PAGES, Management, ManagementError, PAGE, read};

/// A queue that belongs to a connection, and the facts in its arguments.
pub struct Owned {
    /// The management API's name of the connection. `None` until the API lists it.
    pub connection: Option<String>,
    /// The facts, as shown in status.
    pub facts: HolderFacts,
}

#[derive(Deserialize)]
struct OwnedQueue {
    #[serde(flatten)]
    queue: ListedQueue,
    #[serde(default)]
    owner_pid_details: Texts,
}

impl OwnedQueue {
    fn owner(&self) -> Option<&str> {
        self.owner_pid_details.get("name")
    }
}

#[derive(Deserialize)]
struct ExclusiveQueues {
    #[serde(default)]
    page_count: usize,
    items: List<ExclusiveQueue, PAGE>,
}

#[derive(Deserialize)]
struct ExclusiveQueue {
    name: String,
    // If the field is missing, the queue may be exclusive.
    exclusive: Option<bool>,
}

/// Maximum number of exclusive queues whose owner is requested one by one. Lists don't
/// contain the owner.
const MAX_ASKED: usize = 5000;

/// Maximum number of concurrent requests for owners.
const ASKED_AT_ONCE: usize = 16;

#[derive(Deserialize)]
struct OwnChannel {
    #[serde(default)]
    messages_unacknowledged: u32,
}

/// The result of a close request that the API answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// The connection was closed.
    Yes,
    /// The connection no longer exists.
    Gone,
}

impl Management {
    /// Returns an exclusive queue and its owner. `None`: there is no such queue.
    pub async fn owned(&self, queue: &str) -> Result<Option<Owned>, ManagementError> {
        let queue = utf8_percent_encode(queue, NON_ALPHANUMERIC);
        let columns = "name,arguments,owner_pid_details";
        let path = format!("queues/{}/{queue}?columns={columns}", self.vhost);
        let Some(found) = self.get::<OwnedQueue>(&path).await? else { return Ok(None) };
        let mut facts = read(&found.queue.arguments);
        let connection = found.owner().map(str::to_owned);
        if let Some(name) = &connection {
            let owner = self.owner(name.clone()).await;
            (facts.connection, facts.user) = (Some(owner.connection), owner.user);
        }
        Ok(Some(Owned { connection, facts }))
    }

    /// Describes objects of a connection other than the queues `holding` and that number
    /// of unacknowledged messages. Up to 5 s old.
    pub async fn belongings(
        &self,
        connection: &str,
        holding: &[&str],
        unacknowledged: u32,
    ) -> Result<Vec<String>, ManagementError> {
        let mut found = Vec::new();
        let queues = self.exclusive_queues(holding).await?;
        if queues.len() > MAX_ASKED {
            found.push(format!("perhaps some of {} exclusive queues", queues.len()));
        } else {
            let asked = stream::iter(queues).map(async |name| {
                let queue = utf8_percent_encode(&name, NON_ALPHANUMERIC);
                let path = format!("queues/{}/{queue}?columns=name,owner_pid_details", self.vhost);
                let queue = self.get::<OwnedQueue>(&path).await?;
                let is_its = queue.is_some_and(|queue| queue.owner() == Some(connection));
                Ok::<_, ManagementError>(is_its.then(|| format!("the exclusive queue {name}")))
            });
            let asked: Vec<_> = asked.buffer_unordered(ASKED_AT_ONCE).try_collect().await?;
            found.extend(asked.into_iter().flatten());
        }
        for consumer in self.consumers().await? {
            let queue = &consumer.queue.name;
            if consumer.connection().as_deref() == Some(connection)
                && !holding.contains(&queue.as_str())
            {
                found.push(format!("a consumer of {queue}"));
            }
        }
        let name = utf8_percent_encode(connection, NON_ALPHANUMERIC);
        let path = format!("connections/{name}/channels?columns=messages_unacknowledged");
        let channels: Option<List<OwnChannel, MAX_LISTED>> = self.get(&path).await?;
        let channels = channels.map(|channels| channels.0).unwrap_or_default();
        let has: u32 = channels.iter().map(|channel| channel.messages_unacknowledged).sum();
        if has > unacknowledged {
            found.push(format!("{} more unacknowledged messages", has - unacknowledged));
        }
        Ok(found)
    }

    /// Returns the virtual host's exclusive queues except these.
    async fn exclusive_queues(&self, but: &[&str]) -> Result<Vec<String>, ManagementError> {
        let (mut names, mut left) = (Vec::new(), MAX_ANSWER);
        for page in 1..=MAX_PAGES {
            let path = format!(
                "queues/{}?page={page}&page_size={PAGE}&columns=name,exclusive&disable_stats=true&enable_queue_totals=true",
                self.vhost
            );
            let listed: ExclusiveQueues = self.page(&path, &mut left).await?;
            let others = listed.items.0.into_iter().filter(|queue| queue.exclusive != Some(false));
            names.extend(others.map(|queue| queue.name).filter(|name| !but.contains(&&**name)));
            if page >= listed.page_count {
                break;
            }
        }
        Ok(names)
    }

    /// Closes a connection. Its client receives the reason.
    pub async fn close(&self, connection: &str, reason: &str) -> Result<Closed, ManagementError> {
        let name = utf8_percent_encode(connection, NON_ALPHANUMERIC);
        let client = self.client.as_ref().map_err(|why| self.failed(why))?;
        let request = self
            .request(Method::DELETE, &format!("connections/{name}"))
            .header("X-Reason", header(reason));
        let answer = client.send(request).await.map_err(|failed| self.failed(&failed.why))?;
        match answer.status().as_u16() {
            200..=299 => Ok(Closed::Yes),
            404 => Ok(Closed::Gone),
            401 | 403 => Err(self.failed(
                "it does not let the user close connections: check user and password, and give the user the tag administrator",
            )),
            status => Err(self.failed(&format!("it answers with status {status}"))),
        }
    }
}

/// Converts a reason to header characters. The broker truncates a frame's text at 255
/// bytes.
fn header(reason: &str) -> String {
    let printable = |c: char| if c.is_ascii_graphic() || c == ' ' { c } else { '?' };
    reason.chars().map(printable).take(200).collect()
}
