//! Addresses and credentials of servers: the typed form of a connection Secret, of a URL
//! and of the operator's default connection. Parsing only. Nothing here connects.

mod address;
mod cluster;
mod environment;
mod error;
mod probe;
mod query;
mod rabbitmq_broker;
mod redis_server;
mod tls;

use std::collections::BTreeMap;

use secrecy::{ExposeSecret, SecretString};

pub use cluster::{ALLOWED_NAMESPACES, BrokerReference, CONNECTION_URI, ClusterFacts, is_allowed};
pub use environment::variable_text;
pub use error::SettingsError;
pub use probe::Probe;
pub use rabbitmq_broker::{ManagementSettings, RabbitmqSettings};
pub use redis_server::{RedisSettings, SentinelSettings};
pub use tls::{ClientCertificate, TlsSettings};

/// The supported keys of a Secret as text. See [`secret_data`].
pub type SecretData = BTreeMap<String, SecretString>;

/// The keys of a connection Secret, for RabbitMQ and for Redis.
const KEYS: [&str; 21] = [
    "host",
    "port",
    "username",
    "password",
    "db",
    "uri",
    "amqpUri",
    "amqpUrl",
    "managementUri",
    "managementUrl",
    "adminUri",
    "adminUrl",
    "adminSecretName",
    "redisUri",
    "redisUrl",
    "connection_string",
    "probe",
    "tls",
    "ca.crt",
    "tls.crt",
    "tls.key",
];

/// Those with certificates and keys.
const PEM: [&str; 3] = ["ca.crt", "tls.crt", "tls.key"];

/// Maximum length of a value, in bytes: about forty certificates.
const MAX_VALUE_BYTES: usize = 64 * 1024;

/// Extracts the keys of a connection from a Secret's data. Drops other keys.
///
/// # Errors
///
/// A supported key has a value that is longer than 64 KiB, or that is neither UTF-8 nor PEM.
pub fn secret_data(
    data: impl IntoIterator<Item = (String, Vec<u8>)>,
) -> Result<SecretData, SettingsError> {
    let mut known = SecretData::new();
    for (name, value) in data {
        let Some(key) = KEYS.into_iter().find(|key| *key == name) else { continue };
        if value.len() > MAX_VALUE_BYTES {
            return Err(SettingsError::BadValue { key, why: "it is longer than 64 KiB" });
        }
        let text = match String::from_utf8(value) {
            Ok(text) => text,
            // The text around PEM may have any encoding.
            Err(error) if PEM.contains(&key) => {
                String::from_utf8_lossy(error.as_bytes()).into_owned()
            }
            Err(_) => return Err(SettingsError::BadValue { key, why: "it is not UTF-8 text" }),
        };
        known.insert(name, text.into());
    }
    Ok(known)
}

/// Returns an address, a number or a file, without surrounding whitespace.
fn value(data: &SecretData, key: &str) -> Option<String> {
    let value = data.get(key)?.expose_secret().trim();
    (!value.is_empty()).then(|| value.to_owned())
}

/// Returns the first of these keys that has a value, and the value.
fn first(data: &SecretData, keys: &[&'static str]) -> Option<(&'static str, String)> {
    keys.iter().find_map(|key| Some((*key, value(data, key)?)))
}

/// Both spellings of the key of a broker's URL: this one in connection Secrets, and the other
/// one in the Secret of the default connections. Each is valid in both.
pub const AMQP: [&str; 2] = ["amqpUri", "amqpUrl"];
/// The same of the URL of its management API.
pub const MANAGEMENT: [&str; 2] = ["managementUri", "managementUrl"];
/// The same of the URL with an administrator's login.
pub const ADMIN: [&str; 2] = ["adminUri", "adminUrl"];
/// The same of the URL of a Redis server.
pub const REDIS: [&str; 2] = ["redisUri", "redisUrl"];

/// Returns the name of the Secret with the administrator's URL, in the namespace of the
/// connection's Secret, unless that contains the URL itself.
#[must_use]
pub fn admin_secret(data: &SecretData) -> Option<String> {
    if first(data, &ADMIN).is_some() { None } else { value(data, ADMIN_SECRET) }
}

const ADMIN_SECRET: &str = "adminSecretName";

/// Adds the administrator's URL from the Secret that [`admin_secret`] names.
///
/// # Errors
///
/// [`SettingsError::MissingKey`]: the Secret has no such URL.
pub fn with_admin_secret(
    mut data: SecretData,
    admin: &SecretData,
) -> Result<SecretData, SettingsError> {
    let instead = "a Secret that is named by adminSecretName needs only this key";
    let missing = SettingsError::MissingKey { key: ADMIN[0], instead };
    let (key, url) = first(admin, &ADMIN).ok_or(missing)?;
    data.insert(key.to_owned(), url.into());
    Ok(data)
}

/// Returns a user name or a password. Drops only the line ending that `echo` and editors
/// add, because spaces may be intended.
fn credential(data: &SecretData, key: &str) -> Option<String> {
    let text = data.get(key)?.expose_secret();
    let text = text.strip_suffix('\n').unwrap_or(text);
    let text = text.strip_suffix('\r').unwrap_or(text);
    (!text.is_empty()).then(|| text.to_owned())
}

const NO_LOGIN: &str = "expected only a host name or an address: set the port by the key port, and the login by the keys username and password";

/// Formats host and port for display. An IPv6 address is put in brackets to separate the
/// port.
fn host_and_port(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Returns user and password of a URL. An empty user counts as none.
fn login(
    address: &address::Address<'_>,
    key: &'static str,
) -> Result<(Option<String>, Option<String>), SettingsError> {
    let bad = |why| SettingsError::BadValue { key, why };
    let username = decode(address.username).ok_or_else(|| bad("the user is not valid text"))?;
    let password = address
        .password
        .map(|password| decode(password).ok_or_else(|| bad("the password is not valid text")));
    Ok(((!username.is_empty()).then_some(username), password.transpose()?))
}

fn decode(text: &str) -> Option<String> {
    percent_encoding::percent_decode_str(text).decode_utf8().ok().map(Into::into)
}

#[cfg(test)]
mod canaries;

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
    fn keeps_only_known_keys_and_rejects_long_and_binary_values() {
        let of = |pairs: &[(&str, Vec<u8>)]| {
            secret_data(pairs.iter().map(|(key, value)| ((*key).to_owned(), value.clone())))
        };
        let many = [("host", b"h".to_vec()), ("notes", vec![b'x'; 900_000]), ("bin", vec![0xff])];
        let known = of(&many).unwrap();
        assert_eq!(known.into_keys().collect::<Vec<_>>(), ["host"]);
        assert!(of(&[("ca.crt", vec![b'x'; 64 * 1024])]).is_ok());
        let long = of(&[("ca.crt", vec![b'x'; 64 * 1024 + 1])]).unwrap_err().to_string();
        assert!(long.contains("ca.crt") && long.contains("64 KiB"), "{long}");
        let binary = of(&[("password", vec![b'p', 0xff])]).unwrap_err().to_string();
        assert!(binary.contains("password") && binary.contains("UTF-8"), "{binary}");
    }

    #[test]
    fn a_password_keeps_its_blanks_and_loses_one_line_end() {
        let password = |text: &str| {
            let keys = [("host", " h "), ("username", "u"), ("password", text)];
            let rabbitmq = RabbitmqSettings::from_secret(&data(&keys), None).unwrap();
            let redis = RedisSettings::from_secret(&data(&keys), None).unwrap();
            assert_eq!((rabbitmq.host.as_str(), redis.host.as_str()), ("h", "h"));
            let redis = redis.password.unwrap();
            assert_eq!(rabbitmq.password.expose_secret(), redis.expose_secret());
            redis.expose_secret().to_owned()
        };
        assert_eq!(password(" p "), " p ");
        assert_eq!(password("p\n"), "p");
        assert_eq!(password("p\r\n"), "p");
        assert_eq!(password("p\n\n"), "p\n");
    }

    #[test]
    fn port_zero_is_rejected_wherever_a_port_is_given() {
        let keys = data(&[("host", "h"), ("port", "0"), ("username", "u"), ("password", "p")]);
        let said = [
            RabbitmqSettings::from_secret(&keys, None).unwrap_err(),
            RedisSettings::from_secret(&keys, None).unwrap_err(),
            RabbitmqSettings::from_urls("amqp://h:0/v", None).unwrap_err(),
            RabbitmqSettings::from_urls("amqp://h", Some("http://h:0")).unwrap_err(),
            RedisSettings::from_url("redis://h:0").unwrap_err(),
            RedisSettings::from_url("redis-sentinel://h:1,i:0/0#m").unwrap_err(),
        ];
        for error in said {
            assert!(error.to_string().contains("1 to 65535"), "{error}");
        }
    }

    #[test]
    fn vhosts_that_differ_by_a_slash_have_different_places() {
        let place = |path| RabbitmqSettings::from_urls(path, None).unwrap().place();
        assert_eq!(place("amqp://h/x"), "h:5672/x");
        assert_eq!(place("amqp://h/%2Fx"), "h:5672//x");
        assert_eq!(place("amqp://h"), "h:5672/");
    }

    #[test]
    fn debug_never_shows_a_password() {
        let s =
            RabbitmqSettings::from_urls("amqp://u:hush@h/v", Some("http://a:hush@m:1")).unwrap();
        let r = RedisSettings::from_url("redis://u:hush@h:1/2").unwrap();
        assert!(!format!("{s:?} {:?} {r:?}", s.management).contains("hush"));
    }
}
