//! Finds the queue of a command and its server: from arguments, from the environment, or
//! from a PressureQueue of a Kubernetes context. See the commands for how the queue is
//! used.

use std::time::Duration;

use kube::ResourceExt;

use super::{on_default_connection, resource, usage, variable};
use crate::api::PressureQueue;
use crate::api::validate::{self, DefaultRules};
use crate::cli::failure::Failure;
use crate::cli::kubernetes::{FoundObject, Kubernetes};
use crate::plan::connection::RedisSettings;
use crate::plan::naming::{DEFAULT_PREFIX, QueueName};
use crate::pressure::{Queue, QueueOptions};

/// Location of the queue.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Queue location")]
pub(in crate::cli) struct QueueLocation {
    /// URL of the Redis server, for example redis://user:password@host:6379/0. rediss://
    /// uses TLS with the files given by REDIS_TLS_CA_FILE, REDIS_TLS_CERT_FILE and
    /// REDIS_TLS_KEY_FILE [env: REDIS_URL]
    #[arg(long)]
    url: Option<String>,

    /// Host of the Redis server, if no URL is set [env: REDIS_SERVER] [default:
    /// 127.0.0.1]
    #[arg(long, value_name = "HOST", conflicts_with = "url")]
    server: Option<String>,

    /// Port of the Redis server, if no URL is set [env: REDIS_PORT] [default: 6379]
    #[arg(long, conflicts_with = "url")]
    port: Option<u16>,

    /// Number of the database, 0 to 65535; overrides the one of the URL [env: REDIS_DB,
    /// if no URL is set] [default: 0]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(i64).range(0..=65535))]
    db: Option<i64>,

    /// Prefix of every key of the queue [env: PRESSURE_PREFIX] [default: __pressure__]
    #[arg(long)]
    prefix: Option<String>,

    #[command(flatten)]
    kubernetes: Kubernetes,

    /// Id of this client in the queue's keys [default: host, process and thread]
    #[arg(long, value_name = "ID")]
    client_id: Option<String>,
}

/// The queue.
#[derive(Clone, Debug, clap::Args)]
pub(in crate::cli) struct QueueTarget {
    /// Name of the queue in Redis, for example frames, or pq/NAME for the Kubernetes
    /// resource of that name
    #[arg(value_name = "QUEUE")]
    pub name: String,

    #[command(flatten)]
    place: QueueLocation,
}

impl QueueTarget {
    /// Finds the queue. Contacts Kubernetes only for a resource, and never Redis.
    pub async fn find(&self) -> Result<Queue, Failure> {
        self.find_with(None).await
    }

    /// Like [`Self::find`], with this lease for elements in flight.
    pub async fn find_with(&self, lease: Option<Duration>) -> Result<Queue, Failure> {
        let (settings, name) = match resource::<PressureQueue>(&self.name) {
            Some(name) => self.place.resource(name).await?,
            None => self.place.named(&self.name)?,
        };
        let mut options = QueueOptions::default();
        if let Some(id) = &self.place.client_id {
            options.client_id.clone_from(id);
        }
        if let Some(lease) = lease {
            options.lease = lease;
        }
        Ok(Queue::new(settings, name, options))
    }

    /// Returns the queue of this name at the same location.
    pub fn sibling(&self, name: &str) -> Self {
        Self { name: name.to_owned(), place: self.place.clone() }
    }

    /// Rejects the creation of a queue that the operator creates.
    pub fn must_not_be_the_operators(&self) -> Result<(), Failure> {
        if resource::<PressureQueue>(&self.name).is_some() {
            let message = "a resource's queue is created by the operator, which also changes its bound: kubectl get pq shows when it is ready, and spec.bound is the bound";
            return Err(Failure::new(Failure::USAGE, message));
        }
        Ok(())
    }
}

impl QueueLocation {
    /// Uses this URL, otherwise the environment's, as the default connection of resources
    /// that specify none.
    pub fn of_url(url: Option<String>, kubernetes: Kubernetes) -> Self {
        let (server, port, db, prefix) = (None, None, None, None);
        Self { url, server, port, db, prefix, kubernetes, client_id: None }
    }

    fn named(&self, name: &str) -> Result<(RedisSettings, QueueName), Failure> {
        self.kubernetes.must_be_absent("pq/NAME")?;
        let prefix = self.prefix.clone().or_else(|| variable("PRESSURE_PREFIX"));
        let prefix = prefix.unwrap_or_else(|| DEFAULT_PREFIX.to_owned());
        let name = QueueName::new(prefix, name).map_err(|error| usage(&error))?;
        Ok((self.settings()?, name))
    }

    /// Returns the server given by the arguments and the environment. A host or port in
    /// the arguments takes precedence over a URL in the environment.
    pub fn settings(&self) -> Result<RedisSettings, Failure> {
        let is_by_parts = self.server.is_some() || self.port.is_some();
        let lookup = |name: &str| match name {
            "REDIS_URL" if is_by_parts => None,
            "REDIS_URL" => self.url(),
            "REDIS_SERVER" => self.server.clone().or_else(|| variable(name)),
            "REDIS_PORT" => self.port.map(|port| port.to_string()).or_else(|| variable(name)),
            _ => variable(name),
        };
        let read = |file: &str| std::fs::read_to_string(file).ok();
        let mut settings =
            RedisSettings::from_environment(lookup, read).map_err(|error| usage(&error))?;
        settings.database = self.db.unwrap_or(settings.database);
        Ok(settings)
    }

    /// Returns the server's URL, if one is set.
    pub fn url(&self) -> Option<String> {
        self.url.clone().filter(|url| !url.is_empty()).or_else(|| variable("REDIS_URL"))
    }

    async fn resource(&self, name: &str) -> Result<(RedisSettings, QueueName), Failure> {
        if self.db.is_some() || self.prefix.is_some() {
            return Err(usage(&format!("--db and --prefix are pq/{name}'s own: leave them out")));
        }
        self.of_resource(&self.kubernetes.find::<PressureQueue>(name).await?).await
    }

    /// Returns the queue of a resource.
    pub async fn of_resource(
        &self,
        found: &FoundObject<PressureQueue>,
    ) -> Result<(RedisSettings, QueueName), Failure> {
        let name = found.object.name_any();
        // The operator creates no queue for an invalid resource. Here a valid name is
        // enough.
        let valid = validate::pressure_queue(&found.object, DefaultRules::ANYTHING)
            .map_err(|error| usage(&error))?;
        let settings = match &valid.secret {
            Some(secret) => {
                let data = found.secret(secret).await?;
                RedisSettings::from_secret(&data, valid.database)
                    .map_err(|error| usage(&format!("Secret {secret:?}: {error}")))?
            }
            None => {
                if self.url().is_none() {
                    let reference = format!("pq/{name}");
                    return Err(on_default_connection(&reference, "server", "REDIS_URL"));
                }
                let mut settings = self.settings()?;
                settings.database = valid.database.unwrap_or(settings.database);
                settings
            }
        };
        Ok((settings, valid.queue))
    }
}
