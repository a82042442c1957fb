//! Encrypted connections: which certificates each side trusts, and the errors of rejected
//! ones. Uses real servers with certificates made for the test.

use lockkeeper_plan::ErrorClass;
use lockkeeper_plan::connection::{RedisSettings, SecretData};
use lockkeeper_plan::naming::QueueName;
use lockkeeper_plan::pressure_queue::QueueEffect;
use lockkeeper_pressure::{Applied, Deletion, Store, StoreError, StoreOptions, TakenRoles};
use lockkeeper_testkit::authority::Authority;
use lockkeeper_testkit::redis_tls::TlsServer;

/// Returns settings as read from a Secret with these additional keys.
fn settings(server: &TlsServer, host: &str, more: &[(&str, &str)]) -> RedisSettings {
    let port = server.port.to_string();
    let keys = [("host", host), ("port", port.as_str()), ("tls", "true")];
    let pairs = keys.iter().chain(more);
    let data: SecretData = pairs.map(|(key, value)| ((*key).to_owned(), (*value).into())).collect();
    RedisSettings::from_secret(&data, None).unwrap()
}

fn store(settings: RedisSettings) -> Store {
    Store::new(settings, StoreOptions::new("the operator"))
}

async fn works(settings: RedisSettings) {
    let (store, queue) = (store(settings), QueueName::new("p", "q").unwrap());
    let create = QueueEffect::Create { bound: 3 };
    assert_eq!(store.apply(&queue, &create).await.unwrap(), Applied::Done);
    assert_eq!(store.observe(&queue).await.unwrap().bound, Some(3));
    assert_eq!(store.delete(&queue, TakenRoles::Wait).await.unwrap(), Deletion::Gone);
}

/// Text of the error when the server rejects our certificate and its reason does not
/// arrive in time.
const ENDED: &str = "right after the handshake";

async fn is_refused(settings: RedisSettings, says: &[&str]) {
    let err = store(settings).observe(&QueueName::new("p", "q").unwrap()).await.unwrap_err();
    assert!(matches!(err, StoreError::CertificateRefused { .. }), "{err:?}");
    assert_eq!(err.class(), ErrorClass::Invalid);
    assert_eq!(err.reason(), "StoreCertificateRefused");
    let text = err.to_string();
    let is_said = says.iter().any(|part| text.contains(part));
    assert!(is_said && !text.contains("BEGIN"), "{text}");
}

#[tokio::test]
async fn an_encrypted_connection_works_with_the_authority_of_the_secret() {
    let server = TlsServer::start("DNS:localhost,IP:127.0.0.1", false).await;
    let authority = server.authority.text("ca.crt");
    for host in ["localhost", "127.0.0.1"] {
        works(settings(&server, host, &[("ca.crt", &authority)])).await;
    }
    // The URL as programs specify it.
    let url = format!("rediss://localhost:{}/0", server.port);
    let file = server.authority.file("ca.crt");
    let variable = |name: &str| match name {
        "REDIS_URL" => Some(url.clone().into()),
        "REDIS_TLS_CA_FILE" => Some(file.clone().into()),
        _ => None,
    };
    let read = |file: &str| std::fs::read(file).ok();
    works(RedisSettings::from_environment(variable, read).unwrap()).await;
}

#[tokio::test]
async fn a_server_whose_authority_is_not_trusted_is_rejected_with_the_reason() {
    let server = TlsServer::start("DNS:localhost", false).await;
    let stranger = Authority::new().text("ca.crt");
    is_refused(settings(&server, "localhost", &[("ca.crt", &stranger)]), &["UnknownIssuer"]).await;
    // Nor if the authority is not a certificate.
    let nothing = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let settings_with = |ca: &str| settings(&server, "localhost", &[("ca.crt", ca)]);
    is_refused(settings_with(nothing), &["ca.crt is not a certificate"]).await;
    // The system's authorities did not sign it either.
    is_refused(settings(&server, "localhost", &[]), &["UnknownIssuer"]).await;
}

#[tokio::test]
async fn a_server_with_the_certificate_of_an_authority_is_refused_in_words() {
    let server = TlsServer::start_as_authority().await;
    let authority = server.authority.text("ca.crt");
    let settings = settings(&server, "localhost", &[("ca.crt", &authority)]);
    is_refused(settings, &["CaUsedAsEndEntity, it is that of an authority"]).await;
}

#[tokio::test]
async fn a_certificate_of_another_host_is_refused() {
    let server = TlsServer::start("DNS:elsewhere", false).await;
    let authority = server.authority.text("ca.crt");
    is_refused(settings(&server, "localhost", &[("ca.crt", &authority)]), &["not valid for name"])
        .await;
}

#[tokio::test]
async fn a_server_that_requires_a_certificate_gets_ours_and_rejects_clients_without_one() {
    let server = TlsServer::start("DNS:localhost", true).await;
    let text = |name| server.authority.text(name);
    let (authority, chain, key) = (text("ca.crt"), text("client.crt"), text("client.key"));
    let ours = [("ca.crt", authority.as_str()), ("tls.crt", &chain), ("tls.key", &key)];
    works(settings(&server, "localhost", &ours)).await;
    is_refused(settings(&server, "localhost", &ours[..1]), &["CertificateRequired", ENDED]).await;

    // Signed by an authority that the server does not trust.
    let stranger = Authority::new();
    stranger.sign("client", "DNS:client");
    let (chain, other_key) = (stranger.text("client.crt"), stranger.text("client.key"));
    let wrong = [("ca.crt", authority.as_str()), ("tls.crt", &chain), ("tls.key", &other_key)];
    is_refused(settings(&server, "localhost", &wrong), &["UnknownCA", ENDED]).await;
    // A key that does not belong to the certificate.
    let mixed = [("ca.crt", authority.as_str()), ("tls.crt", &chain), ("tls.key", &key)];
    is_refused(settings(&server, "localhost", &mixed), &[""]).await;
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
    // A server that cannot parse the handshake may wait for more data.
    let is_expected =
        matches!(err, StoreError::CertificateRefused { .. } | StoreError::HandshakeTimeout);
    assert!(is_expected, "{err:?}");
}
