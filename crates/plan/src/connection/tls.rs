//! The certificates of a TLS connection, as PEM texts. They are not parsed here: whether
//! they match shows when a connection is opened.

use std::fmt;

use secrecy::{ExposeSecret, SecretString};

use super::SettingsError;

/// Certificates that authenticate the server and the client of a TLS connection. The host
/// name is always verified.
#[derive(Clone, Default)]
pub struct TlsSettings {
    /// CA certificates, as PEM, that may have signed the server's certificate. `None`:
    /// the machine's trusted CAs.
    pub authorities: Option<String>,
    /// The certificate for a server that requests one.
    pub client: Option<ClientCertificate>,
}

/// A client certificate and its key.
#[derive(Clone)]
pub struct ClientCertificate {
    /// The certificate and its chain to the CA, as PEM.
    pub chain: String,
    /// The private key, as PEM.
    pub key: SecretString,
}

impl TlsSettings {
    /// Returns the authorities, and the client's certificate and key. The key is a secret.
    #[must_use]
    pub fn expose(&self) -> (Option<&str>, Option<(&str, &str)>) {
        let client = self.client.as_ref();
        let client = client.map(|client| (client.chain.as_str(), client.key.expose_secret()));
        (self.authorities.as_deref(), client)
    }
}

// Shows which certificates are set, without their content.
impl fmt::Debug for TlsSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsSettings")
            .field("own_authorities", &self.authorities.is_some())
            .field("client_certificate", &self.client.is_some())
            .finish()
    }
}

impl fmt::Debug for ClientCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClientCertificate")
    }
}

/// The names of the three texts in their source, for error messages.
pub(super) struct Names {
    pub(super) authorities: &'static str,
    pub(super) chain: &'static str,
    pub(super) key: &'static str,
}

impl Names {
    /// The keys of a Secret, as Kubernetes defines them for TLS.
    pub(super) const OF_A_SECRET: Self =
        Self { authorities: "ca.crt", chain: "tls.crt", key: "tls.key" };

    /// Reads these optional files. `read` returns a file's text, or `None` to give up.
    pub(super) fn read(
        &self,
        files: [Option<String>; 3],
        read: impl Fn(&str) -> Option<String>,
    ) -> Result<[Option<String>; 3], SettingsError> {
        let text = |key, file: Option<String>| {
            let why = "the file can't be read";
            file.map(|file| read(&file).ok_or(SettingsError::BadValue { key, why })).transpose()
        };
        let [authorities, chain, key] = files;
        Ok([text(self.authorities, authorities)?, text(self.chain, chain)?, text(self.key, key)?])
    }
}

impl TlsSettings {
    /// Creates settings from optional PEM texts. A certificate requires its key and vice
    /// versa.
    pub(super) fn from_pem(
        names: &Names,
        [authorities, chain, key]: [Option<String>; 3],
    ) -> Result<Self, SettingsError> {
        let key = key.map(SecretString::from);
        let is_certificate = |text: &str| text.contains("-----BEGIN CERTIFICATE-----");
        for (name, text) in [(names.authorities, &authorities), (names.chain, &chain)] {
            if text.as_deref().is_some_and(|text| !is_certificate(text)) {
                let why = "expected a certificate as PEM, -----BEGIN CERTIFICATE-----";
                return Err(SettingsError::BadValue { key: name, why });
            }
        }
        let is_key = |key: &SecretString| {
            let text = key.expose_secret();
            text.contains("-----BEGIN ") && text.contains("PRIVATE KEY-----")
        };
        if key.as_ref().is_some_and(|key| !is_key(key)) {
            let why = "expected an unencrypted private key as PEM, -----BEGIN PRIVATE KEY-----";
            return Err(SettingsError::BadValue { key: names.key, why });
        }
        let client = match (chain, key) {
            (Some(chain), Some(key)) => Some(ClientCertificate { chain, key }),
            (None, None) => None,
            (Some(_), None) => {
                let instead = "the certificate's private key, as PEM";
                return Err(SettingsError::MissingKey { key: names.key, instead });
            }
            (None, Some(_)) => {
                let instead = "the private key's certificate, as PEM";
                return Err(SettingsError::MissingKey { key: names.chain, instead });
            }
        };
        Ok(Self { authorities, client })
    }
}
