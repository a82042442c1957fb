//! Finds the broker of a command: from arguments or from the environment. See `lock` for
//! the lock on it.

use lockkeeper_plan::connection::{Probe, RabbitmqSettings};
use lockkeeper_plan::naming::{LockName, Protocol};

use super::lock::FoundLock;
use super::usage;
use crate::cli::failure::Failure;

/// Location of the broker.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Lock location")]
pub(in crate::cli) struct BrokerLocation {
    /// URL of the broker, for example amqp://user:password@host:5672/vhost. amqps:// uses
    /// TLS with the files given by RABBITMQ_TLS_CA_FILE, RABBITMQ_TLS_CERT_FILE and
    /// RABBITMQ_TLS_KEY_FILE
    #[arg(long, env = "AMQP_URL", hide_env_values = true)]
    url: Option<String>,

    /// URL of the broker's management API, which provides the identities of holders, for
    /// example http://user:password@host:15672
    #[arg(long, env = "RABBITMQ_MANAGEMENT_URL", hide_env_values = true, value_name = "URL")]
    management_url: Option<String>,

    /// Virtual host; overrides the one of the URL
    #[arg(long)]
    vhost: Option<String>,

    /// How to find out whether a queue exists: by messages with publisher confirms, by
    /// messages in a transaction, or by declares only [default: whatever the broker offers]
    #[arg(long, env = "LOCKKEEPER_PROBE", value_enum, value_name = "WAY")]
    probe: Option<ProbeName>,
}

/// [`Probe`] as an argument, spelled as in a connection Secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum ProbeName {
    Confirm,
    Tx,
    Declare,
}

impl From<ProbeName> for Probe {
    fn from(name: ProbeName) -> Self {
        match name {
            ProbeName::Confirm => Self::Confirm,
            ProbeName::Tx => Self::Tx,
            ProbeName::Declare => Self::Declare,
        }
    }
}

impl BrokerLocation {
    /// Uses these URLs.
    pub fn of_urls(url: Option<String>, management_url: Option<String>) -> Self {
        Self { url, management_url, vhost: None, probe: None }
    }

    /// Whether the virtual host was given apart from the URL.
    pub fn has_vhost(&self) -> bool {
        self.vhost.is_some()
    }

    /// Returns the lock with this name and protocol on the broker.
    pub fn lock(&self, name: &str, protocol: Protocol) -> Result<FoundLock, Failure> {
        let mut settings = self.settings()?.ok_or_else(|| {
            usage("name the broker: set AMQP_URL, or give --url (or use sem/NAME)")
        })?;
        if let Some(vhost) = &self.vhost {
            settings.vhost.clone_from(vhost);
        }
        let name = LockName::new(name).map_err(|error| usage(&error))?.with_protocol(protocol);
        Ok(FoundLock { settings, name, lock_delay: None, slots: None })
    }

    /// Returns the broker of the arguments and the environment.
    pub fn settings(&self) -> Result<Option<RabbitmqSettings>, Failure> {
        // Charts leave out a variable by an empty value.
        let given = |url: &Option<String>| url.clone().filter(|url| !url.is_empty());
        let Some(url) = given(&self.url) else { return Ok(None) };
        let variable = |name: &str| std::env::var(name).ok();
        let read = |file: &str| std::fs::read_to_string(file).ok();
        RabbitmqSettings::from_urls(&url, given(&self.management_url).as_deref())
            .and_then(|settings| settings.with_tls_of_environment(variable, read))
            .map(|settings| Some(settings.with_probe(self.probe.map(Probe::from))))
            .map_err(|error| {
                let error = error.named("amqpUri", "--url (AMQP_URL)");
                usage(&error.named("managementUri", "--management-url (RABBITMQ_MANAGEMENT_URL)"))
            })
    }
}
