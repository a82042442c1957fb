//! The requests to a broker's management API. See `holders` for when they are sent and
//! how answers are used, and `answer` for limits on answers.
//!
//! The API adds facts and decides nothing: its address may lead to another broker, or to
//! a proxy that answers for it.

mod answer;
mod closing;
mod error;
mod http;
pub mod listing;
pub mod nodes;
pub mod risks;

use std::collections::HashMap;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hyper::http::request::Builder;
use hyper::{Method, Request, header};
use lockkeeper_net::tls::client_config;
use lockkeeper_plan::clean_text;
use lockkeeper_plan::connection::{ManagementSettings, RabbitmqSettings, TlsSettings};
use lockkeeper_plan::semaphore::HolderFacts;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use secrecy::ExposeSecret;
use serde::Deserialize;
use serde::de::DeserializeOwned;

pub use self::answer::Texts;
use self::answer::{List, MAX_ANSWER, NoAnswer, Turn};
pub use self::closing::Closed;
pub use self::error::ManagementError;
use self::http::Client;

/// Number of queues per page, the API's maximum.
const PAGE: usize = 500;

/// Maximum number of pages: 100,000 queues.
const MAX_PAGES: usize = 200;

/// Maximum number of queue names, consumers or channels in one list.
const MAX_NAMES: usize = 200_000;
const MAX_LISTED: usize = 50_000;

/// A broker's management API, for one virtual host.
pub struct Management {
    /// The client, or why it could not be created.
    client: Result<Client, String>,
    settings: ManagementSettings,
    /// Percent-encoded.
    vhost: String,
    turn: Turn,
}

/// A queue in a list.
#[derive(Deserialize)]
pub struct ListedQueue {
    pub name: String,
    #[serde(default)]
    pub arguments: Texts,
}

#[derive(Deserialize)]
struct NamedQueue {
    name: String,
}

#[derive(Deserialize)]
struct Page {
    #[serde(default)]
    page_count: usize,
    items: List<ListedQueue, PAGE>,
}

/// The type and the message count of a queue.
#[derive(Clone, Debug, Deserialize)]
pub struct Totals {
    name: String,
    /// `classic` or `quorum`.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// Ready and unacknowledged messages. The API queries a classic queue itself (correct
    /// in 150 of 150 observations right after a change, on 3.10 and 4.0). The count of a
    /// quorum queue is some seconds old (up to 5.2 s as measured, and 0 for a new queue).
    pub messages: Option<u32>,
}

#[derive(Deserialize)]
struct TotalsPage {
    items: List<Totals, PAGE>,
}

/// A consumer in a list.
#[derive(Deserialize)]
pub struct ListedConsumer {
    pub queue: ConsumersQueue,
    #[serde(default)]
    pub exclusive: bool,
    #[serde(default)]
    pub consumer_tag: String,
    #[serde(default)]
    pub arguments: Texts,
    #[serde(default)]
    channel_details: Texts,
}

/// The queue of a consumer.
#[derive(Deserialize)]
pub struct ConsumersQueue {
    pub name: String,
}

impl ListedConsumer {
    /// Returns the broker's name for the consumer's connection.
    pub fn connection(&self) -> Option<String> {
        self.channel_details.get("connection_name").map(str::to_owned)
    }

    /// Returns the broker's name for the consumer's channel.
    pub fn channel(&self) -> Option<&str> {
        self.channel_details.get("name")
    }
}

/// The consumers of a queue, from the queue's own page.
#[derive(Deserialize)]
struct QueueConsumers {
    #[serde(default)]
    consumer_details: List<QueueConsumer, MAX_LISTED>,
}

/// A consumer of one queue.
#[derive(Clone, Debug, Deserialize)]
pub struct QueueConsumer {
    #[serde(default)]
    pub consumer_tag: String,
    pub channel_details: ConsumersChannel,
}

/// The channel that a consumer is on.
#[derive(Clone, Debug, Deserialize)]
pub struct ConsumersChannel {
    pub name: String,
    #[serde(default)]
    pub connection_name: String,
}

#[derive(Deserialize)]
struct ListedChannel {
    name: String,
    #[serde(default)]
    messages_unacknowledged: u32,
}

#[derive(Deserialize)]
struct QueueDetails {
    #[serde(default)]
    owner_pid_details: Texts,
}

/// The owner of an exclusive queue.
#[derive(Clone, Debug)]
pub struct Owner {
    /// The broker's name for the connection (peer -> broker) and, if set, the name chosen
    /// by the client, formatted as in the broker's log.
    pub connection: String,
    /// The connection's user. `None` if this user may not see other users.
    pub user: Option<String>,
}

#[derive(Default, Deserialize)]
struct ConnectionDetails {
    user: Option<String>,
    #[serde(default)]
    client_properties: Texts,
}

impl Management {
    /// Creates a client if a management API is configured. Does no I/O.
    pub fn new(settings: &RabbitmqSettings) -> Option<Self> {
        let management = settings.management.clone()?;
        let tls = client_config(management.tls.as_ref().map(TlsSettings::expose));
        let client = match settings.vhost.as_str() {
            "." | ".." => Err("it has no path for a virtual host of this name".to_owned()),
            _ => tls.map(Client::new).map_err(|why| clean_text(&why, 256)),
        };
        let vhost = utf8_percent_encode(&settings.vhost, NON_ALPHANUMERIC).to_string();
        Some(Self { client, settings: management, vhost, turn: Turn::default() })
    }

    /// Returns names and arguments of the virtual host's queues whose name matches a
    /// regular expression (PCRE, evaluated by the broker).
    pub async fn queues_matching(
        &self,
        pattern: &str,
    ) -> Result<Vec<ListedQueue>, ManagementError> {
        let pattern = utf8_percent_encode(pattern, NON_ALPHANUMERIC);
        let (mut queues, mut left) = (Vec::new(), MAX_ANSWER);
        for page in 1..=MAX_PAGES {
            // `disable_stats`: without it the broker collects the statistics of every
            // queue, which is most of the cost of a list.
            let path = format!(
                "queues/{}?page={page}&page_size={PAGE}&name={pattern}&use_regex=true&columns=name,arguments&disable_stats=true&enable_queue_totals=true",
                self.vhost
            );
            let Page { page_count, items } = self.page(&path, &mut left).await?;
            queues.extend(items.0);
            if page >= page_count {
                break;
            }
        }
        Ok(queues)
    }

    /// Returns the names of all queues of the virtual host. A page costs the broker as
    /// much as the whole list, because it builds the list and cuts the page out. (3.10:
    /// 5,000 queues in 10 pages took 8 times as long as in one answer.)
    pub async fn queue_names(&self) -> Result<Vec<String>, ManagementError> {
        let path = format!("queues/{}?columns=name&disable_stats=true", self.vhost);
        let queues: List<NamedQueue, MAX_NAMES> = self.list(&path).await?;
        Ok(queues.0.into_iter().map(|queue| queue.name).collect())
    }

    /// Returns the cluster's name, which is also sent to AMQP connections.
    pub async fn cluster_name(&self) -> Result<Option<String>, ManagementError> {
        let named: Option<Texts> = self.get("cluster-name").await?;
        Ok(named.and_then(|named| Some(clean_text(named.get("name")?, 256))))
    }

    /// Returns the arguments of a queue. `None` if the queue does not exist.
    pub async fn arguments_of(&self, queue: &str) -> Result<Option<Texts>, ManagementError> {
        let queue = utf8_percent_encode(queue, NON_ALPHANUMERIC);
        let path = format!("queues/{}/{queue}?columns=name,arguments", self.vhost);
        Ok(self.get::<ListedQueue>(&path).await?.map(|queue| queue.arguments))
    }

    /// Returns a queue's type and message count. `None` if the queue does not exist.
    pub async fn totals(&self, queue: &str) -> Result<Option<Totals>, ManagementError> {
        let pattern = format!("^{}$", escaped(queue));
        let pattern = utf8_percent_encode(&pattern, NON_ALPHANUMERIC);
        // Without statistics, because the queue's own page has only counts that are
        // seconds old.
        let path = format!(
            "queues/{}?page=1&page_size=2&name={pattern}&use_regex=true&columns=name,type,messages&disable_stats=true&enable_queue_totals=true",
            self.vhost
        );
        let page: TotalsPage = self.list(&path).await?;
        Ok(page.items.0.into_iter().find(|found| found.name == queue))
    }

    /// Returns the consumers of one queue. `None` if the queue does not exist. Some
    /// seconds old.
    pub async fn consumers_of(
        &self,
        queue: &str,
    ) -> Result<Option<Vec<QueueConsumer>>, ManagementError> {
        let queue = utf8_percent_encode(queue, NON_ALPHANUMERIC);
        let path = format!("queues/{}/{queue}?columns=consumer_details", self.vhost);
        let consumers: Option<QueueConsumers> = self.get(&path).await?;
        Ok(consumers.map(|consumers| consumers.consumer_details.0))
    }

    /// Returns the virtual host's channels by name, with the number of unacknowledged
    /// messages of each. Some seconds old.
    pub async fn unacknowledged(&self) -> Result<HashMap<String, u32>, ManagementError> {
        let path = format!("vhosts/{}/channels?columns=name,messages_unacknowledged", self.vhost);
        let channels: List<ListedChannel, MAX_LISTED> = self.list(&path).await?;
        let channels = channels.0.into_iter();
        Ok(channels.map(|channel| (channel.name, channel.messages_unacknowledged)).collect())
    }

    /// Returns the virtual host's consumers.
    pub async fn consumers(&self) -> Result<Vec<ListedConsumer>, ManagementError> {
        let columns = "queue.name,exclusive,consumer_tag,arguments,channel_details.name,channel_details.connection_name";
        let path = format!("consumers/{}?columns={columns}", self.vhost);
        let consumers: List<ListedConsumer, MAX_LISTED> = self.list(&path).await?;
        Ok(consumers.0)
    }

    /// Returns the connection that owns an exclusive queue. `None` without the queue, or
    /// until the API lists the owner (up to 6 s).
    pub async fn owner_of(&self, queue: &str) -> Result<Option<Owner>, ManagementError> {
        let queue = utf8_percent_encode(queue, NON_ALPHANUMERIC);
        let path = format!("queues/{}/{queue}?columns=owner_pid_details", self.vhost);
        let details: Option<QueueDetails> = self.get(&path).await?;
        // An empty list or an empty object until the owner is known.
        let Some(name) = details.and_then(|d| Some(d.owner_pid_details.get("name")?.to_owned()))
        else {
            return Ok(None);
        };
        Ok(Some(self.owner(name).await))
    }

    /// Returns the known facts of a connection.
    pub async fn owner(&self, name: String) -> Owner {
        // The tag management shows a user only its own connections, and monitoring shows
        // all. A hidden connection is not an error.
        let path = format!("connections/{}", utf8_percent_encode(&name, NON_ALPHANUMERIC));
        let details: Option<ConnectionDetails> = self.get(&path).await.unwrap_or_default();
        let ConnectionDetails { user, client_properties } = details.unwrap_or_default();
        let given = client_properties.get("connection_name");
        let connection = given.map_or_else(|| name.clone(), |given| format!("{name} - {given}"));
        Owner { connection, user }
    }

    /// Returns the id that a cluster generates when it is created. Visible only to
    /// administrators.
    pub async fn cluster_id(&self) -> Result<Option<String>, ManagementError> {
        let parameter: Option<Texts> = self.get("global-parameters/internal_cluster_id").await?;
        Ok(parameter.and_then(|parameter| Some(clean_text(parameter.get("value")?, 128))))
    }

    /// Requests one object. `None` if it does not exist.
    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<Option<T>, ManagementError> {
        let mut left = MAX_ANSWER;
        match self.read(path, &mut left).await? {
            Ok(found) => Ok(Some(found)),
            Err(NoAnswer::NotFound) => Ok(None),
            Err(NoAnswer::Because(why)) => Err(self.failed(&why)),
        }
    }

    /// Requests a list in one part.
    async fn list<T: DeserializeOwned>(&self, path: &str) -> Result<T, ManagementError> {
        let mut left = MAX_ANSWER;
        self.page(path, &mut left).await
    }

    /// Requests a part of a list. All parts together may have `left` bytes.
    async fn page<T: DeserializeOwned>(
        &self,
        path: &str,
        left: &mut usize,
    ) -> Result<T, ManagementError> {
        let found = self.read(path, left).await?;
        found.map_err(|failure| ManagementError::no_list(&self.settings.url, &failure))
    }

    async fn read<T: DeserializeOwned>(
        &self,
        path: &str,
        left: &mut usize,
    ) -> Result<Result<T, NoAnswer>, ManagementError> {
        let client = self.client.as_ref().map_err(|why| self.failed(why))?;
        Ok(answer::read(client, self.request(Method::GET, path), &self.turn, left).await)
    }

    /// Creates a request with user and password.
    fn request(&self, method: Method, path: &str) -> Builder {
        let url = format!("{}/api/{path}", self.settings.url);
        let ManagementSettings { username, password, .. } = &self.settings;
        let login = BASE64_STANDARD.encode(format!("{username}:{}", password.expose_secret()));
        Request::builder()
            .method(method)
            .uri(url)
            .header(header::ACCEPT, "*/*")
            .header(header::AUTHORIZATION, format!("Basic {login}"))
    }

    fn failed(&self, why: &str) -> ManagementError {
        ManagementError::new(&self.settings.url, why)
    }
}

/// Escapes a name as a pattern that matches only this name.
pub fn escaped(name: &str) -> String {
    let mut pattern = String::with_capacity(name.len() * 2);
    for c in name.chars() {
        if c.is_ascii() && !c.is_ascii_alphanumeric() {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern
}

/// Reads the facts that a holder wrote into its queue's arguments.
pub fn read(arguments: &Texts) -> HolderFacts {
    let text = |key: &str| arguments.get(key).map(str::to_owned);
    HolderFacts {
        id: text("x-lockkeeper-id"),
        identity: text("x-lockkeeper-identity"),
        reason: text("x-lockkeeper-reason"),
        url: text("x-lockkeeper-url"),
        since: text("x-lockkeeper-since"),
        connection: None,
        user: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_matches_itself_only() {
        assert_eq!(escaped("a.b-é|(c)"), r"a\.b\-é\|\(c\)");
    }
}
