//! Text of environment variables. A value that is not UTF-8 is an error: read as unset, it would
//! lead to another server or to other keys.

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
