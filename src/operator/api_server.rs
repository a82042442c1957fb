//! The client of the Kubernetes API server: limits and counts requests, bounds the memory
//! of their answers, and rejects changes by a replica that is no longer the leader. See the
//! callers for the requests.

use std::sync::Arc;

use axum::http::header::{HeaderValue, USER_AGENT};
use axum::http::{Method, Request};
use kube::Client;
use kube::client::{Body, ClientBuilder};
use lockkeeper_plan::MayAct;
use tower::filter::FilterLayer;
use tower::limit::ConcurrencyLimitLayer;
use tower::{BoxError, service_fn};

use super::answers::Answers;
use super::kubeconfig;
use super::metrics::Metrics;

/// Maximum number of concurrent requests to the API server. Each one is a connection (the
/// client speaks HTTP/1.1), with a TLS handshake and buffers on both sides. Without a
/// limit, a start with a thousand objects would open a thousand connections. A higher
/// limit is not faster.
const REQUESTS_AT_ONCE: usize = 24;

/// Creates a client for the API server of this pod or of `KUBECONFIG`. It rejects changes
/// once `may_act` no longer allows them. Does not connect.
pub(super) async fn connect(metrics: &Metrics, may_act: MayAct) -> Result<Client, BoxError> {
    let mut config = kubeconfig::find(None, None).await?;
    // The API server takes the field manager of a write that names none, such as that of
    // the finalizer, from the part before the slash.
    let agent = concat!("lockkeeper/", env!("CARGO_PKG_VERSION"));
    config.headers.push((USER_AGENT, HeaderValue::from_static(agent)));
    let guard = FilterLayer::new(move |request: Request<Body>| {
        if request.method() == Method::GET || may_act.now() {
            Ok(request)
        } else {
            Err(BoxError::from("this replica is not the leader any more"))
        }
    });
    // A watch counts only until its response begins.
    let limit = ConcurrencyLimitLayer::new(REQUESTS_AT_ONCE);
    let builder = ClientBuilder::try_from(config)?;
    let client =
        builder.with_layer(&metrics.requests).with_layer(&limit).with_layer(&guard).build();
    let (namespace, answers) =
        (client.default_namespace().to_owned(), Arc::new(Answers::default()));
    let answer = service_fn(move |request| {
        let (client, answers) = (client.clone(), Arc::clone(&answers));
        async move { answers.to(&client, request).await }
    });
    Ok(Client::new(answer, namespace))
}
