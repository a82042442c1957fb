//! Text of environment variables. A value that is not UTF-8 is an error: read as unset, it would
//! lead to another server or to other keys. See `redis_server` and `rabbitmq_broker` for the
//! variables.

use std::ffi::OsString;

use super::SettingsError;

/// Returns the text of an environment variable with this name and value, as
/// [`std::env::var_os`] returns it. An empty one counts as unset, because charts leave a
/// variable out that way.
///
/// # Errors
///
/// [`SettingsError::NotText`]: the value is not UTF-8.
pub fn variable_text(
    name: &'static str,
    value: Option<OsString>,
) -> Result<Option<String>, SettingsError> {
    let Some(value) = value.filter(|value| !value.is_empty()) else { return Ok(None) };
    value.into_string().map(Some).map_err(|_| SettingsError::NotText { variable: name })
}

/// Returns whether this is the value of `X_PORT` that Kubernetes sets in each pod of a namespace
/// with a Service named x (service links), such as `tcp://10.0.0.1:6379`.
pub(super) fn is_service_link(value: &str) -> bool {
    ["tcp://", "udp://", "sctp://"].iter().any(|scheme| value.starts_with(scheme))
}
