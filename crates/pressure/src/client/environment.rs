//! Reads a client's settings from the environment variables of pressure 0.15.

use std::ffi::OsString;

use lockkeeper_plan::connection::{RedisSettings, SettingsError, variable_text};
use lockkeeper_plan::naming::{DEFAULT_PREFIX, NameError, QueueName};

use super::options::QueueOptions;
use super::queue::Queue;

const PREFIX: &str = "PRESSURE_PREFIX";

/// Why the environment is invalid. Never contains a value that could be a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnvironmentError {
    /// The server's address or its TLS settings are invalid.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The queue's name or `PRESSURE_PREFIX` is invalid.
    #[error(transparent)]
    Name(#[from] NameError),
}

impl Queue {
    /// Creates the queue of this name from environment variables: `REDIS_SERVER`
    /// (127.0.0.1), `REDIS_PORT` (6379), `REDIS_DB` (0) and `PRESSURE_PREFIX`
    /// (`__pressure__`), with the defaults of pressure 0.15. `REDIS_URL` replaces
    /// the first three, and can include a user, a password, TLS or sentinels: see
    /// [`RedisSettings::from_url`]. TLS uses PEM files: `REDIS_TLS_CA_FILE`,
    /// `REDIS_TLS_CERT_FILE` and `REDIS_TLS_KEY_FILE`. An empty variable counts as unset.
    ///
    /// # Errors
    ///
    /// [`EnvironmentError`]: a variable or the name is invalid, or a variable is not UTF-8.
    pub fn from_env(name: &str) -> Result<Self, EnvironmentError> {
        Self::from_variables(name, std::env::var_os)
    }

    fn from_variables(
        name: &str,
        get: impl Fn(&'static str) -> Option<OsString>,
    ) -> Result<Self, EnvironmentError> {
        let read = |file: &str| std::fs::read(file).ok();
        let settings = RedisSettings::from_environment(&get, read)?;
        let prefix =
            variable_text(PREFIX, get(PREFIX))?.unwrap_or_else(|| DEFAULT_PREFIX.to_owned());
        Ok(Self::new(settings, QueueName::new(prefix, name)?, QueueOptions::default()))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    fn settings(pairs: &[(&str, &str)]) -> Result<String, EnvironmentError> {
        let get = |key: &str| pairs.iter().find(|(name, _)| *name == key).map(|(_, it)| it.into());
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
    fn an_invalid_variable_is_named_in_the_error() {
        let error = |name, value| settings(&[(name, value)]).unwrap_err().to_string();
        assert!(error("REDIS_PORT", "0").contains("REDIS_PORT is not valid: a port is"));
        assert!(error("REDIS_DB", "-1").contains("REDIS_DB is not valid: a database is"));
        assert!(error("REDIS_URL", "hush").contains("REDIS_URL is not valid: "));
        assert!(!error("REDIS_URL", "hush").contains("hush"));
    }

    #[test]
    fn a_prefix_that_is_not_text_is_an_error() {
        let bytes = || OsString::from_vec(b"a\xff".to_vec());
        let get = |key: &str| (key == "PRESSURE_PREFIX").then(bytes);
        let error = Queue::from_variables("jobs", get).unwrap_err();
        let expected = SettingsError::NotText { variable: "PRESSURE_PREFIX" };
        assert_eq!(error, EnvironmentError::Settings(expected));
    }
}
