//! `lockkeeper hold`, for users and scripts that do their work elsewhere.

use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, BufReader};

use crate::exec::environment::signal;
use crate::exec::support::rabbitmq::Vhost;
use crate::exec::{LOCK, create, lockkeeper, run};

#[tokio::test(flavor = "multi_thread")]
async fn hold_reports_when_it_holds_and_when_it_has_released() {
    let vhost = Vhost::create().await;
    create(&vhost, 1).await;
    let mut hold = lockkeeper(&vhost, &["hold", LOCK]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(hold.stdout.take().unwrap()).lines();
    let mut line = async || lines.next_line().await.unwrap();
    assert_eq!(line().await.as_deref(), Some("holding slot 1 of ci.deploy"));
    let full = run(&vhost, &["hold", LOCK, "--no-wait"]).await;
    assert_eq!(full.code, Some(75), "{full:?}");
    signal(hold.id().unwrap(), "TERM");
    assert_eq!(line().await.as_deref(), Some("released slot 1 of ci.deploy"));
    assert_eq!(hold.wait().await.unwrap().code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn hold_reports_the_loss_of_its_mutex() {
    let vhost = Vhost::create().await;
    let arguments = ["hold", "--mutex", "ci.one", "--heartbeat", "2s"];
    let mut hold = lockkeeper(&vhost, &arguments).spawn().unwrap();
    let mut lines = BufReader::new(hold.stdout.take().unwrap()).lines();
    assert_eq!(lines.next_line().await.unwrap().as_deref(), Some("holding ci.one"));
    let definition = serde_json::json!({
        "pattern": "^ci.one$", "definition": {"expires": 1}, "apply-to": "queues"
    });
    vhost.management.put(&format!("policies/{}/gone", vhost.name), definition).await;
    let output = hold.wait_with_output().await.unwrap();
    assert_eq!(output.status.code(), Some(80), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("ci.one was lost"), "{output:?}");
}
