//! How to reach a RabbitMQ broker and its management API: the typed form of a
//! Secret's keys or of URLs. Parsing only.

use std::fmt;

use secrecy::{ExposeSecret, SecretString};
use url::Url;

use super::tls::Names;
use super::{SecretData, SettingsError, TlsSettings, decode, host_and_port};

const PLAIN_PORT: u16 = 5672;
const TLS_PORT: u16 = 5671;

/// How the files of certificates are named in an environment.
const FILES: Names = Names {
    authorities: "RABBITMQ_TLS_CA_FILE",
    chain: "RABBITMQ_TLS_CERT_FILE",
    key: "RABBITMQ_TLS_KEY_FILE",
};

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
    /// How the connection is encrypted; absent means not at all.
    pub tls: Option<TlsSettings>,
    /// The management API, where there is one.
    pub management: Option<ManagementSettings>,
    /// The management API as an administrator, to close others' connections with.
    pub administrator: Option<ManagementSettings>,
}

/// How to reach a broker's management API.
#[derive(Clone)]
pub struct ManagementSettings {
    /// `http://host:port` or `https://host:port`, without credentials and without
    /// a trailing slash.
    pub url: String,
    /// User name.
    pub username: String,
    /// Password.
    pub password: SecretString,
    /// How an https connection is checked; absent with http.
    pub tls: Option<TlsSettings>,
}

// Debug shows where and who, never the password: these values end up in error
// chains and logs.
impl fmt::Debug for RabbitmqSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls.is_some() { "amqps" } else { "amqp" };
        write!(f, "{scheme}://{}@{}/{}", self.username, self.address(), self.vhost)
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
    /// broker; `amqpUri` and `managementUri` name either. `amqps` and `https` are
    /// encrypted, and `host` with `tls` (`true`): for them `ca.crt`, `tls.crt` and
    /// `tls.key` as PEM.
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
            // Where `tls` is absent, what the cluster operator writes beside the keys.
            let is_tls = match get("tls").as_deref() {
                Some("true") => true,
                Some("false") => false,
                None => get("connection_string").is_some_and(|uri| uri.starts_with("amqps://")),
                Some(_) => {
                    let why = "expected true or false";
                    return Err(SettingsError::BadValue { key: "tls", why });
                }
            };
            let port = match get("port") {
                Some(port) => port.parse().map_err(|_| SettingsError::BadValue {
                    key: "port",
                    why: "a port is a number from 1 to 65535",
                })?,
                None if is_tls => TLS_PORT,
                None => PLAIN_PORT,
            };
            Self {
                host: get("host").ok_or_else(|| missing("host"))?,
                port,
                username: get("username").ok_or_else(|| missing("username"))?,
                password: get("password").ok_or_else(|| missing("password"))?.into(),
                vhost: "/".to_owned(),
                tls: is_tls.then(TlsSettings::default),
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
        settings.add_tls(
            &Names::OF_A_SECRET,
            "or amqpUri: amqps://…, managementUri: https://…: there are certificates, and no connection is encrypted",
            [get("ca.crt"), get("tls.crt"), get("tls.key")],
        )?;
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

    /// Adds the certificates of these files, each of which may be absent: the
    /// authorities', our own and its key (`RABBITMQ_TLS_CA_FILE`,
    /// `RABBITMQ_TLS_CERT_FILE` and `RABBITMQ_TLS_KEY_FILE` of an environment).
    /// `read` reads a file's text or gives up.
    pub fn with_tls_files(
        mut self,
        files: [Option<String>; 3],
        read: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, SettingsError> {
        let instead =
            "amqps://… or https://…: there are certificates, and no connection is encrypted";
        self.add_tls(&FILES, instead, FILES.read(files, read)?)?;
        Ok(self)
    }

    /// [`Self::with_tls_files`] of the files that an environment names; an empty
    /// variable is an absent one. `variable` looks one up.
    pub fn with_tls_of_environment(
        self,
        variable: impl Fn(&str) -> Option<String>,
        read: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, SettingsError> {
        let file = |name| variable(name).filter(|file| !file.is_empty());
        self.with_tls_files([file(FILES.authorities), file(FILES.chain), file(FILES.key)], read)
    }

    /// Host and port as a person is shown them.
    #[must_use]
    pub fn address(&self) -> String {
        host_and_port(&self.host, self.port)
    }

    /// The certificates count for whatever is encrypted of the two connections.
    fn add_tls(
        &mut self,
        names: &Names,
        instead: &'static str,
        texts: [Option<String>; 3],
    ) -> Result<(), SettingsError> {
        if texts.iter().all(Option::is_none) {
            return Ok(());
        }
        let tls = TlsSettings::from_pem(names, texts)?;
        let apis = [&mut self.management, &mut self.administrator].into_iter().flatten();
        let of_apis = apis.filter_map(|api| api.tls.as_mut());
        let mut encrypted: Vec<_> = self.tls.as_mut().into_iter().chain(of_apis).collect();
        if encrypted.is_empty() {
            // Whoever gave certificates believes the connection to be encrypted.
            return Err(SettingsError::MissingKey { key: "tls", instead });
        }
        for settings in &mut encrypted {
            (*settings).clone_from(&tls);
        }
        Ok(())
    }

    fn parse_amqp(text: &str, key: &'static str) -> Result<Self, SettingsError> {
        let bad = |why| SettingsError::BadValue { key, why };
        let url =
            Url::parse(text).map_err(|_| bad("expected amqp://user:password@host:5672/vhost"))?;
        let is_tls = match url.scheme() {
            "amqp" => false,
            "amqps" => true,
            _ => return Err(bad("expected amqp://user:password@host:5672/vhost")),
        };
        let vhost = match url.path().strip_prefix('/') {
            None | Some("") => "/".to_owned(),
            Some(path) => decode(path).ok_or_else(|| bad("the virtual host is not valid text"))?,
        };
        let username = decode(url.username()).ok_or_else(|| bad("the user is not valid text"))?;
        let password = decode(url.password().unwrap_or_default())
            .ok_or_else(|| bad("the password is not valid text"))?;
        Ok(Self {
            // An IPv6 address is written in brackets in URLs only.
            host: url
                .host_str()
                .map(|host| host.trim_start_matches('[').trim_end_matches(']'))
                .filter(|host| !host.is_empty())
                .ok_or_else(|| bad("it names no host"))?
                .to_owned(),
            port: url.port().unwrap_or(if is_tls { TLS_PORT } else { PLAIN_PORT }),
            // The broker's own defaults, as every AMQP client has them.
            username: if username.is_empty() { "guest".to_owned() } else { username },
            password: if url.password().is_none() { "guest".to_owned() } else { password }.into(),
            vhost,
            tls: is_tls.then(TlsSettings::default),
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
        let is_tls = match url.scheme() {
            "http" => false,
            "https" => true,
            _ => return Err(bad("expected http://host:15672")),
        };
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
            tls: is_tls.then(TlsSettings::default),
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

    const CA: &str = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";

    #[test]
    fn each_way_to_ask_for_encryption_is_understood() {
        let secret = |pairs: &[(&str, &str)]| {
            let s = RabbitmqSettings::from_secret(&data(pairs), None).unwrap();
            let management = s.management.as_ref().is_some_and(|m| m.tls.is_some());
            (format!("{s:?}"), management)
        };
        assert_eq!(secret(&[("uri", "amqps://u:p@h")]), ("amqps://u@h:5671//".into(), false));
        let keys = [("host", "h"), ("username", "u"), ("password", "p")];
        let with = |more: &[(&'static str, &'static str)]| [&keys[..], more].concat();
        assert_eq!(secret(&with(&[("tls", "true")])).0, "amqps://u@h:5671//");
        // As the cluster operator writes it for a cluster with TLS.
        let written = [("port", "5671"), ("connection_string", "amqps://u:p@h:5671/")];
        assert_eq!(secret(&with(&written)).0, "amqps://u@h:5671//");
        let both = secret(&with(&[("uri", "https://h:15671"), ("ca.crt", CA)]));
        assert_eq!(both, ("amqp://u@h:5672//".into(), true));
        let six = RabbitmqSettings::from_urls("amqps://u:p@[::1]/v", None).unwrap();
        assert_eq!(
            (six.host.as_str(), format!("{six:?}").as_str()),
            ("::1", "amqps://u@[::1]:5671/v")
        );
    }

    #[test]
    fn certificates_without_encryption_and_half_a_pair_are_refused_without_showing_them() {
        let said = |pairs: &[(&str, &str)]| {
            RabbitmqSettings::from_secret(&data(pairs), None).unwrap_err().to_string()
        };
        let plain = said(&[("uri", "amqp://u:p@h"), ("ca.crt", CA)]);
        assert!(plain.contains("no connection is encrypted"), "{plain}");
        let key = "-----BEGIN PRIVATE KEY-----\nhush\n-----END PRIVATE KEY-----\n";
        let half = said(&[("uri", "amqps://u:p@h"), ("tls.key", key)]);
        assert!(half.contains("tls.crt") && !half.contains("hush"), "{half}");
        let wrong = said(&[("uri", "amqps://u:p@h"), ("tls.crt", CA), ("tls.key", "hush")]);
        assert!(wrong.contains("tls.key") && !wrong.contains("hush"), "{wrong}");
    }

    #[test]
    fn the_files_of_an_environment_are_read_and_one_that_can_not_be_is_named() {
        let settings = || RabbitmqSettings::from_urls("amqps://h", Some("https://h:1")).unwrap();
        let variable = |name: &str| (name == "RABBITMQ_TLS_CA_FILE").then(|| "/ca".to_owned());
        let read = |file: &str| (file == "/ca").then(|| CA.to_owned());
        let s = settings().with_tls_of_environment(variable, read).unwrap();
        assert!(s.tls.unwrap().authorities.is_some());
        assert!(s.management.unwrap().tls.unwrap().authorities.is_some());
        let err = settings().with_tls_of_environment(variable, |_| None).unwrap_err();
        assert!(err.to_string().contains("RABBITMQ_TLS_CA_FILE"), "{err}");
    }
}
