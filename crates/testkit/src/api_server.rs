//! A proxy to the real API server. A test can make it answer some requests itself, as a
//! faulty API server would, or delay them. All other requests are forwarded with the
//! operator's account.

use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode, Version, header};
use axum::response::{IntoResponse, Response};
use futures::StreamExt;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::built;
use crate::environment::{random, variable};

/// A fault of the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// No fault.
    None,
    /// Every request is answered with this code.
    Answer(u16),
    /// Every change of an object or its status is answered with this code.
    RefuseChanges(u16),
    /// Every change of a status is answered with this code.
    RefuseStatus(u16),
    /// Every watch is answered with "410 Gone" as a watch event, and ended.
    ExpireWatches,
    /// No request is answered. Each is aborted when the fault ends.
    Hang,
}

/// The proxy; its task ends with the test.
pub struct ApiServer {
    /// A kubeconfig that leads to this proxy.
    pub kubeconfig: String,
    shared: Arc<Shared>,
}

struct Shared {
    client: Client,
    fault: watch::Sender<Fault>,
    met: watch::Sender<usize>,
}

impl ApiServer {
    /// Starts the proxy.
    pub async fn new() -> Self {
        let kubeconfig = Kubeconfig::read_from(variable("LOCKKEEPER_OPERATOR_KUBECONFIG")).unwrap();
        let options = KubeConfigOptions::default();
        let config = Config::from_custom_kubeconfig(kubeconfig, &options).await.unwrap();
        let shared = Arc::new(Shared {
            client: Client::try_from(config).unwrap(),
            fault: watch::Sender::new(Fault::None),
            met: watch::Sender::new(0),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = axum::Router::new().fallback(pass).with_state(Arc::clone(&shared));
        tokio::spawn(async move { axum::serve(listener, router).await });

        let kubeconfig = format!("{}/kubeconfig-{}", built::scratch().display(), random());
        let text = serde_json::json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "here",
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "here"}}],
            "clusters": [{"name": "here", "cluster": {"server": format!("http://{address}")}}],
            "users": [{"name": "here", "user": {}}],
        });
        std::fs::write(&kubeconfig, text.to_string()).unwrap();
        Self { kubeconfig, shared }
    }

    /// Injects this fault until it is replaced.
    pub fn suffer(&self, fault: Fault) {
        self.shared.met.send_replace(0);
        self.shared.fault.send_replace(fault);
    }

    /// Returns how many requests the fault has affected so far.
    pub fn met(&self) -> usize {
        *self.shared.met.borrow()
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.kubeconfig);
    }
}

async fn pass(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let mut fault = shared.fault.subscribe();
    let now = *fault.borrow_and_update();
    let is_watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
    let is_change = request.method() != Method::GET;
    let meets = match now {
        Fault::None => false,
        Fault::Answer(_) | Fault::Hang => true,
        Fault::RefuseChanges(_) => is_change,
        Fault::RefuseStatus(_) => is_change && request.uri().path().ends_with("/status"),
        Fault::ExpireWatches => is_watch,
    };
    if meets {
        shared.met.send_modify(|met| *met += 1);
    }
    match now {
        Fault::Answer(code) | Fault::RefuseChanges(code) | Fault::RefuseStatus(code) if meets => {
            status(code)
        }
        Fault::ExpireWatches if meets => {
            let event = serde_json::json!({"type": "ERROR", "object": body(410)});
            (StatusCode::OK, [(header::CONTENT_TYPE, "application/json")], format!("{event}\n"))
                .into_response()
        }
        Fault::Hang => {
            let _ = fault.wait_for(|fault| *fault != Fault::Hang).await;
            // An incomplete body: to the client the connection is lost.
            let broken =
                futures::stream::once(async { Err::<String, _>(std::io::Error::other("cut")) });
            Body::from_stream(broken).into_response()
        }
        _ => forward(&shared.client, request, fault).await,
    }
}

/// Forwards a request and its response. A watch ends when another fault begins.
async fn forward(client: &Client, request: Request, mut fault: watch::Receiver<Fault>) -> Response {
    let (mut parts, body) = request.into_parts();
    parts.version = Version::HTTP_11;
    for name in [header::HOST, header::CONNECTION, header::CONTENT_LENGTH] {
        parts.headers.remove(name);
    }
    let path = parts.uri.path_and_query().unwrap().as_str().parse().unwrap();
    parts.uri = path;
    let body = kube::client::Body::from(to_bytes(body, usize::MAX).await.unwrap().to_vec());
    let answer = client.send(axum::http::Request::from_parts(parts, body)).await.unwrap();
    let (mut parts, body) = answer.into_parts();
    parts.version = Version::HTTP_11;
    parts.headers.remove(header::TRANSFER_ENCODING);
    parts.headers.remove(header::CONNECTION);
    let changed = async move {
        let _ = fault.changed().await;
    };
    let stream = Body::new(body).into_data_stream().take_until(Box::pin(changed));
    parts.headers.remove(header::CONTENT_LENGTH);
    Response::from_parts(parts, Body::from_stream(stream))
}

fn body(code: u16) -> serde_json::Value {
    let reason = match code {
        409 => "Conflict",
        410 => "Expired",
        429 => "TooManyRequests",
        _ => "InternalError",
    };
    serde_json::json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "a test's fault", "reason": reason, "code": code,
    })
}

fn status(code: u16) -> Response {
    let headers = [(header::CONTENT_TYPE, "application/json"), (header::RETRY_AFTER, "1")];
    (StatusCode::from_u16(code).unwrap(), headers, body(code).to_string()).into_response()
}
