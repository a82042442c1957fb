//! A Redis that is reached over TLS, as a Secret says it: with the authority and
//! the client's certificate in the Secret.

use lockkeeper::api::PressureQueue;

use crate::authority::Authority;
use crate::redis_support::connect;
use crate::redis_tls::TlsServer;
use crate::world::{PATIENCE, has_reason, in_a_world, is_ready};

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
