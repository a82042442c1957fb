//! Where a server is and who we are there: the typed form of a connection
//! Secret, of a URL and of the operator's default connection. Parsing only;
//! nothing here connects.

use std::collections::BTreeMap;
use std::fmt;

use secrecy::{ExposeSecret, SecretString};
use url::Url;

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

/// How to reach one virtual host of a RabbitMQ broker.
#[derive(Clone)]
pub struct RabbitmqSettings {
    /// Host name or address of the AMQP listener.
    pub host: String,
    /// Port of the AMQP listener.
    pub port: u16,
    /// User name on the broker.
    pub username: String,
    /// Password on the broker.
    pub password: SecretString,
    /// Virtual host.
    pub vhost: String,
    /// The management API, where there is one.
    pub management: Option<ManagementSettings>,
}

/// How to reach a broker's management API.
#[derive(Clone)]
pub struct ManagementSettings {
    /// `http://host:port`, without credentials and without a trailing slash.
    pub url: String,
    /// User name.
    pub username: String,
    /// Password.
    pub password: SecretString,
}

/// How to reach one database of a Redis server.
#[derive(Clone)]
pub struct RedisSettings {
    /// Host name or address.
    pub host: String,
    /// Port.
    pub port: u16,
    /// ACL user; absent means the server's default user.
    pub username: Option<String>,
    /// Password of the user.
    pub password: Option<SecretString>,
    /// Database number, from 0.
    pub database: i64,
}

// Debug shows where and who, never the password: these values end up in error
// chains and logs.
impl fmt::Debug for RabbitmqSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "amqp://{}@{}:{}/{}", self.username, self.host, self.port, self.vhost)
    }
}

impl fmt::Debug for ManagementSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} as {}", self.url, self.username)
    }
}

impl fmt::Debug for RedisSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let user = self.username.as_deref().unwrap_or("default");
        write!(f, "redis://{user}@{}:{}/{}", self.host, self.port, self.database)
    }
}

/// A Secret's data as text: only the keys whose bytes are UTF-8.
pub type SecretData = BTreeMap<String, SecretString>;

impl RabbitmqSettings {
    /// From a Secret's data. Takes the keys of the RabbitMQ cluster operator's
    /// default-user Secret (`host port username password`) or `uri`, where
    /// `http`, `https` or no scheme means the management address and `amqp` the
    /// broker; `amqpUri` and `managementUri` name either.
    ///
    /// `vhost` is the resource's; absent, the URI's path is taken, else `/`.
    pub fn from_secret(data: &SecretData, vhost: Option<&str>) -> Result<Self, SettingsError> {
        let get = |key: &str| {
            data.get(key).map(|v| v.expose_secret().trim().to_owned()).filter(|v| !v.is_empty())
        };
        let uri = get("uri");
        let uri_is_amqp = uri.as_deref().is_some_and(|u| u.starts_with("amqp"));
        let (amqp_key, amqp) = match (get("amqpUri"), uri.clone().filter(|_| uri_is_amqp)) {
            (Some(named), _) => ("amqpUri", Some(named)),
            (None, general) => ("uri", general),
        };
        let (management_key, management) =
            match (get("managementUri"), uri.filter(|_| !uri_is_amqp)) {
                (Some(named), _) => ("managementUri", Some(named)),
                (None, general) => ("uri", general),
            };
        let mut settings = if let Some(amqp) = amqp {
            let mut from_uri = Self::parse_amqp(&amqp, amqp_key)?;
            if let Some(username) = get("username") {
                from_uri.username = username;
            }
            if let Some(password) = get("password") {
                from_uri.password = password.into();
            }
            from_uri
        } else {
            let missing = |key| SettingsError::MissingKey {
                key,
                instead: "or give the whole address as amqpUri, amqp://user:password@host:5672/vhost",
            };
            let port = match get("port") {
                Some(port) => port.parse().map_err(|_| SettingsError::BadValue {
                    key: "port",
                    why: "a port is a number from 1 to 65535",
                })?,
                None => 5672,
            };
            Self {
                host: get("host").ok_or_else(|| missing("host"))?,
                port,
                username: get("username").ok_or_else(|| missing("username"))?,
                password: get("password").ok_or_else(|| missing("password"))?.into(),
                vhost: "/".to_owned(),
                management: None,
            }
        };
        if let Some(vhost) = vhost {
            vhost.clone_into(&mut settings.vhost);
        }
        if let Some(management) = management {
            settings.management = Some(settings.parse_management(&management, management_key)?);
        }
        Ok(settings)
    }

    /// From `amqp://user:password@host:port/vhost` and, where there is one, the
    /// management API's `http://user:password@host:port` (the user and password
    /// default to the broker's).
    pub fn from_urls(amqp: &str, management: Option<&str>) -> Result<Self, SettingsError> {
        let mut settings = Self::parse_amqp(amqp, "amqpUri")?;
        if let Some(management) = management {
            settings.management = Some(settings.parse_management(management, "managementUri")?);
        }
        Ok(settings)
    }

    fn parse_amqp(text: &str, key: &'static str) -> Result<Self, SettingsError> {
        let bad = |why| SettingsError::BadValue { key, why };
        let url =
            Url::parse(text).map_err(|_| bad("expected amqp://user:password@host:5672/vhost"))?;
        match url.scheme() {
            "amqp" => {}
            "amqps" => return Err(bad("TLS is not supported yet: use an amqp:// address")),
            _ => return Err(bad("expected amqp://user:password@host:5672/vhost")),
        }
        let vhost = match url.path().strip_prefix('/') {
            None | Some("") => "/".to_owned(),
            Some(path) => decode(path).ok_or_else(|| bad("the virtual host is not valid text"))?,
        };
        let username = decode(url.username()).ok_or_else(|| bad("the user is not valid text"))?;
        let password = decode(url.password().unwrap_or_default())
            .ok_or_else(|| bad("the password is not valid text"))?;
        Ok(Self {
            host: url
                .host_str()
                .filter(|h| !h.is_empty())
                .ok_or_else(|| bad("it names no host"))?
                .to_owned(),
            port: url.port().unwrap_or(5672),
            // The broker's own defaults, as every AMQP client has them.
            username: if username.is_empty() { "guest".to_owned() } else { username },
            password: if url.password().is_none() { "guest".to_owned() } else { password }.into(),
            vhost,
            management: None,
        })
    }

    fn parse_management(
        &self,
        text: &str,
        key: &'static str,
    ) -> Result<ManagementSettings, SettingsError> {
        let bad = |why| SettingsError::BadValue { key, why };
        let with_scheme =
            if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
        let mut url = Url::parse(&with_scheme).map_err(|_| bad("expected http://host:15672"))?;
        match url.scheme() {
            "http" => {}
            "https" => return Err(bad("TLS is not supported yet: use an http:// address")),
            _ => return Err(bad("expected http://host:15672")),
        }
        let username = decode(url.username()).ok_or_else(|| bad("the user is not valid text"))?;
        let password = match url.password() {
            Some(password) => {
                Some(decode(password).ok_or_else(|| bad("the password is not valid text"))?)
            }
            None => None,
        };
        // Can only fail for URLs without a host, and those have no credentials.
        let _ = url.set_username("");
        let _ = url.set_password(None);
        Ok(ManagementSettings {
            url: url.as_str().trim_end_matches('/').to_owned(),
            username: if username.is_empty() { self.username.clone() } else { username },
            password: password.map_or_else(|| self.password.clone(), Into::into),
        })
    }
}

impl RedisSettings {
    /// From a Secret's data: `uri`, or `host port username password db`.
    /// `database` is the resource's and wins over the Secret's.
    pub fn from_secret(data: &SecretData, database: Option<i64>) -> Result<Self, SettingsError> {
        let get = |key: &str| {
            data.get(key).map(|v| v.expose_secret().trim().to_owned()).filter(|v| !v.is_empty())
        };
        let number = |key: &'static str, why| {
            get(key)
                .map(|text| text.parse::<i64>().map_err(|_| SettingsError::BadValue { key, why }))
                .transpose()
        };
        if get("tls").is_some_and(|tls| tls != "false") {
            return Err(SettingsError::BadValue {
                key: "tls",
                why: "TLS is not supported yet: leave the key out or set it to false",
            });
        }
        let mut settings = if let Some(uri) = get("uri") {
            let mut from_uri = Self::from_url(&uri)?;
            if let Some(username) = get("username") {
                from_uri.username = Some(username);
            }
            if let Some(password) = get("password") {
                from_uri.password = Some(password.into());
            }
            from_uri
        } else {
            let port = number("port", "a port is a number from 1 to 65535")?.unwrap_or(6379);
            Self {
                host: get("host").ok_or(SettingsError::MissingKey {
                    key: "host",
                    instead: "or give the whole address as uri, redis://user:password@host:6379/0",
                })?,
                port: u16::try_from(port).map_err(|_| SettingsError::BadValue {
                    key: "port",
                    why: "a port is a number from 1 to 65535",
                })?,
                username: get("username"),
                password: get("password").map(Into::into),
                database: number("db", "a database is a number from 0")?.unwrap_or(0),
            }
        };
        if let Some(database) = database {
            settings.database = database;
        }
        Ok(settings)
    }

    /// From `redis://user:password@host:port/db`.
    pub fn from_url(text: &str) -> Result<Self, SettingsError> {
        let bad = |why| SettingsError::BadValue { key: "uri", why };
        let url =
            Url::parse(text).map_err(|_| bad("expected redis://user:password@host:6379/0"))?;
        match url.scheme() {
            "redis" => {}
            "rediss" => return Err(bad("TLS is not supported yet: use a redis:// address")),
            _ => return Err(bad("expected redis://user:password@host:6379/0")),
        }
        let username = decode(url.username()).ok_or_else(|| bad("the user is not valid text"))?;
        let password = match url.password() {
            Some(password) => {
                Some(decode(password).ok_or_else(|| bad("the password is not valid text"))?)
            }
            None => None,
        };
        let database = match url.path().trim_start_matches('/') {
            "" => 0,
            path => path.parse().map_err(|_| bad("a database is a number from 0"))?,
        };
        Ok(Self {
            host: url
                .host_str()
                .filter(|h| !h.is_empty())
                .ok_or_else(|| bad("it names no host"))?
                .to_owned(),
            port: url.port().unwrap_or(6379),
            username: (!username.is_empty()).then_some(username),
            password: password.filter(|p| !p.is_empty()).map(Into::into),
            database,
        })
    }
}

fn decode(text: &str) -> Option<String> {
    percent_encoding::percent_decode_str(text).decode_utf8().ok().map(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(pairs: &[(&str, &str)]) -> SecretData {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), SecretString::from(*v))).collect()
    }

    #[test]
    fn the_cluster_operators_default_user_secret_is_understood() {
        let s = RabbitmqSettings::from_secret(
            &data(&[("host", "rabbit"), ("port", "5673"), ("username", "u"), ("password", "p")]),
            Some("prod"),
        )
        .unwrap();
        assert_eq!(format!("{s:?}"), "amqp://u@rabbit:5673/prod");
        assert!(s.management.is_none());
    }

    #[test]
    fn a_uri_without_an_amqp_scheme_is_the_management_address() {
        for uri in ["http://rabbit:15672", "rabbit:15672"] {
            let s = RabbitmqSettings::from_secret(
                &data(&[("uri", uri), ("host", "rabbit"), ("username", "u"), ("password", "p")]),
                None,
            )
            .unwrap();
            assert_eq!(s.management.unwrap().url, "http://rabbit:15672");
        }
    }

    #[test]
    fn an_encoded_vhost_and_password_are_decoded() {
        let s = RabbitmqSettings::from_urls("amqp://u:p%40ss@h/%2Fx", Some("http://m:1/")).unwrap();
        assert_eq!(s.vhost, "/x");
        assert_eq!(s.password.expose_secret(), "p@ss");
        assert_eq!(s.management.unwrap().url, "http://m:1");
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

    #[test]
    fn a_resource_s_database_wins_over_the_secret_s() {
        let d = data(&[("uri", "redis://h:1/2")]);
        assert_eq!(RedisSettings::from_secret(&d, None).unwrap().database, 2);
        assert_eq!(RedisSettings::from_secret(&d, Some(5)).unwrap().database, 5);
    }

    #[test]
    fn tls_addresses_are_refused_with_a_reason() {
        for uri in ["amqps://h", "rediss://h"] {
            let d = data(&[("uri", uri), ("host", "h"), ("username", "u"), ("password", "p")]);
            let err = if uri.starts_with("amqps") {
                RabbitmqSettings::from_secret(&d, None).unwrap_err()
            } else {
                RedisSettings::from_secret(&d, None).unwrap_err()
            };
            assert!(err.to_string().contains("TLS is not supported yet"), "{err}");
        }
    }
}
