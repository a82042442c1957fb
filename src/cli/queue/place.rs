//! Which queue a verb is about, and on which server: from arguments, from the
//! environment, or from a PressureQueue of a Kubernetes context. What is done
//! with the queue is the verbs' own.

use crate::api::PressureQueue;
use crate::api::validate::{self, DefaultNames};
use crate::cli::Failure;
use crate::cli::kubernetes::Kubernetes;
use crate::plan::connection::RedisSettings;
use crate::plan::naming::{DEFAULT_PREFIX, QueueName};
use crate::pressure::{Queue, QueueOptions};

/// Where the queue is.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Where the queue is")]
pub(super) struct Place {
    /// The server: redis://user:password@host:6379/0 [env: REDIS_URL]
    #[arg(long)]
    url: Option<String>,

    /// The server's host, where there is no URL [env: REDIS_SERVER] [default: 127.0.0.1]
    #[arg(long, value_name = "HOST", conflicts_with = "url")]
    server: Option<String>,

    /// The server's port, where there is no URL [env: REDIS_PORT] [default: 6379]
    #[arg(long, conflicts_with = "url")]
    port: Option<u16>,

    /// The database, instead of the URL's [env: REDIS_DB, where there is no URL] [default: 0]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(i64).range(0..=65535))]
    db: Option<i64>,

    /// What every key of the queue starts with [env: PRESSURE_PREFIX] [default: __pressure__]
    #[arg(long)]
    prefix: Option<String>,

    #[command(flatten)]
    kubernetes: Kubernetes,

    /// What we are called in the queue's keys [default: host, process and thread]
    #[arg(long, value_name = "ID")]
    client_id: Option<String>,
}

/// Which queue.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Which {
    /// Its name in Redis, such as frames, or pq/NAME for the resource of that name in Kubernetes
    #[arg(value_name = "QUEUE")]
    pub name: String,

    #[command(flatten)]
    place: Place,
}

impl Which {
    /// The queue. Asks Kubernetes only for a resource, and Redis nothing.
    pub async fn find(&self) -> Result<Queue, Failure> {
        let (settings, name) = match resource(&self.name) {
            Some(name) => self.place.resource(name).await?,
            None => self.place.named(&self.name)?,
        };
        let mut options = QueueOptions::default();
        if let Some(id) = &self.place.client_id {
            options.client_id.clone_from(id);
        }
        Ok(Queue::new(settings, name, options))
    }

    /// Refuses to create a queue that the operator creates.
    pub fn must_not_be_the_operators(&self) -> Result<(), Failure> {
        if resource(&self.name).is_some() {
            let message = "a resource's queue is created by the operator: kubectl get pq tells when it is ready";
            return Err(Failure::new(Failure::USAGE, message));
        }
        Ok(())
    }
}

impl Place {
    fn named(&self, name: &str) -> Result<(RedisSettings, QueueName), Failure> {
        self.kubernetes.must_be_absent("pq/NAME")?;
        let prefix = self.prefix.clone().or_else(|| variable("PRESSURE_PREFIX"));
        let prefix = prefix.unwrap_or_else(|| DEFAULT_PREFIX.to_owned());
        let name = QueueName::new(prefix, name).map_err(|error| usage(&error))?;
        let is_given = self.server.is_some() || self.port.is_some();
        let from_url = if is_given { None } else { self.url()? };
        let mut settings = match from_url {
            Some(settings) => settings,
            None => self.by_parts()?,
        };
        if let Some(database) = self.db {
            settings.database = database;
        }
        Ok((settings, name))
    }

    /// The server of the URL, if there is one.
    fn url(&self) -> Result<Option<RedisSettings>, Failure> {
        let url = self.url.clone().filter(|url| !url.is_empty());
        let Some(url) = url.or_else(|| variable("REDIS_URL")) else { return Ok(None) };
        RedisSettings::from_url(&url).map(Some).map_err(|error| usage(&error))
    }

    /// The server as the protocol's own variables name it.
    fn by_parts(&self) -> Result<RedisSettings, Failure> {
        let number = |name: &str| {
            let text = variable(name);
            let number = text.map(|text| text.parse::<u16>()).transpose();
            number.map_err(|_| usage(&format!("{name} must be a number from 0 to 65535")))
        };
        let server = self.server.clone().or_else(|| variable("REDIS_SERVER"));
        let port = self.port.map_or_else(|| number("REDIS_PORT"), |port| Ok(Some(port)))?;
        let mut settings =
            RedisSettings::from_url("redis://127.0.0.1/0").map_err(|error| usage(&error))?;
        settings.host = server.unwrap_or(settings.host);
        settings.port = port.unwrap_or(settings.port);
        settings.database = number("REDIS_DB")?.map_or(0, i64::from);
        Ok(settings)
    }

    async fn resource(&self, name: &str) -> Result<(RedisSettings, QueueName), Failure> {
        if self.db.is_some() || self.prefix.is_some() {
            return Err(usage(&format!("--db and --prefix are pq/{name}'s own: leave them out")));
        }
        let found = self.kubernetes.find::<PressureQueue>(name).await?;
        // What the operator refuses has no queue; here it is enough to have a name.
        let valid = validate::pressure_queue(&found.object, DefaultNames::Any)
            .map_err(|error| usage(&error))?;
        let settings = match &valid.secret {
            Some(secret) => {
                let data = found.secret(secret).await?;
                RedisSettings::from_secret(&data, valid.database)
                    .map_err(|error| usage(&format!("Secret {secret:?}: {error}")))?
            }
            None => {
                let mut settings = self.url()?.ok_or_else(|| {
                    usage(&format!(
                        "pq/{name} names no connection, so it is on the operator's default server: set REDIS_URL to that, or give --url"
                    ))
                })?;
                settings.database = valid.database.unwrap_or(settings.database);
                settings
            }
        };
        Ok((settings, valid.queue))
    }
}

/// The resource that `queue` names, if it is not a name in Redis.
fn resource(queue: &str) -> Option<&str> {
    ["pq/", "pressurequeue/", "pressurequeues/"].iter().find_map(|kind| queue.strip_prefix(kind))
}

/// A variable of the environment; an empty one is how a chart leaves one out.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn usage(error: &(impl std::fmt::Display + ?Sized)) -> Failure {
    Failure::new(Failure::USAGE, error.to_string())
}
