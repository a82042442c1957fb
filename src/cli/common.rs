//! What several commands share: the runtime, the parsing of durations, and messages.

use std::fmt::Display;
use std::io::Write;
use std::num::NonZeroUsize;

use clap::builder::{OsStringValueParser, TypedValueParser};
use lockkeeper_net::process_limit;
use tokio::runtime::{Builder, Runtime};

use super::failure::Failure;
use super::telemetry;

/// Threads besides the runtime's own: those of connections and of blocking calls, and room
/// for the processes that `exec` and `queue run` start.
const OTHER_THREADS: usize = 6;

/// Runs a command that contacts servers, with text logs.
pub(super) fn in_runtime(verb: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let _telemetry = telemetry::start(telemetry::LogFormat::Text);
    let runtime = runtime()?;
    let result = runtime.block_on(verb);
    // Otherwise the shutdown would wait for a pending read of the terminal.
    runtime.shutdown_background();
    result
}

/// Creates a runtime with several threads. Checks before that the process may have as many
/// threads as it needs: at a limit, tokio and lapin panic in a thread, and the process hangs.
pub(super) fn runtime() -> Result<Runtime, Failure> {
    let needed = std::thread::available_parallelism().map_or(1, NonZeroUsize::get) + OTHER_THREADS;
    process_limit::check_threads(needed).and_then(|()| Runtime::new()).map_err(|error| {
        let message = format!(
            "threads can't be started: {error}. Raise the limit on processes (ulimit -u, or pids.max of the cgroup)"
        );
        Failure::new(Failure::UNAVAILABLE, message)
    })
}

/// Creates a runtime without further threads.
pub(super) fn single_thread() -> Result<Runtime, Failure> {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| Failure::new(Failure::UNAVAILABLE, error.to_string()))
}

/// Parses a text that is only shown to users: bytes that are not UTF-8, as in a commit message of
/// another encoding, do not prevent a command.
pub(super) fn shown_text() -> impl TypedValueParser<Value = String> {
    OsStringValueParser::new().map(|text| text.to_string_lossy().into_owned())
}

/// Parses a duration such as `250ms`, `10s`, `5m` or `1h`.
pub(super) fn duration(text: &str) -> Result<std::time::Duration, String> {
    let duration: jiff::SignedDuration =
        text.parse().map_err(|_| "expected a duration such as 250ms, 10s or 5m".to_owned())?;
    duration.try_into().map_err(|_| "a duration can't be negative".to_owned())
}

/// Prints a message to stderr, separate from the data on stdout.
pub(super) fn say(text: impl Display) {
    let _ = writeln!(std::io::stderr(), "lockkeeper: {text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_people_write_them() {
        assert_eq!(duration("250ms"), Ok(std::time::Duration::from_millis(250)));
        assert_eq!(duration("5m"), Ok(std::time::Duration::from_mins(5)));
        assert!(duration("-1s").is_err());
        assert!(duration("soon").is_err());
    }
}
