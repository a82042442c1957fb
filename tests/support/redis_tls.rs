//! Redis servers that speak TLS, with certificates made for the test by openssl.

#![allow(dead_code)] // each test binary uses its own part

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::redis_support::{PrivateRedis, free_port, random_word};

/// An authority of the test's own, in a directory of its own.
pub struct Authority(PathBuf);

impl Authority {
    pub fn new() -> Self {
        let directory = std::env::temp_dir().join(format!("lockkeeper-ca-{}", random_word()));
        std::fs::create_dir(&directory).unwrap();
        let authority = Self(directory);
        // Two of the same name would be told apart by their signatures only.
        authority.openssl(&format!(
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 \
             -subj /CN=authority-{} -keyout ca.key -out ca.crt",
            random_word()
        ));
        authority
    }

    /// Makes `NAME.crt` and `NAME.key`, for these subject alternative names.
    pub fn sign(&self, name: &str, names: &str) {
        self.openssl(&format!(
            "req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN={name} \
             -addext subjectAltName={names} -keyout {name}.key -out {name}.csr",
        ));
        self.openssl(&format!(
            "x509 -req -in {name}.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 \
             -copy_extensions copy -out {name}.crt",
        ));
    }

    fn openssl(&self, arguments: &str) {
        let mut command = Command::new("openssl");
        command.args(arguments.split_whitespace()).current_dir(&self.0);
        let output = command.output().expect("openssl is installed");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    pub fn file(&self, name: &str) -> String {
        self.0.join(name).to_string_lossy().into_owned()
    }

    pub fn text(&self, name: &str) -> String {
        std::fs::read_to_string(Path::new(&self.file(name))).unwrap()
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A server that speaks TLS on a second port.
pub struct TlsServer {
    pub authority: Authority,
    pub plain: PrivateRedis,
    pub port: u16,
}

impl TlsServer {
    pub async fn start(names: &str, wants_certificate: bool) -> Self {
        let authority = Authority::new();
        authority.sign("server", names);
        authority.sign("client", "DNS:client");
        let port = free_port();
        let server = PrivateRedis::start(&[
            "--tls-port",
            &port.to_string(),
            "--tls-cert-file",
            &authority.file("server.crt"),
            "--tls-key-file",
            &authority.file("server.key"),
            "--tls-ca-cert-file",
            &authority.file("ca.crt"),
            "--tls-auth-clients",
            if wants_certificate { "yes" } else { "no" },
        ])
        .await;
        Self { authority, plain: server, port }
    }
}
