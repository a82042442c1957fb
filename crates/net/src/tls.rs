//! Builds the rustls configuration for a connection to a broker, to its management
//! API or to Redis, from certificates as text. See `connection` in the crate `plan` for
//! where the texts come from; the crates that connect are `semaphore` and `pressure`.

use std::io;
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

/// The certificates of a connection, as PEM, and their names for error messages: the CAs that
/// may have signed the server's certificate (`None`: those that the machine trusts), the
/// client's certificate with its chain, and its private key.
pub type Certificates<'a> = ([Option<&'a str>; 3], [&'static str; 3]);

/// rustls's text for a server that shows the certificate of an authority as its own, and the
/// text for users.
const AUTHORITY_AS_SERVER: [&str; 2] = [
    "Other(OtherError(CaUsedAsEndEntity))",
    "CaUsedAsEndEntity, it is that of an authority (CA:TRUE), and a server needs one of its own (CA:FALSE)",
];

/// Returns the text of an error of a connection, with TLS in words for users.
pub fn description(error: &dyn std::fmt::Display) -> String {
    let [from, to] = AUTHORITY_AS_SERVER;
    error.to_string().replace(from, to)
}

/// Returns whether an error of a connection is one of TLS: one side rejected the other's
/// certificate, or one of them does not speak TLS. Other errors are those of the network.
pub fn is_failure_of(error: &io::Error) -> bool {
    let Some(inner) = error.get_ref() else { return false };
    // The handshake's end without an alert is an error of tokio-rustls, which has no type.
    inner.is::<rustls::Error>() || inner.to_string() == "tls handshake eof"
}

/// Builds the rustls configuration for these certificates, always with the ring provider.
/// Without certificates, no server is trusted.
///
/// # Errors
///
/// The cause, in words of rustls, which never contain the text of a certificate or key.
pub fn client_config(certificates: Option<Certificates<'_>>) -> Result<Arc<ClientConfig>, String> {
    let roots = match certificates {
        None => RootCertStore::empty(),
        Some(([authorities, ..], [name, ..])) => trusted(authorities, name)?,
    };
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots);
    let Some(([_, Some(chain), Some(key)], [_, of_chain, of_key])) = certificates else {
        return Ok(Arc::new(builder.with_no_client_auth()));
    };
    let chain = read(chain, of_chain)?;
    // The error could contain text of the key.
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes())
        .map_err(|_| format!("{of_key} is not a private key"))?;
    let config = builder.with_client_auth_cert(chain, key);
    let config = config.map_err(|error| format!("{of_key} and {of_chain}: {error}"))?;
    Ok(Arc::new(config))
}

/// Returns the CAs of this text, or those of the machine.
fn trusted(authorities: Option<&str>, name: &str) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    let Some(pem) = authorities else {
        let found = rustls_native_certs::load_native_certs();
        roots.add_parsable_certificates(found.certs);
        if roots.is_empty() {
            return Err(format!("there is no {name}, and this machine trusts no authority"));
        }
        return Ok(roots);
    };
    for certificate in read(pem, name)? {
        let added = roots.add(certificate);
        added.map_err(|error| format!("{name} is not a certificate: {error}"))?;
    }
    Ok(roots)
}

/// Returns the certificates of this text, at least one.
fn read(pem: &str, name: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let read = CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<Vec<_>, _>>();
    let read = read.map_err(|_| format!("{name} is not a certificate: not PEM"))?;
    if read.is_empty() { Err(format!("{name} contains no certificate")) } else { Ok(read) }
}

#[cfg(test)]
mod tests {
    use rustls::{
        AlertDescription, CertificateError, Error, InvalidMessage, PeerIncompatible, PeerMisbehaved,
    };

    use super::*;

    #[test]
    fn a_text_without_a_certificate_is_named_as_its_user_sets_it() {
        let names = ["MY_CA", "MY_CHAIN", "MY_KEY"];
        let said = |texts| client_config(Some((texts, names))).unwrap_err();
        for empty in ["", "x", "-----BEGIN X-----\nAAAA\n-----END X-----\n"] {
            assert_eq!(said([Some(empty), None, None]), "MY_CA contains no certificate");
        }
        let cut = "-----BEGIN CERTIFICATE-----\nAAAA\n";
        assert_eq!(said([Some(cut), None, None]), "MY_CA is not a certificate: not PEM");
        let trusts_none = client_config(Some(([None; 3], names)));
        let text = trusts_none.err().unwrap_or_else(|| "there is no MY_CA".to_owned());
        assert!(text.contains("there is no MY_CA"), "{text}");
    }

    #[test]
    fn an_authority_as_a_server_is_described_in_words() {
        let text = description(&"invalid peer certificate: Other(OtherError(CaUsedAsEndEntity))");
        assert!(text.contains("CaUsedAsEndEntity, it is that of an authority"), "{text}");
        assert!(!text.contains("Other"), "{text}");
    }

    #[test]
    fn an_error_of_tls_is_not_one_of_the_network() {
        let errors = [
            Error::InvalidCertificate(CertificateError::UnknownIssuer),
            Error::AlertReceived(AlertDescription::CertificateRequired),
            Error::InvalidMessage(InvalidMessage::InvalidContentType),
            Error::InappropriateMessage {
                expect_types: Vec::new(),
                got_type: rustls::ContentType::ApplicationData,
            },
            Error::PeerMisbehaved(PeerMisbehaved::TooManyWarningAlertsReceived),
            Error::PeerIncompatible(PeerIncompatible::NoCipherSuitesInCommon),
            Error::NoCertificatesPresented,
            Error::DecryptError,
            Error::PeerSentOversizedRecord,
            Error::HandshakeNotComplete,
        ];
        for error in errors {
            let error = io::Error::new(io::ErrorKind::InvalidData, error);
            assert!(is_failure_of(&error), "{error}");
        }
        let eof = io::ErrorKind::UnexpectedEof;
        assert!(is_failure_of(&io::Error::new(eof, "tls handshake eof")));
        for error in [io::ErrorKind::ConnectionRefused.into(), eof.into(), io::Error::new(eof, "x")]
        {
            assert!(!is_failure_of(&error), "{error}");
        }
    }
}
