//! Tests of injected faults between a client and a server that exchange prepared frames.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::Cutter;
use crate::driver::group::Control;
use crate::history::{ConnectionState, What};
use crate::wire::frames::{declare, declare_ok, reject};
use crate::wire::{Proxy, Recorder};

const LIMIT: Duration = Duration::from_secs(15);

/// A client whose request waits at the gate, and the broker's side of its connection.
struct Waiting {
    cutter: Cutter,
    client: TcpStream,
    broker: TcpStream,
}

async fn waiting(request: &[u8]) -> Waiting {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let recorder = Recorder::new();
    let address = listener.local_addr().unwrap();
    let proxy = Arc::new(Proxy::observed(address, recorder.observer(1)).await.unwrap());
    proxy.gate().close();
    let mut client = TcpStream::connect(("127.0.0.1", proxy.port())).await.unwrap();
    let (broker, _) = listener.accept().await.unwrap();
    client.write_all(request).await.unwrap();
    timeout(LIMIT, proxy.gate().until(|waiting| waiting.len() == 1)).await.unwrap();
    let cutter = Cutter { process: 1, recorder, proxy, control: Control::default() };
    Waiting { cutter, client, broker }
}

/// Returns the data until the end of the stream. A reset ends it too.
async fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut read = Vec::new();
    let _ = timeout(LIMIT, stream.read_to_end(&mut read)).await.unwrap();
    read
}

fn events(recorder: &Recorder) -> Vec<String> {
    let event = |what| match what {
        What::Frame(frame) => frame.method,
        What::Fault { fault, .. } => fault,
        What::Connection { state, .. } => format!("{state:?}"),
        what => format!("{what:?}"),
    };
    recorder.finish().into_iter().map(|one| event(one.what)).collect()
}

#[tokio::test]
async fn a_cut_before_a_request_ends_when_the_broker_has_closed() {
    let Waiting { cutter, mut client, mut broker } = waiting(&declare(1, "a")).await;
    let cut = cutter.cut_before(1, "queue.declare");
    tokio::pin!(cut);
    let closed = async {
        assert_eq!(rest(&mut broker).await, b"");
        assert_eq!(rest(&mut client).await, b"");
    };
    tokio::select! {
        () = &mut cut => panic!("the broker has not closed yet"),
        () = closed => {}
    }
    drop(broker);
    timeout(LIMIT, cut).await.unwrap();
    let cut = format!("{:?}", ConnectionState::Cut);
    assert_eq!(events(&cutter.recorder), ["Opened", "cut before queue.declare", &cut]);
}

#[tokio::test]
async fn a_cut_after_a_request_keeps_the_answer_from_the_client() {
    let Waiting { cutter, mut client, mut broker } = waiting(&declare(1, "a")).await;
    let (gate, proxy) = (cutter.proxy.gate(), Arc::clone(&cutter.proxy));
    let answered = async {
        let answered = || proxy.seen().unwrap().len() == 2;
        while !answered() {
            tokio::task::yield_now().await;
        }
    };
    let broker_side = async {
        let mut sent = vec![0; declare(1, "a").len()];
        broker.read_exact(&mut sent).await.unwrap();
        assert_eq!(sent, declare(1, "a"));
        broker.write_all(&declare_ok(1, "a")).await.unwrap();
        assert_eq!(rest(&mut broker).await, b"");
        drop(broker);
    };
    let release = || assert!(gate.release(1));
    tokio::join!(cutter.cut_after(1, "queue.declare", release, answered), broker_side);
    assert_eq!(rest(&mut client).await, b"");
    let expected =
        ["Opened", "queue.declare", "cut after queue.declare", "queue.declare-ok", "Cut"];
    assert_eq!(events(&cutter.recorder), expected);
}

#[tokio::test]
async fn a_request_without_an_answer_reaches_the_broker_before_the_cut() {
    let Waiting { cutter, client, mut broker } = waiting(&reject(1, 1)).await;
    let gate = cutter.proxy.gate();
    let broker_side = async {
        assert_eq!(rest(&mut broker).await, reject(1, 1));
        drop(broker);
    };
    let release = || assert!(gate.release(1));
    tokio::join!(cutter.cut_after_unanswered(1, "basic.reject", release), broker_side);
    assert_eq!(
        events(&cutter.recorder),
        ["Opened", "basic.reject", "cut after basic.reject", "Cut"]
    );
    drop(client);
}
