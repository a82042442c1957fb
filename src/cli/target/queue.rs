//! Finds the queue of a command and its server: from arguments, from the environment, or
//! from a PressureQueue of a Kubernetes context. See the commands for how the queue is
//! used.

use std::ffi::OsString;

use kube::ResourceExt;
use lockkeeper_api::PressureQueue;
use lockkeeper_api::validate::{self, DefaultRules};
use lockkeeper_plan::connection::RedisSettings;
use lockkeeper_plan::naming::{DEFAULT_PREFIX, QueueName};
use lockkeeper_pressure::{Queue, QueueOptions};

use super::{on_default_connection, own_login, resource, usage, variable};
use crate::cli::completion;
use crate::cli::failure::Failure;
use crate::cli::kubernetes::{FoundObject, Kubernetes};

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

    /// Name of the URL in errors: where the user sets it.
    #[arg(skip = "--url (REDIS_URL)")]
    source: &'static str,
}

/// The queue.
#[derive(Clone, Debug, clap::Args)]
pub(in crate::cli) struct QueueTarget {
    /// Name of the queue in Redis, for example frames, or pq/NAME for the Kubernetes
    /// resource of that name
    #[arg(value_name = "QUEUE", add = completion::queues())]
    pub name: String,

    #[command(flatten)]
    place: QueueLocation,
}

impl QueueTarget {
    /// Finds the queue. Contacts Kubernetes only for a resource, and never Redis.
    pub async fn find(&self) -> Result<Queue, Failure> {
        self.find_with(|options| options).await
    }

    /// Like [`Self::find`], with options of the command.
    pub async fn find_with(
        &self,
        adapt: impl FnOnce(QueueOptions) -> QueueOptions,
    ) -> Result<Queue, Failure> {
        let (settings, name) = match resource::<PressureQueue>(&self.name) {
            Some(name) => self.place.resource(name).await?,
            None => self.place.named(&self.name)?,
        };
        Ok(Queue::new(settings, name, adapt(self.place.options())))
    }

    /// Finds the queue of this name next to `queue`, which is this one: a plain name is in
    /// the same database of the same server, with the same prefix. That is also so if they
    /// are a resource's.
    pub async fn find_sibling(&self, name: &str, queue: &Queue) -> Result<Queue, Failure> {
        if resource::<PressureQueue>(name).is_some() {
            return Self { name: name.to_owned(), place: self.place.clone() }.find().await;
        }
        let name = QueueName::new(queue.name().prefix(), name).map_err(|error| usage(&error))?;
        Ok(Queue::new(queue.settings().clone(), name, self.place.options()))
    }

    /// Returns the arguments that name this queue, as they were given, for a command that a
    /// message prints. A URL with a password is left out: see [`Self::needs`].
    pub fn arguments(&self) -> Vec<String> {
        let QueueLocation { url, server, port, db, prefix, kubernetes, client_id: _, source: _ } =
            &self.place;
        let options = [
            ("--url", url.clone().filter(|_| !self.place.has_secret())),
            ("--server", server.clone()),
            ("--port", port.map(|port| port.to_string())),
            ("--db", db.map(|db| db.to_string())),
            ("--prefix", prefix.clone()),
        ];
        let given = options.into_iter().filter_map(|(name, value)| Some((name, value?)));
        let given = given.chain(kubernetes.arguments());
        let mut all: Vec<String> =
            given.flat_map(|(name, value)| [name.to_owned(), value]).collect();
        if self.name.starts_with('-') {
            all.push("--".to_owned());
        }
        all.push(self.name.clone());
        all
    }

    /// Describes what [`Self::arguments`] need besides, in brackets.
    pub fn needs(&self) -> String {
        if self.place.has_secret() {
            return " (with REDIS_URL set to the value of --url, which contains a password)"
                .to_owned();
        }
        let heeded = ["REDIS_URL", "REDIS_SERVER", "REDIS_PORT", "REDIS_DB", "PRESSURE_PREFIX"];
        let is_set = |name: &&str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let set: Vec<&str> = heeded.into_iter().filter(is_set).collect();
        if set.is_empty() { String::new() } else { format!(" (with the same {})", set.join(", ")) }
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
    /// that specify none. It has this name in errors.
    pub fn of_url(url: Option<String>, source: &'static str, kubernetes: Kubernetes) -> Self {
        let (server, port, db, prefix) = (None, None, None, None);
        Self { url, server, port, db, prefix, kubernetes, client_id: None, source }
    }

    fn options(&self) -> QueueOptions {
        let mut options = QueueOptions::default();
        if let Some(id) = &self.client_id {
            options.client_id.clone_from(id);
        }
        options
    }

    /// Returns whether --url contains a password.
    fn has_secret(&self) -> bool {
        // Not parsed: a list of sentinels is no URL in the usual sense.
        let has_password = |url: &str| {
            let user = url.rsplit_once('@').map_or("", |(user, _)| user);
            user.split_once("://").map_or(user, |(_, user)| user).contains(':') || url.contains('?')
        };
        self.url.as_deref().is_some_and(has_password)
    }

    fn named(&self, name: &str) -> Result<(RedisSettings, QueueName), Failure> {
        self.kubernetes.must_be_absent("pq/NAME")?;
        let prefix = match &self.prefix {
            Some(prefix) => Some(prefix.clone()),
            None => variable("PRESSURE_PREFIX")?,
        };
        let prefix = prefix.unwrap_or_else(|| DEFAULT_PREFIX.to_owned());
        let name = QueueName::new(prefix, name).map_err(|error| usage(&error))?;
        Ok((self.settings()?, name))
    }

    /// Returns the server given by the arguments and the environment. A host or port in
    /// the arguments takes precedence over a URL in the environment.
    pub fn settings(&self) -> Result<RedisSettings, Failure> {
        let is_by_parts = self.server.is_some() || self.port.is_some();
        let lookup = |name| {
            let given = match name {
                "REDIS_URL" if is_by_parts => return None,
                "REDIS_URL" => self.url.clone().filter(|url| !url.is_empty()),
                "REDIS_SERVER" => self.server.clone(),
                "REDIS_PORT" => self.port.map(|port| port.to_string()),
                _ => None,
            };
            given.map(OsString::from).or_else(|| std::env::var_os(name))
        };
        let read = |file: &str| std::fs::read(file).ok();
        let settings = RedisSettings::from_environment(lookup, read).map_err(|error| {
            let error = error.named("REDIS_SERVER", "--server (REDIS_SERVER)");
            usage(&error.named("REDIS_URL", self.source))
        });
        let mut settings = settings?;
        settings.database = self.db.unwrap_or(settings.database);
        Ok(settings)
    }

    /// Returns the server's URL, if one is set.
    pub fn url(&self) -> Result<Option<String>, Failure> {
        match self.url.clone().filter(|url| !url.is_empty()) {
            None => variable("REDIS_URL"),
            given => Ok(given),
        }
    }

    async fn resource(&self, name: &str) -> Result<(RedisSettings, QueueName), Failure> {
        if self.db.is_some() || self.prefix.is_some() {
            return Err(usage(&format!("--db and --prefix are pq/{name}'s own: leave them out")));
        }
        self.of_resource(&self.kubernetes.find::<PressureQueue>(name).await?).await
    }

    /// Returns the server of the arguments for a resource whose Secret must not be read.
    fn own_login(
        &self,
        refused: &Failure,
        queue: &PressureQueue,
        database: Option<i64>,
    ) -> Result<RedisSettings, Failure> {
        let mut own = self.settings()?;
        own.database = database.unwrap_or(own.database);
        let resource = format!("pq/{}", queue.name_any());
        let backend = queue.status.as_ref().and_then(|status| status.backend.as_deref());
        let own = self.url()?.map(|_| (own.address(), own));
        own_login(refused, &resource, "REDIS_URL", own, backend)
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
            Some(secret) => match found.secret(secret).await {
                Err(refused) if refused.code == Failure::NOT_PERMITTED => {
                    self.own_login(&refused, &found.object, valid.database)?
                }
                data => RedisSettings::from_secret(&data?, valid.database)
                    .map_err(|error| usage(&format!("Secret {secret:?}: {error}")))?,
            },
            None => {
                if self.url()?.is_none() {
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

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        which: QueueTarget,
    }

    fn target(line: &[&str]) -> QueueTarget {
        Line::try_parse_from([&["x"], line].concat()).unwrap().which
    }

    #[test]
    fn the_arguments_of_a_printed_command_are_those_that_were_given() {
        let lines: [&[&str]; 4] = [
            &["--server", "h", "--port", "7", "--db", "3", "--prefix", "a b", "it's"],
            &["--url", "redis://user@h:1/2", "jobs"],
            &["--namespace", "ci", "--context", "c", "--kubeconfig", "/k", "pq/jobs"],
            &["--", "-x"],
        ];
        for line in lines {
            let target = target(line);
            assert_eq!(target.arguments(), line);
            assert!(!target.needs().contains("password"), "{line:?}");
        }
    }

    #[test]
    fn an_invalid_address_is_named_as_its_user_sets_it() {
        for (line, name) in [
            (&["--url", "smtp://u:hush@h", "jobs"][..], "--url (REDIS_URL)"),
            (&["--server", "u:hush@h", "jobs"], "--server (REDIS_SERVER)"),
        ] {
            let failure = target(line).place.settings().unwrap_err();
            assert_eq!(failure.code, Failure::USAGE);
            let message = failure.message.unwrap();
            assert!(message.contains(&format!("'s {name} is not valid")), "{name}: {message}");
            assert!(!message.contains("hush"), "{message}");
        }
    }

    #[test]
    fn a_printed_command_contains_no_password() {
        let urls = [
            "redis://:hush@h/0",
            "rediss://u:hush@h/0",
            "redis-sentinel://u:hush@a:1,b:2/0?sentinel_password=hush",
            "redis://h/?password=hush",
        ];
        for url in urls {
            let target = target(&["--url", url, "--db", "3", "jobs"]);
            assert_eq!(target.arguments(), ["--db", "3", "jobs"]);
            assert!(target.needs().contains("REDIS_URL set to the value of --url"));
        }
    }
}
