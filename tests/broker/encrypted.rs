//! A broker over TLS: which certificates each side trusts, the errors of rejected
//! certificates, and that no key is ever shown. Uses a real broker with certificates made
//! for the test.

use std::time::{Duration, Instant};

use lockkeeper_plan::ErrorClass;
use lockkeeper_plan::connection::{RabbitmqSettings, SecretData};
use lockkeeper_semaphore::{Broker, BrokerError, BrokerOptions};
use lockkeeper_testkit::authority::Authority;
use lockkeeper_testkit::own_server::OwnServer;
use lockkeeper_testkit::rabbitmq::eventually;

use crate::broker::{lock, resize};

/// A broker that requires certificates, the authority of its own and its clients'
/// certificates, and another authority.
struct TlsBroker {
    server: OwnServer,
    authority: Authority,
    stranger: Authority,
}

impl TlsBroker {
    async fn new() -> Self {
        let (authority, stranger) = (Authority::new(), Authority::new());
        authority.sign("server", "DNS:localhost");
        authority.sign("client", "DNS:client");
        stranger.sign("client", "DNS:client");
        let server = OwnServer::rabbitmq_over_tls(&authority).await;
        Self { server, authority, stranger }
    }

    /// Returns settings as read from a Secret.
    fn settings(&self, host: &str, certificates: &[(&str, &str)]) -> RabbitmqSettings {
        let url = |name| self.server.variable(name).replace("localhost", host);
        let (amqp, management) = (url("AMQPS_URL"), url("RABBITMQ_MANAGEMENT_TLS_URL"));
        let uris = [("amqpUri", amqp.as_str()), ("managementUri", &management)];
        let pairs = uris.iter().chain(certificates);
        let data: SecretData =
            pairs.map(|(key, value)| ((*key).to_owned(), (*value).into())).collect();
        RabbitmqSettings::from_secret(&data, None).unwrap()
    }
}

fn broker(settings: RabbitmqSettings) -> Broker {
    Broker::new(settings, BrokerOptions::default())
}

/// Text of the error when the broker rejects our certificate and its reason does not
/// arrive in time.
const ENDED: &str = "right after the handshake";

async fn is_refused(settings: RabbitmqSettings, says: &[&str]) {
    let keys: Vec<String> = settings
        .tls
        .iter()
        .filter_map(|tls| tls.client.as_ref())
        .flat_map(|client| {
            let key = secrecy::ExposeSecret::expose_secret(&client.key);
            key.lines().filter(|line| line.len() > 20).map(str::to_owned).collect::<Vec<_>>()
        })
        .collect();
    let broker = broker(settings);
    let error = broker.observe(&lock(), 1, 1).await.unwrap_err();
    assert!(matches!(error, BrokerError::CertificateRefused { .. }), "{error:?}");
    assert_eq!((error.class(), error.reason()), (ErrorClass::Invalid, "CertificateRefused"));
    let text = error.to_string();
    println!("{text}");
    assert!(says.iter().any(|part| text.contains(part)), "{text}");
    for shown in [text, format!("{error:?} {broker:?}")] {
        assert!(!shown.contains("BEGIN"), "{shown}");
        assert!(!keys.iter().any(|line| shown.contains(line)), "a key is shown: {shown}");
    }
    // Over a connection that ends before the login.
    assert_eq!(broker.identity().await.unwrap_err().reason(), "CertificateRefused");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_side_of_an_encrypted_connection_checks_the_other_and_reports_the_error() {
    let place = TlsBroker::new().await;
    let text = |name| place.authority.text(name);
    let (authority, chain, key) = (text("ca.crt"), text("client.crt"), text("client.key"));
    let ours = [("ca.crt", authority.as_str()), ("tls.crt", &chain), ("tls.key", &key)];

    let works = broker(place.settings("localhost", &ours));
    resize(&works, 3, 3).await.unwrap();
    let seen = works.observe(&lock(), 3, 3).await.unwrap();
    assert_eq!(seen.total(), 3);
    let identity = works.identity().await.unwrap();
    assert_eq!(identity.product, "RabbitMQ");
    assert!(identity.cluster_id.is_some(), "the management API answers over TLS: {identity:?}");

    let other = place.stranger.text("ca.crt");
    let strangers = [("ca.crt", other.as_str()), ("tls.crt", &chain), ("tls.key", &key)];
    is_refused(place.settings("localhost", &strangers), &["UnknownIssuer"]).await;
    // The system's authorities did not sign it either.
    is_refused(place.settings("localhost", &ours[1..]), &["UnknownIssuer"]).await;
    // The certificate names another host.
    is_refused(place.settings("127.0.0.1", &ours), &["not valid for name"]).await;
    is_refused(place.settings("localhost", &ours[..1]), &["CertificateRequired", ENDED]).await;
    let (chain, other_key) = (place.stranger.text("client.crt"), place.stranger.text("client.key"));
    let unknown = [("ca.crt", authority.as_str()), ("tls.crt", &chain), ("tls.key", &other_key)];
    is_refused(place.settings("localhost", &unknown), &["UnknownCA", ENDED]).await;
    // A key that does not belong to the certificate.
    let mixed = [("ca.crt", authority.as_str()), ("tls.crt", &chain), ("tls.key", &key)];
    is_refused(place.settings("localhost", &mixed), &["tls.key and tls.crt"]).await;
    let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    is_refused(place.settings("localhost", &[("ca.crt", broken)]), &["ca.crt"]).await;
    // An unreadable key, whose text must not be quoted.
    let mangled = key_with(&other_key, "canary-canary-canary-canary");
    let mangled = [("ca.crt", authority.as_str()), ("tls.crt", &chain), ("tls.key", &mangled)];
    is_refused(place.settings("localhost", &mangled), &["tls.key"]).await;

    // TLS to a port that speaks AMQP.
    let plain = url::Url::parse(&place.server.variable("AMQP_URL")).unwrap().port().unwrap();
    let settings = RabbitmqSettings { port: plain, ..place.settings("localhost", &ours) };
    is_refused(settings, &["corrupt message"]).await;
}

/// Inserts a line into this key, which makes it invalid.
fn key_with(key: &str, line: &str) -> String {
    key.replacen('\n', &format!("\n{line}!\n"), 1)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_encrypted_connection_to_a_broker_that_hangs_is_closed_and_opened_again() {
    let place = TlsBroker::new().await;
    let text = |name| place.authority.text(name);
    let (authority, chain, key) = (text("ca.crt"), text("client.crt"), text("client.key"));
    let ours = [("ca.crt", authority.as_str()), ("tls.crt", &chain), ("tls.key", &key)];
    let options = BrokerOptions::default()
        .with_operation_timeout(Duration::from_secs(3))
        .with_connect_timeout(Duration::from_secs(3));
    let broker = Broker::new(place.settings("localhost", &ours), options);
    // A handshake with a broker that has just started may take longer than the limit.
    eventually("it is reached", async || broker.observe(&lock(), 2, 2).await.is_ok()).await;

    place.server.hang();
    let start = Instant::now();
    let error = broker.observe(&lock(), 2, 2).await.unwrap_err();
    assert_eq!(error.reason(), "BrokerTimeout");
    // The TLS handshake gets no answer either.
    let error = broker.observe(&lock(), 2, 2).await.unwrap_err();
    assert_eq!(error.reason(), "BrokerUnreachable", "{error}");
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    // The sockets are closed on our side, not only dropped from memory.
    let port = place.settings("localhost", &ours).port;
    eventually("no connection of ours is left open", async || !has_established(port)).await;

    place.server.go_on();
    eventually("it is reached again", async || broker.observe(&lock(), 2, 2).await.is_ok()).await;
}

/// Returns whether this process has an open connection to this port.
fn has_established(port: u16) -> bool {
    let inodes: Vec<String> = std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok())
        .map(|link| link.to_string_lossy().into_owned())
        .collect();
    let port = format!(":{port:04X}");
    std::fs::read_to_string("/proc/self/net/tcp").unwrap().lines().any(|line| {
        let parts: Vec<&str> = line.split_whitespace().collect();
        let is_open = parts[2].ends_with(&port) && parts[3] == "01";
        is_open && inodes.contains(&format!("socket:[{}]", parts[9]))
    })
}
