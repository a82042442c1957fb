//! Finds the lock of a command and its broker: from arguments, from the environment, or
//! from a Semaphore of the current Kubernetes context. See `broker` for the arguments of
//! the broker, and the commands for how the lock is used.

use std::time::Duration;

use kube::ResourceExt;
use lockkeeper_api::Semaphore;
use lockkeeper_api::validate::{self, DefaultRules};
use lockkeeper_plan::connection::RabbitmqSettings;
use lockkeeper_plan::naming::{LockName, Profile, Protocol, QueueType, Unit};
use lockkeeper_semaphore::{Client as LockClient, Lock};

use super::broker::BrokerLocation;
use super::{on_default_connection, own_login, resource, usage};
use crate::cli::completion;
use crate::cli::failure::Failure;
use crate::cli::kubernetes::{FoundObject, Kubernetes};

/// Location of the lock.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Lock location")]
pub(in crate::cli) struct LockLocation {
    #[command(flatten)]
    broker: BrokerLocation,

    /// Protocol by which clients acquire the lock; all of its clients must use the same
    /// one [default: ExclusiveQueue]
    #[arg(long, value_enum)]
    protocol: Option<ProtocolName>,

    /// Naming and durability of the lock's queues: as in the guideline, or as in the
    /// library amqp-locks-python [default: Guideline]
    #[arg(long, value_enum)]
    profile: Option<ProfileName>,

    /// Type of the queue that stores the tokens of protocol Token [default: Classic]
    #[arg(long, value_enum, value_name = "TYPE")]
    queue_type: Option<QueueTypeName>,

    #[command(flatten)]
    kubernetes: Kubernetes,
}

impl LockLocation {
    /// Uses these URLs as the default connection of resources that specify none.
    /// The URLs of the broker and of its management API have these names in errors.
    pub fn of_urls(
        urls: [Option<String>; 2],
        sources: [&'static str; 2],
        kubernetes: Kubernetes,
    ) -> Self {
        let broker = BrokerLocation::of_urls(urls, sources);
        let (protocol, profile, queue_type) = (None, None, None);
        Self { broker, protocol, profile, queue_type, kubernetes }
    }
}

/// [`Protocol`] as an argument, spelled as in resources.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "PascalCase")]
enum ProtocolName {
    /// The holder declares an exclusive queue, as described by the amqp-locks guideline
    ExclusiveQueue,
    /// The holder is the exclusive consumer of the slot's queue
    ExclusiveConsumer,
    /// The holder keeps a message unacknowledged, as described by the RabbitMQ blog
    Token,
}

/// [`QueueType`] as an argument, spelled as in resources.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "PascalCase")]
enum QueueTypeName {
    /// A classic queue, as declared by the clients of the RabbitMQ blog
    Classic,
    /// A replicated quorum queue, which supports fencing
    Quorum,
}

/// [`Profile`] as an argument, spelled as in resources.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "PascalCase")]
enum ProfileName {
    Guideline,
    AmqpLocksPython,
}

/// A lock and its [`LockLocation`].
#[derive(Clone, Debug, clap::Args)]
pub(in crate::cli) struct LockTarget {
    /// Semaphore: its name on the broker, for example default.deploy, or sem/NAME for the
    /// Kubernetes resource of that name
    #[arg(
        value_name = "LOCK",
        required_unless_present_any = ["semaphore", "mutex"],
        add = completion::semaphores(),
    )]
    lock: Option<String>,

    /// Name of a semaphore on the broker
    #[arg(long, value_name = "NAME", conflicts_with_all = ["lock", "mutex"])]
    semaphore: Option<String>,

    /// Name of a mutex on the broker; it does not have to be created first
    #[arg(long, value_name = "NAME", conflicts_with = "lock")]
    mutex: Option<String>,

    #[command(flatten)]
    place: LockLocation,
}

/// A resolved lock.
#[derive(Clone, Debug)]
pub(in crate::cli) struct FoundLock {
    pub settings: RabbitmqSettings,
    pub name: LockName,
    /// Lock delay of the resource. `None`: the lock's own setting applies.
    pub lock_delay: Option<Duration>,
    /// Number of slots that the resource specifies.
    pub slots: Option<u32>,
}

impl FoundLock {
    /// Returns the lock with this name and protocol on the broker.
    pub fn on(broker: &BrokerLocation, name: &str, protocol: Protocol) -> Result<Self, Failure> {
        let settings = broker.of_lock()?;
        let name = LockName::new(name).map_err(|error| usage(&error))?.with_protocol(protocol);
        Ok(Self { settings, name, lock_delay: None, slots: None })
    }

    /// Returns the lock for this client.
    pub fn lock(&self, client: &LockClient) -> Lock {
        client.semaphore(self.name.clone())
    }

    /// Whether waiting clients are served by priority, and otherwise in order.
    pub fn has_order(&self) -> bool {
        // The broker itself queues those who wait for tokens.
        !self.name.has_slots() || self.name.wait_queue().is_some()
    }

    /// Names the held slot, token or mutex in messages.
    pub fn what(&self, slot: Option<u32>) -> String {
        match slot {
            Some(slot) => format!("slot {slot} of {}", self.name),
            None if self.name.unit() == Unit::Mutex => self.name.to_string(),
            None => format!("a {} of {}", self.name.unit().one(), self.name),
        }
    }

    /// Returns the message that the slot was removed.
    pub fn draining(&self, slot: Option<u32>) -> String {
        let what = self.what(slot);
        format!("{what} is draining: the semaphore was made smaller; release it when you can")
    }

    /// Names what a client waits for in messages.
    pub fn wanted(&self) -> String {
        match self.name.unit() {
            Unit::Mutex => format!("the mutex {}", self.name),
            unit => format!("a {} of {}", unit.one(), self.name),
        }
    }

    /// Names the units of the lock in messages: slots or tokens.
    pub fn units(&self) -> &'static str {
        self.name.unit().many()
    }
}

impl LockTarget {
    /// Resolves the arguments. Contacts Kubernetes only for a resource.
    pub async fn find(&self) -> Result<FoundLock, Failure> {
        match (&self.mutex, &self.semaphore, &self.lock) {
            (Some(name), ..) => self.place.mutex(name),
            (None, Some(name), _) => self.place.named(name),
            (None, None, Some(lock)) => self.place.find(lock).await,
            (None, None, None) => Err(usage("name a lock")),
        }
    }
}

impl LockLocation {
    /// Returns the semaphore that `lock` refers to. `sem/NAME` is a resource.
    pub async fn find(&self, lock: &str) -> Result<FoundLock, Failure> {
        match resource::<Semaphore>(lock) {
            Some(name) => self.resource(name).await,
            None => self.named(lock),
        }
    }

    /// Returns the mutex with this name on the broker of the arguments.
    fn mutex(&self, name: &str) -> Result<FoundLock, Failure> {
        if self.protocol()? != Protocol::default() {
            return Err(usage(
                "--protocol and --profile are a semaphore's: a mutex is always one exclusive queue",
            ));
        }
        self.kubernetes.must_be_absent("sem/NAME")?;
        FoundLock::on(&self.broker, name, Protocol::TrueMutex)
    }

    /// Returns the semaphore with this name on the broker of the arguments.
    pub fn named(&self, name: &str) -> Result<FoundLock, Failure> {
        self.kubernetes.must_be_absent("sem/NAME")?;
        FoundLock::on(&self.broker, name, self.protocol()?)
    }

    /// Returns the protocol that the arguments specify.
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

    /// Returns the broker of the arguments and the environment.
    pub fn settings(&self) -> Result<Option<RabbitmqSettings>, Failure> {
        self.broker.settings()
    }

    /// Whether the URL of a broker was given, as an argument or in the environment.
    pub fn names_a_broker(&self) -> bool {
        self.broker.is_named()
    }

    /// Rejects options that have no effect without a lock. `form` shows how to specify one.
    pub fn must_be_a_connection(&self, form: &str) -> Result<(), Failure> {
        if self.describes_a_lock() {
            let message = format!("--vhost, --protocol, --profile and --queue-type are for {form}");
            return Err(usage(&message));
        }
        Ok(())
    }

    fn describes_a_lock(&self) -> bool {
        let is_described =
            self.protocol.is_some() || self.profile.is_some() || self.queue_type.is_some();
        is_described || self.broker.has_vhost()
    }

    async fn resource(&self, name: &str) -> Result<FoundLock, Failure> {
        if self.describes_a_lock() {
            return Err(usage(&format!(
                "--vhost, --protocol, --profile and --queue-type are sem/{name}'s own: leave them out"
            )));
        }
        self.of_resource(&self.kubernetes.find::<Semaphore>(name).await?).await
    }

    /// Returns the broker of the arguments for a resource whose Secret must not be read.
    fn own_login(
        &self,
        refused: &Failure,
        semaphore: &Semaphore,
        vhost: Option<String>,
    ) -> Result<RabbitmqSettings, Failure> {
        let own = self.settings()?.map(|own| {
            let own = RabbitmqSettings { vhost: vhost.unwrap_or(own.vhost), ..own };
            (own.place(), own)
        });
        let resource = format!("sem/{}", semaphore.name_any());
        let backend = semaphore.status.as_ref().and_then(|status| status.backend.as_deref());
        own_login(refused, &resource, "AMQP_URL", own, backend)
    }

    /// Returns the Kubernetes options of the arguments.
    pub fn kubernetes(&self) -> &Kubernetes {
        &self.kubernetes
    }

    /// Returns the semaphore of a resource.
    pub async fn of_resource(&self, found: &FoundObject<Semaphore>) -> Result<FoundLock, Failure> {
        let name = found.object.name_any();
        // The operator creates no slots for an invalid resource. Here a valid name is
        // enough.
        let valid =
            validate::semaphore(&found.object, DefaultRules::ANYTHING).map_err(|e| usage(&e))?;
        let settings = match &valid.broker {
            Some(broker) => match found.broker(broker, valid.vhost.as_deref()).await {
                Err(refused) if refused.code == Failure::NOT_PERMITTED => {
                    self.own_login(&refused, &found.object, valid.vhost)?
                }
                settings => settings?,
            },
            None => {
                let settings = self.settings()?;
                let mut settings = settings.ok_or_else(|| {
                    on_default_connection(&format!("sem/{name}"), "broker", "AMQP_URL")
                })?;
                if let Some(vhost) = valid.vhost {
                    settings.vhost = vhost;
                }
                settings
            }
        };
        Ok(FoundLock {
            settings,
            name: valid.lock,
            lock_delay: valid.desired.records,
            slots: Some(valid.desired.slots),
        })
    }
}
