//! What the management API is asked and told as an administrator: whose a holding
//! is, what else its connection has, and to close that. Whether to is `revoke`'s.

use futures::stream::{self, StreamExt, TryStreamExt};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use secrecy::ExposeSecret;
use serde::Deserialize;

use super::{ListedQueue, MAX_PAGES, Management, PAGE, root_cause};
use crate::plan::semaphore::HolderFacts;
use crate::semaphore::holders::read;

/// A queue that belongs to a connection, and what its declarer wrote into it.
pub(in crate::semaphore) struct Owned {
    /// As the management API names it.
    pub connection: String,
    /// As status shows them.
    pub facts: HolderFacts,
}

#[derive(Deserialize)]
struct OwnedQueue {
    #[serde(flatten)]
    queue: ListedQueue,
    #[serde(default)]
    owner_pid_details: serde_json::Value,
}

impl OwnedQueue {
    fn owner(&self) -> Option<&str> {
        self.owner_pid_details.get("name")?.as_str()
    }
}

#[derive(Deserialize)]
struct ExclusiveQueues {
    #[serde(default)]
    page_count: usize,
    items: Vec<ExclusiveQueue>,
}

#[derive(Deserialize)]
struct ExclusiveQueue {
    name: String,
    // Where it is not told, it may be.
    exclusive: Option<bool>,
}

/// Most exclusive queues of a virtual host that are asked whose they are: lists don't
/// tell.
const MAX_ASKED: usize = 5000;

/// So many at the same time.
const ASKED_AT_ONCE: usize = 16;

#[derive(Deserialize)]
struct OwnChannel {
    #[serde(default)]
    messages_unacknowledged: u32,
}

/// How closing a connection ended that the API answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::semaphore) enum Closed {
    /// It was closed.
    Yes,
    /// There is no such connection any more.
    Gone,
}

impl Management {
    /// An exclusive queue; the outer `None`: there is none, the inner one: whose it is
    /// the API doesn't know yet.
    pub async fn owned(&self, queue: &str) -> Result<Option<Option<Owned>>, String> {
        let queue = utf8_percent_encode(queue, NON_ALPHANUMERIC);
        let columns = "name,arguments,owner_pid_details";
        let path = format!("queues/{}/{queue}?columns={columns}", self.vhost);
        let Some(found) = self.get::<OwnedQueue>(&path).await? else { return Ok(None) };
        let Some(connection) = found.owner().map(str::to_owned) else { return Ok(Some(None)) };
        let owner = self.owner(connection.clone()).await;
        let (shown, user) = (Some(owner.connection), owner.user);
        let facts = HolderFacts { connection: shown, user, ..read(found.queue.arguments) };
        Ok(Some(Some(Owned { connection, facts })))
    }

    /// What a connection has beside the queues `holding` and so many unacknowledged
    /// messages, in words. Up to 5 s old.
    pub async fn belongings(
        &self,
        connection: &str,
        holding: &[&str],
        unacknowledged: u32,
    ) -> Result<Vec<String>, String> {
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
                Ok::<_, String>(is_its.then(|| format!("the exclusive queue {name}")))
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
        let channels: Vec<OwnChannel> = self.get(&path).await?.unwrap_or_default();
        let has: u32 = channels.iter().map(|channel| channel.messages_unacknowledged).sum();
        if has > unacknowledged {
            found.push(format!("{} more unacknowledged messages", has - unacknowledged));
        }
        Ok(found)
    }

    /// The virtual host's exclusive queues but for these.
    async fn exclusive_queues(&self, but: &[&str]) -> Result<Vec<String>, String> {
        let mut names = Vec::new();
        for page in 1..=MAX_PAGES {
            let path = format!(
                "queues/{}?page={page}&page_size={PAGE}&columns=name,exclusive&disable_stats=true&enable_queue_totals=true",
                self.vhost
            );
            let Some(listed) = self.get::<ExclusiveQueues>(&path).await? else { break };
            let others = listed.items.into_iter().filter(|queue| queue.exclusive != Some(false));
            names.extend(others.map(|queue| queue.name).filter(|name| !but.contains(&&**name)));
            if page >= listed.page_count {
                break;
            }
        }
        Ok(names)
    }

    /// Closes a connection; its client is told the reason.
    pub async fn close(&self, connection: &str, reason: &str) -> Result<Closed, String> {
        let name = utf8_percent_encode(connection, NON_ALPHANUMERIC);
        let url = format!("{}/api/connections/{name}", self.settings.url);
        let client = self.client.as_ref().map_err(|why| self.failed(why))?;
        let asked = client
            .delete(url)
            .basic_auth(&self.settings.username, Some(self.settings.password.expose_secret()))
            .header("X-Reason", header(reason))
            .send()
            .await;
        let answer = asked.map_err(|error| self.failed(&root_cause(&error.without_url())))?;
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

/// A reason in a header's letters: the broker cuts a frame's text at 255 bytes.
fn header(reason: &str) -> String {
    let printable = |c: char| if c.is_ascii_graphic() || c == ' ' { c } else { '?' };
    reason.chars().map(printable).take(200).collect()
}
