//! A Redis and a RabbitMQ that are reached over TLS, as a Secret says it: with the
//! authority and the client's certificate in the Secret, which may change.

use lockkeeper::api::{PressureQueue, Semaphore};

use crate::authority::Authority;
use crate::own_server::OwnServer;
use crate::redis_support::connect;
use crate::redis_tls::TlsServer;
use crate::settings::{CORRECTED, no_password_shows};
use crate::world::{PATIENCE, World, eventually, has_reason, in_a_world, is_ready};

#[tokio::test]
async fn a_queue_is_reached_over_tls_by_its_secret_and_a_wrong_authority_is_said() {
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
        let _operator = world.operator().await;
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
    })
    .await;
    // A queue stays when its object goes, and nothing else was made.
    let mut raw = connect(&server.plain.url()).await;
    let mut keys = redis::cmd("KEYS");
    let keys: Vec<String> = keys.arg("*:bound").query_async(&mut raw).await.unwrap();
    assert_eq!(keys, ["__pressure__:jobs-good:bound"]);
}

/// The subjects of the clients' certificates with which the broker has connections now.
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
        let operator = world.operator().await;
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

        no_password_shows(&world, &operator.logged()).await;
        no_key_shows(&world, &operator.logged(), &[&authority, &stranger]).await;
    })
    .await;
}

/// Neither a log, an object nor an event has a line of a private key.
async fn no_key_shows(world: &World, log: &str, authorities: &[&Authority]) {
    let mut shown = log.to_owned();
    for name in ["good", "distrusted", "unknown"] {
        let object = world.api::<Semaphore>().get(name).await.unwrap();
        shown += &serde_json::to_string(&object).unwrap();
        shown.extend(world.events(name).await.into_iter().map(|(_, note, _)| note));
    }
    for authority in authorities {
        let key = authority.text("first.key");
        let lines: Vec<&str> = key.lines().filter(|line| !line.starts_with('-')).collect();
        assert!(!lines.is_empty() && !lines.iter().any(|line| shown.contains(line)), "a key shows");
    }
    assert!(!shown.contains("PRIVATE KEY"), "a key shows");
}
