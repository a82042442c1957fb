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
    /// Where the user sets these texts.
    names: Names,
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
    /// Returns the authorities, the client's certificate and its key, and the names of the
    /// three for error messages. The key is a secret.
    #[must_use]
    pub fn expose(&self) -> ([Option<&str>; 3], [&'static str; 3]) {
        let client = self.client.as_ref();
        let chain = client.map(|client| client.chain.as_str());
        let key = client.map(|client| client.key.expose_secret());
        let Names { authorities, chain: of_chain, key: of_key } = self.names;
        ([self.authorities.as_deref(), chain, key], [authorities, of_chain, of_key])
    }
}

// Shows which certificates are set, without their content.
impl fmt::Debug for TlsSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsSettings")
            .field("own_authorities", &self.authorities.is_some())
            .field("client_certificate", &self.client.is_some())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ClientCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClientCertificate")
    }
}

/// The names of the three texts in their source, for error messages.
#[derive(Clone, Copy)]
pub(super) struct Names {
    pub(super) authorities: &'static str,
    pub(super) chain: &'static str,
    pub(super) key: &'static str,
}

impl Default for Names {
    fn default() -> Self {
        Self::OF_A_SECRET
    }
}

impl Names {
    /// The keys of a Secret, as Kubernetes defines them for TLS.
    pub(super) const OF_A_SECRET: Self =
        Self { authorities: "ca.crt", chain: "tls.crt", key: "tls.key" };

    /// The error for certificates of a connection that is not encrypted, if there are any.
    pub(super) fn unused(
        &self,
        texts: &[Option<String>; 3],
        next: &'static str,
    ) -> Result<(), SettingsError> {
        let names = [self.authorities, self.chain, self.key];
        let given = names.into_iter().zip(texts).find(|(_, text)| text.is_some());
        given.map_or(Ok(()), |(key, _)| Err(SettingsError::NotEncrypted { key, next }))
    }

    /// Reads these optional files. `read` returns a file's content, or `None` to give up. PEM
    /// is ASCII, and the text around it may have any encoding (RFC 7468).
    pub(super) fn read(
        &self,
        files: [Option<String>; 3],
        read: impl Fn(&str) -> Option<Vec<u8>>,
    ) -> Result<[Option<String>; 3], SettingsError> {
        let text = |key, file: Option<String>| {
            let why = "the file can't be read";
            let lossy = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
            let read = |file: String| read(&file).map(lossy);
            file.map(|file| read(file).ok_or(SettingsError::BadValue { key, why })).transpose()
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
        texts: [Option<String>; 3],
    ) -> Result<Self, SettingsError> {
        let [authorities, chain, key] = texts.map(|text| text.as_deref().map(normalized));
        let key = key.map(SecretString::from);
        let has = |text: &str, wanted: &str| text.lines().any(|line| line == wanted);
        let is_certificate = |text: &str| has(text, "-----BEGIN CERTIFICATE-----");
        for (name, text) in [(names.authorities, &authorities), (names.chain, &chain)] {
            if text.as_deref().is_some_and(|text| !is_certificate(text)) {
                let why = "expected a certificate as PEM, -----BEGIN CERTIFICATE-----";
                return Err(SettingsError::BadValue { key: name, why });
            }
        }
        let is_key = |key: &SecretString| {
            let text = key.expose_secret();
            let is_label = |line: &str| line.ends_with("PRIVATE KEY-----");
            text.lines().any(|line| line.starts_with("-----BEGIN ") && is_label(line))
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
        Ok(Self { authorities, client, names: *names })
    }
}

/// Removes from PEM what editors and manifests add around its lines: a byte order mark,
/// indentation, and blanks. With them, a parser finds no certificate, and reports nothing.
fn normalized(text: &str) -> String {
    let is_added = |c: char| c.is_whitespace() || c == '\u{feff}';
    let lines = text.split(['\n', '\r']).map(|line| line.trim_matches(is_added));
    lines.filter(|line| !line.is_empty()).flat_map(|line| [line, "\n"]).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::data;
    use super::super::{RabbitmqSettings, RedisSettings, secret_data};
    use super::*;

    const LINES: [&str; 3] = ["-----BEGIN CERTIFICATE-----", "MIIB", "-----END CERTIFICATE-----"];

    fn of_a_file(bytes: &[u8]) -> Result<TlsSettings, SettingsError> {
        let variable = |name: &str| (name == "RABBITMQ_TLS_CA_FILE").then(|| "/ca".into());
        let broker = RabbitmqSettings::from_urls("amqps://h", None).unwrap();
        let broker = broker.with_tls_of_environment(variable, |_| Some(bytes.to_vec()));
        let variable = |name: &str| match name {
            "REDIS_URL" => Some("rediss://h".into()),
            "REDIS_TLS_CA_FILE" => Some("/ca".into()),
            _ => None,
        };
        let server = RedisSettings::from_environment(variable, |_| Some(bytes.to_vec()));
        assert_eq!(broker.is_ok(), server.is_ok());
        broker.map(|broker| broker.tls.unwrap())
    }

    /// What surrounds PEM in files that people make is ignored, and the rest is unchanged.
    #[test]
    fn a_certificate_is_found_whatever_surrounds_its_lines() {
        let [begin, middle, end] = LINES;
        let pem = format!("{begin}\n{middle}\n{end}\n");
        for bytes in [
            pem.clone().into_bytes(),
            [b"\xef\xbb\xbf", pem.as_bytes()].concat(),
            [b"# Zertifikat f\xfcr alle\n", pem.as_bytes(), b"\xa4\n"].concat(),
            format!("  {begin}\n\t{middle} \n  {end}").into_bytes(),
            format!("\u{a0}{begin}\r\n\r\n{middle}\r\n{end}\r\n").into_bytes(),
            format!("{begin}\r{middle}\r{end}\r").into_bytes(),
        ] {
            let read = of_a_file(&bytes).unwrap().authorities.unwrap();
            assert!(read.contains(&pem), "{read:?}");
            let keys = [("amqpUri", b"amqps://u:p@h".to_vec()), ("ca.crt", bytes)];
            let keys = secret_data(keys.map(|(key, value)| (key.to_owned(), value))).unwrap();
            let tls = RabbitmqSettings::from_secret(&keys, None).unwrap().tls.unwrap();
            assert_eq!(tls.authorities, Some(read));
        }
    }

    #[test]
    fn a_file_without_a_certificate_is_named_by_its_variable() {
        let utf_16: Vec<u8> = LINES[0].bytes().flat_map(|byte| [byte, 0]).collect();
        for bytes in
            [b"".to_vec(), b"x".to_vec(), b"# -----BEGIN CERTIFICATE-----".to_vec(), utf_16]
        {
            let error = of_a_file(&bytes).unwrap_err().to_string();
            assert!(error.contains("RABBITMQ_TLS_CA_FILE is not valid"), "{error}");
        }
    }

    #[test]
    fn the_names_of_the_texts_are_those_of_their_source() {
        let set = RabbitmqSettings::from_urls("amqps://h", None).unwrap();
        let set = set.with_tls_of_environment(|_| None, |_| None).unwrap().tls.unwrap();
        let variables = ["RABBITMQ_TLS_CA_FILE", "RABBITMQ_TLS_CERT_FILE", "RABBITMQ_TLS_KEY_FILE"];
        assert_eq!(set.expose().1, variables);
        let keys = data(&[("amqpUri", "amqps://u:p@h")]);
        let keys = RabbitmqSettings::from_secret(&keys, None).unwrap().tls.unwrap();
        assert_eq!(keys.expose().1, ["ca.crt", "tls.crt", "tls.key"]);
    }
}
