//! `lockkeeper queue … pq/NAME`: the queue of a resource, found through Kubernetes.

use std::process::Stdio;

use lockkeeper_testkit::built;
use lockkeeper_testkit::world::{World, in_a_world};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

/// Returns exit code, output and messages of `lockkeeper queue VERB` in the world's
/// namespace.
async fn queue(world: &World, line: &str, input: &str) -> (Option<i32>, String, String) {
    let mut process = Command::new(built::lockkeeper())
        .arg("queue")
        .args(line.split(' '))
        .args(["-n", &world.namespace])
        .env_remove("REDIS_URL")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    process.stdin.take().unwrap().write_all(input.as_bytes()).await.unwrap();
    let output = process.wait_with_output().await.unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_pass_the_queue_of_a_resource_with_the_connection_of_its_secret() {
    in_a_world("pipe", async |world| {
        let _operator = world.operator().await;
        world.queue("frames", "bound: 9").await;
        world.queue_ready("frames").await;
        let (code, _, said) = queue(&world, "put pq/frames", "a\nb\n").await;
        assert_eq!(code, Some(0), "{said}");
        let (code, output, said) = queue(&world, "stat pressurequeue/frames", "").await;
        assert_eq!(code, Some(0), "{said}");
        let row = output.lines().nth(1).unwrap().split_whitespace().collect::<Vec<_>>();
        let name = format!("{}.frames", world.namespace);
        assert_eq!(row[..6], [name.as_str(), "2", "9", "true", "2", "0"], "{output}");
        let (code, output, said) = queue(&world, "get pressurequeues/frames --delete", "").await;
        assert_eq!((code, output.as_str()), (Some(0), "a\nb\n"), "{said}");
        let (code, _, said) = queue(&world, "get pq/frames", "").await;
        assert_eq!(code, Some(81), "{said}");

        // The resource's settings apply, and operations of the operator are rejected.
        let prefix = "{connectionSecret: {name: redis}, prefix: other}";
        let spec = format!("{{redisReference: {prefix}, queueName: named}}");
        world.apply::<lockkeeper_api::PressureQueue>("named", &spec).await.unwrap();
        world.queue_ready("named").await;
        let (code, output, said) = queue(&world, "stat pq/named -o json", "").await;
        assert_eq!(code, Some(0), "{said}");
        let seen: serde_json::Value = serde_json::from_str(&output).unwrap();
        assert_eq!(
            (&seen["name"], &seen["prefix"]),
            (&"named".into(), &"other".into()),
            "{output}"
        );
        let (code, _, said) = queue(&world, "create pq/named", "").await;
        assert_eq!(code, Some(64), "{said}");
        assert!(said.contains("created by the operator"), "{said}");
        let (code, _, said) = queue(&world, "get pq/named --prefix x", "").await;
        assert_eq!(code, Some(64), "{said}");
        let (code, _, said) = queue(&world, "close pq/named", "").await;
        assert_eq!(code, Some(0), "closing is a client's right: {said}");
        let (code, _, said) = queue(&world, "delete pq/named", "").await;
        assert_eq!(code, Some(0), "and so is deleting: {said}");

        let (code, _, said) = queue(&world, "get pq/none", "").await;
        assert_eq!(code, Some(64), "{said}");
        assert!(said.contains("there is no PressureQueue"), "{said}");
        world.apply::<lockkeeper_api::PressureQueue>("bare", "{bound: 1}").await.unwrap();
        let (code, _, said) = queue(&world, "get pq/bare", "").await;
        assert_eq!(code, Some(64), "{said}");
        assert!(said.contains("names no connection"), "{said}");
    })
    .await;
}
