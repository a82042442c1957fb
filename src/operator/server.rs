//! The HTTP server. For the kubelet: `/healthz` (the process responds) and `/readyz`
//! (both kinds are watched; otherwise, the missing conditions). Both deliberately ignore
//! brokers, because a restart of the operator would not repair them. For Prometheus:
//! `/metrics`; see `metrics` for its contents.

use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tracing::error;

use super::metrics::{self, Metrics};

/// State of `/readyz`: the conditions that the operator still waits for.
#[derive(Clone, Default)]
pub struct Readiness(Arc<Mutex<Vec<String>>>);

impl Readiness {
    /// Creates a state that is not ready until all these conditions are done.
    #[must_use]
    pub fn waiting_for(what: impl IntoIterator<Item = String>) -> Self {
        Self(Arc::new(Mutex::new(what.into_iter().collect())))
    }

    /// Adds conditions to wait for.
    pub fn wait_for(&self, what: impl IntoIterator<Item = String>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(what);
    }

    /// Marks a condition as done.
    pub fn done(&self, what: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|waiting| waiting != what);
    }

    /// Returns the conditions that are not done.
    #[must_use]
    pub fn missing(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Serves requests until `stop`.
pub async fn serve(
    listener: TcpListener,
    readiness: Readiness,
    metrics: Metrics,
    stop: CancellationToken,
) -> std::io::Result<()> {
    let app = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .with_state(readiness)
        .route("/metrics", get(told).with_state(metrics));
    axum::serve(listener, app).with_graceful_shutdown(stop.cancelled_owned()).await
}

async fn readyz(State(readiness): State<Readiness>) -> (StatusCode, String) {
    let missing = readiness.missing();
    if missing.is_empty() {
        return (StatusCode::OK, "ok\n".to_owned());
    }
    (StatusCode::SERVICE_UNAVAILABLE, format!("waiting for {}\n", missing.join(", ")))
}

async fn told(State(metrics): State<Metrics>) -> Response {
    match metrics.text() {
        Ok(text) => ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response(),
        Err(error) => {
            error!(%error, "the metrics could not be written");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}
