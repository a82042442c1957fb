//! The query of a server's URL: which parameters of other clients have a meaning here. None is
//! ignored: one that is not heeded is rejected by its name. An unknown one may be a part of a
//! password, so its name is not shown.

use super::SettingsError;

const UNKNOWN: &str = "it has an unknown query parameter: remove it, or if the ? belongs to the password, percent-encode the password, ? is %3F";
const TWICE: &str = "its query sets the same thing twice";

/// A query parameter of other clients: its name, the values that ask for what happens anyway,
/// and why other values are rejected.
pub(super) type Parameter = (&'static str, &'static [&'static str], &'static str);

macro_rules! parameters {
    ($($name:literal $([$($value:literal),+])? => $instead:literal),+ $(,)?) => {
        &[$((
            $name,
            &[$($($value),+)?],
            concat!("its query parameter ", $name, " is not supported: ", $instead),
        )),+]
    };
}

/// The parameters of RabbitMQ's URI specification, of pika and of other AMQP clients.
pub(super) const OF_AMQP: &[Parameter] = parameters! {
    "auth_mechanism" ["plain", "PLAIN"] => "remove it; the mechanism is PLAIN",
    "blocked_connection_timeout" => "remove it",
    "cacertfile" => "remove it, and set RABBITMQ_TLS_CA_FILE, or the key ca.crt of a Secret",
    "certfile" => "remove it, and set RABBITMQ_TLS_CERT_FILE, or the key tls.crt of a Secret",
    "channel_max" => "remove it; the broker's limit applies",
    "connection_attempts" => "remove it",
    "connection_timeout" => "remove it",
    "depth" => "remove it",
    "fail_if_no_peer_cert" => "remove it",
    "frame_max" => "remove it; the broker's limit applies",
    "heartbeat" => "remove it; exec and hold have --heartbeat",
    "keyfile" => "remove it, and set RABBITMQ_TLS_KEY_FILE, or the key tls.key of a Secret",
    "locale" => "remove it",
    "password" => "remove it; a private key must not be encrypted",
    "retry_delay" => "remove it",
    "server_name_indication" => "remove it; the certificate must name the host of the URL",
    "socket_timeout" => "remove it",
    "ssl_options" => "remove it, and set RABBITMQ_TLS_CA_FILE, or the key ca.crt of a Secret",
    "verify" ["verify_peer"] => "remove it; the server's certificate is always verified",
};

/// Parameters of redis-py, Lettuce and other Redis clients with the number of the database. They
/// take precedence over the path, as they do there.
pub(super) const DATABASE: &[&str] = &["db", "database"];

/// The other parameters of these clients.
pub(super) const OF_REDIS: &[Parameter] = parameters! {
    "clientName" => "remove it; the queue verbs have --client-id",
    "client_name" => "remove it; the queue verbs have --client-id",
    "decode_responses" => "remove it",
    "encoding" => "remove it",
    "health_check_interval" => "remove it",
    "max_connections" => "remove it",
    "password" => "remove it, and put the password before the host",
    "protocol" ["2", "3"] => "remove it",
    "retry_on_timeout" => "remove it",
    "socket_connect_timeout" => "remove it",
    "socket_keepalive" => "remove it",
    "socket_timeout" => "remove it",
    "ssl_ca_certs" => "remove it, and set REDIS_TLS_CA_FILE, or the key ca.crt of a Secret",
    "ssl_cert_reqs" ["required"] => "remove it; the server's certificate is always verified",
    "ssl_certfile" => "remove it, and set REDIS_TLS_CERT_FILE, or the key tls.crt of a Secret",
    "ssl_check_hostname" ["true", "True"] => "remove it; the certificate must name the host",
    "ssl_keyfile" => "remove it, and set REDIS_TLS_KEY_FILE, or the key tls.key of a Secret",
    "timeout" => "remove it",
    "username" => "remove it, and put the user before the host",
    "virtual_host" => "remove it, and put the number of the database into the path",
};

/// Checks a query. Returns the value of one of the parameters `heeded`, still percent-encoded.
pub(super) fn value<'a>(
    query: &'a str,
    key: &'static str,
    heeded: &[&str],
    known: &[Parameter],
) -> Result<Option<&'a str>, SettingsError> {
    let bad = |why| SettingsError::BadValue { key, why };
    let pairs = || query.split('&').filter(|pair| !pair.is_empty());
    let split = |pair: &'a str| pair.split_once('=').unwrap_or((pair, ""));
    let find = |name: &str| known.iter().find(|(known, ..)| *known == name);
    if pairs().map(split).any(|(name, _)| !heeded.contains(&name) && find(name).is_none()) {
        return Err(bad(UNKNOWN));
    }
    let mut found = None;
    for (name, value) in pairs().map(split) {
        match find(name) {
            Some((_, permitted, _)) if permitted.contains(&value) => {}
            Some((_, _, why)) => return Err(bad(why)),
            None if found.is_some() => return Err(bad(TWICE)),
            None => found = Some(value),
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::tests::data;
    use super::super::{RabbitmqSettings, RedisSettings};
    use super::*;

    fn redis(url: &str) -> Result<RedisSettings, SettingsError> {
        let by_secret = ["uri", "redisUri", "redisUrl"].map(|key| {
            let settings = RedisSettings::from_secret(&data(&[(key, url)]), None);
            settings.map(|settings| settings.database).map_err(|error| error.named(key, "uri"))
        });
        let settings = RedisSettings::from_url(url);
        let database = settings.as_ref().map(|settings| settings.database).map_err(Clone::clone);
        assert_eq!(by_secret, [database.clone(), database.clone(), database], "{url}");
        settings
    }

    #[test]
    fn the_database_of_a_query_is_the_one_that_redis_py_uses() {
        let of: BTreeMap<&str, i64> = BTreeMap::from([
            ("redis://h?db=3", 3),
            ("redis://h/?db=3", 3),
            ("rediss://u:p@h:1/2?db=3", 3),
            ("redis://h/2?protocol=3", 2),
            ("redis://h?database=4&ssl_cert_reqs=required", 4),
            ("redis://h?&db=%35&", 5),
            ("redis-sentinel://h,i/0?db=6#m", 6),
            ("redis://h?", 0),
        ]);
        for (url, database) in of {
            assert_eq!(redis(url).unwrap().database, database, "{url}");
        }
        for wrong in ["db", "db=", "db=x", "db=-1", "db=3&db=3", "db=3&database=4", "DB=3"] {
            let error = redis(&format!("redis://h/?{wrong}")).unwrap_err().to_string();
            assert!(error.contains("uri is not valid"), "{wrong}: {error}");
        }
        assert!(RedisSettings::from_url("redis://h/-1").is_err());
    }

    /// Each is rejected with any value that differs from what happens anyway, and named.
    #[test]
    fn each_query_parameter_of_other_clients_is_permitted_or_named_and_refused() {
        for (parameters, scheme) in [(OF_AMQP, "amqp"), (OF_REDIS, "redis")] {
            for (name, permitted, _) in parameters {
                let read = |query: &str| {
                    let url = format!("{scheme}://u:hush@h/0?{query}");
                    if scheme == "redis" {
                        return RedisSettings::from_url(&url).map(drop);
                    }
                    let by_secret = ["uri", "amqpUri", "amqpUrl"].map(|key| {
                        let read = RabbitmqSettings::from_secret(&data(&[(key, &url)]), None);
                        read.map(drop).map_err(|error| error.named(key, "amqpUri"))
                    });
                    let read = RabbitmqSettings::from_urls(&url, None).map(drop);
                    assert_eq!(by_secret, [read.clone(), read.clone(), read.clone()]);
                    read
                };
                for value in *permitted {
                    assert_eq!(read(&format!("{name}={value}")), Ok(()));
                }
                for query in [format!("{name}=canary"), (*name).to_owned()] {
                    let error = read(&query).unwrap_err().to_string();
                    assert!(error.contains(&format!("parameter {name} is not")), "{error}");
                    assert!(!error.contains("hush") && !error.contains("canary"), "{error}");
                }
            }
        }
    }
}
