//! The last words of a server that closes a connection: they reach the user, with the right
//! class, however early they come.

use std::net::SocketAddr;

use lockkeeper_plan::ErrorClass;
use lockkeeper_plan::connection::RedisSettings;
use lockkeeper_plan::naming::QueueName;
use lockkeeper_pressure::{Queue, QueueError, QueueOptions, Store, StoreError, StoreOptions, Wait};
use lockkeeper_testkit::redis::{PrivateRedis, TestQueue, connection, in_time};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

/// Often enough for a race to show.
const ROUNDS: usize = 20;

/// Returns the error of a request over a new connection.
async fn refused(url: &str) -> StoreError {
    let queue = QueueName::new("test", "jobs").unwrap();
    let store = Store::new(RedisSettings::from_url(url).unwrap(), StoreOptions::new("test"));
    store.observe(&queue).await.unwrap_err()
}

/// Passes connections on to this port, as a client with another address.
async fn from_another_address(port: u16) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let socket = TcpSocket::new_v4().unwrap();
            socket.bind("127.0.0.9:0".parse().unwrap()).unwrap();
            let server = socket.connect(SocketAddr::from(([127, 0, 0, 1], port))).await;
            let mut server: TcpStream = server.unwrap();
            tokio::spawn(async move {
                let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_room_for_another_client_says_so() {
    let server = PrivateRedis::start(&["--maxclients", "1"]).await;
    let mut other = None;
    in_time("another client is connected", async || {
        other = connection(&server.url()).await.ok();
        other.is_some()
    })
    .await;
    for _ in 0..ROUNDS {
        let error = refused(&server.url()).await;
        assert!(
            matches!(&error, StoreError::Unavailable { detail } if detail.contains("max number of clients reached")),
            "{error:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_in_protected_mode_says_so() {
    let server = PrivateRedis::start(&["--protected-mode", "yes"]).await;
    let address = from_another_address(server.port()).await;
    for _ in 0..ROUNDS {
        let error = refused(&format!("redis://{address}/0")).await;
        assert!(
            matches!(&error, StoreError::ConnectionDenied { detail } if detail.contains("protected mode")),
            "{error:?}"
        );
        assert_eq!((error.class(), error.reason()), (ErrorClass::Invalid, "StoreConnectionDenied"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_element_beyond_the_servers_limit_is_certainly_not_put() {
    let server = PrivateRedis::start(&["--proto-max-bulk-len", "1mb"]).await;
    let place = TestQueue::at(&server.url()).await;
    let queue = Queue::new(place.settings(), place.queue.clone(), QueueOptions::default());
    queue.create(0).await.unwrap();
    for size in [2_000_000, 20_000_000] {
        for _ in 0..ROUNDS / 4 {
            let failed = queue.put_batch(&[vec![b'x'; size]], Wait::No).await.unwrap_err();
            let error = QueueError::Store(StoreError::ValueTooLarge { detail: String::new() });
            assert_eq!(std::mem::discriminant(&failed.error), std::mem::discriminant(&error));
            assert!(failed.error.to_string().contains("invalid bulk length"), "{failed:?}");
            assert_eq!((failed.put, failed.uncertain), (0, 0), "{failed:?}");
        }
        // The queue goes on over another connection.
        queue.put(b"small").await.unwrap();
        assert_eq!(queue.get().await.unwrap(), b"small");
    }
    drop(place);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_that_does_not_answer_a_tls_handshake_is_named_as_such() {
    let server = PrivateRedis::start(&[]).await;
    let error = refused(&format!("rediss://127.0.0.1:{}/0", server.port())).await;
    assert_eq!(error, StoreError::HandshakeTimeout);
    assert!(error.to_string().contains("TLS"), "{error}");
    assert_eq!((error.class(), error.reason()), (ErrorClass::Transient, "StoreTimeout"));
}
