//! Finds the broker of a command: from arguments or from the environment. See `lock` for
//! the lock on it.

use lockkeeper_plan::connection::{Probe, RabbitmqSettings};

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
    #[arg(long, env = "LOCKKEEPER_PROBE", value_enum, value_name = "WAY", hide = true)]
    probe: Option<ProbeName>,

    /// Names of the two URLs in errors: where the user sets them.
    #[arg(skip = ["--url (AMQP_URL)", "--management-url (RABBITMQ_MANAGEMENT_URL)"])]
    sources: [&'static str; 2],
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
    /// Uses these URLs of the broker and of its management API, with their names in errors.
    pub fn of_urls(urls: [Option<String>; 2], sources: [&'static str; 2]) -> Self {
        let [url, management_url] = urls;
        Self { url, management_url, vhost: None, probe: None, sources }
    }

    /// Whether the URL of a broker was given.
    pub fn is_named(&self) -> bool {
        self.url.as_ref().is_some_and(|url| !url.is_empty())
    }

    /// Whether the virtual host was given apart from the URL.
    pub fn has_vhost(&self) -> bool {
        self.vhost.is_some()
    }

    /// Returns the broker for a lock, in the virtual host that was given.
    pub fn of_lock(&self) -> Result<RabbitmqSettings, Failure> {
        let mut settings = self.settings()?.ok_or_else(|| {
            usage("name the broker: set AMQP_URL, or give --url (or use sem/NAME)")
        })?;
        if let Some(vhost) = &self.vhost {
            settings.vhost.clone_from(vhost);
        }
        Ok(settings)
    }

    /// Returns the broker of the arguments and the environment.
    pub fn settings(&self) -> Result<Option<RabbitmqSettings>, Failure> {
        // Charts leave out a variable by an empty value.
        let given = |url: &Option<String>| url.clone().filter(|url| !url.is_empty());
        let Some(url) = given(&self.url) else { return Ok(None) };
        let read = |file: &str| std::fs::read(file).ok();
        RabbitmqSettings::from_urls(&url, given(&self.management_url).as_deref())
            .and_then(|settings| settings.with_tls_of_environment(std::env::var_os, read))
            .map(|settings| Some(settings.with_probe(self.probe.map(Probe::from))))
            .map_err(|error| {
                let [url, management_url] = self.sources;
                usage(&error.named("amqpUri", url).named("managementUri", management_url))
            })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        place: BrokerLocation,
    }

    #[test]
    fn an_invalid_url_is_named_as_its_user_sets_it() {
        let (good, bad) = ("amqp://u:p@h", "smtp://u:hush@h");
        let by_options = |url: &str, management_url: &str| {
            let line = ["x", "--url", url, "--management-url", management_url];
            Line::try_parse_from(line).unwrap().place
        };
        let sources = ["AMQP_URL", "RABBITMQ_MANAGEMENT_URL"];
        let set = |url: &str, management_url: Option<&str>| {
            let urls = [Some(url.to_owned()), management_url.map(str::to_owned)];
            BrokerLocation::of_urls(urls, sources)
        };
        for (place, name) in [
            (by_options(bad, "http://h"), "--url (AMQP_URL)"),
            (by_options(good, bad), "--management-url (RABBITMQ_MANAGEMENT_URL)"),
            (set(bad, None), "AMQP_URL"),
            (set(good, Some(bad)), "RABBITMQ_MANAGEMENT_URL"),
        ] {
            let failure = place.settings().unwrap_err();
            assert_eq!(failure.code, Failure::USAGE);
            let message = failure.message.unwrap();
            assert!(message.contains(&format!("'s {name} is not valid")), "{name}: {message}");
            assert!(!message.contains("hush"), "{message}");
        }
    }
}
