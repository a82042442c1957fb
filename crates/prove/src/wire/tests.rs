//! Tests of the proxy between a client and a server that exchange prepared frames.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::frames::{self, body, declare, declare_ok, publish, reject};
use super::{CONTENT, Method, Observer, Passed, Proxy, Recorder, When, lock, named};
use crate::history::{ConnectionState, Sender, What};

const LIMIT: Duration = Duration::from_secs(15);

/// A client, the proxy, and the broker's side of the client's connection.
struct Line {
    proxy: Proxy,
    listener: TcpListener,
    client: TcpStream,
    broker: TcpStream,
}

async fn line(observer: impl Observer) -> Line {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = Proxy::observed(listener.local_addr().unwrap(), observer).await.unwrap();
    let client = TcpStream::connect(("127.0.0.1", proxy.port())).await.unwrap();
    let (broker, _) = listener.accept().await.unwrap();
    Line { proxy, listener, client, broker }
}

/// Reads the expected bytes.
async fn expect(stream: &mut TcpStream, bytes: &[u8]) {
    let mut read = vec![0; bytes.len()];
    tokio::time::timeout(LIMIT, stream.read_exact(&mut read)).await.unwrap().unwrap();
    assert_eq!(read, bytes);
}

/// Returns the remaining data of the stream until its end.
async fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut read = Vec::new();
    let _ = tokio::time::timeout(LIMIT, stream.read_to_end(&mut read)).await.unwrap();
    read
}

fn waiting(proxy: &Proxy) -> Vec<(usize, String, String)> {
    let waiting = proxy.gate().waiting();
    waiting.into_iter().map(|one| (one.connection, one.method, one.queue)).collect()
}

async fn states(recorder: &Recorder, number: usize) -> Vec<ConnectionState> {
    let mut found = Vec::new();
    while found.len() < number {
        for event in recorder.finish() {
            if let What::Connection { state, .. } = event.what {
                found.push(state);
            }
        }
        tokio::task::yield_now().await;
    }
    found
}

#[tokio::test]
async fn data_passes_unchanged_and_methods_are_observed_before_they_pass() {
    #[derive(Default, Clone)]
    struct Names(Arc<Mutex<Vec<String>>>);
    impl Observer for Names {
        fn method(&self, method: &Method) {
            lock(&self.0).push(method.name.clone());
        }

        fn connection(&self, _: usize, _: ConnectionState) {}

        fn frame(&self, _: Passed) {}
    }
    let names = Names::default();
    let mut line = line(names.clone()).await;
    let sent = [publish(1, "a"), body(1, b"token")].concat();
    line.client.write_all(&sent).await.unwrap();
    expect(&mut line.broker, &sent).await;
    assert_eq!(*lock(&names.0), ["basic.publish", CONTENT]);
    line.broker.write_all(&declare_ok(1, "a")).await.unwrap();
    expect(&mut line.client, &declare_ok(1, "a")).await;
    assert_eq!(*lock(&names.0), ["basic.publish", CONTENT, "queue.declare-ok"]);
    let seen = line.proxy.seen().unwrap();
    let seen: Vec<&str> = seen.iter().map(|method| method.name.as_str()).collect();
    assert_eq!(seen, ["basic.publish", "queue.declare-ok"], "bodies are not methods");
    assert_eq!((line.proxy.connections_opened(), line.proxy.connections()), (1, 1));
}

#[tokio::test]
async fn reports_which_side_closed_a_connection() {
    use ConnectionState::{ClosedByBroker, ClosedByClient, Cut, Opened};
    let recorder = Recorder::new();
    let kept = line(recorder.observer(1)).await;
    drop(kept.client);
    assert_eq!(states(&recorder, 2).await, [Opened, ClosedByClient]);
    let kept = line(recorder.observer(1)).await;
    drop(kept.broker);
    assert_eq!(states(&recorder, 2).await, [Opened, ClosedByBroker]);
    let mut kept = line(recorder.observer(1)).await;
    kept.proxy.cut_connection(1);
    assert_eq!(states(&recorder, 2).await, [Opened, Cut]);
    assert_eq!(rest(&mut kept.broker).await, b"");
    let mut kept = line(recorder.observer(1)).await;
    let cut = kept.proxy.cut_at(When::After, named("queue.declare"));
    kept.client.write_all(&declare(1, "a")).await.unwrap();
    cut.within(LIMIT).await.unwrap();
    assert_eq!(rest(&mut kept.broker).await, declare(1, "a"));
    assert_eq!(states(&recorder, 2).await, [Opened, Cut]);
    // A broker that is unreachable.
    let kept = line(recorder.observer(1)).await;
    drop(kept.listener);
    let _client = TcpStream::connect(("127.0.0.1", kept.proxy.port())).await.unwrap();
    assert_eq!(states(&recorder, 3).await, [Opened, Opened, ClosedByBroker]);
}

#[tokio::test]
async fn only_the_methods_before_a_cut_reach_the_broker() {
    let mut line = line(()).await;
    let cut = line.proxy.cut_at(When::Before, |method: &Method| method.queue == "b");
    assert!(!cut.is_sprung());
    let sent = [declare(1, "a"), declare(1, "b"), declare(1, "c")].concat();
    line.client.write_all(&sent).await.unwrap();
    cut.within(LIMIT).await.unwrap();
    assert_eq!(rest(&mut line.broker).await, declare(1, "a"));
    assert_eq!(line.proxy.seen().unwrap().len(), 3);
}

/// On a busy machine, the connection may be cut between the observation of the answer and its write.
#[tokio::test]
async fn an_answer_does_not_pass_if_its_held_connection_is_cut_when_it_is_observed() {
    #[derive(Default, Clone)]
    struct Cuts(Arc<Mutex<Option<Arc<Proxy>>>>);
    impl Observer for Cuts {
        fn method(&self, method: &Method) {
            if method.sender == Sender::Broker
                && let Some(proxy) = lock(&self.0).take()
            {
                proxy.cut_connection(1);
            }
        }

        fn connection(&self, _: usize, _: ConnectionState) {}

        fn frame(&self, _: Passed) {}
    }
    // Whether the writer is polled directly after the reader is random.
    for _ in 0..20 {
        let cuts = Cuts::default();
        let Line { proxy, listener: _listener, mut client, mut broker } = line(cuts.clone()).await;
        let proxy = Arc::new(proxy);
        *lock(&cuts.0) = Some(Arc::clone(&proxy));
        let held = proxy.hold_at(When::After, named("queue.declare"));
        client.write_all(&declare(1, "a")).await.unwrap();
        held.within(LIMIT).await.unwrap();
        broker.write_all(&declare_ok(1, "a")).await.unwrap();
        assert_eq!(rest(&mut client).await, b"");
        assert!(lock(&cuts.0).is_none(), "the answer was not observed");
    }
}

#[tokio::test]
async fn a_trap_does_not_spring_without_its_method_or_after_disarm() {
    let mut line = line(()).await;
    let error = line.proxy.hold_at(When::Before, named("queue.delete"));
    let error = error.within(Duration::from_millis(1)).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
    let disarmed = line.proxy.cut_at(When::Before, named("queue.declare"));
    line.proxy.disarm();
    line.client.write_all(&declare(1, "a")).await.unwrap();
    expect(&mut line.broker, &declare(1, "a")).await;
    assert!(!disarmed.is_sprung());
}

#[tokio::test]
async fn unreadable_data_passes_but_its_methods_are_not_reported() {
    let mut line = line(()).await;
    let wrong = b"\x09\0\0\0\0\0\0\xce";
    line.client.write_all(wrong).await.unwrap();
    expect(&mut line.broker, wrong).await;
    let error = line.proxy.seen().unwrap_err();
    assert!(error.to_string().starts_with("Client sent no AMQP frame"), "{error}");
}

#[tokio::test]
async fn requests_wait_at_a_closed_gate_until_they_are_released() {
    let recorder = Recorder::new();
    let mut line = line(recorder.observer(1)).await;
    let gate = line.proxy.gate();
    gate.close();
    let free = frames::confirm(1);
    let publishing = [publish(1, "b"), body(1, b"token")].concat();
    let sent = [free.clone(), declare(1, "a"), publishing.clone(), declare(2, "c")].concat();
    line.client.write_all(&sent).await.unwrap();
    expect(&mut line.broker, &free).await;
    assert_eq!(gate.until(|waiting| !waiting.is_empty()).await[0].channel, 1);
    assert_eq!(waiting(&line.proxy), [(1, "queue.declare".to_owned(), "a".to_owned())]);
    assert_eq!(line.proxy.seen().unwrap().len(), 1, "a waiting method must not be observed");

    assert!(gate.release(1));
    expect(&mut line.broker, &declare(1, "a")).await;
    gate.until(|waiting| waiting.iter().any(|one| one.queue == "b")).await;
    assert!(gate.release(1));
    expect(&mut line.broker, &publishing).await;
    gate.until(|waiting| waiting.iter().any(|one| one.queue == "c")).await;
    // Answers pass while the request waits.
    line.broker.write_all(&declare_ok(1, "a")).await.unwrap();
    expect(&mut line.client, &declare_ok(1, "a")).await;
    gate.open();
    expect(&mut line.broker, &declare(2, "c")).await;
    assert!(!gate.release(1) && gate.waiting().is_empty());
}

#[tokio::test]
async fn a_cut_removes_the_request_that_waits_at_the_gate() {
    let mut line = line(()).await;
    let gate = line.proxy.gate();
    gate.close();
    line.client.write_all(&declare(1, "a")).await.unwrap();
    gate.until(|waiting| !waiting.is_empty()).await;
    line.proxy.cut_connection(1);
    gate.until(<[_]>::is_empty).await;
    assert_eq!(rest(&mut line.broker).await, b"");
    assert!(line.proxy.seen().unwrap().is_empty());
}

#[tokio::test]
async fn a_trap_that_is_set_while_a_request_waits_sees_it() {
    let mut line = line(()).await;
    let gate = line.proxy.gate();
    gate.close();
    line.client.write_all(&declare(1, "a")).await.unwrap();
    gate.until(|waiting| !waiting.is_empty()).await;
    let cut = line.proxy.cut_at(When::After, |method: &Method| method.sender == Sender::Client);
    gate.release(1);
    cut.within(LIMIT).await.unwrap();
    assert_eq!(rest(&mut line.broker).await, declare(1, "a"));
}

#[tokio::test]
async fn the_queue_of_an_acknowledgement_is_derived_from_its_tag() {
    let mut line = line(()).await;
    let got = [frames::get(1, "a"), frames::consume(1, "b", "")].concat();
    line.client.write_all(&got).await.unwrap();
    expect(&mut line.broker, &got).await;
    let answers = [frames::get_ok(1, 1), body(1, b"t"), frames::consume_ok(1, "x")].concat();
    line.broker.write_all(&answers).await.unwrap();
    expect(&mut line.client, &answers).await;
    let gate = line.proxy.gate();
    gate.close();
    let last = [reject(1, 1), frames::cancel(1, "x")].concat();
    line.client.write_all(&last).await.unwrap();
    gate.until(|waiting| waiting.iter().any(|one| one.queue == "a")).await;
    gate.release(1);
    gate.until(|waiting| waiting.iter().any(|one| one.queue == "b")).await;
    assert_eq!(waiting(&line.proxy), [(1, "basic.cancel".to_owned(), "b".to_owned())]);
}

/// The runtime's timer alone would round each of the two delays up to the next millisecond.
#[tokio::test]
async fn a_delay_is_exact_to_a_fraction_of_a_millisecond() {
    let mut line = line(()).await;
    line.proxy.delay(Sender::Client, Duration::from_micros(2_100));
    line.proxy.delay(Sender::Broker, Duration::from_micros(2_100));
    let mut shortest = Duration::MAX;
    for _ in 0..50 {
        let started = std::time::Instant::now();
        line.client.write_all(&declare(1, "a")).await.unwrap();
        expect(&mut line.broker, &declare(1, "a")).await;
        line.broker.write_all(&declare_ok(1, "a")).await.unwrap();
        expect(&mut line.client, &declare_ok(1, "a")).await;
        assert!(started.elapsed() >= Duration::from_micros(4_200));
        shortest = shortest.min(started.elapsed());
    }
    assert!(shortest < Duration::from_micros(5_200), "{shortest:?}");
}

/// On a busy machine, time passes between the read and the observation.
#[tokio::test]
async fn a_method_passes_no_earlier_than_the_delay_after_it_was_observed() {
    #[derive(Default, Clone)]
    struct Late(Arc<Mutex<Option<std::time::Instant>>>);
    impl Observer for Late {
        fn method(&self, _: &Method) {
            std::thread::sleep(Duration::from_millis(20));
            *lock(&self.0) = Some(std::time::Instant::now());
        }

        fn connection(&self, _: usize, _: ConnectionState) {}

        fn frame(&self, _: Passed) {}
    }
    let delay = Duration::from_millis(30);
    let late = Late::default();
    let mut line = line(late.clone()).await;
    line.proxy.delay(Sender::Client, delay);
    line.client.write_all(&declare(1, "a")).await.unwrap();
    expect(&mut line.broker, &declare(1, "a")).await;
    assert!(lock(&late.0).unwrap().elapsed() >= delay);
}
