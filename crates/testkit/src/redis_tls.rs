//! Redis servers with TLS, with certificates made for the test.

use crate::authority::Authority;
use crate::redis::{PrivateRedis, free_port};

/// A server with TLS on a second port.
pub struct TlsServer {
    /// The authority that signed its certificate.
    pub authority: Authority,
    /// The server, on its port without TLS.
    pub plain: PrivateRedis,
    /// Its port with TLS.
    pub port: u16,
}

impl TlsServer {
    /// Starts a server whose certificate has these names, and which may require one of its clients.
    pub async fn start(names: &str, wants_certificate: bool) -> Self {
        let authority = Authority::new();
        authority.sign("server", names);
        authority.sign("client", "DNS:client");
        Self::start_as(authority, "server", wants_certificate).await
    }

    /// Starts a server that shows the certificate of its authority as its own.
    pub async fn start_as_authority() -> Self {
        Self::start_as(Authority::new(), "ca", false).await
    }

    async fn start_as(authority: Authority, name: &str, wants_certificate: bool) -> Self {
        let port = free_port();
        let server = PrivateRedis::start(&[
            "--tls-port",
            &port.to_string(),
            "--tls-cert-file",
            &authority.file(&format!("{name}.crt")),
            "--tls-key-file",
            &authority.file(&format!("{name}.key")),
            "--tls-ca-cert-file",
            &authority.file("ca.crt"),
            "--tls-auth-clients",
            if wants_certificate { "yes" } else { "no" },
        ])
        .await;
        Self { authority, plain: server, port }
    }
}
