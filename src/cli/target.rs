//! Which lock a verb is about, and on which broker: from arguments, from the
//! environment, or from a Semaphore of the current Kubernetes context. What is
//! done with the lock is the verbs' own.

use std::time::Duration;

use kube::ResourceExt;

use super::Failure;
use super::kubernetes::{FoundObject, Kubernetes};
use crate::api::Semaphore;
use crate::api::validate::{self, DefaultNames};
use crate::plan::connection::RabbitmqSettings;
use crate::plan::naming::{LockName, Profile, Protocol, QueueType};
use crate::semaphore::{Client as LockClient, Lock};

/// Where the lock is.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Where the lock is")]
pub(super) struct Place {
    /// The broker: amqp://user:password@host:5672/vhost, or amqps:// for TLS, with the files of
    /// RABBITMQ_TLS_CA_FILE, RABBITMQ_TLS_CERT_FILE and RABBITMQ_TLS_KEY_FILE
    #[arg(long, env = "AMQP_URL", hide_env_values = true)]
    url: Option<String>,

    /// Its management API, which tells who holds what: http://user:password@host:15672
    #[arg(long, env = "RABBITMQ_MANAGEMENT_URL", hide_env_values = true, value_name = "URL")]
    management_url: Option<String>,

    /// The virtual host, instead of the URL's
    #[arg(long)]
    vhost: Option<String>,

    /// How the lock is held, by all of its clients [default: ExclusiveQueue]
    #[arg(long, value_enum)]
    protocol: Option<ProtocolName>,

    /// How the lock's queues are named: as in the guideline, or as in the library
    /// amqp-locks-python [default: Guideline]
    #[arg(long, value_enum)]
    profile: Option<ProfileName>,

    /// The queue that keeps the tokens of protocol Token [default: Classic]
    #[arg(long, value_enum, value_name = "TYPE")]
    queue_type: Option<QueueTypeName>,

    #[command(flatten)]
    kubernetes: Kubernetes,
}

impl Place {
    /// The default connection of resources that name none: these URLs.
    pub fn of_urls(
        url: Option<String>,
        management_url: Option<String>,
        kubernetes: Kubernetes,
    ) -> Self {
        let (vhost, protocol, profile, queue_type) = (None, None, None, None);
        Self { url, management_url, vhost, protocol, profile, queue_type, kubernetes }
    }
}

/// [`Protocol`] as an argument, in the spelling that resources have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "PascalCase")]
enum ProtocolName {
    /// By a queue that belongs to the holder's connection, as in the guideline
    ExclusiveQueue,
    /// By being the only consumer of the slot's queue
    ExclusiveConsumer,
    /// By a message that is not acknowledged, as in RabbitMQ's blog
    Token,
}

/// [`QueueType`] as an argument, in the spelling that resources have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "PascalCase")]
enum QueueTypeName {
    /// As the clients of RabbitMQ's blog declare it
    Classic,
    /// Replicated, and with fencing tokens
    Quorum,
}

/// [`Profile`] as an argument, in the spelling that resources have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "PascalCase")]
enum ProfileName {
    Guideline,
    AmqpLocksPython,
}

/// [`Place`] and which lock.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Target {
    /// The semaphore: its name on the broker, such as default.deploy, or sem/NAME for the resource
    /// of that name in Kubernetes
    #[arg(value_name = "LOCK", required_unless_present_any = ["semaphore", "mutex"])]
    lock: Option<String>,

    /// The semaphore of this name on the broker
    #[arg(long, value_name = "NAME", conflicts_with_all = ["lock", "mutex"])]
    semaphore: Option<String>,

    /// The mutex of this name on the broker, which nobody needs to create
    #[arg(long, value_name = "NAME", conflicts_with = "lock")]
    mutex: Option<String>,

    #[command(flatten)]
    place: Place,
}

/// A lock that was found.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub settings: RabbitmqSettings,
    pub name: LockName,
    /// A mutex without slots.
    pub is_mutex: bool,
    /// The resource's; absent, what the lock itself says counts.
    pub lock_delay: Option<Duration>,
    /// How many slots the resource asks for.
    pub slots: Option<u32>,
}

impl Found {
    /// The lock, by way of this client.
    pub fn lock(&self, client: &LockClient) -> Lock {
        let name = self.name.clone();
        if self.is_mutex { client.mutex(name) } else { client.semaphore(name) }
    }

    /// What is held of it, as a message says it.
    pub fn what(&self, slot: Option<u32>) -> String {
        match slot {
            Some(slot) => format!("slot {slot} of {}", self.name),
            None if self.is_mutex => self.name.to_string(),
            None => format!("a token of {}", self.name),
        }
    }

    /// That a slot was removed, as a message says it.
    pub fn draining(&self, slot: Option<u32>) -> String {
        let what = self.what(slot);
        format!("{what} is draining: the semaphore was made smaller; release it when you can")
    }

    /// What one waits for, as a message says it.
    pub fn wanted(&self) -> String {
        let article = match (self.is_mutex, self.name.has_slots()) {
            (true, _) => "the mutex",
            (false, true) => "a slot of",
            (false, false) => "a token of",
        };
        format!("{article} {}", self.name)
    }

    /// What it has a number of, as a message says it.
    pub fn units(&self) -> &'static str {
        if self.name.has_slots() { "slots" } else { "tokens" }
    }
}

impl Target {
    /// Finds out what the arguments mean. Asks Kubernetes only for a resource.
    pub async fn find(&self) -> Result<Found, Failure> {
        match (&self.mutex, &self.semaphore, &self.lock) {
            (Some(name), ..) => self.place.mutex(name),
            (None, Some(name), _) => self.place.named(name),
            (None, None, Some(lock)) => self.place.find(lock).await,
            (None, None, None) => Err(usage("name a lock")),
        }
    }
}

impl Place {
    /// The semaphore that `lock` names: `sem/NAME` is a resource's.
    pub async fn find(&self, lock: &str) -> Result<Found, Failure> {
        match resource(lock) {
            Some(name) => self.resource(name).await,
            None => self.named(lock),
        }
    }

    /// The mutex of this name on the broker that the arguments name.
    fn mutex(&self, name: &str) -> Result<Found, Failure> {
        if self.protocol()? != Protocol::default() {
            return Err(usage(
                "--protocol and --profile are a semaphore's: a mutex is always one exclusive queue",
            ));
        }
        Ok(Found { is_mutex: true, ..self.named(name)? })
    }

    /// The semaphore of this name on the broker that the arguments name.
    pub fn named(&self, name: &str) -> Result<Found, Failure> {
        self.kubernetes.must_be_absent("sem/NAME")?;
        let mut settings = self.settings()?.ok_or_else(|| {
            usage("name the broker: set AMQP_URL, or give --url (or use sem/NAME)")
        })?;
        if let Some(vhost) = &self.vhost {
            settings.vhost.clone_from(vhost);
        }
        let name =
            LockName::new(name).map_err(|error| usage(&error))?.with_protocol(self.protocol()?);
        Ok(Found { settings, name, is_mutex: false, lock_delay: None, slots: None })
    }

    /// How the lock is held, from the arguments.
    fn protocol(&self) -> Result<Protocol, Failure> {
        let protocol = self.protocol.unwrap_or(ProtocolName::ExclusiveQueue);
        if self.queue_type.is_some() && protocol != ProtocolName::Token {
            return Err(usage("--queue-type is only for --protocol Token"));
        }
        let profile = match self.profile {
            None | Some(ProfileName::Guideline) => Profile::Guideline,
            Some(ProfileName::AmqpLocksPython) => Profile::AmqpLocksPython,
        };
        if profile != Profile::default() && protocol != ProtocolName::ExclusiveQueue {
            return Err(usage("--profile AmqpLocksPython is only for --protocol ExclusiveQueue"));
        }
        let queue_type = match self.queue_type {
            None | Some(QueueTypeName::Classic) => QueueType::Classic,
            Some(QueueTypeName::Quorum) => QueueType::Quorum,
        };
        Ok(match protocol {
            ProtocolName::ExclusiveQueue => Protocol::ExclusiveQueue(profile),
            ProtocolName::ExclusiveConsumer => Protocol::ExclusiveConsumer,
            ProtocolName::Token => Protocol::Token(queue_type),
        })
    }

    /// The broker of the arguments and the environment.
    pub fn settings(&self) -> Result<Option<RabbitmqSettings>, Failure> {
        // An empty variable is how a chart leaves one out.
        let given = |url: &Option<String>| url.clone().filter(|url| !url.is_empty());
        let Some(url) = given(&self.url) else { return Ok(None) };
        let variable = |name: &str| std::env::var(name).ok();
        let read = |file: &str| std::fs::read_to_string(file).ok();
        RabbitmqSettings::from_urls(&url, given(&self.management_url).as_deref())
            .and_then(|settings| settings.with_tls_of_environment(variable, read))
            .map(Some)
            .map_err(|error| usage(&error))
    }

    async fn resource(&self, name: &str) -> Result<Found, Failure> {
        let given = [
            self.vhost.is_some(),
            self.protocol.is_some(),
            self.profile.is_some(),
            self.queue_type.is_some(),
        ];
        if given.contains(&true) {
            return Err(usage(&format!(
                "--vhost, --protocol, --profile and --queue-type are sem/{name}'s own: leave them out"
            )));
        }
        self.of_resource(&self.kubernetes.find::<Semaphore>(name).await?).await
    }

    /// Where the arguments of a verb say that Kubernetes is.
    pub fn kubernetes(&self) -> &Kubernetes {
        &self.kubernetes
    }

    /// The semaphore that a resource stands for.
    pub async fn of_resource(&self, found: &FoundObject<Semaphore>) -> Result<Found, Failure> {
        let name = found.object.name_any();
        // What the operator refuses has no slots; here it is enough to have a name.
        let valid = validate::semaphore(&found.object, DefaultNames::Any).map_err(|e| usage(&e))?;
        let settings = match &valid.broker {
            Some(broker) => found.broker(broker, valid.vhost.as_deref()).await?,
            None => {
                let mut settings = self.settings()?.ok_or_else(|| {
                    usage(&format!(
                        "sem/{name} names no connection, so it is on the operator's default broker: set AMQP_URL to that, or give --url"
                    ))
                })?;
                if let Some(vhost) = valid.vhost {
                    settings.vhost = vhost;
                }
                settings
            }
        };
        Ok(Found {
            settings,
            name: valid.lock,
            is_mutex: false,
            lock_delay: valid.wish.records,
            slots: Some(valid.wish.slots),
        })
    }
}

/// The resource that `lock` names, if it is not a name on the broker.
pub(super) fn resource(lock: &str) -> Option<&str> {
    const KINDS: [&str; 4] = ["sem/", "semaphore/", "semaphores/", "semaphore.lockkeeper.dev/"];
    KINDS.iter().find_map(|kind| lock.strip_prefix(kind))
}

/// A variable of the environment; an empty one is how a chart leaves one out.
pub(super) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn usage(error: &(impl std::fmt::Display + ?Sized)) -> Failure {
    Failure::new(Failure::USAGE, error.to_string())
}
