//! Logs and traces of the process. See the submodules for the JSON log format and for
//! sending spans. Without the feature `otel`, no spans are sent.

mod json;
#[cfg(feature = "otel")]
mod traces;

use tracing::Span;
use tracing_subscriber::fmt::format::JsonFields;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry, fmt};

use self::json::Json;

/// Format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// Plain text.
    Text,
    /// One JSON object per line.
    Json,
}

/// The environment variable with the log filter, such as `info,lockkeeper=debug`.
const FILTER: &str = "LOCKKEEPER_LOG";

/// The filter if none is set. lapin logs every rejected passive declare as an error. `kube_client`
/// logs every failed request and `kube_runtime` every failed watch, which this crate reports in
/// one sentence.
const DEFAULT_FILTER: &str = "info,lapin=off,kube_client=off,kube_runtime=error";

/// Guard of the logs and traces of this process. Dropping it sends pending spans, for at
/// most two seconds.
#[must_use]
pub struct Telemetry {
    #[cfg(feature = "otel")]
    _traces: Option<traces::Traces>,
}

/// Logs to stderr, from level info up unless `LOCKKEEPER_LOG` sets another filter, and
/// sends traces as configured by the `OTEL_*` variables.
pub fn start(format: LogFormat) -> Telemetry {
    let set = std::env::var_os(FILTER).filter(|filter| !filter.is_empty());
    let valid = set.as_ref().and_then(|text| EnvFilter::try_new(text.to_str()?).ok());
    let is_ignored = set.is_some() && valid.is_none();
    let filter = valid.unwrap_or_else(|| EnvFilter::new(DEFAULT_FILTER));
    let logs = fmt::layer::<Registry>().with_writer(std::io::stderr);
    let logs = match format {
        LogFormat::Text => logs.with_ansi(false).boxed(),
        LogFormat::Json => logs.event_format(Json).fmt_fields(JsonFields::new()).boxed(),
    };
    let subscriber = tracing_subscriber::registry().with(logs.with_filter(filter));
    #[cfg(feature = "otel")]
    let traces = traces::start();
    #[cfg(feature = "otel")]
    let subscriber =
        subscriber.with(traces.as_ref().ok().and_then(|traces| Some(traces.as_ref()?.layer())));
    subscriber.init();
    if is_ignored {
        tracing::warn!(
            "{FILTER} is no filter and is ignored: write it as in info,lockkeeper=debug"
        );
    }
    #[cfg(feature = "otel")]
    {
        if let Err(error) = &traces {
            tracing::warn!(%error, "no traces are sent");
        }
        Telemetry { _traces: traces.ok().flatten() }
    }
    #[cfg(not(feature = "otel"))]
    Telemetry {}
}

/// Makes the span part of the trace given by `TRACEPARENT`, if set.
pub fn continue_trace(span: &Span) {
    #[cfg(feature = "otel")]
    traces::continue_trace(span);
    #[cfg(not(feature = "otel"))]
    let _ = span;
}

/// Value of `TRACEPARENT` for a child process of the span; `None` if no traces are sent.
pub fn traceparent(span: &Span) -> Option<String> {
    #[cfg(feature = "otel")]
    return traces::traceparent(span);
    #[cfg(not(feature = "otel"))]
    {
        let _ = span;
        None
    }
}
