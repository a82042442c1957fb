//! One member of etcd, as its defaults start it: each change is on the disk before it is confirmed.
//! The etcd of the test servers does without, so it would be no fair peer.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use lockkeeper_testkit::environment::variable;
use lockkeeper_testkit::redis::free_port;
use lockkeeper_testkit::world::PATIENCE;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};

use crate::Result;

/// The server, killed when dropped.
pub struct Etcd {
    /// The URL of its clients.
    pub url: String,
    _child: Child,
}

impl Etcd {
    /// Starts the server, with its data in this directory.
    pub async fn start(directory: &Path) -> Result<Self> {
        let [url, peer] = [(); 2].map(|()| format!("http://127.0.0.1:{}", free_port()));
        let log = directory.join("etcd.log");
        let child = Command::new(variable("ETCD"))
            .arg("--data-dir")
            .arg(directory.join("etcd"))
            .args(["--listen-client-urls", &url, "--advertise-client-urls", &url])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("default={peer}"), "--log-level", "warn"])
            .stdin(Stdio::null())
            .stderr(std::fs::File::create(&log)?)
            .kill_on_drop(true)
            .spawn()?;
        let start = Instant::now();
        let client = reqwest::Client::new();
        while !client.get(format!("{url}/readyz")).send().await.is_ok_and(|a| a.status() == 200) {
            if start.elapsed() > PATIENCE {
                return Err(std::fs::read_to_string(&log)?.into());
            }
            sleep(Duration::from_millis(50)).await;
        }
        Ok(Self { url, _child: child })
    }
}
