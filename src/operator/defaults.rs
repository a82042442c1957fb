//! The default connections, for objects that specify none: from flags and the
//! environment, or from the files of a directory, which may be created and changed while
//! the operator runs (hazard K29). Certificates are always files. See `fetch` for their
//! use.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use lockkeeper_plan::connection::{
    ADMIN, AMQP, MANAGEMENT, REDIS, RabbitmqSettings, RedisSettings, SettingsError,
};
use secrecy::{ExposeSecret, SecretString};

/// Time for which file contents are cached. All objects share one read.
const FRESH: Duration = Duration::from_secs(1);

/// Sources of the default connections. A URL takes precedence over its file.
#[derive(Clone, Debug, Default)]
pub struct DefaultSources {
    /// URL `amqp://user:password@host:5672/vhost`. Defaults to the file `amqpUri` or `amqpUrl`.
    pub amqp_url: Option<SecretString>,
    /// URL of the management API. Defaults to the file `managementUri` or `managementUrl`.
    pub management_url: Option<SecretString>,
    /// URL of the management API with an administrator's credentials. Defaults to the
    /// file `adminUri` or `adminUrl`.
    pub admin_url: Option<SecretString>,
    /// URL `redis://user:password@host:6379/0`. Defaults to the file `redisUri` or `redisUrl`.
    pub redis_url: Option<SecretString>,
    /// Directory of these files. Each of them is optional.
    pub directory: Option<PathBuf>,
}

impl DefaultSources {
    /// Returns the default broker from the current sources, or `None` without a URL.
    ///
    /// # Errors
    ///
    /// Fails if a URL or a certificate file is invalid, or if only a management URL is
    /// given.
    pub fn rabbitmq(&self) -> Result<Option<RabbitmqSettings>, SettingsError> {
        let management = self.url(self.management_url.as_ref(), MANAGEMENT)?;
        let Some(amqp) = self.url(self.amqp_url.as_ref(), AMQP)? else {
            let instead =
                "or --amqp-url: slots are kept over AMQP, and there is only a management URL";
            let alone = SettingsError::MissingKey { key: "amqpUrl", instead };
            return if management.is_some() { Err(alone) } else { Ok(None) };
        };
        let management = management.as_ref().map(ExposeSecret::expose_secret);
        let settings = RabbitmqSettings::from_urls(amqp.expose_secret(), management)?
            .with_tls_of_environment(variable, read)?;
        match self.url(self.admin_url.as_ref(), ADMIN)? {
            Some(url) => settings.with_administrator(url.expose_secret(), "adminUrl").map(Some),
            None => Ok(Some(settings)),
        }
    }

    /// Returns the default Redis server from the current sources, or `None` without a
    /// URL.
    ///
    /// # Errors
    ///
    /// Fails if the URL or a certificate file is invalid.
    pub fn redis(&self) -> Result<Option<RedisSettings>, SettingsError> {
        let Some(url) = self.url(self.redis_url.as_ref(), REDIS)? else { return Ok(None) };
        let lookup = |name| match name {
            "REDIS_URL" => Some(url.expose_secret().into()),
            _ => variable(name),
        };
        RedisSettings::from_environment(lookup, read).map(Some)
    }

    /// Returns the fault of the sources as a whole: a directory was named, and no default
    /// connection follows from it. Files may still appear.
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        let directory = self.directory.as_ref()?;
        let has = [self.rabbitmq().map(|s| s.is_some()), self.redis().map(|s| s.is_some())];
        match has {
            [Err(error), _] | [_, Err(error)] => Some(error.to_string()),
            [Ok(false), Ok(false)] => Some(format!(
                "{} has neither the key {} nor {}: check the Secret of the default connections",
                directory.display(),
                AMQP[0],
                REDIS[0],
            )),
            _ => None,
        }
    }

    /// Returns the given URL, otherwise that of a file with one of these names. An empty URL
    /// counts as unset, because charts leave options out that way.
    fn url(
        &self,
        given: Option<&SecretString>,
        files: [&'static str; 2],
    ) -> Result<Option<SecretString>, SettingsError> {
        let some = |url: &str| (!url.is_empty()).then(|| SecretString::from(url));
        if let Some(given) = given.and_then(|url| some(url.expose_secret())) {
            return Ok(Some(given));
        }
        let Some(directory) = &self.directory else { return Ok(None) };
        for key in files {
            let Ok(bytes) = std::fs::read(directory.join(key)) else { continue };
            let why = "it is not UTF-8 text";
            let text = str::from_utf8(&bytes).map_err(|_| SettingsError::BadValue { key, why })?;
            if let Some(url) = some(text.trim()) {
                return Ok(Some(url));
            }
        }
        Ok(None)
    }
}

fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}

fn read(file: &str) -> Option<Vec<u8>> {
    std::fs::read(file).ok()
}

/// The default connections, reread on use.
pub struct Defaults {
    sources: DefaultSources,
    rabbitmq: Known<RabbitmqSettings>,
    redis: Known<RedisSettings>,
}

type Known<T> = Mutex<Option<(Instant, Result<Option<T>, SettingsError>)>>;

impl Defaults {
    /// Creates the default connections without reading them.
    #[must_use]
    pub fn new(sources: DefaultSources) -> Self {
        Self { sources, rabbitmq: Mutex::default(), redis: Mutex::default() }
    }

    /// Returns [`DefaultSources::rabbitmq`], cached for at most a second.
    ///
    /// # Errors
    ///
    /// [`SettingsError`]: a file can't be read, or its content is invalid.
    pub fn rabbitmq(&self) -> Result<Option<RabbitmqSettings>, SettingsError> {
        fresh(&self.rabbitmq, || self.sources.rabbitmq())
    }

    /// Returns [`DefaultSources::redis`], cached for at most a second.
    ///
    /// # Errors
    ///
    /// [`SettingsError`]: a file can't be read, or its content is invalid.
    pub fn redis(&self) -> Result<Option<RedisSettings>, SettingsError> {
        fresh(&self.redis, || self.sources.redis())
    }
}

fn fresh<T: Clone>(
    known: &Known<T>,
    read: impl FnOnce() -> Result<Option<T>, SettingsError>,
) -> Result<Option<T>, SettingsError> {
    let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
    match &*known {
        Some((at, settings)) if at.elapsed() < FRESH => settings.clone(),
        _ => known.insert((Instant::now(), read())).1.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_without_a_connection_is_a_fault_and_says_which_key_is_missing() {
        let directory = std::env::temp_dir().join(format!("defaults-{}", rand::random::<u64>()));
        std::fs::create_dir(&directory).unwrap();
        let sources =
            DefaultSources { directory: Some(directory.clone()), ..DefaultSources::default() };
        let mut found = Vec::new();
        for (file, text) in [
            ("amqp-url", "amqp://u:p@h"),
            ("amqpUri", "smtp://u:hush@h"),
            ("amqpUri", "amqp://u:hush@h"),
        ] {
            std::fs::write(directory.join(file), text).unwrap();
            found.push(sources.fault());
        }
        std::fs::remove_dir_all(&directory).unwrap();
        assert!(found[0].as_ref().is_some_and(|why| why.contains("neither the key amqpUri nor")));
        assert!(
            found[1].as_ref().is_some_and(|why| why.contains("amqpUri") && !why.contains("hush"))
        );
        assert_eq!(found[2], None);
        assert_eq!(DefaultSources::default().fault(), None);
    }
}
