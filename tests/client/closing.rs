//! Requests that are sent while the broker closes their channel.

use std::sync::Arc;

use futures::FutureExt;
use lapin::options::QueueDeclareOptions;
use lapin::types::FieldTable;
use lockkeeper_amqp::channel::Channel;
use lockkeeper_amqp::connection::Connection;
use lockkeeper_amqp::endpoint::{Endpoint, Found};
use lockkeeper_net::opening::Gate;
use lockkeeper_testkit::rabbitmq::{administrator, unique};

use crate::client::wire::LONG;

/// More than there are processors: most of them are interrupted within a request.
const THREADS: usize = 12;

fn endpoint() -> Endpoint {
    let settings = administrator();
    Endpoint {
        host: settings.host.clone(),
        port: settings.port,
        address: settings.address(),
        username: settings.username.clone(),
        password: settings.password.clone(),
        vhost: settings.vhost.clone(),
        make_tls: None,
        probe: None,
        client_name: "closing".to_owned(),
        connect_timeout: LONG,
        operation_timeout: LONG,
        heartbeat: None,
        gate: Gate::default(),
        found: Found::default(),
    }
}

/// Hazard A60. lapin checks that the channel is open, and then queues the request. In between,
/// it may have confirmed the broker's close. The broker would end the whole connection.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_follows_the_close_of_its_channel_does_not_end_the_connection() {
    let missing = unique();
    let connection = Arc::new(Connection::open(&endpoint(), "test").await.unwrap());
    for _ in 0..20 {
        let mut channel = Channel::fresh(&connection).await.unwrap();
        let raw = channel.raw().await.unwrap();
        let threads = (0..THREADS).map(|_| {
            let (raw, missing) = (raw.clone(), missing.clone());
            std::thread::spawn(move || {
                while raw.status().connected() {
                    let passive = QueueDeclareOptions::default().passive();
                    let name = missing.as_str().into();
                    // Sends the request.
                    let _ = raw.queue_declare(name, passive, FieldTable::default()).now_or_never();
                }
            })
        });
        let threads: Vec<_> = threads.collect();
        tokio::task::spawn_blocking(|| threads.into_iter().for_each(|t| t.join().unwrap()))
            .await
            .unwrap();
        let mut channel = Channel::fresh(&connection).await.unwrap();
        assert_eq!(channel.look(&missing).await, Ok(None));
    }
    connection.close().await;
}
