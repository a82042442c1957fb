//! `lockkeeper exec sem/NAME`: the lock of a resource, found through Kubernetes.

use lockkeeper_testkit::built;
use lockkeeper_testkit::world::{World, in_a_world};
use tokio::process::Command;

/// Returns exit code, output and messages of `lockkeeper exec` in the world's namespace.
async fn exec(world: &World, arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(built::lockkeeper())
        .arg("exec")
        .args(arguments)
        .args(["-n", &world.namespace, "--", "env"])
        .env_remove("AMQP_URL")
        .env_remove("RABBITMQ_MANAGEMENT_URL")
        .output()
        .await
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[tokio::test(flavor = "multi_thread")]
async fn exec_takes_the_lock_of_a_resource_with_the_connection_of_its_secret() {
    in_a_world("exec", async |world| {
        let _operator = world.operator().await;
        world.semaphore("deploy", "slots: 1, fencing: true").await;
        world.semaphore_ready("deploy").await;
        let (code, output, said) = exec(&world, &["sem/deploy"]).await;
        assert_eq!(code, Some(0), "{said}");
        let name = format!("LOCK_NAME={}.deploy", world.namespace);
        let lines: Vec<&str> = output.lines().collect();
        assert!(lines.contains(&name.as_str()) && lines.contains(&"LOCK_SLOT=1"), "{output}");
        assert!(lines.iter().any(|line| line.starts_with("LOCK_TOKEN=")), "{output}");

        let python = "slots: 1, profile: AmqpLocksPython, lockName: py.lock";
        world.semaphore("python", python).await;
        world.semaphore_ready("python").await;
        let (code, output, said) = exec(&world, &["semaphore/python"]).await;
        assert_eq!(code, Some(0), "{said}");
        assert!(output.lines().any(|line| line == "LOCK_NAME=py.lock"), "{output}");

        for (name, protocol, shown) in [
            ("consumer", "ExclusiveConsumer", "LOCK_SLOT=1"),
            ("token", "Token, token: {queueType: Quorum}", "LOCK_TOKEN_ID="),
        ] {
            world.semaphore(name, &format!("slots: 1, protocol: {protocol}")).await;
            world.semaphore_ready(name).await;
            let (code, output, said) = exec(&world, &[&format!("sem/{name}")]).await;
            assert_eq!(code, Some(0), "{said}");
            assert!(output.lines().any(|line| line.starts_with(shown)), "{output}");
        }

        let (code, _, said) = exec(&world, &["sem/none"]).await;
        assert_eq!(code, Some(64), "{said}");
        assert!(said.contains("there is no Semaphore"), "{said}");
        for own in [["--vhost", "other"], ["--protocol", "Token"], ["--queue-type", "Quorum"]] {
            let (code, _, said) = exec(&world, &["sem/deploy", own[0], own[1]]).await;
            assert_eq!(code, Some(64), "{said}");
            assert!(said.contains("are sem/deploy's own"), "{said}");
        }
        world.apply::<lockkeeper_api::Semaphore>("bare", "{slots: 1}").await.unwrap();
        let (code, _, said) = exec(&world, &["sem/bare"]).await;
        assert_eq!(code, Some(64), "{said}");
        assert!(said.contains("names no connection"), "{said}");
    })
    .await;
}
