//! How to reach a RabbitMQ broker and its management API: the typed form of a
//! Secret's keys or of URLs. Parsing only.

use std::fmt;

use secrecy::{ExposeSecret, SecretString};
use url::Url;

use super::{SecretData, SettingsError, decode};

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
    /// The management API as an administrator, to close others' connections with.
    pub administrator: Option<ManagementSettings>,
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
                administrator: None,
            }
        };
        if let Some(vhost) = vhost {
            vhost.clone_into(&mut settings.vhost);
        }
        if let Some(management) = management {
            settings.management = Some(settings.parse_management(&management, management_key)?);
        }
        if let Some(administrator) = get("adminUri") {
            settings = settings.with_administrator(&administrator, "adminUri")?;
        }
        Ok(settings)
    }

    /// The same with the management API as an administrator,
    /// `http://user:password@host:15672`.
    pub fn with_administrator(
        mut self,
        text: &str,
        key: &'static str,
    ) -> Result<Self, SettingsError> {
        // The broker's own user is none: whoever gives this means another one.
        let nobody = Self { username: String::new(), ..self.clone() };
        let administrator = nobody.parse_management(text, key)?;
        if administrator.username.is_empty() {
            let why = "expected http://user:password@host:15672 with an administrator's user and password";
            return Err(SettingsError::BadValue { key, why });
        }
        self.administrator = Some(administrator);
        Ok(self)
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
            administrator: None,
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

#[cfg(test)]
mod tests {
    use super::super::tests::data;
    use super::*;

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
    fn the_administrator_is_somebody_of_its_own() {
        let of = |admin| {
            let keys = [("amqpUri", "amqp://u:p@h"), ("adminUri", admin)];
            RabbitmqSettings::from_secret(&data(&keys), None)
        };
        let settings = of("http://root:secret@m:15672").unwrap();
        let administrator = settings.administrator.unwrap();
        assert_eq!(format!("{administrator:?}"), "http://m:15672 as root");
        assert!(of("http://m:15672").unwrap_err().to_string().contains("administrator"));
    }

    #[test]
    fn an_encoded_vhost_and_password_are_decoded() {
        let s = RabbitmqSettings::from_urls("amqp://u:p%40ss@h/%2Fx", Some("http://m:1/")).unwrap();
        assert_eq!(s.vhost, "/x");
        assert_eq!(s.password.expose_secret(), "p@ss");
        assert_eq!(s.management.unwrap().url, "http://m:1");
    }
}
