//! Settings of a RabbitMQ broker and its management API: the typed form of a Secret's
//! keys or of URLs. Parsing only.

use std::ffi::OsString;
use std::fmt;

use secrecy::SecretString;
use url::Url;

use super::address::{Address, host, port, scheme};
use super::query::OF_AMQP;
use super::tls::Names;
use super::{
    ADMIN, AMQP, MANAGEMENT, NO_LOGIN, Probe, SecretData, SettingsError, TlsSettings, admin_secret,
    credential, decode, first, host_and_port, login, value, variable_text,
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
    /// * `amqpUri` and `managementUri`, which name one of them explicitly, and `adminUri`,
    ///   the management address with an administrator's user. Each may also end in `Url`.
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
        let credential = |key: &str| credential(data, key);
        let uri = get("uri");
        let uri_is_amqp = uri.as_deref().is_some_and(|u| u.to_lowercase().starts_with("amqp"));
        let (amqp, management) = if uri_is_amqp { (uri, None) } else { (None, uri) };
        let general = |uri: Option<String>| uri.map(|uri| ("uri", uri));
        let amqp = first(data, &AMQP).or(general(amqp));
        let management = first(data, &MANAGEMENT).or(general(management));
        let mut settings = if let Some((key, amqp)) = amqp {
            let mut from_uri = Self::parse_amqp(&amqp, key)?;
            if let Some(username) = credential("username") {
                from_uri.username = username;
            }
            if let Some(password) = credential("password") {
                from_uri.password = password.into();
            }
            from_uri
        } else {
            Self::from_parts(data)?
        };
        settings.probe = Probe::from_key(get("probe").as_deref())?;
        if let Some(vhost) = vhost {
            vhost.clone_into(&mut settings.vhost);
        }
        if let Some((key, management)) = management {
            settings.management = Some(settings.parse_management(&management, key)?);
        }
        if let Some((key, administrator)) = first(data, &ADMIN) {
            settings = settings.with_administrator(&administrator, key)?;
        }
        let encrypted = settings.add_tls(
            &Names::OF_A_SECRET,
            "add the key tls with the value true, or write amqps:// in amqpUri or https:// in managementUri",
            [get("ca.crt"), get("tls.crt"), get("tls.key")],
        );
        match encrypted {
            // They may be for the administrator, whose Secret is not read here.
            Err(SettingsError::NotEncrypted { .. }) if admin_secret(data).is_some() => Ok(settings),
            encrypted => encrypted.map(|()| settings),
        }
    }

    /// Reads the keys `host port username password tls`.
    fn from_parts(data: &SecretData) -> Result<Self, SettingsError> {
        let get = |key: &str| value(data, key);
        let credential = |key: &str| credential(data, key);
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
        Ok(Self {
            host: host(&get("host").ok_or_else(|| missing("host"))?, "host", NO_LOGIN)?,
            port,
            username: credential("username").ok_or_else(|| missing("username"))?,
            password: credential("password").ok_or_else(|| missing("password"))?.into(),
            vhost: "/".to_owned(),
            tls: is_tls.then(TlsSettings::default),
            management: None,
            administrator: None,
            probe: None,
        })
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
    /// `RABBITMQ_TLS_KEY_FILE`. `read` returns a file's content, or `None` to give up.
    ///
    /// # Errors
    ///
    /// [`SettingsError`]: a value is missing, or can't be parsed.
    pub fn with_tls_files(
        mut self,
        files: [Option<String>; 3],
        read: impl Fn(&str) -> Option<Vec<u8>>,
    ) -> Result<Self, SettingsError> {
        let next = "write amqps:// in the URL, or https:// in that of the management API";
        self.add_tls(&FILES, next, FILES.read(files, read)?)?;
        Ok(self)
    }

    /// [`Self::with_tls_files`] with the files named by environment variables. An empty
    /// variable counts as unset. `variable` returns a variable's value, as
    /// [`std::env::var_os`] does.
    ///
    /// # Errors
    ///
    /// [`SettingsError`]: a value is missing, or can't be parsed.
    pub fn with_tls_of_environment(
        self,
        variable: impl Fn(&'static str) -> Option<OsString>,
        read: impl Fn(&str) -> Option<Vec<u8>>,
    ) -> Result<Self, SettingsError> {
        let file = |name| variable_text(name, variable(name));
        let files = [file(FILES.authorities)?, file(FILES.chain)?, file(FILES.key)?];
        self.with_tls_files(files, read)
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
        next: &'static str,
        texts: [Option<String>; 3],
    ) -> Result<(), SettingsError> {
        let unused = names.unused(&texts, next);
        let tls = TlsSettings::from_pem(names, texts)?;
        let apis = [&mut self.management, &mut self.administrator].into_iter().flatten();
        let of_apis = apis.filter_map(|api| api.tls.as_mut());
        let mut encrypted: Vec<_> = self.tls.as_mut().into_iter().chain(of_apis).collect();
        if encrypted.is_empty() {
            return unused;
        }
        for settings in &mut encrypted {
            (*settings).clone_from(&tls);
        }
        Ok(())
    }

    fn parse_amqp(text: &str, key: &'static str) -> Result<Self, SettingsError> {
        let bad = |why| SettingsError::BadValue { key, why };
        let expected = "expected amqp://user:password@host:5672/vhost";
        let (is_tls, rest) = match scheme(text) {
            Some((scheme, rest)) if scheme == "amqp" => (false, rest),
            Some((scheme, rest)) if scheme == "amqps" => (true, rest),
            _ => return Err(bad(expected)),
        };
        let address = Address::split(rest, key, &[], OF_AMQP)?.without_fragment()?;
        let vhost = match address.path.strip_prefix('/') {
            None | Some("") => "/".to_owned(),
            Some(path) => decode(path).ok_or_else(|| bad("the virtual host is not valid text"))?,
        };
        let (username, password) = login(&address, key)?;
        let (host, port) = address.host_and_port(if is_tls { TLS_PORT } else { PLAIN_PORT })?;
        Ok(Self {
            host,
            port,
            // The broker's defaults, as in every AMQP client.
            username: username.unwrap_or_else(|| "guest".to_owned()),
            password: password.unwrap_or_else(|| "guest".to_owned()).into(),
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
        let bad = || SettingsError::BadValue { key, why: "expected http://host:15672" };
        let (scheme, rest) = scheme(text).unwrap_or_else(|| ("http".to_owned(), text.trim()));
        let is_tls = match scheme.as_str() {
            "http" => false,
            "https" => true,
            _ => return Err(bad()),
        };
        let address = Address::split(rest, key, &[], &[])?.without_fragment()?;
        address.host_and_port(0)?;
        let (username, password) = login(&address, key)?;
        let Address { hosts, path, .. } = address;
        let url = Url::parse(&format!("{scheme}://{hosts}{path}")).map_err(|_| bad())?;
        Ok(ManagementSettings {
            url: url.as_str().trim_end_matches('/').to_owned(),
            username: username.unwrap_or_else(|| self.username.clone()),
            password: password.map_or_else(|| self.password.clone(), Into::into),
            tls: is_tls.then(TlsSettings::default),
        })
    }
}

#[cfg(test)]
mod tests;
