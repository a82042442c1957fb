//! Settings of a RabbitMQ broker and its management API: the typed form of a Secret's
//! keys or of URLs. Parsing only.

use std::fmt;

use secrecy::SecretString;
use url::Url;

use super::tls::Names;
use super::{
    Probe, SecretData, SettingsError, TlsSettings, credential, decode, host_and_port, port,
    port_of_url, value,
};

const PLAIN_PORT: u16 = 5672;
const TLS_PORT: u16 = 5671;

/// Environment variables with the names of certificate files.
const FILES: Names = Names {
    authorities: "RABBITMQ_TLS_CA_FILE",
    chain: "RABBITMQ_TLS_CERT_FILE",
    key: "RABBITMQ_TLS_KEY_FILE",
};

/// Address and credentials of one virtual host of a RabbitMQ broker.
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
    /// TLS settings. `None`: unencrypted.
    pub tls: Option<TlsSettings>,
    /// The management API, if configured.
    pub management: Option<ManagementSettings>,
    /// The management API with administrator credentials, which may close other users'
    /// connections.
    pub administrator: Option<ManagementSettings>,
    /// How to find out whether a queue exists. `None`: by the broker's properties.
    pub probe: Option<Probe>,
}

/// Address and credentials of a broker's management API.
#[derive(Clone)]
pub struct ManagementSettings {
    /// `http://host:port` or `https://host:port`, without credentials and without a
    /// trailing slash.
    pub url: String,
    /// User name.
    pub username: String,
    /// Password.
    pub password: SecretString,
    /// TLS settings of an https connection. `None` with http.
    pub tls: Option<TlsSettings>,
}

// Debug shows address and user, never the password, because it ends up in logs.
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
    /// Reads a Secret's data. Supports these keys:
    ///
    /// * `host port username password`, as in the RabbitMQ cluster operator's
    ///   default-user Secret.
    /// * `uri`: the management address with `http`, `https` or no scheme, and the broker
    ///   with `amqp`.
    /// * `amqpUri` and `managementUri`, which name one of them explicitly.
    /// * `ca.crt`, `tls.crt` and `tls.key` as PEM, for encrypted connections. These are
    ///   `amqps`, `https`, and `host` with `tls` (`true`).
    /// * `probe`: `auto`, `confirm`, `tx` or `declare` ([`Probe`]).
    ///
    /// `vhost` is the resource's. Defaults to the URI's path, or else `/`.
    ///
    /// # Errors
    ///
    /// [`SettingsError`]: a value is missing, or can't be parsed.
    pub fn from_secret(data: &SecretData, vhost: Option<&str>) -> Result<Self, SettingsError> {
        let get = |key: &str| value(data, key);
        let login = |key: &str| credential(data, key);
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
            if let Some(username) = login("username") {
                from_uri.username = username;
            }
            if let Some(password) = login("password") {
                from_uri.password = password.into();
            }
            from_uri
        } else {
            let missing = |key| SettingsError::MissingKey {
                key,
                instead: "or give the whole address as amqpUri, amqp://user:password@host:5672/vhost",
            };
            // Without `tls`, the connection string written by the cluster operator
            // decides.
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
                Some(text) => port(&text, "port")?,
                None if is_tls => TLS_PORT,
                None => PLAIN_PORT,
            };
            Self {
                host: get("host").ok_or_else(|| missing("host"))?,
                port,
                username: login("username").ok_or_else(|| missing("username"))?,
                password: login("password").ok_or_else(|| missing("password"))?.into(),
                vhost: "/".to_owned(),
                tls: is_tls.then(TlsSettings::default),
                management: None,
                administrator: None,
                probe: None,
            }
        };
        settings.probe = Probe::from_key(get("probe").as_deref())?;
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

    /// Adds the management API with administrator credentials,
    /// `http://user:password@host:15672`.
    ///
    /// # Errors
    ///
    /// [`SettingsError`]: a value is missing, or can't be parsed.
    pub fn with_administrator(
        mut self,
        text: &str,
        key: &'static str,
    ) -> Result<Self, SettingsError> {
        // The broker's own user is not an administrator, so credentials are required.
        let nobody = Self { username: String::new(), ..self.clone() };
        let administrator = nobody.parse_management(text, key)?;
        if administrator.username.is_empty() {
            let why = "expected http://user:password@host:15672 with an administrator's user and password";
            return Err(SettingsError::BadValue { key, why });
        }
        self.administrator = Some(administrator);
        Ok(self)
    }

    /// Sets how to find out whether a queue exists. `None`: by the broker's properties.
    #[must_use]
    pub fn with_probe(self, probe: Option<Probe>) -> Self {
        Self { probe, ..self }
    }

    /// Parses `amqp://user:password@host:port/vhost` and, if set, the management API's
    /// `http://user:password@host:port`. Its user and password default to the broker's.
    ///
    /// # Errors
    ///
    /// [`SettingsError`]: a value is missing, or can't be parsed.
    pub fn from_urls(amqp: &str, management: Option<&str>) -> Result<Self, SettingsError> {
        let mut settings = Self::parse_amqp(amqp, "amqpUri")?;
        if let Some(management) = management {
            settings.management = Some(settings.parse_management(management, "managementUri")?);
        }
        Ok(settings)
    }

    /// Adds the certificates of these optional files: the CA's, the client's and its key.
    /// In an environment they are `RABBITMQ_TLS_CA_FILE`, `RABBITMQ_TLS_CERT_FILE` and
    /// `RABBITMQ_TLS_KEY_FILE`. `read` returns a file's text, or `None` to give up.
    ///
    /// # Errors
    ///
    /// [`SettingsError`]: a value is missing, or can't be parsed.
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

    /// [`Self::with_tls_files`] with the files named by environment variables. An empty
    /// variable counts as unset. `variable` returns a variable's value.
    ///
    /// # Errors
    ///
    /// [`SettingsError`]: a value is missing, or can't be parsed.
    pub fn with_tls_of_environment(
        self,
        variable: impl Fn(&str) -> Option<String>,
        read: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, SettingsError> {
        let file = |name| variable(name).filter(|file| !file.is_empty());
        self.with_tls_files([file(FILES.authorities), file(FILES.chain), file(FILES.key)], read)
    }

    /// Returns host and port for display.
    #[must_use]
    pub fn address(&self) -> String {
        host_and_port(&self.host, self.port)
    }

    /// Returns host, port and virtual host for display, without the virtual host if it is
    /// `/`. Different places have different texts.
    #[must_use]
    pub fn place(&self) -> String {
        let vhost = if self.vhost == "/" { "" } else { &self.vhost };
        format!("{}/{vhost}", self.address())
    }

    /// Adds the certificates to each of the two connections that is encrypted.
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
            // A user who configures certificates expects the connection to be encrypted.
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
            // An IPv6 address is in brackets only in URLs.
            host: url
                .host_str()
                .map(|host| host.trim_start_matches('[').trim_end_matches(']'))
                .filter(|host| !host.is_empty())
                .ok_or_else(|| bad("it names no host"))?
                .to_owned(),
            port: port_of_url(&url, if is_tls { TLS_PORT } else { PLAIN_PORT }, key)?,
            // The broker's defaults, as in every AMQP client.
            username: if username.is_empty() { "guest".to_owned() } else { username },
            password: if url.password().is_none() { "guest".to_owned() } else { password }.into(),
            vhost,
            tls: is_tls.then(TlsSettings::default),
            management: None,
            administrator: None,
            probe: None,
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
        port_of_url(&url, 0, key)?;
        let username = decode(url.username()).ok_or_else(|| bad("the user is not valid text"))?;
        let password = match url.password() {
            Some(password) => {
                Some(decode(password).ok_or_else(|| bad("the password is not valid text"))?)
            }
            None => None,
        };
        // Can fail only for URLs without a host, which have no credentials.
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
mod tests;
