//! Builds the rustls configuration for a connection to a broker, to its management
//! API or to Redis, from certificates as text. See `plan::connection` for where the
//! texts come from; the modules that connect are in `semaphore` and `pressure`.

use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use secrecy::ExposeSecret;

use crate::plan::clean_text;
use crate::plan::connection::TlsSettings;

/// Builds the rustls configuration for these settings, always with the ring provider.
/// Without settings, no certificate is trusted. Errors never contain the settings' text.
pub(crate) fn client_config(settings: Option<&TlsSettings>) -> Result<Arc<ClientConfig>, String> {
    let words = |error: &dyn std::fmt::Display| clean_text(&error.to_string(), 256);
    let mut roots = RootCertStore::empty();
    match settings.map(|settings| &settings.authorities) {
        None => {}
        Some(Some(pem)) => {
            for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
                let added = certificate
                    .map_err(|_| "not PEM".to_owned())
                    .and_then(|certificate| roots.add(certificate).map_err(|error| words(&error)));
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
        .map_err(|error| words(&error))?
        .with_root_certificates(roots);
    let Some(client) = settings.and_then(|settings| settings.client.as_ref()) else {
        return Ok(Arc::new(builder.with_no_client_auth()));
    };
    let chain = CertificateDer::pem_slice_iter(client.chain.as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .map_err(|_| "tls.crt is not a certificate".to_owned())?;
    // The error could contain text of the key.
    let key = PrivateKeyDer::from_pem_slice(client.key.expose_secret().as_bytes())
        .map_err(|_| "tls.key is not a private key".to_owned())?;
    let config = builder.with_client_auth_cert(chain, key);
    let config = config.map_err(|error| format!("tls.key and tls.crt: {}", words(&error)))?;
    Ok(Arc::new(config))
}
