//! The few questions put to a broker's management API. When to ask, and what to
//! make of the answers, is `holders`'.

mod closing;

use std::collections::HashMap;
use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use rustls::ClientConfig;
use secrecy::ExposeSecret;
use serde::Deserialize;
use serde::de::DeserializeOwned;

pub(super) use self::closing::Closed;
use super::marks::escaped;
use super::tls::client_config;
use crate::plan::clean_text;
use crate::plan::connection::{ManagementSettings, RabbitmqSettings};

/// Limit on one request. The API only adds facts, so it gets little patience.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);

/// Queues asked for at once, the API's maximum.
const PAGE: usize = 500;

/// Most pages read: 100,000 queues.
const MAX_PAGES: usize = 200;

/// How long a connection is kept for the next request: half of what the broker
/// keeps one (60 s), which loses the request that crosses its end.
const IDLE: Duration = Duration::from_secs(30);

/// A broker's management API, for one virtual host.
pub(super) struct Management {
    /// Or why there is none.
    client: Result<reqwest::Client, String>,
    settings: ManagementSettings,
    /// Percent-encoded.
    vhost: String,
}

/// A queue in a list.
#[derive(Deserialize)]
pub(super) struct ListedQueue {
    pub name: String,
    #[serde(default)]
    pub arguments: HashMap<String, serde_json::Value>,
}

#[derive(Deserialize)]
struct NamedQueue {
    name: String,
}

#[derive(Deserialize)]
struct Page {
    #[serde(default)]
    page_count: usize,
    items: Vec<ListedQueue>,
}

/// What a queue is and has.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Totals {
    name: String,
    /// `classic` or `quorum`.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// Ready and unacknowledged ones. A classic queue is asked by the API itself (never
    /// wrong in 150 looks right after a change, on 3.10 and 4.0); of a quorum queue it
    /// knows what was some seconds ago (up to 5.2 as measured; 0 of a new one).
    pub messages: Option<u32>,
}

#[derive(Deserialize)]
struct TotalsPage {
    items: Vec<Totals>,
}

/// A consumer in a list.
#[derive(Deserialize)]
pub(super) struct ListedConsumer {
    pub queue: ConsumersQueue,
    #[serde(default)]
    pub exclusive: bool,
    #[serde(default)]
    pub consumer_tag: String,
    // An empty list where there are none.
    #[serde(default)]
    arguments: serde_json::Value,
    #[serde(default)]
    channel_details: serde_json::Value,
}

/// The queue of a consumer.
#[derive(Deserialize)]
pub(super) struct ConsumersQueue {
    pub name: String,
}

impl ListedConsumer {
    /// What it was given as arguments.
    pub fn arguments(&self) -> HashMap<String, serde_json::Value> {
        match &self.arguments {
            serde_json::Value::Object(arguments) => arguments.clone().into_iter().collect(),
            _ => HashMap::new(),
        }
    }

    /// The broker's name for the connection that it is on.
    pub fn connection(&self) -> Option<String> {
        Some(self.channel_details.get("connection_name")?.as_str()?.to_owned())
    }

    /// The broker's name for the channel that it is on.
    pub fn channel(&self) -> Option<&str> {
        self.channel_details.get("name")?.as_str()
    }
}

/// Who consumes from a queue, from its own page.
#[derive(Deserialize)]
struct QueueConsumers {
    #[serde(default)]
    consumer_details: Vec<QueueConsumer>,
}

/// A consumer of one queue.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct QueueConsumer {
    #[serde(default)]
    pub consumer_tag: String,
    pub channel_details: ConsumersChannel,
}

/// The channel that a consumer is on.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct ConsumersChannel {
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
    owner_pid_details: serde_json::Value,
}

/// Who owns an exclusive queue.
#[derive(Clone, Debug)]
pub(super) struct Owner {
    /// The broker's name for the connection (peer -> broker) and, where the
    /// client gave it one, the client's, as the broker's log writes the two.
    pub connection: String,
    /// The connection's user; absent where we may not see other users'.
    pub user: Option<String>,
}

#[derive(Default, Deserialize)]
struct ConnectionDetails {
    user: Option<String>,
    #[serde(default)]
    client_properties: serde_json::Value,
}

impl Management {
    /// Where there is a management API. Does no I/O.
    pub fn new(settings: &RabbitmqSettings) -> Option<Self> {
        let management = settings.management.clone()?;
        // Also for http, for which reqwest would ask the process for a provider.
        let tls = client_config(management.tls.as_ref());
        let client = tls.and_then(|tls| {
            let builder = reqwest::Client::builder().timeout(REQUEST_TIMEOUT);
            let builder = builder.pool_idle_timeout(IDLE);
            let client = builder.tls_backend_preconfigured(ClientConfig::clone(&tls)).build();
            client.map_err(|error| root_cause(&error))
        });
        let vhost = utf8_percent_encode(&settings.vhost, NON_ALPHANUMERIC).to_string();
        Some(Self { client, settings: management, vhost })
    }

    /// Names and arguments of the virtual host's queues whose name matches a
    /// regular expression (PCRE; the broker evaluates it).
    pub async fn queues_matching(&self, pattern: &str) -> Result<Vec<ListedQueue>, String> {
        let pattern = utf8_percent_encode(pattern, NON_ALPHANUMERIC);
        let mut queues = Vec::new();
        for page in 1..=MAX_PAGES {
            // disable_stats: without it the broker collects statistics of every
            // queue, most of the cost of a list.
            let path = format!(
                "queues/{}?page={page}&page_size={PAGE}&name={pattern}&use_regex=true&columns=name,arguments&disable_stats=true&enable_queue_totals=true",
                self.vhost
            );
            let answer: Option<Page> = self.get(&path).await?;
            let Some(Page { page_count, items }) = answer else { break };
            queues.extend(items);
            if page >= page_count {
                break;
            }
        }
        Ok(queues)
    }

    /// The names of all queues of the virtual host. A page of a list costs the broker as
    /// much as all of it: it makes the list, and cuts the page out (3.10: 5,000 queues
    /// in 10 pages took 8 times as long as in one answer).
    pub async fn queue_names(&self) -> Result<Vec<String>, String> {
        let path = format!("queues/{}?columns=name&disable_stats=true", self.vhost);
        let queues: Option<Vec<NamedQueue>> = self.get(&path).await?;
        Ok(queues.unwrap_or_default().into_iter().map(|queue| queue.name).collect())
    }

    /// How many messages a queue has; `None` if it is not there.
    pub async fn totals(&self, queue: &str) -> Result<Option<Totals>, String> {
        let pattern = format!("^{}$", escaped(queue));
        let pattern = utf8_percent_encode(&pattern, NON_ALPHANUMERIC);
        // Without statistics: the queue's own page has only these, seconds old.
        let path = format!(
            "queues/{}?page=1&page_size=2&name={pattern}&use_regex=true&columns=name,type,messages&disable_stats=true&enable_queue_totals=true",
            self.vhost
        );
        let page: Option<TotalsPage> = self.get(&path).await?;
        Ok(page.and_then(|page| page.items.into_iter().find(|found| found.name == queue)))
    }

    /// Who consumes from one queue. Some seconds old.
    pub async fn consumers_of(&self, queue: &str) -> Result<Vec<QueueConsumer>, String> {
        let queue = utf8_percent_encode(queue, NON_ALPHANUMERIC);
        let path = format!("queues/{}/{queue}?columns=consumer_details", self.vhost);
        let consumers: Option<QueueConsumers> = self.get(&path).await?;
        Ok(consumers.map(|consumers| consumers.consumer_details).unwrap_or_default())
    }

    /// The virtual host's channels by name, with how many messages each has and has not
    /// acknowledged. Some seconds old.
    pub async fn unacknowledged(&self) -> Result<HashMap<String, u32>, String> {
        let path = format!("vhosts/{}/channels?columns=name,messages_unacknowledged", self.vhost);
        let channels: Option<Vec<ListedChannel>> = self.get(&path).await?;
        let channels = channels.unwrap_or_default().into_iter();
        Ok(channels.map(|channel| (channel.name, channel.messages_unacknowledged)).collect())
    }

    /// The virtual host's consumers.
    pub async fn consumers(&self) -> Result<Vec<ListedConsumer>, String> {
        let columns = "queue.name,exclusive,consumer_tag,arguments,channel_details";
        let path = format!("consumers/{}?columns={columns}", self.vhost);
        Ok(self.get(&path).await?.unwrap_or_default())
    }

    /// The connection that owns an exclusive queue; `None` while the API doesn't
    /// know it (up to 6 s), or without the queue.
    pub async fn owner_of(&self, queue: &str) -> Result<Option<Owner>, String> {
        let queue = utf8_percent_encode(queue, NON_ALPHANUMERIC);
        let path = format!("queues/{}/{queue}?columns=owner_pid_details", self.vhost);
        let details: Option<QueueDetails> = self.get(&path).await?;
        // An empty list or an empty object before it is known.
        let Some(name) =
            details.and_then(|d| Some(d.owner_pid_details.get("name")?.as_str()?.to_owned()))
        else {
            return Ok(None);
        };
        Ok(Some(self.owner(name).await))
    }

    /// What is known of a connection.
    pub async fn owner(&self, name: String) -> Owner {
        // The tag management shows a user its own connections only, monitoring
        // all of them. Not to be shown one is no fault.
        let path = format!("connections/{}", utf8_percent_encode(&name, NON_ALPHANUMERIC));
        let details: Option<ConnectionDetails> = self.get(&path).await.unwrap_or_default();
        let ConnectionDetails { user, client_properties } = details.unwrap_or_default();
        let given = client_properties.get("connection_name").and_then(|name| name.as_str());
        let connection = given.map_or_else(|| name.clone(), |given| format!("{name} - {given}"));
        Owner { connection, user }
    }

    /// The id that a cluster gives itself when it is made; told to
    /// administrators only.
    pub async fn cluster_id(&self) -> Result<Option<String>, String> {
        let parameter: Option<serde_json::Value> =
            self.get("global-parameters/internal_cluster_id").await?;
        Ok(parameter.and_then(|p| Some(clean_text(p.get("value")?.as_str()?, 128))))
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<Option<T>, String> {
        let url = format!("{}/api/{path}", self.settings.url);
        let client = self.client.as_ref().map_err(|why| self.failed(why))?;
        let asked = client
            .get(url)
            .basic_auth(&self.settings.username, Some(self.settings.password.expose_secret()))
            .send()
            .await;
        let answer = asked.map_err(|error| self.failed(&root_cause(&error.without_url())))?;
        match answer.status().as_u16() {
            200 => answer
                .json()
                .await
                .map(Some)
                .map_err(|error| self.failed(&root_cause(&error.without_url()))),
            404 => Ok(None),
            401 => Err(self.failed(
                "it refuses the user: check user and password, and give the user the tag management",
            )),
            status => Err(self.failed(&format!("it answers with status {status}"))),
        }
    }

    fn failed(&self, why: &str) -> String {
        clean_text(
            &format!("the management API at {} is of no help: {why}", self.settings.url),
            512,
        )
    }
}

/// The innermost message: reqwest's own says only that sending failed.
fn root_cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}
