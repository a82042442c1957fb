//! Redis and RabbitMQ over TLS, configured by a Secret with the authority and the
//! client's certificate, which may change.

use std::time::Duration;

use axum::body::Bytes;
use kube::api::ListParams;
use lockkeeper_api::{PressureQueue, Semaphore};
use lockkeeper_testkit::authority::Authority;
use lockkeeper_testkit::canaries::Canaries;
use lockkeeper_testkit::collector::Collector;
use lockkeeper_testkit::own_server::OwnServer;
use lockkeeper_testkit::redis::connect;
use lockkeeper_testkit::redis_tls::TlsServer;
use lockkeeper_testkit::world::{
    Kind, Operator, PATIENCE, World, eventually, has_reason, in_a_world, is_ready,
};

use crate::operator::settings::CORRECTED;

#[tokio::test]
async fn a_queue_is_reached_over_tls_by_its_secret_and_a_wrong_authority_is_reported() {
    let server = TlsServer::start("DNS:localhost", true).await;
    let text = |name| server.authority.text(name);
    let (port, ours, key) = (server.port.to_string(), text("client.crt"), text("client.key"));
    let secrets = [("good", text("ca.crt")), ("bad", Authority::new().text("ca.crt"))].map(
        |(name, authority)| {
            let pairs = [
                ("host", "localhost"),
                ("port", &port),
                ("tls", "true"),
                ("ca.crt", &authority),
                ("tls.crt", &ours),
                ("tls.key", &key),
            ];
            (name, pairs.map(|(key, value)| (key, value.to_owned())))
        },
    );
    in_a_world("encrypted", async move |world| {
        let (operator, collector) = traced(&world).await;
        for (name, data) in &secrets {
            world.secret(&format!("redis-{name}"), data).await;
            let reference = format!("redisReference: {{connectionSecret: {{name: redis-{name}}}}}");
            let spec = format!("{{queueName: jobs-{name}, bound: 3, {reference}}}");
            world.apply::<PressureQueue>(name, &spec).await.unwrap();
        }
        world.until("good", "Ready", PATIENCE, is_ready::<PressureQueue>).await;
        let refused = |queue: &PressureQueue| {
            has_reason(queue, "BackendReachable", "StoreCertificateRefused")
        };
        world.until("bad", "refused", PATIENCE, refused).await;
        nothing_secret_shows::<PressureQueue>(&world, &operator, &collector).await;
    })
    .await;
    // The queue stays when its object is deleted, and nothing else was created.
    let mut raw = connect(&server.plain.url()).await;
    let mut keys = redis::cmd("KEYS");
    let keys: Vec<String> = keys.arg("*:bound").query_async(&mut raw).await.unwrap();
    assert_eq!(keys, ["__pressure__:jobs-good:bound"]);
}

/// Returns the subjects of the client certificates of the broker's current connections.
async fn clients(server: &OwnServer) -> Vec<String> {
    let url = format!("{}/api/connections", server.variable("RABBITMQ_MANAGEMENT_URL"));
    let list: Vec<serde_json::Value> =
        reqwest::Client::new().get(url).send().await.unwrap().json().await.unwrap();
    list.iter().filter_map(|one| Some(one["peer_cert_subject"].as_str()?.to_owned())).collect()
}

#[tokio::test]
async fn certificates_of_a_broker_are_exchanged_in_the_secret_without_a_restart() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    authority.sign("server", "DNS:localhost");
    for client in ["first", "second"] {
        authority.sign(client, "DNS:client");
    }
    stranger.sign("first", "DNS:client");
    let server = OwnServer::rabbitmq_over_tls(&authority).await;
    in_a_world("exchanged", async move |world| {
        let (operator, collector) = traced(&world).await;
        let (amqp, management) =
            (server.variable("AMQPS_URL"), server.variable("RABBITMQ_MANAGEMENT_TLS_URL"));
        let put = async |name: &str, signer: &Authority, of: &Authority, client: &str| {
            let keys = [
                ("amqpUri", amqp.clone()),
                ("managementUri", management.clone()),
                ("ca.crt", signer.text("ca.crt")),
                ("tls.crt", of.text(&format!("{client}.crt"))),
                ("tls.key", of.text(&format!("{client}.key"))),
            ];
            world.secret(name, &keys).await;
            let reference =
                format!("rabbitmqClusterReference: {{connectionSecret: {{name: {name}}}}}");
            world.apply::<Semaphore>(name, &format!("{{{reference}, slots: 2}}")).await.unwrap();
        };
        put("good", &authority, &authority, "first").await;
        put("distrusted", &stranger, &authority, "first").await;
        put("unknown", &authority, &stranger, "first").await;
        world.semaphore_ready("good").await;
        for name in ["distrusted", "unknown"] {
            let refused = |object: &Semaphore| {
                ["Ready", "BackendReachable"]
                    .iter()
                    .all(|type_| has_reason(object, type_, "CertificateRefused"))
            };
            world.until(name, "refused", PATIENCE, refused).await;
        }
        let has =
            async |client: &str| clients(&server).await.iter().any(|name| name.contains(client));
        eventually("the first is presented", PATIENCE, async || has("first").await).await;

        put("good", &authority, &authority, "second").await;
        eventually("the second is presented", CORRECTED, async || has("second").await).await;
        world.semaphore_ready("good").await;
        for name in ["distrusted", "unknown"] {
            put(name, &authority, &authority, "second").await;
            world.until(name, "Ready", CORRECTED, is_ready::<Semaphore>).await;
        }

        nothing_secret_shows::<Semaphore>(&world, &operator, &collector).await;
    })
    .await;
}

/// Starts an operator and the receiver of its traces.
async fn traced(world: &World) -> (Operator, Collector) {
    let collector = Collector::start(Duration::ZERO).await;
    let rhythm = ["--observe-interval", "1s", "--drift-interval", "3s"];
    let operator = world.operator_in(&collector.environment(), &rhythm).await;
    operator.until_ready().await;
    (operator, collector)
}

/// Checks that no password and no private key, of a server or a client, is in an object,
/// an event, the log, the metrics or a trace. Each of these must mention this world.
async fn nothing_secret_shows<K: Kind>(world: &World, operator: &Operator, collector: &Collector) {
    let canaries = Canaries::now();
    assert!(canaries.keys() > 2, "the keys of this test are looked for");
    for object in world.api::<K>().list(&ListParams::default()).await.unwrap() {
        canaries.not_in("an object", &serde_json::to_string(&object).unwrap());
        let events = world.events(object.meta().name.as_ref().unwrap()).await;
        assert!(!events.is_empty());
        canaries.not_in("an event", &format!("{events:?}"));
    }
    let came = async || collector.bodies().iter().any(|body| text(body).contains("reconcile"));
    eventually("there are traces", PATIENCE, came).await;
    let traces: String = collector.bodies().iter().map(text).collect();
    let said = [
        ("the log", operator.logged()),
        ("a metric", operator.metrics().await),
        ("a trace", traces),
    ];
    for (place, text) in said {
        assert!(text.contains(&world.namespace), "{place} mentions the world");
        canaries.not_in(place, &text);
    }
}

/// Returns a trace as text: strings are verbatim between binary data.
fn text(body: &Bytes) -> String {
    String::from_utf8_lossy(body).into_owned()
}
