//! A way to the real API server on which a test answers some requests itself, as an API
//! server in trouble would, or lets them wait. Everything else passes, as the operator's
//! account.

#![allow(dead_code, reason = "not every test binary uses all of it")]

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

use crate::environment::{random, variable};

/// What is wrong with the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// Every request is answered with this code.
    Answer(u16),
    /// Every change of an object or its status is answered with this code.
    RefuseChanges(u16),
    /// Every watch is answered, and ended, with "410 Gone" as an event of its own.
    ExpireWatches,
    /// No request is answered; each is cut off when the fault is over.
    Hang,
}

/// The proxy; its task ends with the test.
pub struct ApiServer {
    /// A kubeconfig that leads through here.
    pub kubeconfig: String,
    shared: Arc<Shared>,
}

struct Shared {
    client: Client,
    fault: watch::Sender<Fault>,
    met: watch::Sender<usize>,
}

impl ApiServer {
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

        let kubeconfig = format!("{}/kubeconfig-{}", env!("CARGO_TARGET_TMPDIR"), random());
        let text = serde_json::json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "here",
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "here"}}],
            "clusters": [{"name": "here", "cluster": {"server": format!("http://{address}")}}],
            "users": [{"name": "here", "user": {}}],
        });
        std::fs::write(&kubeconfig, text.to_string()).unwrap();
        Self { kubeconfig, shared }
    }

    /// From now on this is wrong, until it is told otherwise.
    pub fn suffer(&self, fault: Fault) {
        self.shared.met.send_replace(0);
        self.shared.fault.send_replace(fault);
    }

    /// How many requests the fault has met so far.
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
        Fault::ExpireWatches => is_watch,
    };
    if meets {
        shared.met.send_modify(|met| *met += 1);
    }
    match now {
        Fault::Answer(code) | Fault::RefuseChanges(code) if meets => status(code),
        Fault::ExpireWatches if meets => {
            let event = serde_json::json!({"type": "ERROR", "object": body(410)});
            (StatusCode::OK, [(header::CONTENT_TYPE, "application/json")], format!("{event}\n"))
                .into_response()
        }
        Fault::Hang => {
            let _ = fault.wait_for(|fault| *fault != Fault::Hang).await;
            // A body that breaks off: to the client the connection is lost.
            let broken =
                futures::stream::once(async { Err::<String, _>(std::io::Error::other("cut")) });
            Body::from_stream(broken).into_response()
        }
        _ => forward(&shared.client, request, fault).await,
    }
}

/// The way there and back. A watch ends when another fault begins.
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
