//! Where a server is and who we are there: the typed form of a connection
//! Secret, of a URL and of the operator's default connection. Parsing only;
//! nothing here connects.

mod cluster;
mod rabbitmq_broker;
mod redis_server;
mod tls;

use std::collections::BTreeMap;

use secrecy::SecretString;

pub use cluster::{ALLOWED_NAMESPACES, BrokerReference, CONNECTION_URI, ClusterFacts, is_allowed};
pub use rabbitmq_broker::{ManagementSettings, RabbitmqSettings};
pub use redis_server::{RedisSettings, SentinelSettings};
pub use tls::{ClientCertificate, TlsSettings};

/// What is wrong with a connection's settings. Never contains a value of the
/// Secret, only its keys.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// A key is missing.
    #[error("the connection has no {key}: add the key {key} ({instead})")]
    MissingKey {
        /// The key that is missing.
        key: &'static str,
        /// What would do as well.
        instead: &'static str,
    },
    /// A key's value can't be understood.
    #[error("the connection's {key} is not valid: {why}")]
    BadValue {
        /// The key whose value it is.
        key: &'static str,
        /// What was expected.
        why: &'static str,
    },
}

/// A Secret's data as text: only the keys whose bytes are UTF-8.
pub type SecretData = BTreeMap<String, SecretString>;

/// As a person is shown them: an IPv6 address in brackets, so that the port is seen.
fn host_and_port(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

fn decode(text: &str) -> Option<String> {
    percent_encoding::percent_decode_str(text).decode_utf8().ok().map(Into::into)
}

#[cfg(test)]
mod tests {
    use secrecy::SecretString;

    use super::*;

    pub(super) fn data(pairs: &[(&str, &str)]) -> SecretData {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), SecretString::from(*v))).collect()
    }

    #[test]
    fn a_missing_key_is_named_and_no_value_is_shown() {
        let err =
            RabbitmqSettings::from_secret(&data(&[("host", "h"), ("password", "hush")]), None)
                .unwrap_err();
        assert!(err.to_string().contains("username"), "{err}");
        assert!(!err.to_string().contains("hush"));
        let err = RedisSettings::from_secret(&data(&[("password", "hush")]), None).unwrap_err();
        assert!(err.to_string().contains("host"), "{err}");
    }

    #[test]
    fn debug_never_shows_a_password() {
        let s =
            RabbitmqSettings::from_urls("amqp://u:hush@h/v", Some("http://a:hush@m:1")).unwrap();
        let r = RedisSettings::from_url("redis://u:hush@h:1/2").unwrap();
        assert!(!format!("{s:?} {:?} {r:?}", s.management).contains("hush"));
    }
}
