//! Where logs and traces go. How a log line looks in JSON and how spans are sent are
//! the submodules'; without the feature `otel` no span is sent.

mod json;
#[cfg(feature = "otel")]
mod traces;

use tracing::Span;
use tracing_subscriber::fmt::format::JsonFields;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry, fmt};

use self::json::Json;

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

/// Logs and traces of this process. Dropping it sends the spans that wait, for at most
/// two seconds.
#[must_use]
pub struct Telemetry {
    #[cfg(feature = "otel")]
    _traces: Option<traces::Traces>,
}

/// Logs to standard error, from level info up unless `LOCKKEEPER_LOG` says
/// otherwise, and sends traces where the `OTEL_*` variables say.
pub fn start(format: LogFormat) -> Telemetry {
    // lapin logs every refused passive declare as an error of its own; the
    // runtime's span repeats what ours says.
    let filter = EnvFilter::try_from_env(FILTER)
        .unwrap_or_else(|_| EnvFilter::new("info,lapin=off,kube_client=warn,kube_runtime=warn"));
    let logs = fmt::layer::<Registry>().with_writer(std::io::stderr);
    let logs = match format {
        LogFormat::Text => logs.with_ansi(false).boxed(),
        LogFormat::Json => logs.event_format(Json).fmt_fields(JsonFields::new()).boxed(),
    };
    let subscriber = tracing_subscriber::registry().with(logs.with_filter(filter));
    #[cfg(feature = "otel")]
    {
        let traces = traces::start();
        subscriber
            .with(traces.as_ref().ok().and_then(|traces| Some(traces.as_ref()?.layer())))
            .init();
        if let Err(error) = &traces {
            tracing::warn!(%error, "no traces are sent");
        }
        Telemetry { _traces: traces.ok().flatten() }
    }
    #[cfg(not(feature = "otel"))]
    {
        subscriber.init();
        Telemetry {}
    }
}

/// The span becomes part of the trace that `TRACEPARENT` names, if any.
pub fn continue_trace(span: &Span) {
    #[cfg(feature = "otel")]
    traces::continue_trace(span);
    #[cfg(not(feature = "otel"))]
    let _ = span;
}

/// What `TRACEPARENT` must be for a process whose work is part of the span; absent
/// where no traces are sent.
pub fn traceparent(span: &Span) -> Option<String> {
    #[cfg(feature = "otel")]
    return traces::traceparent(span);
    #[cfg(not(feature = "otel"))]
    {
        let _ = span;
        None
    }
}
