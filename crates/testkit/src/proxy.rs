//! The prover's proxy in front of the tests' brokers. Its errors fail the test here. See
//! `lockkeeper_prove::wire` for the proxy.

use std::time::Duration;

use lockkeeper_plan::connection::RabbitmqSettings;
pub use lockkeeper_prove::history::{ConnectionState, Sender};
use lockkeeper_prove::wire;
pub use lockkeeper_prove::wire::{Awaited, Method, Observer, Passed, When, named, nth};

/// The proxy. When dropped, it closes every connection through it.
pub struct Proxy(wire::Proxy);

/// Resolves when the awaited method has arrived and the connection was cut or held.
pub struct Sprung(wire::Sprung);

impl std::ops::Deref for Proxy {
    type Target = wire::Proxy;

    fn deref(&self) -> &wire::Proxy {
        &self.0
    }
}

impl Proxy {
    /// Starts a proxy in front of the shared broker.
    pub async fn start() -> Self {
        Self::before(&super::rabbitmq::administrator()).await
    }

    /// Starts a proxy in front of the broker at the settings' host and port.
    pub async fn before(broker: &RabbitmqSettings) -> Self {
        Self::observed(broker, ()).await
    }

    /// Like [`Proxy::before`], but passes everything to an observer.
    pub async fn observed(broker: &RabbitmqSettings, observer: impl Observer) -> Self {
        let broker = (broker.host.clone(), broker.port);
        Self(wire::Proxy::observed(broker, observer).await.unwrap())
    }

    /// Returns settings for the same broker over this proxy.
    pub fn settings(&self, settings: RabbitmqSettings) -> RabbitmqSettings {
        RabbitmqSettings { host: "127.0.0.1".to_owned(), port: self.port(), ..settings }
    }

    /// Returns this URL of the broker, over this proxy.
    pub fn url(&self, url: &str) -> String {
        let mut url = url::Url::parse(url).unwrap();
        url.set_host(Some("127.0.0.1")).unwrap();
        url.set_port(Some(self.port())).unwrap();
        url.into()
    }

    /// Returns every method since the start or the last reset, from both ends, in order.
    pub fn seen(&self) -> Vec<Method> {
        self.0.seen().expect("the counts are not to be trusted")
    }

    /// Returns those that clients sent.
    pub fn methods(&self) -> Vec<Method> {
        self.seen().into_iter().filter(|method| method.sender == Sender::Client).collect()
    }

    /// Returns how many methods with this name either end has sent.
    pub fn count(&self, name: &str) -> usize {
        self.seen().iter().filter(|method| method.name == name).count()
    }

    /// Like the proxy's.
    pub fn cut_at(&self, when: When, predicate: impl Awaited) -> Sprung {
        Sprung(self.0.cut_at(when, predicate))
    }

    /// Like the proxy's.
    pub fn hold_at(&self, when: When, predicate: impl Awaited) -> Sprung {
        Sprung(self.0.hold_at(when, predicate))
    }

    /// The broker's next confirm, on any connection, becomes what RabbitMQ 4.2 and later send if
    /// the queue is deleted while a message to it is being routed: the end of the connection.
    pub fn delete_meanwhile(&self) -> Sprung {
        let is_confirm =
            |method: &Method| method.name == "basic.ack" && method.sender == Sender::Broker;
        let text =
            "RESOURCE_ERROR - failed to deliver message: {not_found,\n {resource,<<\"t\">>}}";
        Sprung(self.0.replace_at(connection_close(506, text), is_confirm))
    }
}

/// Returns the frame of a `connection.close`, about a `basic.publish`.
fn connection_close(code: u16, text: &str) -> Vec<u8> {
    let mut payload = [0, 10, 0, 50].to_vec();
    payload.extend(code.to_be_bytes());
    payload.push(text.len().try_into().unwrap());
    payload.extend(text.as_bytes());
    payload.extend([0, 60, 0, 40]);
    let mut frame = [1, 0, 0].to_vec();
    frame.extend(u32::try_from(payload.len()).unwrap().to_be_bytes());
    frame.extend(payload);
    frame.push(0xCE);
    frame
}

impl Sprung {
    /// Waits for the method. Panics after 15 s.
    pub async fn wait(self) {
        self.0.within(Duration::from_secs(15)).await.unwrap();
    }
}
