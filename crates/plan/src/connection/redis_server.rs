//! Settings of one database of a Redis server, direct or through sentinels: the typed
//! form of a Secret's keys, of a URL and of a program's environment. Parsing only.

use std::ffi::OsString;
use std::fmt;

use secrecy::SecretString;

use super::address::{Address, host, port, scheme};
use super::environment::is_service_link;
use super::query::{DATABASE, OF_REDIS};
use super::tls::Names;
use super::{
    NO_LOGIN, REDIS, SecretData, SettingsError, TlsSettings, credential, decode, first,
    host_and_port, login, value, variable_text,
};

const PLAIN_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

const ALONE: &str = "expected only a host name or an address: set the port by REDIS_PORT, or the whole address by REDIS_URL";

/// Address and credentials of one database of a Redis server.
#[derive(Clone)]
pub struct RedisSettings {
    /// Host name or address. With [`Self::sentinel`], that of the first sentinel.
    pub host: String,
    /// Port of that host.
    pub port: u16,
    /// ACL user. `None`: the server's default user.
    pub username: Option<String>,
    /// Password of the user.
    pub password: Option<SecretString>,
    /// Database number, from 0.
    pub database: i64,
    /// TLS settings. `None`: unencrypted.
    pub tls: Option<TlsSettings>,
    /// Sentinels to query for the server's address. `None`: the server is at the host and
    /// port.
    pub sentinel: Option<SentinelSettings>,
}

/// The sentinels that return the address of the master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentinelSettings {
    /// The master's name in the sentinels' configuration.
    pub master: String,
    /// Host and port of each sentinel, at least one.
    pub addresses: Vec<(String, u16)>,
}

// Never shows the password: these values end up in error chains and logs.
impl fmt::Debug for RedisSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let user = self.username.as_deref().unwrap_or("default");
        write!(f, "{}://{user}@{}", self.scheme(), self.hosts())?;
        write!(f, "/{}", self.database)?;
        match &self.sentinel {
            Some(sentinel) => write!(f, "#{}", sentinel.master),
            None => Ok(()),
        }
    }
}

impl RedisSettings {
    /// Reads a Secret's data: `redisUri` (also `redisUrl` or `uri`), or `host port username password db`. `tls` (`true`
    /// or `false`) enables TLS, with `ca.crt`, `tls.crt` and `tls.key` as PEM. `database`
    /// is the resource's and overrides the Secret's.
    ///
    /// # Errors
    ///
    /// [`SettingsError`]: a value is missing, or can't be parsed.
    pub fn from_secret(data: &SecretData, database: Option<i64>) -> Result<Self, SettingsError> {
        let get = |key: &str| value(data, key);
        let credential = |key: &str| credential(data, key);
        let uri = first(data, &REDIS).or_else(|| first(data, &["uri"]));
        let mut settings = if let Some((key, uri)) = uri {
            let mut from_uri = Self::parse(&uri, key)?;
            if let Some(username) = credential("username") {
                from_uri.username = Some(username);
            }
            if let Some(password) = credential("password") {
                from_uri.password = Some(password.into());
            }
            from_uri
        } else {
            let database = get("db").map_or(Some(0), |text| text.parse().ok());
            let missing = SettingsError::MissingKey {
                key: "host",
                instead: "or give the whole address as redisUri, redis://user:password@host:6379/0",
            };
            let mut from_keys = Self::at(
                host(&get("host").ok_or(missing)?, "host", NO_LOGIN)?,
                get("port").map_or(Ok(PLAIN_PORT), |text| port(&text, "port"))?,
            );
            from_keys.username = credential("username");
            from_keys.password = credential("password").map(Into::into);
            from_keys.database = database.ok_or(SettingsError::BadValue {
                key: "db",
                why: "a database is a number from 0",
            })?;
            from_keys
        };
        let bad_tls = |why| SettingsError::BadValue { key: "tls", why };
        match get("tls").as_deref() {
            None => {}
            Some("true") => {
                settings.tls.get_or_insert_default();
            }
            Some("false") if settings.tls.is_none() => {}
            Some("false") => return Err(bad_tls("it says false, and the uri rediss://")),
            Some(_) => return Err(bad_tls("expected true or false")),
        }
        settings.add_tls(
            &Names::OF_A_SECRET,
            "add the key tls with the value true, or write rediss:// in uri",
            [get("ca.crt"), get("tls.crt"), get("tls.key")],
        )?;
        if let Some(database) = database {
            settings.database = database;
        }
        Ok(settings)
    }

    /// Parses `redis://user:password@host:port/db`, or `rediss://` for TLS. A query `?db=3`
    /// takes precedence over the path, as in redis-py. With
    /// sentinels, it uses the format of Lettuce:
    /// `redis-sentinel://user:password@host:port,host:port/db#master`
    /// (`rediss-sentinel://`). User and password are then the server's, and are tried on
    /// a sentinel only if it requires a login.
    ///
    /// # Errors
    ///
    /// [`SettingsError`]: a value is missing, or can't be parsed.
    pub fn from_url(text: &str) -> Result<Self, SettingsError> {
        Self::parse(text, "uri")
    }

    /// Reads the environment variables of pressure's clients: `REDIS_URL`, else
    /// `REDIS_SERVER` (127.0.0.1), `REDIS_PORT` (6379) and `REDIS_DB` (0). TLS uses PEM
    /// files: `REDIS_TLS_CA_FILE`, `REDIS_TLS_CERT_FILE` and `REDIS_TLS_KEY_FILE`. An
    /// empty variable counts as unset, and so does a `REDIS_PORT` that Kubernetes sets for a
    /// Service named redis, such as `tcp://10.0.0.1:6379`.
    ///
    /// `variable` returns a variable's value, as [`std::env::var_os`] does. `read` returns a file's content, or `None` to
    /// give up.
    ///
    /// # Errors
    ///
    /// [`SettingsError`]: a value is missing, or can't be parsed.
    pub fn from_environment(
        variable: impl Fn(&'static str) -> Option<OsString>,
        read: impl Fn(&str) -> Option<Vec<u8>>,
    ) -> Result<Self, SettingsError> {
        let get = |name| variable_text(name, variable(name));
        let settings = if let Some(url) = get("REDIS_URL")? {
            Self::parse(&url, "REDIS_URL")?
        } else {
            let bad = |key, why| SettingsError::BadValue { key, why };
            let server = get("REDIS_SERVER")?;
            // The port of a Service named redis need not be that of this server.
            let given_port = get("REDIS_PORT")?.filter(|value| !is_service_link(value));
            let database = get("REDIS_DB")?.map_or(Some(0), |database| database.parse().ok());
            let mut settings = Self::at(
                host(server.as_deref().unwrap_or("127.0.0.1"), "REDIS_SERVER", ALONE)?,
                given_port.map_or(Ok(PLAIN_PORT), |text| port(&text, "REDIS_PORT"))?,
            );
            settings.database = database
                .filter(|database| *database >= 0)
                .ok_or_else(|| bad("REDIS_DB", "a database is a number from 0"))?;
            settings
        };
        settings.with_tls_files(
            [get("REDIS_TLS_CA_FILE")?, get("REDIS_TLS_CERT_FILE")?, get("REDIS_TLS_KEY_FILE")?],
            read,
        )
    }

    /// Adds the certificates of these optional files: the CA's, the client's and its key.
    /// `read` returns a file's content, or `None` to give up.
    ///
    /// # Errors
    ///
    /// [`SettingsError`]: a value is missing, or can't be parsed.
    pub fn with_tls_files(
        mut self,
        files: [Option<String>; 3],
        read: impl Fn(&str) -> Option<Vec<u8>>,
    ) -> Result<Self, SettingsError> {
        let names = Names {
            authorities: "REDIS_TLS_CA_FILE",
            chain: "REDIS_TLS_CERT_FILE",
            key: "REDIS_TLS_KEY_FILE",
        };
        let texts = names.read(files, read)?;
        self.add_tls(&names, "write rediss:// in the URL", texts)?;
        Ok(self)
    }

    /// Returns server and database for display, without credentials.
    #[must_use]
    pub fn address(&self) -> String {
        let master = self.sentinel.as_ref().map(|sentinel| format!("{}@", sentinel.master));
        format!("{}{}/{}", master.unwrap_or_default(), self.hosts(), self.database)
    }

    fn at(host: String, port: u16) -> Self {
        Self { host, port, username: None, password: None, database: 0, tls: None, sentinel: None }
    }

    fn scheme(&self) -> &'static str {
        match (&self.sentinel, &self.tls) {
            (None, None) => "redis",
            (None, Some(_)) => "rediss",
            (Some(_), None) => "redis-sentinel",
            (Some(_), Some(_)) => "rediss-sentinel",
        }
    }

    fn hosts(&self) -> String {
        let show = |(host, port): &(String, u16)| host_and_port(host, *port);
        match &self.sentinel {
            Some(sentinel) => sentinel.addresses.iter().map(show).collect::<Vec<_>>().join(","),
            None => host_and_port(&self.host, self.port),
        }
    }

    fn add_tls(
        &mut self,
        names: &Names,
        next: &'static str,
        texts: [Option<String>; 3],
    ) -> Result<(), SettingsError> {
        match &mut self.tls {
            Some(tls) => {
                *tls = TlsSettings::from_pem(names, texts)?;
                Ok(())
            }
            None => names.unused(&texts, next),
        }
    }

    fn parse(text: &str, key: &'static str) -> Result<Self, SettingsError> {
        let bad = |why| SettingsError::BadValue { key, why };
        let expected = "expected redis://user:password@host:6379/0";
        let (scheme, rest) = scheme(text).ok_or_else(|| bad(expected))?;
        let (is_tls, is_sentinel) = match scheme.as_str() {
            "redis" => (false, false),
            "rediss" => (true, false),
            "redis-sentinel" => (false, true),
            "rediss-sentinel" => (true, true),
            "unix" | "redis+unix" | "redis+socket" | "rediss+socket" => {
                return Err(bad("Unix sockets are not supported: expected redis://host:6379/0"));
            }
            _ => return Err(bad(expected)),
        };
        let address = Address::split(rest, key, DATABASE, OF_REDIS)?;
        let address = if is_sentinel { address } else { address.without_fragment()? };
        if !is_sentinel && address.hosts.contains(',') {
            return Err(bad("it names several hosts: only redis-sentinel:// has more than one"));
        }
        let addresses =
            address.hosts_and_ports(if is_sentinel { SENTINEL_PORT } else { PLAIN_PORT })?;
        let Some((host, port)) = addresses.first().cloned() else {
            return Err(bad("it names no host"));
        };
        let (username, password) = login(&address, key)?;
        let number = |text: &str| decode(text)?.parse().ok().filter(|number| *number >= 0);
        let database = match (address.query, address.path.trim_start_matches('/')) {
            (None, "") => Some(0),
            (None, path) => number(path),
            (Some(query), _) => number(query),
        };
        let sentinel = if is_sentinel {
            let missing = || bad("it names no master: redis-sentinel://host:26379/0#master");
            let master = address.fragment.filter(|name| !name.is_empty()).and_then(decode);
            Some(SentinelSettings { master: master.ok_or_else(missing)?, addresses })
        } else {
            None
        };
        let mut settings = Self::at(host, port);
        settings.username = username;
        settings.password = password.filter(|p| !p.is_empty()).map(Into::into);
        settings.database = database.ok_or_else(|| bad("a database is a number from 0"))?;
        settings.tls = is_tls.then(TlsSettings::default);
        settings.sentinel = sentinel;
        Ok(settings)
    }
}

#[cfg(test)]
mod tests;
