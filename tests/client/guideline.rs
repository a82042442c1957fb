//! Beside the guideline's client in Python, `examples/python/guideline_client.py`:
//! it and ours share a lock, and it keeps the promises that its text makes.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper::semaphore::Verdict;
use tokio::process::Command;

use crate::support::rabbitmq::{Vhost, eventually};
use crate::support::register::Register;
use crate::{any, held, lock, resize};

/// The Python that Debian's python3-pika belongs to.
const PYTHON: &str = "/usr/bin/python3";

/// The client, running a shell's line under the lock.
fn python(vhost: &Vhost, timeout: &str, line: &str) -> Command {
    let has_pika = std::process::Command::new(PYTHON).args(["-c", "import pika"]).output();
    let has_pika = has_pika.is_ok_and(|output| output.status.success());
    assert!(has_pika, "{PYTHON} has no pika: dev/install installs Debian's python3-pika");
    let client = format!("{}/examples/python/guideline_client.py", env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new(PYTHON);
    command.args([client.as_str(), "--timeout", timeout, "ci.deploy", "--", "sh", "-c", line]);
    command.env("AMQP_URL", vhost.url()).stdout(Stdio::piped()).kill_on_drop(true);
    command
}

async fn exit_code(mut command: Command) -> Option<i32> {
    command.status().await.unwrap().code()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_python_client_and_ours_never_hold_the_same_slot() {
    const ROUNDS: usize = 6;
    let vhost = Arc::new(Vhost::create().await);
    resize(&vhost, 2).await;
    let register = Arc::new(Register::create());
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..3 {
        let (theirs, place) = (Arc::clone(&vhost), register.folder().to_owned());
        clients.spawn(async move {
            let line = "mkdir \"$PLACE/$LOCK_SLOT\" && sleep 0.02 && rmdir \"$PLACE/$LOCK_SLOT\"";
            for _ in 0..ROUNDS {
                let mut command = python(&theirs, "60", line);
                command.env("PLACE", &place);
                assert_eq!(exit_code(command).await, Some(0), "two holders, or none");
            }
        });
        let (ours, register) = (Arc::clone(&vhost), Arc::clone(&register));
        clients.spawn(async move {
            let lock = lock(&ours);
            for _ in 0..5 * ROUNDS {
                let permit = lock.acquire_timeout(&any(), Duration::from_mins(1)).await.unwrap();
                let entered = register.enter(permit.slot().unwrap());
                tokio::time::sleep(Duration::from_millis(rand::random_range(0..40))).await;
                assert_eq!(permit.verify().await, Ok(Verdict::Held));
                drop(entered);
                permit.release().await.unwrap();
            }
        });
    }
    tokio::time::timeout(Duration::from_secs(100), clients.join_all()).await.expect("all end");
    assert_eq!(register.entries(), 15 * ROUNDS);
    eventually("nothing stays held", async || held(&vhost).await.is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_python_client_tells_who_it_is_and_exits_as_its_command_does() {
    let vhost = Vhost::create().await;
    assert_eq!(exit_code(python(&vhost, "0", "true")).await, Some(75), "no slots");
    resize(&vhost, 1).await;
    assert_eq!(exit_code(python(&vhost, "0", "exit 7")).await, Some(7));
    assert_eq!(exit_code(python(&vhost, "0", "kill -KILL $$")).await, Some(137));
    let permit = lock(&vhost).try_acquire(&any()).await.unwrap();
    assert_eq!(exit_code(python(&vhost, "0.3", "true")).await, Some(75), "full");
    permit.release().await.unwrap();

    let mut child = python(&vhost, "10", "sleep 60").spawn().unwrap();
    eventually("it holds slot 1", async || held(&vhost).await == [1]).await;
    let facts = vhost.queue("ci.deploy-1-B").await.unwrap()["arguments"].clone();
    assert!(facts["x-lockkeeper-identity"].as_str().unwrap().starts_with("pid "), "{facts}");
    assert_eq!(facts["x-lockkeeper-reason"], "sh -c sleep 60");
    // A signal is the command's.
    let pid = child.id().unwrap().to_string();
    std::process::Command::new("kill").arg(&pid).status().unwrap();
    assert_eq!(child.wait().await.unwrap().code(), Some(143));
    assert_eq!(held(&vhost).await, Vec::<u32>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_python_client_ends_its_command_when_the_slot_is_lost_but_not_when_it_drains() {
    let vhost = Vhost::create().await;
    resize(&vhost, 1).await;
    let mut child =
        python(&vhost, "10", "trap 'echo ended; exit' TERM; sleep 6.5 & wait; echo done");
    let draining = tokio::spawn(async move { child.output().await.unwrap() });
    eventually("it holds slot 1", async || held(&vhost).await == [1]).await;
    resize(&vhost, 0).await;
    let drained = draining.await.unwrap();
    assert_eq!((drained.status.code(), drained.stdout), (Some(0), b"done\n".to_vec()));

    resize(&vhost, 1).await;
    let mut child = python(&vhost, "10", "trap 'echo ended; exit' TERM; sleep 60 & wait");
    let losing = tokio::spawn(async move { child.output().await.unwrap() });
    eventually("it holds slot 1", async || held(&vhost).await == [1]).await;
    let theirs = async || vhost.connections("guideline client of ci.deploy").await;
    eventually("its connection is shown", async || !theirs().await.is_empty()).await;
    for connection in theirs().await {
        vhost.management.close_connection(&connection, "test").await;
    }
    let lost = losing.await.unwrap();
    assert_eq!((lost.status.code(), lost.stdout), (Some(80), b"ended\n".to_vec()));
}
