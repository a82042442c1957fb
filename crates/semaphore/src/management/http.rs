//! The HTTP client of the management API. It limits what a server may send before its answer,
//! honours the proxy of the environment, and follows no redirect: that may lead anywhere, and
//! would be followed with the password. See `answer` for what an answer may contain.

use std::error::Error;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::Empty;
use hyper::body::{Bytes, Incoming};
use hyper::ext::on_informational;
use hyper::header::PROXY_AUTHORIZATION;
use hyper::http::Extensions;
use hyper::http::request::Builder;
use hyper::http::uri::Scheme;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::{Request, Response, Uri};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::legacy::connect::{
    Connected, Connection, HttpConnector, capture_connection,
};
use hyper_util::client::proxy::matcher::Matcher;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio_rustls::TlsConnector;
use tower::ServiceExt;
use tower::util::{BoxCloneSyncService, service_fn};

/// Time limit of one request, from connecting to the last byte of the answer. It is
/// short, because the API only adds facts.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);

/// How long an idle connection is kept. This is half of the broker's own idle time (60
/// s), because a request that crosses the broker's close is lost.
const IDLE: Duration = Duration::from_secs(30);

/// Maximum number of informational answers (100 to 199) before the answer itself. A
/// RabbitMQ sends none, and a proxy in front of it may send a few.
const MAX_INFORMATIONAL: usize = 12;

const TOO_MANY: &str = "it sends only informational answers (status 100 to 199): check that the URL is that of a RabbitMQ";

type Failure = Box<dyn Error + Send + Sync>;

/// Sends requests to one server, over connections that it keeps.
pub struct Client {
    pool: legacy::Client<BoxCloneSyncService<Uri, Stream, Failure>, Empty<Bytes>>,
    proxies: Arc<Matcher>,
}

/// A request without an answer.
pub struct Failed {
    /// The cause.
    pub why: String,
    /// Whether the server may have closed an idle connection at that moment.
    is_repeatable: bool,
}

impl Client {
    /// Creates a client with this TLS configuration. Does no I/O.
    pub fn new(tls: Arc<ClientConfig>) -> Self {
        Self::behind(Matcher::from_env(), tls)
    }

    fn behind(proxies: Matcher, tls: Arc<ClientConfig>) -> Self {
        let proxies = Arc::new(proxies);
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(REQUEST_TIMEOUT));
        let dialer = Dialer { tcp, tls: tls.into(), proxies: Arc::clone(&proxies) };
        let dial = service_fn(move |to: Uri| {
            let dialer = dialer.clone();
            async move { tokio::time::timeout(REQUEST_TIMEOUT, dialer.dial(to)).await? }
        });
        let pool = legacy::Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .build(BoxCloneSyncService::new(dial));
        Self { pool, proxies }
    }

    /// Sends a request that changes nothing, if necessary twice: the server may close an idle
    /// connection while the request is on its way.
    pub async fn send_repeatedly(&self, request: Builder) -> Result<Response<Incoming>, Failed> {
        let request = built(request)?;
        match self.send_once(request.clone()).await {
            Err(failed) if failed.is_repeatable => self.send_once(request).await,
            sent => sent,
        }
    }

    /// Sends a request once. The answer's body may still be on its way.
    pub async fn send(&self, request: Builder) -> Result<Response<Incoming>, Failed> {
        self.send_once(built(request)?).await
    }

    async fn send_once(
        &self,
        mut request: Request<Empty<Bytes>>,
    ) -> Result<Response<Incoming>, Failed> {
        // A tunnel for https has its own header.
        if request.uri().scheme() == Some(&Scheme::HTTP)
            && let Some(proxy) = self.proxies.intercept(request.uri())
            && let Some(login) = proxy.basic_auth()
        {
            request.headers_mut().insert(PROXY_AUTHORIZATION, login.clone());
        }
        limit_informational(&mut request);
        match tokio::time::timeout(REQUEST_TIMEOUT, self.pool.request(request)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => {
                let why = root_cause(&error);
                let is_repeatable = !error.is_connect() && why != TOO_MANY;
                Err(Failed { why, is_repeatable })
            }
            Err(_) => Err(Failed { why: no_answer(), is_repeatable: false }),
        }
    }
}

fn built(request: Builder) -> Result<Request<Empty<Bytes>>, Failed> {
    let built = request.body(Empty::new());
    built.map_err(|error| Failed { why: root_cause(&error), is_repeatable: false })
}

/// Ends the request's connection after too many informational answers. hyper has no limit,
/// and would read them for as long as the request may take.
fn limit_informational(request: &mut Request<Empty<Bytes>>) {
    let (connection, count) = (capture_connection(request), AtomicUsize::new(0));
    on_informational(request, move |_| {
        if count.fetch_add(1, Ordering::Relaxed) < MAX_INFORMATIONAL {
            return;
        }
        if let Some(connected) = connection.connection_metadata().as_ref() {
            let mut extras = Extensions::new();
            connected.get_extras(&mut extras);
            if let Some(Ended(is_ended)) = extras.get() {
                is_ended.store(true, Ordering::Relaxed);
            }
        }
    });
}

/// Returns the text for a request that took longer than its time limit.
pub fn no_answer() -> String {
    format!("no complete answer within {REQUEST_TIMEOUT:?}")
}

/// Returns the innermost message. The outer ones say only that sending failed.
pub fn root_cause(error: &dyn Error) -> String {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    lockkeeper_net::tls::description(cause)
}

/// Opens connections.
#[derive(Clone)]
struct Dialer {
    tcp: HttpConnector,
    tls: TlsConnector,
    proxies: Arc<Matcher>,
}

impl Dialer {
    /// Connects to a server, or to its proxy.
    async fn dial(self, to: Uri) -> Result<Stream, Failure> {
        let Some(proxy) = self.proxies.intercept(&to) else {
            return self.open(to).await;
        };
        if to.scheme() != Some(&Scheme::HTTPS) {
            let stream = self.open(proxy.uri().clone()).await?;
            return Ok(Stream { is_proxied: true, ..stream });
        }
        let opener = self.clone();
        let open = service_fn(move |to: Uri| opener.clone().open(to));
        let mut tunnel = Tunnel::new(proxy.uri().clone(), open);
        if let Some(login) = proxy.basic_auth() {
            tunnel = tunnel.with_auth(login.clone());
        }
        let stream = tunnel.oneshot(to.clone()).await?;
        self.encrypt(stream, &to).await
    }

    /// Connects to this server.
    async fn open(self, to: Uri) -> Result<Stream, Failure> {
        let stream = Stream::new(self.tcp.clone().oneshot(to.clone()).await?);
        if to.scheme() == Some(&Scheme::HTTPS) {
            return self.encrypt(stream, &to).await;
        }
        Ok(stream)
    }

    async fn encrypt(&self, stream: Stream, to: &Uri) -> Result<Stream, Failure> {
        let host = to.host().unwrap_or_default().trim_matches(['[', ']']);
        let name = ServerName::try_from(host.to_owned())?;
        let stream = self.tls.connect(name, TokioIo::new(stream)).await?;
        Ok(Stream::new(TokioIo::new(stream)))
    }
}

/// Marks a connection whose server has sent too many informational answers.
#[derive(Clone, Default)]
struct Ended(Arc<AtomicBool>);

trait Io: Read + Write + Send + Unpin {}
impl<T: Read + Write + Send + Unpin> Io for T {}

/// A connection, encrypted or not.
struct Stream {
    io: Box<dyn Io>,
    is_proxied: bool,
    ended: Ended,
}

impl Stream {
    fn new(io: impl Io + 'static) -> Self {
        Self { io: Box::new(io), is_proxied: false, ended: Ended::default() }
    }
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        Connected::new().proxy(self.is_proxied).extra(self.ended.clone())
    }
}

impl Read for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        if self.ended.0.load(Ordering::Relaxed) {
            return Poll::Ready(Err(io::Error::other(TOO_MANY)));
        }
        Pin::new(&mut self.io).poll_read(cx, into)
    }
}

impl Write for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper_net::tls::client_config;
    use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
    use tokio::net::TcpListener;
    use tokio::sync::mpsc;

    use super::*;

    /// Starts a server that answers each request with these bytes, and then does so without
    /// end if `is_endless`. Returns its address, and the head of each request.
    async fn server(
        answer: String,
        is_endless: bool,
    ) -> (String, mpsc::UnboundedReceiver<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (heads, requests) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (heads, answer) = (heads.clone(), answer.clone());
                tokio::spawn(async move {
                    let mut peer = BufReader::new(stream);
                    let mut head = Vec::new();
                    loop {
                        let mut line = String::new();
                        if !peer.read_line(&mut line).await.is_ok_and(|length| length > 0) {
                            return;
                        }
                        head.push(line.trim_end().to_owned());
                        if line != "\r\n" {
                            continue;
                        }
                        heads.send(std::mem::take(&mut head)).unwrap();
                        while peer.write_all(answer.as_bytes()).await.is_ok() && is_endless {}
                    }
                });
            }
        });
        (address, requests)
    }

    fn client(proxies: Matcher) -> Client {
        Client::behind(proxies, client_config(None).unwrap())
    }

    const DONE: &str = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

    #[tokio::test]
    async fn a_server_may_send_a_few_informational_answers_but_not_without_end() {
        for status in ["100 Continue", "102 Processing", "103 Early Hints\r\nlink: </x>"] {
            let informational = format!("HTTP/1.1 {status}\r\n\r\n");
            let few = format!("{}{DONE}", informational.repeat(MAX_INFORMATIONAL));
            let (address, _requests) = server(few, false).await;
            let client = client(Matcher::builder().build());
            // Over one connection: the limit is that of a request.
            for _ in 0..3 {
                let answer = client
                    .send(Request::get(format!("http://{address}/")))
                    .await
                    .map_err(|f| f.why);
                assert_eq!(answer.unwrap().status(), 200, "{status}");
            }
            let (address, mut requests) = server(informational, true).await;
            let refused = client.send_repeatedly(Request::get(format!("http://{address}/"))).await;
            assert_eq!(refused.err().map(|failed| failed.why).as_deref(), Some(TOO_MANY));
            assert!(requests.recv().await.is_some());
            assert!(requests.try_recv().is_err(), "it is not asked again");
        }
    }

    #[tokio::test]
    async fn requests_go_through_the_proxy_of_the_environment() {
        let (address, mut requests) = server(DONE.to_owned(), false).await;
        let proxy = format!("http://user:password@{address}");
        let client = client(Matcher::builder().all(proxy).no("direct.invalid").build());
        let login = "proxy-authorization: Basic dXNlcjpwYXNzd29yZA==";
        let answer = client.send(Request::get("http://rabbit.invalid:15672/api")).await;
        assert!(answer.is_ok());
        let head = requests.recv().await.unwrap();
        assert_eq!(head[0], "GET http://rabbit.invalid:15672/api HTTP/1.1");
        assert!(head.iter().any(|line| line.eq_ignore_ascii_case(login)), "{head:?}");
        // The proxy does not speak TLS after its answer.
        assert!(client.send(Request::get("https://rabbit.invalid:15671/api")).await.is_err());
        let head = requests.recv().await.unwrap();
        assert_eq!(head[0], "CONNECT rabbit.invalid:15671 HTTP/1.1");
        assert!(head.iter().any(|line| line.eq_ignore_ascii_case(login)), "{head:?}");
        assert!(client.send(Request::get("http://direct.invalid/api")).await.is_err());
        assert!(requests.try_recv().is_err());
    }
}
