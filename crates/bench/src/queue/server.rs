//! The server of the queues, with and without the library.

use std::time::{Duration, Instant};

use lockkeeper_plan::connection::RedisSettings;
use lockkeeper_plan::naming::QueueName;
use lockkeeper_pressure::{Queue, QueueOptions};
use redis::aio::MultiplexedConnection;

use crate::Result;

/// The server, and the prefix of this run's queues.
pub struct Server {
    pub settings: RedisSettings,
    pub url: String,
    pub prefix: String,
}

impl Server {
    /// Returns the client of a queue.
    pub fn queue(&self, name: &str) -> Result<Queue> {
        let name = QueueName::new(self.prefix.clone(), name)?;
        Ok(Queue::new(self.settings.clone(), name, QueueOptions::default()))
    }

    /// Returns a connection without the library.
    pub async fn bare(&self) -> Result<MultiplexedConnection> {
        bare(&self.url).await
    }
}

/// Opens a connection without the library. It disables the TCP delay between two small
/// writes, and has no response timeout.
async fn bare(url: &str) -> Result<MultiplexedConnection> {
    use redis::IntoConnectionInfo;
    let tcp = redis::io::tcp::TcpSettings::default().set_nodelay(true);
    let client = redis::Client::open(url.into_connection_info()?.set_tcp_settings(tcp))?;
    let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
    Ok(client.get_multiplexed_async_connection_with_config(&config).await?)
}

/// Returns the duration.
pub async fn timed(work: impl Future<Output = Result<()>>) -> Result<Duration> {
    let start = Instant::now();
    work.await?;
    Ok(start.elapsed())
}
