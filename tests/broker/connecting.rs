//! Connection failures are distinguished by their causes, brokers may be down or
//! unresponsive, and no error contains a secret.

use std::time::Duration;

use lockkeeper_plan::ErrorClass;
use lockkeeper_plan::connection::RabbitmqSettings;
use lockkeeper_plan::naming::LockName;
use lockkeeper_semaphore::{
    AcquireOptions, Broker, BrokerError, BrokerOptions, Client, ClientOptions, ResizeTo,
};
use lockkeeper_testkit::rabbitmq::{Vhost, eventually, patient};
use secrecy::ExposeSecret;
use serde_json::json;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::broker::{broker, desired, lock, resize};

async fn refused(settings: RabbitmqSettings) -> BrokerError {
    let password = settings.password.expose_secret().to_owned();
    let broker = Broker::new(settings, BrokerOptions::default());
    assert!(!format!("{broker:?}").contains(&password));
    let error = broker.observe(&lock(), 1, 1).await.unwrap_err();
    for shown in [error.to_string(), format!("{error:?}")] {
        assert!(!shown.contains(&password), "the password is shown: {shown}");
    }
    assert_eq!(broker.identity().await.unwrap_err(), error, "identity() returns the same");
    error
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_is_reported() {
    let vhost = Vhost::create().await;
    let settings = RabbitmqSettings { password: "hush-hush".into(), ..vhost.settings() };
    let error = refused(settings).await;
    assert_eq!(error.reason(), "AuthenticationFailed");
    assert_eq!(error.class(), ErrorClass::Invalid);
    assert!(error.to_string().contains("check the user name and the password"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_virtual_host_is_reported() {
    let vhost = Vhost::create().await;
    let error = refused(RabbitmqSettings { vhost: "not-there".into(), ..vhost.settings() }).await;
    assert_eq!(error, BrokerError::VhostNotFound { vhost: "not-there".into() });
    assert!(error.to_string().contains("create it"), "{error}");
    assert!(!error.to_string().contains("decoded"), "{error}");
    let error = refused(RabbitmqSettings { vhost: "%2F".into(), ..vhost.settings() }).await;
    assert!(error.to_string().contains("not percent-decoded"), "{error}");
}

/// Names that a library for URLs would change. Each has a virtual host and a lock of its own.
#[tokio::test(flavor = "multi_thread")]
async fn the_exact_names_of_a_virtual_host_and_a_lock_arrive_at_the_broker() {
    for end in ["/../b", "/%2e%2e", r"\b", "\tb ", "A", "a", "//?x#y;é"] {
        let vhost = Vhost::create_ending(end).await;
        let settings = RabbitmqSettings::from_urls(&vhost.url(), None).unwrap();
        assert_eq!(settings.vhost, vhost.name);
        let broker = Broker::new(vhost.settings(), patient());
        let lock = LockName::new(format!("ci{}", end.replace('\t', " "))).unwrap();
        let cancel = CancellationToken::new();
        broker.resize(&lock, ResizeTo::Create(2), desired(0), &cancel).await.unwrap();
        // By the management API, which is asked by name, and then by AMQP.
        assert_eq!(broker.find_highest_slot(&lock, 1).await, Ok(Some(2)), "{end:?}");
        let queues = vhost.queues().await;
        assert!(queues.contains(&lock.slot_queue(1)), "{end:?}: {queues:?}");
        let client = Client::new(settings, ClientOptions::default().with_warm(0));
        let options = AcquireOptions::default().with_identity("me");
        let held = client.semaphore(lock.clone()).try_acquire(&options).await.unwrap();
        let seen = broker.observe(&lock, 2, 2).await.unwrap();
        assert_eq!(seen.counts(2).held, 1, "{end:?}");
        let _ = held.release().await;
        broker.destroy(&lock, desired(0), None, &cancel).await.unwrap();
        assert_eq!(vhost.queues().await, [""; 0], "{end:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_permission_for_the_virtual_host_is_reported() {
    let vhost = Vhost::create().await;
    let (username, password) = vhost.user(None).await;
    let settings = RabbitmqSettings { username, password: password.into(), ..vhost.settings() };
    let error = refused(settings).await;
    assert_eq!(error.reason(), "AccessRefused");
    assert!(error.to_string().contains("permission"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_permission_to_configure_the_locks_queues_is_reported() {
    let vhost = Vhost::create().await;
    let (username, password) = vhost.user(Some(["^other$", ".*", ".*"])).await;
    let settings = RabbitmqSettings { username, password: password.into(), ..vhost.settings() };
    let broker = Broker::new(settings, BrokerOptions::default());
    assert!(broker.observe(&lock(), 3, 3).await.unwrap().total() == 0);
    let error = resize(&broker, 3, 0).await.unwrap_err();
    assert_eq!(error.reason(), "AccessRefused");
    assert!(error.to_string().contains("'ci.deploy'"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_permission_to_publish_is_reported() {
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
async fn a_closed_port_and_an_unknown_host_are_reported_with_their_address() {
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
    let broker =
        Broker::new(settings, BrokerOptions::default().with_connect_timeout(connect_timeout));
    let name = lock();
    let (error, accepted) = tokio::join!(broker.observe(&name, 1, 1), mute.accept());
    assert_eq!(error.unwrap_err().reason(), "BrokerUnreachable");
    // The connection is closed completely: the other side sees its end after lapin's 8
    // bytes.
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
async fn operations_that_wait_for_an_unreachable_broker_share_one_attempt() {
    let vhost = Vhost::create().await;
    let mute = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let settings = RabbitmqSettings { port: mute.local_addr().unwrap().port(), ..vhost.settings() };
    // Long enough that all are waiting before it ends.
    let connect_timeout = Duration::from_secs(3);
    let broker =
        Broker::new(settings, BrokerOptions::default().with_connect_timeout(connect_timeout));
    let all = futures::future::join_all((0..200).map(|_| broker.identity())).await;
    assert!(all.iter().all(Result::is_err));
    mute.accept().await.unwrap();
    // All attempts have ended, so any further attempt would be in the backlog.
    let more = mute.into_std().unwrap().accept();
    let kind = more.map(drop).map_err(|error| error.kind());
    assert_eq!(kind, Err(std::io::ErrorKind::WouldBlock), "a second attempt was made");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_has_the_same_identity_at_every_address() {
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
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_connection_is_opened_again() {
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
        broker.observe(&lock(), 3, 3).await.is_ok_and(|seen| seen.has_exactly(3))
    })
    .await;
    eventually("it can be changed again", async || resize(&broker, 4, 3).await.is_ok()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_addresses_are_one_broker_only_if_one_sees_the_other_s_queue() {
    let (vhost, other) = (Vhost::create().await, Vhost::create().await);
    let ours = broker(&vhost);
    let at = |settings| Broker::new(settings, BrokerOptions::default());
    let by_name = at(RabbitmqSettings { host: "localhost".into(), ..vhost.settings() });
    assert!(ours.is_same_as(&by_name, &lock()).await.unwrap());
    assert!(by_name.is_same_as(&ours, &lock()).await.unwrap());
    assert!(vhost.queues().await.is_empty(), "the probe queue is deleted");
    // The same broker with the same identity, but other queues.
    assert!(!ours.is_same_as(&broker(&other), &lock()).await.unwrap());
    let wrong = RabbitmqSettings { password: String::from("wrong").into(), ..vhost.settings() };
    let refused = ours.is_same_as(&at(wrong), &lock()).await.unwrap_err();
    assert_eq!(refused.reason(), "AuthenticationFailed");
    // A login that must not declare the lock's queues proves nothing either.
    let (username, password) = vhost.user(Some(["^other\\.", ".*", ""])).await;
    let stranger = RabbitmqSettings { username, password: password.into(), ..vhost.settings() };
    let refused = ours.is_same_as(&at(stranger), &lock()).await.unwrap_err();
    assert_eq!(refused.reason(), "AccessRefused");
}
