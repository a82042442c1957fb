//! Finds the broker of a command: from arguments or from the environment. See `lock` for
//! the lock on it.

use super::lock::FoundLock;
use super::usage;
use crate::cli::failure::Failure;
use crate::plan::connection::RabbitmqSettings;
use crate::plan::naming::{LockName, Protocol};

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
}

impl BrokerLocation {
    /// Uses these URLs.
    pub fn of_urls(url: Option<String>, management_url: Option<String>) -> Self {
        Self { url, management_url, vhost: None }
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
            .map(Some)
            .map_err(|error| usage(&error))
    }
}
