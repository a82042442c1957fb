//! Who can't connect and why, told apart; a broker that is down or mute; and
//! that no error gives a secret away.

use std::time::{Duration, Instant};

use lockkeeper::plan::ErrorClass;
use lockkeeper::plan::connection::RabbitmqSettings;
use lockkeeper::semaphore::{Broker, BrokerError, BrokerOptions};
use secrecy::ExposeSecret;
use serde_json::json;
use tokio::net::TcpListener;

use crate::support::rabbitmq::{Vhost, eventually};
use crate::{broker, lock, resize};

async fn refused(settings: RabbitmqSettings) -> BrokerError {
    let password = settings.password.expose_secret().to_owned();
    let broker = Broker::new(settings, BrokerOptions::default());
    assert!(!format!("{broker:?}").contains(&password));
    let error = broker.observe(&lock(), 1, 1).await.unwrap_err();
    for shown in [error.to_string(), format!("{error:?}")] {
        assert!(!shown.contains(&password), "the password is shown: {shown}");
    }
    assert_eq!(broker.identity().await.unwrap_err(), error, "identity() tells the same");
    error
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_is_told() {
    let vhost = Vhost::create().await;
    let settings = RabbitmqSettings { password: "hush-hush".into(), ..vhost.settings() };
    let error = refused(settings).await;
    assert_eq!(error.reason(), "AuthenticationFailed");
    assert_eq!(error.class(), ErrorClass::Invalid);
    assert!(error.to_string().contains("check the user name and the password"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_virtual_host_is_told() {
    let vhost = Vhost::create().await;
    let error = refused(RabbitmqSettings { vhost: "not-there".into(), ..vhost.settings() }).await;
    assert_eq!(error, BrokerError::VhostNotFound { vhost: "not-there".into() });
    assert!(error.to_string().contains("create it"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_without_permission_for_the_virtual_host_is_told() {
    let vhost = Vhost::create().await;
    let (username, password) = vhost.user(None).await;
    let settings = RabbitmqSettings { username, password: password.into(), ..vhost.settings() };
    let error = refused(settings).await;
    assert_eq!(error.reason(), "AccessRefused");
    assert!(error.to_string().contains("permission"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_who_may_not_configure_the_locks_queues_is_told() {
    let vhost = Vhost::create().await;
    let (username, password) = vhost.user(Some(["^other$", ".*", ".*"])).await;
    let settings = RabbitmqSettings { username, password: password.into(), ..vhost.settings() };
    let broker = Broker::new(settings, BrokerOptions::default());
    assert!(broker.observe(&lock(), 3, 3).await.unwrap().slots.is_empty());
    let error = resize(&broker, 3, 0).await.unwrap_err();
    assert_eq!(error.reason(), "AccessRefused");
    assert!(error.to_string().contains("'ci.deploy'"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_who_may_not_publish_is_told() {
    let vhost = Vhost::create().await;
    let (username, password) = vhost.user(Some([".*", "^$", ".*"])).await;
    let settings = RabbitmqSettings { username, password: password.into(), ..vhost.settings() };
    let broker = Broker::new(settings, BrokerOptions::default());
    let error = broker.observe(&lock(), 3, 3).await.unwrap_err();
    assert_eq!(error.reason(), "AccessRefused");
    assert!(error.to_string().contains("amq.default"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_limit_is_not_taken_for_a_missing_permission() {
    let vhost = Vhost::create().await;
    let limit = format!("vhost-limits/{}/max-connections", vhost.name);
    vhost.management.put(&limit, json!({"value": 0})).await;
    let error = refused(vhost.settings()).await;
    assert_eq!(error.reason(), "QuotaExceeded", "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_port_and_an_unknown_host_are_told_with_their_address() {
    let vhost = Vhost::create().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let error = refused(RabbitmqSettings { port, ..vhost.settings() }).await;
    assert_eq!(error.reason(), "BrokerUnreachable");
    assert_eq!(error.class(), ErrorClass::Transient);
    assert!(error.to_string().contains(&format!("127.0.0.1:{port}")), "{error}");

    let host = "no-such-host.invalid".to_owned();
    let error = refused(RabbitmqSettings { host, ..vhost.settings() }).await;
    assert_eq!(error.reason(), "BrokerUnreachable");
    assert!(error.to_string().contains("no-such-host.invalid"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_accepts_and_says_nothing_is_given_up_and_its_socket_closed() {
    let vhost = Vhost::create().await;
    let mute = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let settings = RabbitmqSettings { port: mute.local_addr().unwrap().port(), ..vhost.settings() };
    let connect_timeout = Duration::from_millis(300);
    let broker = Broker::new(settings, BrokerOptions { connect_timeout, ..Default::default() });
    let start = Instant::now();
    let name = lock();
    let (error, accepted) = tokio::join!(broker.observe(&name, 1, 1), mute.accept());
    assert_eq!(error.unwrap_err().reason(), "BrokerUnreachable");
    assert!(start.elapsed() < Duration::from_secs(2));
    // Nothing lingers: the other side sees the end after lapin's 8 bytes.
    let stream = accepted.unwrap().0;
    eventually("the socket is closed", async || {
        let mut buffer = [0; 64];
        match stream.try_read(&mut buffer) {
            Ok(read) => read == 0,
            Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn everyone_who_waits_for_a_broker_that_is_down_shares_one_attempt() {
    let vhost = Vhost::create().await;
    let mute = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let settings = RabbitmqSettings { port: mute.local_addr().unwrap().port(), ..vhost.settings() };
    let connect_timeout = Duration::from_millis(300);
    let broker = Broker::new(settings, BrokerOptions { connect_timeout, ..Default::default() });
    let start = Instant::now();
    let all = futures::future::join_all((0..200).map(|_| broker.identity())).await;
    assert!(all.iter().all(Result::is_err));
    assert!(start.elapsed() < Duration::from_millis(900), "{:?}", start.elapsed());
    mute.accept().await.unwrap();
    let more = tokio::time::timeout(Duration::from_millis(100), mute.accept()).await;
    assert!(more.is_err(), "a second attempt was made");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_tells_who_it_is_the_same_from_every_address() {
    let vhost = Vhost::create().await;
    let by_address = broker(&vhost);
    let by_name = Broker::new(
        RabbitmqSettings { host: "localhost".into(), ..vhost.settings() },
        BrokerOptions::default(),
    );
    let identity = by_address.identity().await.unwrap();
    assert_eq!(identity.product, "RabbitMQ");
    let overview = vhost.management.get("overview").await.unwrap();
    assert_eq!(overview["cluster_name"], identity.cluster_name);
    assert_eq!(overview["rabbitmq_version"], identity.version);
    assert!(identity.cluster_id.is_some());
    assert_eq!(by_name.identity().await.unwrap(), identity);
    let settings = vhost.settings_without_management();
    let without = Broker::new(settings, BrokerOptions::default()).identity().await.unwrap();
    assert_eq!(without.cluster_id, None);
    assert!(without.is_same_cluster(&identity));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_connection_is_made_anew() {
    let vhost = Vhost::create().await;
    let broker = broker(&vhost);
    resize(&broker, 3, 0).await.unwrap();
    for role in ["lockkeeper probe", "lockkeeper admin"] {
        eventually("the connection is shown", async || !vhost.connections(role).await.is_empty())
            .await;
        for connection in vhost.connections(role).await {
            assert!(vhost.management.close_connection(&connection, "test").await);
        }
    }
    eventually("the broker is seen again", async || {
        broker.observe(&lock(), 3, 3).await.is_ok_and(|seen| seen.is_as_wished(3))
    })
    .await;
    eventually("it can be changed again", async || resize(&broker, 4, 3).await.is_ok()).await;
}
