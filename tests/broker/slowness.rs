//! Queues that do not answer, and brokers that answer late. Only the former count as unknown.

use std::time::Duration;

use lockkeeper_plan::connection::{Probe, RabbitmqSettings};
use lockkeeper_semaphore::Broker;
use lockkeeper_testkit::own_server::OwnServer;
use lockkeeper_testkit::proxy::{Method, Proxy, Sender, When};
use lockkeeper_testkit::rabbitmq::{Vhost, patient};

use crate::broker::{broker, lock, resize};

/// Longer than the client waits for an answer about a queue (3 s), and shorter than it then
/// waits for another answer.
const SLOW: Duration = Duration::from_millis(4_500);

#[tokio::test(flavor = "multi_thread")]
async fn a_late_answer_of_a_slow_broker_is_awaited() {
    let vhost = Vhost::create().await;
    resize(&broker(&vhost), 3, 0).await.unwrap();
    for probe in [Probe::Confirm, Probe::Declare] {
        let proxy = Proxy::start().await;
        let settings = proxy.settings(vhost.settings_without_management());
        let slow = Broker::new(settings.with_probe(Some(probe)), patient());
        let asks = match probe {
            Probe::Declare => "queue.declare(passive)",
            _ => "basic.publish",
        };
        let is_asked =
            move |method: &Method| method.sender == Sender::Client && method.name == asks;
        let held = proxy.hold_at(When::After, is_asked);
        let observing = tokio::spawn(async move { slow.observe(&lock(), 3, 3).await });
        held.wait().await;
        // The time for which the broker is slow.
        tokio::time::sleep(SLOW).await;
        proxy.resume();
        let seen = observing.await.unwrap().unwrap();
        assert_eq!((seen.total(), seen.held()), (3, 0), "{probe:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_alone_does_not_answer_is_unknown() {
    let server = OwnServer::rabbitmq().await;
    let url = server.variable("AMQP_URL");
    let settings = RabbitmqSettings::from_urls(&url, None).unwrap();
    let broker = Broker::new(settings, patient());
    resize(&broker, 2, 0).await.unwrap();
    let queue = lock().slot_queue(2);
    let process = format!(
        "{{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r(<<\"/\">>, queue, <<\"{queue}\">>)), Pid = amqqueue:get_pid(Q)"
    );
    server.evaluate(&format!("{process}, sys:suspend(Pid).")).await;
    let error = broker.observe(&lock(), 2, 0).await.unwrap_err();
    assert_eq!(error.reason(), "BrokerNodeDown", "{error}");
    assert!(error.to_string().contains(&queue), "{error}");
    server.evaluate(&format!("{process}, sys:resume(Pid).")).await;
    let fresh = RabbitmqSettings::from_urls(&url, None).unwrap();
    let seen = Broker::new(fresh, patient()).observe(&lock(), 2, 0).await.unwrap();
    assert_eq!(seen.total(), 2);
}
