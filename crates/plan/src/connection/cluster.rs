//! The connection to a `RabbitmqCluster` of the RabbitMQ cluster operator: the relevant
//! facts of the object, and the settings derived from it and from its default user's
//! Secret. The operator reads both objects.

use secrecy::SecretString;
use serde_json::Value;

use super::{RabbitmqSettings, SecretData, SettingsError};

/// Annotation of a `RabbitmqCluster` or a Secret with further namespaces whose resources
/// may use it, separated by commas. `*` allows all. Defined by RabbitMQ's messaging
/// topology operator.
pub const ALLOWED_NAMESPACES: &str = "rabbitmq.com/topology-allowed-namespaces";

/// Annotation of a `RabbitmqCluster` with the address of its management API, if it
/// differs from the Service's. Also defined by the topology operator.
pub const CONNECTION_URI: &str = "rabbitmq.com/operator-connection-uri";

/// A resource's reference to its broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerReference {
    /// True if `name` refers to a `RabbitmqCluster`, false if to a Secret.
    pub is_cluster: bool,
    /// Name of the referenced object.
    pub name: String,
    /// Namespace of the referenced object. `None`: the resource's namespace.
    pub namespace: Option<String>,
}

/// The facts of a `RabbitmqCluster` that determine the connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterFacts {
    /// Host name: the name of its Service with the namespace.
    pub host: String,
    /// The Secret of its default user, once it exists.
    pub binding: Option<String>,
    /// Whether it has no nodes.
    pub is_stopped: bool,
    /// Whether it uses TLS.
    pub is_encrypted: bool,
    /// Secrets that may contain the CA of its certificate, the likelier first.
    pub certificates: Vec<String>,
    /// Path prefix of its management API.
    pub path_prefix: String,
    /// Value of the annotation [`CONNECTION_URI`].
    pub connection_uri: Option<String>,
    /// Value of the annotation [`ALLOWED_NAMESPACES`].
    pub allowed: Option<String>,
}

/// Whether this annotation allows resources of the namespace.
#[must_use]
pub fn is_allowed(annotation: Option<&str>, namespace: &str) -> bool {
    let mut allowed = annotation.unwrap_or_default().split(',').map(str::trim);
    allowed.any(|allowed| !allowed.is_empty() && (allowed == "*" || allowed == namespace))
}

impl ClusterFacts {
    /// Reads a `RabbitmqCluster`'s spec and status. The annotations stay empty.
    #[must_use]
    pub fn read(namespace: &str, name: &str, object: &Value) -> Self {
        let text = |pointer: &str| {
            let text = object.pointer(pointer).and_then(Value::as_str);
            text.filter(|text| !text.is_empty()).map(str::to_owned)
        };
        let service = text("/status/defaultUser/serviceReference/name");
        let certificate = text("/spec/tls/secretName");
        let config = text("/spec/rabbitmq/additionalConfig").unwrap_or_default();
        let path_prefix = config.lines().find_map(|line| {
            let (key, value) = line.split_once('=')?;
            (key.trim() == "management.path_prefix").then(|| value.trim().to_owned())
        });
        Self {
            host: format!("{}.{namespace}.svc", service.as_deref().unwrap_or(name)),
            binding: text("/status/binding/name"),
            is_stopped: object.pointer("/spec/replicas").and_then(Value::as_i64) == Some(0),
            is_encrypted: certificate.is_some(),
            certificates: match certificate {
                None => Vec::new(),
                Some(certificate) => {
                    let authority = text("/spec/tls/caSecretName");
                    let further = authority.filter(|authority| *authority != certificate);
                    [certificate].into_iter().chain(further).collect()
                }
            },
            path_prefix: path_prefix.unwrap_or_default(),
            connection_uri: None,
            allowed: None,
        }
    }
}

impl RabbitmqSettings {
    /// Creates settings for a `RabbitmqCluster`, as its default user. `authorities` is
    /// the certificate, as PEM, of the CA that signed the cluster's. `None`: the
    /// machine's trusted CAs.
    ///
    /// `vhost` is the resource's. Defaults to `/`.
    ///
    /// # Errors
    ///
    /// [`SettingsError`]: a value is missing, or can't be parsed.
    pub fn from_cluster(
        cluster: &ClusterFacts,
        user: &SecretData,
        authorities: Option<SecretString>,
        vhost: Option<&str>,
    ) -> Result<Self, SettingsError> {
        let (scheme, port) = if cluster.is_encrypted { ("https", 15671) } else { ("http", 15672) };
        let of_service = || format!("{scheme}://{}:{port}{}", cluster.host, cluster.path_prefix);
        let management = cluster.connection_uri.clone().unwrap_or_else(of_service);
        // Only the keys that the cluster operator writes for a login.
        let keys = ["host", "port", "username", "password", "tls.crt", "tls.key"];
        let mut data: SecretData = user
            .iter()
            .filter(|(key, _)| keys.contains(&key.as_str()))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        data.entry("host".to_owned()).or_insert_with(|| cluster.host.clone().into());
        data.insert("tls".to_owned(), cluster.is_encrypted.to_string().into());
        data.insert("managementUri".to_owned(), management.into());
        if let Some(authorities) = authorities {
            data.insert("ca.crt".to_owned(), authorities);
        }
        Self::from_secret(&data, vhost)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tests::data;
    use super::*;

    const USER: [(&str, &str); 6] = [
        ("host", "rabbit.mq.svc"),
        ("port", "5671"),
        ("username", "default_user_x"),
        ("password", "hush"),
        ("default_user.conf", "default_user = default_user_x"),
        ("connection_string", "amqps://default_user_x:hush@rabbit.mq.svc:5671/"),
    ];

    fn settings(object: &Value, uri: Option<&str>) -> (String, String) {
        let cluster = ClusterFacts::read("mq", "rabbit", object);
        let cluster = ClusterFacts { connection_uri: uri.map(str::to_owned), ..cluster };
        let port = if cluster.is_encrypted { "5671" } else { "5672" };
        let mut user = data(&USER);
        user.insert("port".to_owned(), port.into());
        let settings = RabbitmqSettings::from_cluster(&cluster, &user, None, Some("v")).unwrap();
        (format!("{settings:?}"), format!("{:?}", settings.management.unwrap()))
    }

    #[test]
    fn a_cluster_is_reached_by_its_service_and_default_user() {
        let plain = json!({"status": {"binding": {"name": "rabbit-default-user"}}});
        assert_eq!(
            settings(&plain, None),
            (
                "amqp://default_user_x@rabbit.mq.svc:5672/v".to_owned(),
                "http://rabbit.mq.svc:15672 as default_user_x".to_owned()
            )
        );
        let config = "log.console = true\nmanagement.path_prefix = /mq\n";
        let prefixed = json!({"spec": {"rabbitmq": {"additionalConfig": config}}});
        assert!(settings(&prefixed, None).1.starts_with("http://rabbit.mq.svc:15672/mq "));
        let elsewhere = settings(&plain, Some("https://ingress.example.com"));
        assert_eq!(elsewhere.1, "https://ingress.example.com as default_user_x");
    }

    #[test]
    fn a_cluster_with_a_certificate_is_reached_over_tls() {
        let encrypted = json!({"spec": {"tls": {"secretName": "cert", "caSecretName": "ca"}}});
        assert_eq!(
            settings(&encrypted, None),
            (
                "amqps://default_user_x@rabbit.mq.svc:5671/v".to_owned(),
                "https://rabbit.mq.svc:15671 as default_user_x".to_owned()
            )
        );
        let facts = ClusterFacts::read("mq", "rabbit", &encrypted);
        assert_eq!(facts.certificates, ["cert", "ca"]);
    }

    #[test]
    fn a_cluster_without_replicas_is_stopped_and_one_without_status_has_no_binding() {
        let stopped = json!({"spec": {"replicas": 0}, "status": {"binding": {"name": "b"}}});
        assert!(ClusterFacts::read("mq", "rabbit", &stopped).is_stopped);
        let young = ClusterFacts::read("mq", "rabbit", &json!({"spec": {}}));
        assert!(!young.is_stopped && young.binding.is_none());
    }

    #[test]
    fn an_annotation_allows_exactly_the_namespaces_it_names() {
        assert!(is_allowed(Some("a, b"), "b") && is_allowed(Some("*"), "b"));
        assert!(!is_allowed(Some("ab,c"), "b") && !is_allowed(None, "b"));
        assert!(!is_allowed(Some(""), ""), "an empty annotation names no namespace");
    }
}
