//! The way to the Kubernetes API server: how many requests at a time, counted, and
//! none that changes something by a replica that is not the leader any more. What is
//! asked is not here.

use axum::http::{Method, Request};
use kube::client::{Body, ClientBuilder};
use kube::{Client, Config};
use tower::BoxError;
use tower::filter::FilterLayer;
use tower::limit::ConcurrencyLimitLayer;

use super::metrics::Metrics;
use crate::plan::MayAct;

/// Most requests to the API server at a time. Each is a connection (the client
/// speaks HTTP/1.1), with a TLS handshake and buffers on both sides; a start with
/// a thousand objects would open a thousand. More than this are no faster.
const REQUESTS_AT_ONCE: usize = 24;

/// A client for the API server of this pod or of `KUBECONFIG`, which changes something
/// only as long as it may. Connects nothing.
pub(super) async fn connect(metrics: &Metrics, may_act: MayAct) -> Result<Client, BoxError> {
    let config = Config::infer().await?;
    let guard = FilterLayer::new(move |request: Request<Body>| {
        if request.method() == Method::GET || may_act.now() {
            Ok(request)
        } else {
            Err(BoxError::from("this replica is not the leader any more"))
        }
    });
    // A watch counts only until its answer begins.
    let limit = ConcurrencyLimitLayer::new(REQUESTS_AT_ONCE);
    let builder = ClientBuilder::try_from(config)?;
    Ok(builder.with_layer(&metrics.requests).with_layer(&limit).with_layer(&guard).build())
}
