//! The HTTP server. For the kubelet: `/healthz` (the process responds) and `/readyz`
//! (both kinds are watched; otherwise, the missing conditions). Both deliberately ignore
//! brokers, because a restart of the operator would not repair them. For Prometheus:
//! `/metrics`; see `metrics` for its contents, and `clients` for the limits of what its
//! clients cost.

mod clients;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, warn};

use self::clients::{Client, Clients};
use super::metrics::{self, Metrics};

/// Time that running answers get to end after the stop was requested.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// Pause after a failure to accept, such as a limit of open files.
const ACCEPT_AGAIN: Duration = Duration::from_secs(1);

/// Path of the metrics.
const METRICS: &str = "/metrics";

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

/// Returns the operator's paths.
pub fn app(readiness: Readiness, metrics: Metrics) -> Router {
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .with_state(readiness)
        .route(METRICS, get(told).with_state(metrics))
}

/// Serves requests until `stop`, and ends within a second after it.
pub async fn serve(listener: TcpListener, app: Router, stop: CancellationToken) {
    let (clients, mut answers) = (Clients::default(), JoinSet::new());
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            Some(_) = answers.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    let client = clients.admit();
                    let whole = clients::WHOLE_TIME;
                    answers.spawn(answer(stream, app.clone(), clients.clone(), client, whole));
                }
                Err(error) => {
                    warn!(%error, "the HTTP server cannot accept a connection, trying again");
                    tokio::time::sleep(ACCEPT_AGAIN).await;
                }
            }
        }
    }
    drop(listener);
    clients.end_silent();
    let all = async { while answers.join_next().await.is_some() {} };
    if tokio::time::timeout(LAST_ANSWERS, all).await.is_err() {
        debug!("answers that were not read in time are dropped");
    }
}

/// Answers the one request of a connection, until its `whole` time is over or its place is
/// needed.
async fn answer(
    stream: TcpStream,
    app: Router,
    clients: Clients,
    client: Arc<Client>,
    whole: Duration,
) {
    let app = TowerToHyperService::new(app);
    let service = service_fn(|request: hyper::Request<hyper::body::Incoming>| {
        clients.asked(&client, request.uri().path() == METRICS);
        app.call(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(clients::HEADER_TIME)
        .max_buf_size(clients::HEADER_BYTES)
        // A connection without a request must not outlive the answer to its last one.
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    tokio::select! {
        ended = connection => if let Err(error) = ended {
            debug!(%error, "an HTTP connection failed");
        },
        () = client.must_end() => {}
        () = tokio::time::sleep(whole) => {}
    }
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

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::time::Instant;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::task::JoinHandle;

    use super::clients::{AT_ONCE, HEADER_BYTES};
    use super::*;

    async fn server() -> (SocketAddr, CancellationToken, JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, stop) = (listener.local_addr().unwrap(), CancellationToken::new());
        let serving = serve(listener, app(Readiness::default(), Metrics::new(true)), stop.clone());
        (address, stop, tokio::spawn(serving))
    }

    /// Sends this, and returns the first line of the answer.
    async fn ask(address: SocketAddr, text: &str) -> String {
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(text.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        // An answer to a header that was not read to its end may end in a reset.
        let _ = client.read_to_end(&mut answer).await;
        let answer = String::from_utf8(answer).unwrap();
        answer.lines().next().unwrap_or_default().to_owned()
    }

    const HALF: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: ";
    const READYZ: &str = "GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n";

    #[tokio::test]
    async fn half_sent_requests_keep_no_other_out_and_are_closed() {
        let (address, stop, serving) = server().await;
        let mut clients = Vec::new();
        for _ in 0..3 * AT_ONCE {
            let mut client = TcpStream::connect(address).await.unwrap();
            // The server may have closed it already.
            let _ = client.write_all(HALF).await;
            clients.push(client);
        }
        let start = Instant::now();
        assert_eq!(ask(address, READYZ).await, "HTTP/1.1 200 OK");
        assert!(start.elapsed() < clients::HEADER_TIME, "it waited for others");
        // Those without a place are closed immediately, and the rest when its time is over.
        let (rest, closed) = (clients.split_off(2 * AT_ONCE + 1), clients);
        for mut client in closed {
            let _ = client.read(&mut [0; 512]).await;
        }
        assert!(start.elapsed() < clients::HEADER_TIME, "more than have a place");
        for mut client in rest {
            let _ = client.read(&mut [0; 512]).await;
        }
        assert!(start.elapsed() < 2 * clients::WHOLE_TIME / 3);
        let long = format!("GET /readyz HTTP/1.1\r\nX: {}\r\n\r\n", "y".repeat(2 * HEADER_BYTES));
        assert!(ask(address, &long).await.contains("431"), "a header over the limit");
        stop.cancel();
        serving.await.unwrap();
    }

    #[tokio::test]
    async fn a_half_sent_request_does_not_delay_the_end() {
        let (address, stop, serving) = server().await;
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(HALF).await.unwrap();
        assert_eq!(ask(address, READYZ).await, "HTTP/1.1 200 OK");
        let start = Instant::now();
        stop.cancel();
        serving.await.unwrap();
        assert!(start.elapsed() < clients::HEADER_TIME / 2, "{:?}", start.elapsed());
    }

    #[tokio::test]
    async fn an_answer_that_is_not_read_ends_when_its_time_is_over() {
        // More than the buffers on the way take.
        let app = Router::new().route(METRICS, get(|| async { vec![0_u8; 64 << 20] }));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        client.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let (clients, whole) = (Clients::default(), Duration::from_secs(1));
        let place = clients.admit();
        let answer = answer(stream, app, clients, place, whole);
        assert!(tokio::time::timeout(clients::WHOLE_TIME, answer).await.is_ok());
    }
}
