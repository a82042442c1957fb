//! Builds the rustls configuration for a connection to a broker, to its management
//! API or to Redis, from certificates as text. See `connection` in the crate `plan` for
//! where the texts come from; the crates that connect are `semaphore` and `pressure`.

use std::io;
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

/// The certificates of a connection, as PEM: the CAs that may have signed the server's
/// certificate (`None`: those that the machine trusts), and the client's certificate with its
/// chain and its private key.
pub type Certificates<'a> = (Option<&'a str>, Option<(&'a str, &'a str)>);

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
    let mut roots = RootCertStore::empty();
    match certificates.map(|(authorities, _)| authorities) {
        None => {}
        Some(Some(pem)) => {
            for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
                let added = certificate.map_err(|_| "not PEM".to_owned()).and_then(|certificate| {
                    roots.add(certificate).map_err(|error| error.to_string())
                });
                added.map_err(|why| format!("ca.crt is not a certificate: {why}"))?;
            }
        }
        Some(None) => {
            let found = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(found.certs);
            if roots.is_empty() {
                let why = "there is no ca.crt, and this machine trusts no authority";
                return Err(why.to_owned());
            }
        }
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots);
    let Some((chain, key)) = certificates.and_then(|(_, client)| client) else {
        return Ok(Arc::new(builder.with_no_client_auth()));
    };
    let chain = CertificateDer::pem_slice_iter(chain.as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .map_err(|_| "tls.crt is not a certificate".to_owned())?;
    // The error could contain text of the key.
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes())
        .map_err(|_| "tls.key is not a private key".to_owned())?;
    let config = builder.with_client_auth_cert(chain, key);
    let config = config.map_err(|error| format!("tls.key and tls.crt: {error}"))?;
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use rustls::{
        AlertDescription, CertificateError, Error, InvalidMessage, PeerIncompatible, PeerMisbehaved,
    };

    use super::*;

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
