//! Where logs go and how they look.

use tracing_subscriber::EnvFilter;

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line, for collectors.
    Json,
}

/// The environment variable with the log filter, such as `info,lockkeeper=debug`.
const FILTER: &str = "LOCKKEEPER_LOG";

/// Logs to standard error, from level info up unless `LOCKKEEPER_LOG` says
/// otherwise.
pub fn start(format: LogFormat) {
    // lapin logs every refused passive declare as an error of its own; the
    // runtime's span repeats what ours says.
    let filter = EnvFilter::try_from_env(FILTER)
        .unwrap_or_else(|_| EnvFilter::new("info,lapin=off,kube_client=warn,kube_runtime=warn"));
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        LogFormat::Text => logs.with_ansi(false).init(),
        LogFormat::Json => logs.json().flatten_event(true).init(),
    }
}
