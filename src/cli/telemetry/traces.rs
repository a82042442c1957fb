//! Sends spans by OTLP over HTTP, as configured by the standard `OTEL_*` variables. A
//! slow or unreachable collector only causes lost spans: they wait in a bounded queue
//! that a separate thread empties.

use std::collections::HashMap;
use std::time::Duration;

use lockkeeper_plan::connection::{SettingsError, variable_text};
use opentelemetry::Context;
use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::{TraceContextExt, TracerProvider};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing::{Level, Span, Subscriber};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::Layer;
use tracing_subscriber::registry::LookupSpan;

/// Maximum time that the end of the process waits for spans to be sent.
const PATIENCE: Duration = Duration::from_secs(2);

const NAME: &str = "lockkeeper";

/// Sends spans until it is dropped.
pub(super) struct Traces(SdkTracerProvider);

impl Traces {
    /// Layer for the spans of this crate, and for events in them from level info up.
    /// Spans of other crates are excluded because they may have data that must not leave
    /// the process.
    pub fn layer<S>(&self) -> impl Layer<S> + use<S>
    where
        S: Subscriber + for<'a> LookupSpan<'a> + Send + Sync,
    {
        let ours = filter_fn(|metadata| {
            let target = metadata.target();
            (target == NAME || target.starts_with("lockkeeper::"))
                && (metadata.is_span() || *metadata.level() <= Level::INFO)
        });
        tracing_opentelemetry::layer()
            .with_tracer(self.0.tracer(NAME))
            .with_location(false)
            .with_threads(false)
            .with_filter(ours)
    }
}

impl Drop for Traces {
    fn drop(&mut self) {
        // Spans that the collector does not accept in time are dropped.
        let _ = self.0.shutdown_with_timeout(PATIENCE);
    }
}

/// Reason why no traces are sent although they are configured.
#[derive(Debug, thiserror::Error)]
pub(super) enum TracesError {
    /// The transport is not compiled in.
    #[error("OTEL_EXPORTER_OTLP_PROTOCOL is {0}, and only http/protobuf is built in")]
    Protocol(String),
    /// A variable is not text.
    #[error(transparent)]
    NotText(#[from] SettingsError),
    /// The exporter rejects its settings.
    #[error("the OTEL_* variables can't be followed: {0}")]
    Exporter(#[from] opentelemetry_otlp::ExporterBuildError),
}

/// Returns an environment variable if it is not empty.
fn variable(name: &'static str) -> Result<Option<String>, SettingsError> {
    variable_text(name, std::env::var_os(name))
}

/// Returns the first of two variables: one for traces only, and one for all signals.
fn either(names: [&'static str; 2]) -> Result<Option<String>, SettingsError> {
    match variable(names[0])? {
        None => variable(names[1]),
        value => Ok(value),
    }
}

const ENDPOINT: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];
const PROTOCOL: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"];

/// Traces are only sent if an endpoint is configured.
fn are_wanted() -> Result<bool, SettingsError> {
    let disabled = variable("OTEL_SDK_DISABLED")?.is_some_and(|v| v.eq_ignore_ascii_case("true"));
    let endpoint = either(ENDPOINT)?;
    Ok(match variable("OTEL_TRACES_EXPORTER")?.as_deref() {
        _ if disabled => false,
        Some("otlp") => true,
        Some(_) => false,
        None => endpoint.is_some(),
    })
}

pub(super) fn start() -> Result<Option<Traces>, TracesError> {
    if !are_wanted()? {
        return Ok(None);
    }
    if let Some(protocol) = either(PROTOCOL)?.filter(|protocol| protocol != "http/protobuf") {
        return Err(TracesError::Protocol(protocol));
    }
    // The endpoint, headers and timeout are read from the environment.
    let exporter =
        SpanExporter::builder().with_http().with_protocol(Protocol::HttpBinary).build()?;
    let mut resource = Resource::builder();
    if variable("OTEL_SERVICE_NAME")?.is_none()
        && !variable("OTEL_RESOURCE_ATTRIBUTES")?.is_some_and(|v| v.contains("service.name="))
    {
        resource = resource.with_service_name(NAME);
    }
    let provider = SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .with_resource(resource.build())
        .build();
    Ok(Some(Traces(provider)))
}

/// Headers of the trace context and the corresponding variables.
const VARIABLES: [(&str, &str); 2] = [("traceparent", "TRACEPARENT"), ("tracestate", "TRACESTATE")];

pub(super) fn continue_trace(span: &Span) {
    // The context of another trace is not worth an error.
    let text = |name| variable(name).ok().flatten();
    let given = VARIABLES.into_iter().filter_map(|(key, name)| Some((key.to_owned(), text(name)?)));
    let given: HashMap<String, String> = given.collect();
    let context = TraceContextPropagator::new().extract_with_context(&Context::new(), &given);
    if context.span().span_context().is_valid() {
        // Fails only if spans are not sent anywhere.
        let _ = span.set_parent(context);
    }
}

pub(super) fn traceparent(span: &Span) -> Option<String> {
    let mut headers = HashMap::new();
    TraceContextPropagator::new().inject_context(&span.context(), &mut headers);
    headers.remove("traceparent")
}
