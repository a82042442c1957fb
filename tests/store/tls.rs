//! Encrypted connections: whom we trust, whom the server trusts, and what is
//! said when one of them does not. Real servers with certificates made for the
//! test.

use std::path::{Path, PathBuf};
use std::process::Command;

use lockkeeper::plan::ErrorClass;
use lockkeeper::plan::connection::{RedisSettings, SecretData};
use lockkeeper::plan::naming::QueueName;
use lockkeeper::plan::pressure_queue::QueueEffect;
use lockkeeper::pressure::{Applied, Deletion, Store, StoreError, StoreOptions};

use crate::redis_support::{PrivateRedis, free_port, random_word};

/// An authority of the test's own, in a directory of its own.
struct Authority(PathBuf);

impl Authority {
    fn new() -> Self {
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
    fn sign(&self, name: &str, names: &str) {
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

    fn file(&self, name: &str) -> String {
        self.0.join(name).to_string_lossy().into_owned()
    }

    fn text(&self, name: &str) -> String {
        std::fs::read_to_string(Path::new(&self.file(name))).unwrap()
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A server that speaks TLS on a second port.
struct TlsServer {
    authority: Authority,
    plain: PrivateRedis,
    port: u16,
}

impl TlsServer {
    async fn start(names: &str, wants_certificate: bool) -> Self {
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

    /// Settings as a Secret with these further keys gives them.
    fn settings(&self, host: &str, more: &[(&str, &str)]) -> RedisSettings {
        let port = self.port.to_string();
        let keys = [("host", host), ("port", port.as_str()), ("tls", "true")];
        let pairs = keys.iter().chain(more);
        let data: SecretData =
            pairs.map(|(key, value)| ((*key).to_owned(), (*value).into())).collect();
        RedisSettings::from_secret(&data, None).unwrap()
    }
}

fn store(settings: RedisSettings) -> Store {
    Store::new(settings, StoreOptions::new("the operator"))
}

async fn works(settings: RedisSettings) {
    let (store, queue) = (store(settings), QueueName::new("p", "q").unwrap());
    let create = QueueEffect::Create { bound: 3 };
    assert_eq!(store.apply(&queue, &create).await.unwrap(), Applied::Done);
    assert_eq!(store.observe(&queue).await.unwrap().bound, Some(3));
    assert_eq!(store.delete(&queue, false).await.unwrap(), Deletion::Gone);
}

async fn is_refused(settings: RedisSettings, says: &str) {
    let err = store(settings).observe(&QueueName::new("p", "q").unwrap()).await.unwrap_err();
    assert!(matches!(err, StoreError::CertificateRefused { .. }), "{err:?}");
    assert_eq!(err.class(), ErrorClass::Invalid);
    assert_eq!(err.reason(), "StoreCertificateRefused");
    let text = err.to_string();
    assert!(text.contains(says) && !text.contains("BEGIN"), "{text}");
}

#[tokio::test]
async fn an_encrypted_connection_works_with_the_authority_of_the_secret() {
    let server = TlsServer::start("DNS:localhost,IP:127.0.0.1", false).await;
    let authority = server.authority.text("ca.crt");
    for host in ["localhost", "127.0.0.1"] {
        works(server.settings(host, &[("ca.crt", &authority)])).await;
    }
    // As programs say it.
    let url = format!("rediss://localhost:{}/0", server.port);
    let file = server.authority.file("ca.crt");
    let variable = |name: &str| match name {
        "REDIS_URL" => Some(url.clone()),
        "REDIS_TLS_CA_FILE" => Some(file.clone()),
        _ => None,
    };
    let read = |file: &str| std::fs::read_to_string(file).ok();
    works(RedisSettings::from_environment(variable, read).unwrap()).await;
}

#[tokio::test]
async fn a_server_whose_authority_is_not_trusted_is_refused_and_told_why() {
    let server = TlsServer::start("DNS:localhost", false).await;
    let stranger = Authority::new().text("ca.crt");
    is_refused(server.settings("localhost", &[("ca.crt", &stranger)]), "UnknownIssuer").await;
    // The machine's own authorities did not sign it either.
    is_refused(server.settings("localhost", &[]), "UnknownIssuer").await;
}

#[tokio::test]
async fn a_certificate_of_another_host_is_refused() {
    let server = TlsServer::start("DNS:elsewhere", false).await;
    let authority = server.authority.text("ca.crt");
    is_refused(server.settings("localhost", &[("ca.crt", &authority)]), "not valid for name").await;
}

#[tokio::test]
async fn a_server_that_wants_a_certificate_gets_ours_and_refuses_who_has_none() {
    let server = TlsServer::start("DNS:localhost", true).await;
    let text = |name| server.authority.text(name);
    let (authority, chain, key) = (text("ca.crt"), text("client.crt"), text("client.key"));
    let ours = [("ca.crt", authority.as_str()), ("tls.crt", &chain), ("tls.key", &key)];
    works(server.settings("localhost", &ours)).await;
    is_refused(server.settings("localhost", &ours[..1]), "CertificateRequired").await;

    // Signed by an authority that the server does not know.
    let stranger = Authority::new();
    stranger.sign("client", "DNS:client");
    let (chain, other_key) = (stranger.text("client.crt"), stranger.text("client.key"));
    let wrong = [("ca.crt", authority.as_str()), ("tls.crt", &chain), ("tls.key", &other_key)];
    is_refused(server.settings("localhost", &wrong), "UnknownCA").await;
    // A key that is not the certificate's.
    let mixed = [("ca.crt", authority.as_str()), ("tls.crt", &chain), ("tls.key", &key)];
    is_refused(server.settings("localhost", &mixed), "").await;
}

#[tokio::test]
async fn a_port_that_speaks_the_other_way_is_refused_within_the_time_to_connect() {
    let server = TlsServer::start("DNS:localhost", false).await;
    let queue = QueueName::new("p", "q").unwrap();
    let plain = RedisSettings::from_url(&format!("redis://localhost:{}", server.port)).unwrap();
    let err = store(plain).observe(&queue).await.unwrap_err();
    assert!(matches!(err, StoreError::Unreachable { .. }), "{err:?}");

    let url = server.plain.url().replace("redis:", "rediss:");
    let err = store(RedisSettings::from_url(&url).unwrap()).observe(&queue).await.unwrap_err();
    // A server that makes nothing of the greeting may wait for more of it.
    let is_expected = matches!(err, StoreError::CertificateRefused { .. } | StoreError::Timeout);
    assert!(is_expected, "{err:?}");
}
