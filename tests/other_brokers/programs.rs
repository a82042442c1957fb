//! The operator and the command line.

use std::process::Command;

use lockkeeper_api::Semaphore;
use lockkeeper_testkit::built;
use lockkeeper_testkit::world::{PATIENCE, has_reason, in_a_world, is_ready};

use crate::other_brokers::{AUTOMATIC, Qpid, held};

/// Runs `lockkeeper`, and returns its exit code and output.
fn lockkeeper(qpid: &Qpid, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(built::lockkeeper());
    let done =
        command.args(arguments).env("AMQP_URL", qpid.url()).env_remove("RABBITMQ_MANAGEMENT_URL");
    let done = done.output().unwrap();
    let text = [done.stdout, done.stderr].concat();
    (done.status.code(), String::from_utf8(text).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_administers_and_runs_a_command_under_a_lock() {
    let qpid = Qpid::start().await;
    let (code, text) = lockkeeper(&qpid, &["semaphore", "create", "ci.deploy", "--slots", "2"]);
    assert_eq!(code, Some(0), "{text}");
    for probe in ["confirm", "tx", "declare"] {
        let exec =
            ["exec", "ci.deploy", "--probe", probe, "--", "sh", "-c", "echo $LOCK_SLOT; exit 7"];
        let (code, text) = lockkeeper(&qpid, &exec);
        assert_eq!((code, text.as_str()), (Some(7), "1\n"), "{probe}");
    }
    let (code, text) = lockkeeper(&qpid, &["semaphore", "count", "ci.deploy", "-o", "wide"]);
    assert!(code == Some(0) && text.contains("ci.deploy   2 "), "{text}");
    let token = ["exec", "ci.deploy", "--protocol", "Token", "--", "true"];
    let (code, text) = lockkeeper(&qpid, &token);
    assert!(code != Some(0) && text.contains("Apache Qpid Broker-J"), "{text}");
}

#[tokio::test]
async fn the_operator_reconciles_a_semaphore_and_reports_what_the_broker_lacks() {
    in_a_world("qpid", async |world| {
        let qpid = Qpid::start().await;
        world.secret("qpid", &[("amqpUri", qpid.url())]).await;
        let operator = world.operator().await;
        let spec = |more: &str| {
            format!("{{rabbitmqClusterReference: {{connectionSecret: {{name: qpid}}}}, lockName: ci.deploy, {more}}}")
        };
        world.apply::<Semaphore>("deploy", &spec("slots: 3")).await.unwrap();
        world.semaphore_ready("deploy").await;
        let permit = qpid.lock(AUTOMATIC).try_acquire(&crate::other_brokers::any()).await.unwrap();
        let shown = |object: &Semaphore| {
            let status = object.status.as_ref().unwrap();
            is_ready(object) && (status.slots, status.held) == (Some(3), Some(1))
        };
        world.until("deploy", "its holder is counted", PATIENCE, shown).await;
        world.apply::<Semaphore>("deploy", &spec("slots: 1")).await.unwrap();
        let shrunk = |object: &Semaphore| {
            is_ready(object) && object.status.as_ref().unwrap().slots == Some(1)
        };
        world.until("deploy", "it is shrunk", PATIENCE, shrunk).await;
        assert_eq!(held(&qpid.broker(AUTOMATIC)).await, [1]);
        permit.release().await.unwrap();

        world.apply::<Semaphore>("deploy", &spec("slots: 1, fencing: true")).await.unwrap();
        let said = |object: &Semaphore| has_reason(object, "Ready", "UnsupportedByBroker");
        let said = world.until("deploy", "it says why not", PATIENCE, said).await;
        let message = &said.status.as_ref().unwrap().conditions[0].message;
        assert!(message.contains("fencing and lockDelay"), "{message}");
        drop(operator);
    })
    .await;
}
