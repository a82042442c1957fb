//! Which queue a verb is about, and on which server: from arguments, from the
//! environment, or from a PressureQueue of a Kubernetes context. What is done
//! with the queue is the verbs' own.

use kube::ResourceExt;

use crate::api::PressureQueue;
use crate::api::validate::{self, DefaultNames};
use crate::cli::Failure;
use crate::cli::kubernetes::{FoundObject, Kubernetes};
use crate::cli::target::variable;
use crate::plan::connection::RedisSettings;
use crate::plan::naming::{DEFAULT_PREFIX, QueueName};
use crate::pressure::{Queue, QueueOptions};

/// Where the queue is.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Where the queue is")]
pub(in crate::cli) struct Place {
    /// The server: redis://user:password@host:6379/0, or rediss:// for TLS, with the files of
    /// REDIS_TLS_CA_FILE, REDIS_TLS_CERT_FILE and REDIS_TLS_KEY_FILE [env: REDIS_URL]
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
    /// The default connection of resources that name none: this URL, else the
    /// environment's.
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

    /// The server of the arguments and the environment. A host or port in the
    /// arguments goes before a URL in the environment.
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

    /// The server's URL, where one is given.
    pub fn url(&self) -> Option<String> {
        self.url.clone().filter(|url| !url.is_empty()).or_else(|| variable("REDIS_URL"))
    }

    async fn resource(&self, name: &str) -> Result<(RedisSettings, QueueName), Failure> {
        if self.db.is_some() || self.prefix.is_some() {
            return Err(usage(&format!("--db and --prefix are pq/{name}'s own: leave them out")));
        }
        self.of_resource(&self.kubernetes.find::<PressureQueue>(name).await?).await
    }

    /// The queue that a resource stands for.
    pub async fn of_resource(
        &self,
        found: &FoundObject<PressureQueue>,
    ) -> Result<(RedisSettings, QueueName), Failure> {
        let name = found.object.name_any();
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
                if self.url().is_none() {
                    return Err(usage(&format!(
                        "pq/{name} names no connection, so it is on the operator's default server: set REDIS_URL to that, or give --url"
                    )));
                }
                let mut settings = self.settings()?;
                settings.database = valid.database.unwrap_or(settings.database);
                settings
            }
        };
        Ok((settings, valid.queue))
    }
}

/// The resource that `queue` names, if it is not a name in Redis.
pub(in crate::cli) fn resource(queue: &str) -> Option<&str> {
    const KINDS: [&str; 4] =
        ["pq/", "pressurequeue/", "pressurequeues/", "pressurequeue.lockkeeper.dev/"];
    KINDS.iter().find_map(|kind| queue.strip_prefix(kind))
}

fn usage(error: &(impl std::fmt::Display + ?Sized)) -> Failure {
    Failure::new(Failure::USAGE, error.to_string())
}
