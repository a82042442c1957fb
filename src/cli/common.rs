//! What several commands share: the runtime, the parsing of durations, and messages.

use std::fmt::Display;
use std::io::Write;

use super::failure::Failure;
use super::telemetry;

/// Runs a command that contacts servers, with text logs.
pub(super) fn in_runtime(verb: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let _telemetry = telemetry::start(telemetry::LogFormat::Text);
    let runtime = tokio::runtime::Runtime::new()
        .map_err(|error| Failure::new(Failure::UNAVAILABLE, error.to_string()))?;
    let result = runtime.block_on(verb);
    // Otherwise the shutdown would wait for a pending read of the terminal.
    runtime.shutdown_background();
    result
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
