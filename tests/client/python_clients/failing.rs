//! A Python client whose `acquire` raises closes every connection that it opened. An open one
//! would keep its consumer of the wait queue, which swallows wake-ups. A client that is killed
//! takes its command along.

use lockkeeper_testkit::environment::random;
use lockkeeper_testkit::proxy::Proxy;
use lockkeeper_testkit::rabbitmq::{Vhost, eventually};
use tokio::process::Command;

use super::{EXCLUSIVE_CONSUMER, GUIDELINE, MINIMAL, MUTEX, PYTHON, Script, TOKEN};
use crate::client::any;
use crate::exec::commands::alive_with;

/// Acquires with a client whose method `METHOD` raises.
const FAILS: &str = r#"
import importlib, os
client = getattr(importlib.import_module(os.environ["MODULE"]), os.environ["CLIENT"])
client = client(os.environ["AMQP_URL"], "ci.deploy")
def fail(*_):
    raise OSError("test")
setattr(client, os.environ["METHOD"], fail)
try:
    client.acquire(10)
except OSError as error:
    print(error)
"#;

async fn closes_its_connections(script: Script, class: &str, method: &str) {
    let (vhost, proxy) = (Vhost::create().await, Proxy::start().await);
    script.resize(&vhost, 1).await;
    // It waits, except in protocol Token, where a free token is required.
    let permit = match method {
        "announce" => None,
        _ => Some(script.lock(&vhost).try_acquire(&any()).await.unwrap()),
    };
    let mut command = Command::new(PYTHON);
    command.args(["-c", FAILS]).env("PYTHONDONTWRITEBYTECODE", "1");
    command.env("PYTHONPATH", format!("{}/examples/python", env!("CARGO_MANIFEST_DIR")));
    command.env("MODULE", script.file.trim_end_matches(".py"));
    command.env("CLIENT", class).env("METHOD", method);
    let output = command.env("AMQP_URL", proxy.url(&vhost.url())).output().await.unwrap();
    assert_eq!(output.stdout, b"test\n", "{output:?}");
    let seen = proxy.seen();
    let count = |name: &str| seen.iter().filter(|one| one.name == name).count();
    assert!(count("connection.open") > 0, "{seen:?}");
    assert_eq!(count("connection.open"), count("connection.close-ok"), "{class}: {seen:?}");
    drop(permit);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_whose_acquire_raises_closes_every_connection() {
    closes_its_connections(GUIDELINE, "GuidelineSlot", "sleep").await;
    closes_its_connections(EXCLUSIVE_CONSUMER, "ConsumerSlot", "sleep").await;
    closes_its_connections(MUTEX, "Mutex", "sleep").await;
    closes_its_connections(TOKEN, "Token", "announce").await;
}

/// The broker frees the slot of a killed client at once, so its command must not go on.
#[tokio::test(flavor = "multi_thread")]
async fn the_command_of_a_killed_client_ends() {
    for script in [GUIDELINE, EXCLUSIVE_CONSUMER, TOKEN, MUTEX, MINIMAL] {
        let vhost = Vhost::create().await;
        script.resize(&vhost, 1).await;
        let mark = format!("COMMAND_OF_A_TEST={}", random());
        let line = format!("export {mark}; echo begun; exec sleep 1000");
        let mut client = script.begin(&vhost, &line).await;
        eventually("the command runs", async || !alive_with(&mark).is_empty()).await;
        client.kill().await.unwrap();
        eventually("the command has ended", async || alive_with(&mark).is_empty()).await;
    }
}
