//! A client's settings as the source document names them, from the environment,
//! and the client's name for itself.

use crate::plan::connection::{RedisSettings, SettingsError};
use crate::plan::naming::{DEFAULT_PREFIX, NameError, QueueName};

use super::{Queue, QueueOptions};

/// What is wrong with the environment. Never contains a value that could be a
/// secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnvironmentError {
    /// Where the server is, or how it is reached over TLS.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The queue's name, or `PRESSURE_PREFIX`, can't be used.
    #[error(transparent)]
    Name(#[from] NameError),
}

impl Queue {
    /// The queue of this name as the environment has it: `REDIS_SERVER`
    /// (127.0.0.1), `REDIS_PORT` (6379), `REDIS_DB` (0) and `PRESSURE_PREFIX`
    /// (`__pressure__`), with the defaults of the source document. `REDIS_URL`
    /// replaces the first three, and can name a user and a password, TLS or
    /// sentinels: see [`RedisSettings::from_url`]. For TLS, files as PEM:
    /// `REDIS_TLS_CA_FILE`, `REDIS_TLS_CERT_FILE` and `REDIS_TLS_KEY_FILE`. An empty
    /// variable is as good as none.
    pub fn from_env(name: &str) -> Result<Self, EnvironmentError> {
        Self::from_variables(name, |key| std::env::var(key).ok())
    }

    fn from_variables(
        name: &str,
        get: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, EnvironmentError> {
        let get = |key: &str| get(key).filter(|value| !value.is_empty());
        let read = |file: &str| std::fs::read_to_string(file).ok();
        let settings = RedisSettings::from_environment(get, read)?;
        let prefix = get("PRESSURE_PREFIX").unwrap_or_else(|| DEFAULT_PREFIX.to_owned());
        Ok(Self::new(settings, QueueName::new(prefix, name)?, QueueOptions::default()))
    }
}

/// The source document, "Clients": machine, process and thread. The same through
/// the life of a [`Queue`], whichever threads its tasks run on.
pub(super) fn client_id() -> String {
    let host = nix::unistd::gethostname().unwrap_or_default();
    let host = host.to_string_lossy();
    let host = if host.is_empty() { "localhost".into() } else { host };
    format!("{host}/{}/{}", std::process::id(), nix::unistd::gettid())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(pairs: &[(&str, &str)]) -> Result<String, EnvironmentError> {
        let get = |key: &str| {
            pairs.iter().find(|(name, _)| *name == key).map(|(_, value)| (*value).to_owned())
        };
        let queue = Queue::from_variables("jobs", get)?;
        Ok(format!("{:?} {}", queue.0.store, queue.name().data()))
    }

    #[test]
    fn without_variables_the_defaults_are_those_of_the_protocol() {
        let expected = "Store(redis://default@127.0.0.1:6379/0) __pressure__:jobs";
        assert_eq!(settings(&[]).unwrap(), expected);
        assert_eq!(settings(&[("REDIS_URL", ""), ("REDIS_PORT", "")]).unwrap(), expected);
    }

    #[test]
    fn each_variable_is_heeded_and_a_url_replaces_three() {
        let parts = [
            ("REDIS_SERVER", "r"),
            ("REDIS_PORT", "7"),
            ("REDIS_DB", "3"),
            ("PRESSURE_PREFIX", "p"),
        ];
        assert_eq!(settings(&parts).unwrap(), "Store(redis://default@r:7/3) p:jobs");
        let url = [("REDIS_URL", "redis://u:hush@h:1/2"), ("REDIS_PORT", "7")];
        assert_eq!(settings(&url).unwrap(), "Store(redis://u@h:1/2) __pressure__:jobs");
    }

    #[test]
    fn what_can_not_be_understood_is_named() {
        let error = |name, value| settings(&[(name, value)]).unwrap_err().to_string();
        assert!(error("REDIS_PORT", "0").contains("REDIS_PORT is not valid: a port is"));
        assert!(error("REDIS_DB", "-1").contains("REDIS_DB is not valid: a database is"));
        assert!(error("REDIS_URL", "hush").contains("REDIS_URL is not valid: "));
        assert!(!error("REDIS_URL", "hush").contains("hush"));
    }

    #[test]
    fn a_client_is_named_by_host_process_and_thread() {
        let id = client_id();
        let parts: Vec<&str> = id.rsplitn(3, '/').collect();
        assert_eq!(parts[1], std::process::id().to_string());
        assert!(parts[0].parse::<u32>().is_ok() && !parts[2].is_empty(), "{id}");
        let other = std::thread::spawn(client_id).join().unwrap();
        assert_ne!(other, id);
    }
}
