//! A proxy to the real management API. A test can inject faulty answers, as a proxy in
//! front of it, another broker or a hostile server would send them. All other requests
//! are forwarded.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures::stream;
use lockkeeper_plan::connection::RabbitmqSettings;
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::environment::{provide_tls, variable};
use super::rabbitmq::administrator;

/// A fault of the answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// No fault.
    None,
    /// Every request is answered with this code.
    Answer(u16),
    /// Answers of another broker: with another cluster name, and the contents of this
    /// virtual host of the real one.
    OtherBroker(String),
    /// Every body is endless white space.
    Endless,
    /// Every request is redirected to the real API.
    Redirect,
    /// The connection of the first request is closed without an answer.
    Close,
    /// As many requests are answered with this code and body, then none.
    First(usize, u16, &'static str),
}

/// The proxy; its task ends with the test.
pub struct ManagementProxy {
    /// Its URL, with user and password.
    pub url: String,
    shared: Arc<Shared>,
}

struct Shared {
    /// The URL of the real API, without user and password: those of a request are
    /// forwarded.
    real: String,
    client: reqwest::Client,
    fault: watch::Sender<Fault>,
    met: watch::Sender<usize>,
}

impl ManagementProxy {
    /// Starts the proxy.
    pub async fn start() -> Self {
        provide_tls();
        let shared = Arc::new(Shared {
            real: administrator().management.unwrap().url,
            client: reqwest::Client::builder().pool_max_idle_per_host(0).build().unwrap(),
            fault: watch::Sender::new(Fault::None),
            met: watch::Sender::new(0),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut url = url::Url::parse(&variable("RABBITMQ_MANAGEMENT_URL")).unwrap();
        url.set_host(Some("127.0.0.1")).unwrap();
        url.set_port(Some(listener.local_addr().unwrap().port())).unwrap();
        let router = axum::Router::new().fallback(pass).with_state(Arc::clone(&shared));
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { url: url.as_str().trim_end_matches('/').to_owned(), shared }
    }

    /// Returns settings for the same broker with this proxy as its management API.
    pub fn settings(&self, settings: RabbitmqSettings) -> RabbitmqSettings {
        let amqp = "amqp://user:password@host";
        let here = RabbitmqSettings::from_urls(amqp, Some(&self.url)).unwrap();
        RabbitmqSettings { management: here.management, ..settings }
    }

    /// Injects this fault until it is replaced.
    pub fn suffer(&self, fault: Fault) {
        self.shared.met.send_replace(0);
        self.shared.fault.send_replace(fault);
    }

    /// Waits until this number of requests have arrived since the fault began.
    pub async fn until_met(&self, requests: usize) {
        let mut met = self.shared.met.subscribe();
        met.wait_for(|met| *met >= requests).await.unwrap();
    }
}

async fn pass(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    shared.met.send_modify(|met| *met += 1);
    let fault = shared.fault.borrow().clone();
    let path = request.uri().path_and_query().unwrap().as_str().to_owned();
    match fault {
        Fault::Answer(code) => StatusCode::from_u16(code).unwrap().into_response(),
        Fault::Endless => {
            let spaces = Bytes::from(vec![b' '; 65_536]);
            let endless = stream::repeat_with(move || Ok::<_, Infallible>(spaces.clone()));
            Body::from_stream(endless).into_response()
        }
        Fault::Redirect => {
            let to = format!("{}{path}", shared.real);
            (StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, to)]).into_response()
        }
        // Ends the task that serves the connection.
        Fault::Close if *shared.met.borrow() == 1 => std::panic::resume_unwind(Box::new(())),
        Fault::OtherBroker(_) if path == "/api/cluster-name" => {
            r#"{"name":"another"}"#.into_response()
        }
        Fault::OtherBroker(vhost) => forward(&shared, request, of_vhost(&path, &vhost)).await,
        Fault::First(requests, code, body) if *shared.met.borrow() <= requests => {
            (StatusCode::from_u16(code).unwrap(), body).into_response()
        }
        Fault::None | Fault::Close | Fault::First(..) => forward(&shared, request, path).await,
    }
}

/// Replaces the virtual host in a path: `/api/queues/VHOST/...`.
fn of_vhost(path: &str, vhost: &str) -> String {
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let mut parts: Vec<&str> = path.split('/').collect();
    let has_vhost = matches!(parts.get(2), Some(&("queues" | "consumers" | "vhosts")));
    if let Some(part) = parts.get_mut(3).filter(|_| has_vhost) {
        *part = vhost;
    }
    format!("{}?{query}", parts.join("/"))
}

async fn forward(shared: &Shared, request: Request, path: String) -> Response {
    let (parts, body) = request.into_parts();
    let url = format!("{}{path}", shared.real);
    let mut forwarded = shared.client.request(parts.method, url);
    if let Some(user) = parts.headers.get(header::AUTHORIZATION) {
        forwarded = forwarded.header(header::AUTHORIZATION, user);
    }
    let body = to_bytes(body, usize::MAX).await.unwrap();
    let answer = forwarded.body(body).send().await.expect("the management API answers");
    let status = answer.status();
    (status, answer.bytes().await.unwrap()).into_response()
}
