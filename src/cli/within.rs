//! Limits the time in which a server answers a command that has a limit of its own.

use std::time::Duration;

use super::failure::Failure;

/// Minimum time for an answer, also if the limit of the command is shorter.
const LEAST: Duration = Duration::from_secs(3);

/// Waits for an answer of `server`, at most until the limit of the command. Without a limit,
/// the server's own limits apply. Cancel safe if `asking` is.
pub(super) async fn within<T>(
    limit: Option<Duration>,
    server: &str,
    asking: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let Some(limit) = limit.map(|limit| limit.max(LEAST)) else { return asking.await };
    tokio::time::timeout(limit, asking).await.unwrap_or_else(|_| {
        let message = format!("{server} did not answer within {}s", limit.as_secs());
        Err(Failure::new(Failure::UNAVAILABLE, message))
    })
}
