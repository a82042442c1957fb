//! Splits the URL of a server into its parts, strictly. A password that is not
//! percent-encoded would otherwise be read as a host, a port or a path, and be shown as
//! such. Errors never contain a part of the URL.

use std::net::Ipv6Addr;

use super::error::SettingsError;
use super::query::{self, Parameter};

/// What to do about a character that has a meaning in URLs.
const ENCODE: &str = r"percent-encode the user, the password and the path: @ is %40, / is %2F, ? is %3F, # is %23, \ is %5C, a blank is %20";
const FRAGMENT: &str =
    "it has a fragment: if the # belongs to the password, percent-encode the password, # is %23";
const HOST: &str = "expected a host name or an address between the login and the port: percent-encode the user and the password";

const NO_PORT: &str = "a port is a number from 1 to 65535";

/// Parses a port, from 1 to 65535.
pub(super) fn port(text: &str, key: &'static str) -> Result<u16, SettingsError> {
    let port = text.parse().ok().filter(|port| *port > 0);
    port.ok_or(SettingsError::BadValue { key, why: NO_PORT })
}

/// A URL without its scheme, of one or more hosts.
pub(super) struct Address<'a> {
    /// User, still percent-encoded. Empty without a login.
    pub username: &'a str,
    /// Password, still percent-encoded.
    pub password: Option<&'a str>,
    /// Host and port, or several of them, separated by commas.
    pub hosts: &'a str,
    /// Path with its first slash, or nothing.
    pub path: &'a str,
    /// The value of the query parameter that is heeded, still percent-encoded.
    pub query: Option<&'a str>,
    /// The text after `#`, still percent-encoded.
    pub fragment: Option<&'a str>,
    key: &'static str,
}

/// Splits a URL after its scheme, which is returned in lower case.
pub(super) fn scheme(text: &str) -> Option<(String, &str)> {
    let (scheme, rest) = text.trim().split_once("://")?;
    Some((scheme.to_ascii_lowercase(), rest))
}

impl<'a> Address<'a> {
    /// Splits the text after `scheme://`. See [`query::value`] for `heeded` and `known`.
    pub fn split(
        text: &'a str,
        key: &'static str,
        heeded: &[&str],
        known: &[Parameter],
    ) -> Result<Self, SettingsError> {
        let bad = |why| SettingsError::BadValue { key, why };
        if text.contains(|c: char| c.is_whitespace() || c.is_control() || c == '\\') {
            return Err(bad(ENCODE));
        }
        let (authority, rest) = text.split_at(text.find(['/', '?', '#']).unwrap_or(text.len()));
        let (login, hosts) = authority.split_once('@').unwrap_or(("", authority));
        if hosts.contains('@') || rest.contains('@') {
            return Err(bad(ENCODE));
        }
        let (rest, fragment) = match rest.split_once('#') {
            Some((rest, fragment)) => (rest, Some(fragment)),
            None => (rest, None),
        };
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let query = query::value(query, key, heeded, known)?;
        let (username, password) = match login.split_once(':') {
            Some((username, password)) => (username, Some(password)),
            None => (login, None),
        };
        Ok(Self { username, password, hosts, path, query, fragment, key })
    }

    /// Rejects a fragment, where none has a meaning.
    pub fn without_fragment(self) -> Result<Self, SettingsError> {
        match self.fragment {
            Some(_) => Err(SettingsError::BadValue { key: self.key, why: FRAGMENT }),
            None => Ok(self),
        }
    }

    /// Returns the only host, and its port.
    pub fn host_and_port(&self, default: u16) -> Result<(String, u16), SettingsError> {
        host_and_port(self.hosts, default, self.key)
    }

    /// Returns the hosts with their ports.
    pub fn hosts_and_ports(&self, default: u16) -> Result<Vec<(String, u16)>, SettingsError> {
        self.hosts.split(',').map(|host| host_and_port(host, default, self.key)).collect()
    }
}

/// Parses a host with an optional port. An IPv6 address is in brackets.
fn host_and_port(
    text: &str,
    default: u16,
    key: &'static str,
) -> Result<(String, u16), SettingsError> {
    let bad = |why| SettingsError::BadValue { key, why };
    let (host, after) = match text.strip_prefix('[') {
        Some(bracketed) => bracketed.split_once(']').ok_or_else(|| bad(HOST))?,
        None => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    if host.is_empty() {
        return Err(bad("it names no host"));
    }
    if host.contains(':') != text.starts_with('[') || !is_host(host) {
        return Err(bad(HOST));
    }
    let port = match after.strip_prefix(':') {
        None if after.is_empty() => default,
        None => return Err(bad(HOST)),
        Some("") => default,
        Some(text) => port(text, key)?,
    };
    Ok((host.to_owned(), port))
}

/// Parses a host that has a key of its own. `why` says where its port belongs.
pub(super) fn host(
    text: &str,
    key: &'static str,
    why: &'static str,
) -> Result<String, SettingsError> {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    if is_host(bare) { Ok(bare.to_owned()) } else { Err(SettingsError::BadValue { key, why }) }
}

/// Returns whether the text is a host name or an address. The longest name has 253
/// characters.
fn is_host(text: &str) -> bool {
    let is_of_a_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    let is_name = (1..=253).contains(&text.len()) && text.bytes().all(is_of_a_name);
    is_name || text.parse::<Ipv6Addr>().is_ok()
}
