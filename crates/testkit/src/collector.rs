//! A minimal collector of OTLP over HTTP, which keeps the received spans for the test to
//! check.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::http::StatusCode;
use axum::routing::post;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use tokio::net::TcpListener;

use crate::environment::{PATIENCE, eventually, random, variable};

/// A collector on its own port, with all received data.
pub struct Collector {
    /// Its host and port.
    pub address: String,
    got: Arc<Mutex<Vec<Bytes>>>,
}

impl Collector {
    /// Starts a collector that responds after this delay. The data is also kept with the
    /// operators' logs, for the checks of the whole run.
    pub async fn start(delay: Duration) -> Self {
        let got: Arc<Mutex<Vec<Bytes>>> = Arc::default();
        let keep = Arc::clone(&got);
        let folder = format!("{}/operator-logs", variable("LOCKKEEPER_DEV_DIR"));
        std::fs::create_dir_all(&folder).unwrap();
        let file = std::fs::File::create(format!("{folder}/{}.traces", random())).unwrap();
        let file = Arc::new(file);
        let take = post(move |body: Bytes| async move {
            (&*file).write_all(&body).unwrap();
            keep.lock().unwrap().push(body);
            tokio::time::sleep(delay).await;
            StatusCode::OK
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let app = Router::new().route("/v1/traces", take);
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { address, got }
    }

    /// Returns the variables with which a program sends its spans here immediately.
    pub fn environment(&self) -> [(&str, &str); 2] {
        [("OTEL_EXPORTER_OTLP_ENDPOINT", &self.address), ("OTEL_BSP_SCHEDULE_DELAY", "100")]
    }

    /// Returns the received bodies. Text in them is not compressed.
    pub fn bodies(&self) -> Vec<Bytes> {
        self.got.lock().unwrap().clone()
    }

    /// Returns the received requests.
    pub fn requests(&self) -> Vec<ExportTraceServiceRequest> {
        let decoded = |body| ExportTraceServiceRequest::decode(body).unwrap();
        self.bodies().into_iter().map(decoded).collect()
    }

    /// Returns the received spans.
    pub fn spans(&self) -> Vec<Span> {
        let of_resources = self.requests().into_iter().flat_map(|r| r.resource_spans);
        of_resources.flat_map(|r| r.scope_spans).flat_map(|s| s.spans).collect()
    }

    /// Returns the first span with this name for which `is` holds.
    pub async fn span(&self, name: &str, is: impl Fn(&Span) -> bool) -> Span {
        let found = || self.spans().into_iter().find(|span| span.name == name && is(span));
        eventually(&format!("a span {name}"), PATIENCE, async || found().is_some()).await;
        found().unwrap()
    }
}

/// Returns an attribute of a span.
pub fn attribute(span: &Span, key: &str) -> Option<Value> {
    let attribute = span.attributes.iter().find(|attribute| attribute.key == key)?;
    attribute.value.clone()?.value
}

/// Returns a text attribute of a span.
pub fn text(span: &Span, key: &str) -> Option<String> {
    match attribute(span, key)? {
        Value::StringValue(text) => Some(text),
        other => panic!("{key}: {other:?}"),
    }
}
