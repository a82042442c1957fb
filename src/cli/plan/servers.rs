//! Resolves the connection of an object: from Secrets among the manifests, otherwise from
//! the arguments and the environment.

use std::collections::HashMap;
use std::path::PathBuf;

use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use lockkeeper_plan::connection::{RabbitmqSettings, RedisSettings, SecretData, secret_data};

use crate::cli::failure::Failure;
use crate::cli::kubernetes::Kubernetes;
use crate::cli::manifest::{Manifest, read_all};
use crate::cli::target::{LockLocation, QueueLocation};

/// Connections to servers.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Servers")]
pub(in crate::cli) struct Servers {
    /// File or directory with manifests of connection Secrets, in addition to those among
    /// the other files; may be repeated
    #[arg(long, value_name = "FILE")]
    connections: Vec<PathBuf>,

    /// Broker of Semaphores whose Secret is not among the files, for example
    /// amqp://user:password@host:5672/vhost
    #[arg(long, env = "AMQP_URL", hide_env_values = true, value_name = "URL")]
    amqp_url: Option<String>,

    /// Management API of that broker, for example http://user:password@host:15672
    #[arg(long, env = "RABBITMQ_MANAGEMENT_URL", hide_env_values = true, value_name = "URL")]
    management_url: Option<String>,

    /// Redis server of PressureQueues whose Secret is not among the files, for example
    /// redis://user:password@host:6379/0 [env: REDIS_URL]
    #[arg(long, value_name = "URL")]
    redis_url: Option<String>,
}

/// Resolves connections to servers.
pub(in crate::cli) struct Resolver {
    secrets: HashMap<(String, String), SecretData>,
    place: LockLocation,
    queue_place: QueueLocation,
}

impl Resolver {
    pub fn new(
        servers: &Servers,
        manifests: &[Manifest],
        namespace: &str,
    ) -> Result<Self, Failure> {
        let more = read_all(servers.connections.iter().map(PathBuf::as_path), false)?;
        if let Some(found) = more.unreadable.first() {
            return Err(Failure::new(Failure::USAGE, format!("{}: {}", found.place, found.why)));
        }
        let mut secrets = HashMap::new();
        for manifest in manifests.iter().chain(&more.manifests) {
            let is_secret = manifest.text_at("/kind") == Some("Secret")
                && manifest.text_at("/apiVersion") == Some("v1");
            if is_secret {
                let (name, data) = read(manifest)?;
                let of = manifest.text_at("/metadata/namespace").unwrap_or(namespace);
                secrets.insert((of.to_owned(), name), data);
            }
        }
        let given = |url: &Option<String>| url.clone().filter(|url| !url.is_empty());
        let kubernetes = Kubernetes::default();
        Ok(Self {
            secrets,
            place: LockLocation::of_urls(
                [given(&servers.amqp_url), given(&servers.management_url)],
                ["--amqp-url (AMQP_URL)", "--management-url (RABBITMQ_MANAGEMENT_URL)"],
                kubernetes.clone(),
            ),
            queue_place: QueueLocation::of_url(
                given(&servers.redis_url),
                "--redis-url (REDIS_URL)",
                kubernetes,
            ),
        })
    }

    /// Returns the broker that the Secret describes, otherwise the environment's.
    pub fn rabbitmq(
        &self,
        namespace: &str,
        secret: Option<&str>,
        vhost: Option<&str>,
    ) -> Result<RabbitmqSettings, Failure> {
        if let Some((name, data)) = self.secret(namespace, secret) {
            return RabbitmqSettings::from_secret(data, vhost)
                .map_err(|error| usage(&format!("Secret {name:?}: {error}")));
        }
        let Some(mut settings) = self.place.settings()? else {
            return Err(usage(&nowhere(namespace, secret, "AMQP_URL")));
        };
        if let Some(vhost) = vhost {
            vhost.clone_into(&mut settings.vhost);
        }
        Ok(settings)
    }

    /// Returns the Redis server that the Secret describes, otherwise the environment's.
    pub fn redis(
        &self,
        namespace: &str,
        secret: Option<&str>,
        database: Option<i64>,
    ) -> Result<RedisSettings, Failure> {
        if let Some((name, data)) = self.secret(namespace, secret) {
            return RedisSettings::from_secret(data, database)
                .map_err(|error| usage(&format!("Secret {name:?}: {error}")));
        }
        if self.queue_place.url()?.is_none() {
            return Err(usage(&nowhere(namespace, secret, "REDIS_URL")));
        }
        let mut settings = self.queue_place.settings()?;
        settings.database = database.unwrap_or(settings.database);
        Ok(settings)
    }

    fn secret<'a>(
        &self,
        namespace: &str,
        secret: Option<&'a str>,
    ) -> Option<(&'a str, &SecretData)> {
        let name = secret?;
        Some((name, self.secrets.get(&(namespace.to_owned(), name.to_owned()))?))
    }
}

fn nowhere(namespace: &str, secret: Option<&str>, variable: &str) -> String {
    match secret {
        Some(name) => format!(
            "its Secret {namespace}/{name} is not among the files: give it with --connections, or set {variable}"
        ),
        None => format!(
            "it names no connection, so it is on the default server: set {variable} to that"
        ),
    }
}

/// Reads a Secret as the API server would store it. Errors never contain its values.
fn read(manifest: &Manifest) -> Result<(String, SecretData), Failure> {
    let secret: Secret = serde_json::from_value(manifest.value.clone()).map_err(|_| {
        let place = manifest.place_of("data");
        usage(&format!("{place}: the Secret can't be read: its data must be in base64"))
    })?;
    let name = secret.name_any();
    let data = secret.data.unwrap_or_default().into_iter().map(|(key, value)| (key, value.0));
    let texts = secret.string_data.unwrap_or_default().into_iter();
    let all = data.chain(texts.map(|(key, value)| (key, value.into_bytes())));
    let data = secret_data(all).map_err(|error| usage(&format!("Secret {name:?}: {error}")))?;
    Ok((name, data))
}

fn usage(message: &str) -> Failure {
    Failure::new(Failure::USAGE, message)
}
