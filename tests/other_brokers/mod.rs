//! Locks on a broker that is not RabbitMQ: Apache Qpid Broker-J, each test with its own.
//! docs/brokers.md names these tests.

mod administering;
mod holding;
mod programs;

use lapin::uri::AMQPUri;
use lapin::{Channel, Connection, ConnectionProperties};
use lockkeeper_client::{Probe, RabbitmqSettings};
use lockkeeper_plan::naming::LockName;
use lockkeeper_plan::semaphore::DesiredSlots;
use lockkeeper_semaphore::{
    AcquireOptions, Broker, BrokerError, Client, ClientOptions, Lock, ResizeError, ResizeTo,
    Resized,
};
use lockkeeper_testkit::own_server::OwnServer;
use lockkeeper_testkit::protocols::name;
use lockkeeper_testkit::rabbitmq::patient;
use tokio_util::sync::CancellationToken;

/// The way in which to probe that the broker's properties select.
const AUTOMATIC: Option<Probe> = None;

/// A broker that ends with the test.
struct Qpid(OwnServer);

impl Qpid {
    async fn start() -> Self {
        Self(OwnServer::qpid().await)
    }

    fn url(&self) -> String {
        self.0.variable("QPID_URL")
    }

    fn settings(&self, probe: Option<Probe>) -> RabbitmqSettings {
        RabbitmqSettings::from_urls(&self.url(), None).unwrap().with_probe(probe)
    }

    fn broker(&self, probe: Option<Probe>) -> Broker {
        Broker::new(self.settings(probe), patient())
    }

    fn client(&self, probe: Option<Probe>) -> Client {
        Client::new(self.settings(probe), ClientOptions::default())
    }

    /// The lock, with a client of its own.
    fn lock(&self, probe: Option<Probe>) -> Lock {
        self.client(probe).semaphore(name())
    }

    /// Opens a channel on its own connection, without Lockkeeper.
    async fn channel(&self) -> (Connection, Channel) {
        let uri: AMQPUri = self.url().parse().unwrap();
        let connection =
            Connection::connect_uri(uri, ConnectionProperties::default()).await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        (connection, channel)
    }
}

fn any() -> AcquireOptions {
    AcquireOptions::default()
}

async fn resize(broker: &Broker, slots: u32) -> Result<Resized, BrokerError> {
    resize_of(broker, &name(), slots).await
}

async fn resize_of(broker: &Broker, lock: &LockName, slots: u32) -> Result<Resized, BrokerError> {
    let stop = CancellationToken::new();
    let to = ResizeTo::Exactly(slots);
    broker.resize(lock, to, DesiredSlots::new(0), &stop).await.map_err(|error| match error {
        ResizeError::Broker(error) => error,
        error => panic!("{error}"),
    })
}

/// The held slots among the first ten.
async fn held(broker: &Broker) -> Vec<u32> {
    let seen = broker.observe(&name(), 10, 10).await.unwrap();
    seen.numbered().unwrap().held.iter().copied().collect()
}
