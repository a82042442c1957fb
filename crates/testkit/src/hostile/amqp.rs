//! A broker that sends what no broker sends, at some step of a connection. Also writes
//! frames for a client that speaks to a real broker below the level of a library.

use std::io;

use tokio::io::AsyncReadExt;

use super::{Peer, flood, hold, send, serve, silence};

/// Depth of the nested tables. A third of it overflows the stack of a recursive parser.
const DEPTH: usize = 3_000;

/// Bytes of a hostile broker.
#[derive(Clone, Copy, Debug)]
pub enum Sent {
    /// Nothing.
    Silence,
    /// Nothing, and it closes the connection.
    Closes,
    /// Bytes that are no AMQP.
    Garbage,
    /// An answer of a web server.
    Http,
    /// A table that is nested deeply, where a table belongs.
    Nested,
    /// A table with many values.
    Wide,
    /// A frame that is announced with 2 GiB.
    EndlessFrame,
    /// A method of a client, with a table that is nested deeply.
    ForeignMethod,
    /// The answer to another method, on another channel.
    WrongChannel,
    /// Heartbeats without end.
    Heartbeats,
    /// `connection.blocked` without end.
    Blocked,
    /// Returned messages, each with a small body.
    Returns,
    /// A returned message of endless length.
    EndlessReturn,
    /// Messages that no consumer asked for.
    Deliveries,
    /// Limits that cannot be used.
    TinyFrames,
    /// A limit of one channel.
    FewChannels,
    /// A limit of huge frames.
    HugeFrames,
}

/// When it comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// Instead of `connection.start`.
    Start,
    /// Instead of `connection.tune`.
    Tune,
    /// Instead of `connection.open-ok`.
    Open,
    /// At the first declaration of a queue.
    Operation,
}

/// Every combination that makes a difference.
pub fn behaviours() -> Vec<(Step, Sent)> {
    let anywhere =
        [Sent::Silence, Sent::Closes, Sent::Garbage, Sent::EndlessFrame, Sent::ForeignMethod];
    let steps = [Step::Start, Step::Tune, Step::Operation];
    let everywhere = steps.iter().flat_map(|step| anywhere.map(|sent| (*step, sent)));
    everywhere
        .chain([
            (Step::Start, Sent::Http),
            (Step::Start, Sent::Nested),
            (Step::Start, Sent::Wide),
            (Step::Start, Sent::Heartbeats),
            (Step::Tune, Sent::TinyFrames),
            (Step::Tune, Sent::FewChannels),
            (Step::Tune, Sent::HugeFrames),
            (Step::Open, Sent::Silence),
            (Step::Open, Sent::Blocked),
            (Step::Operation, Sent::Nested),
            (Step::Operation, Sent::Wide),
            (Step::Operation, Sent::WrongChannel),
            (Step::Operation, Sent::Heartbeats),
            (Step::Operation, Sent::Blocked),
            (Step::Operation, Sent::Returns),
            (Step::Operation, Sent::EndlessReturn),
            (Step::Operation, Sent::Deliveries),
        ])
        .collect()
}

/// Starts the broker. Returns its port.
pub async fn start(step: Step, sent: Sent) -> u16 {
    serve(move |peer| Broker { peer, step, sent }.run()).await
}

struct Broker {
    peer: Peer,
    step: Step,
    sent: Sent,
}

impl Broker {
    async fn run(mut self) -> io::Result<()> {
        let mut greeting = [0; 8];
        self.peer.read_exact(&mut greeting).await?;
        if self.step == Step::Start {
            return self.misbehave(0).await;
        }
        send(&mut self.peer, &greeting_with(&sized(&properties()))).await?;
        read_frame(&mut self.peer).await?;
        if self.step == Step::Tune {
            return self.misbehave(0).await;
        }
        send(&mut self.peer, &tune(131_072)).await?;
        let (_tune_ok, _open) =
            (read_frame(&mut self.peer).await?, read_frame(&mut self.peer).await?);
        if self.step == Step::Open {
            return self.misbehave(0).await;
        }
        send(&mut self.peer, &method(0, 10, 41, b"\0")).await?;
        self.answer_all().await
    }

    /// Answers as a broker on which every queue exists, until a queue is declared.
    async fn answer_all(&mut self) -> io::Result<()> {
        loop {
            let (kind, channel, payload) = read_frame(&mut self.peer).await?;
            let [0, class, 0, number, ..] = payload[..] else { continue };
            if kind != 1 {
                continue;
            }
            let answer = match (class, number) {
                (20, 10) => (11, &sized(b"")[..]),
                (20, 40) => (41, &b""[..]),
                (50, 10) | (60, 40 | 70) => return self.misbehave(channel).await,
                (60 | 85, 10) => (11, &b""[..]),
                (10, 50) => (51, &b""[..]),
                _ => continue,
            };
            let bytes = method(channel, u16::from(class), answer.0, answer.1);
            send(&mut self.peer, &bytes).await?;
        }
    }

    async fn misbehave(&mut self, channel: u16) -> io::Result<()> {
        let is_start = self.step == Step::Start;
        let peer = &mut self.peer;
        let returned = method(channel, 60, 50, b"\x01\x38\x08NO_ROUTE\0\x01q");
        let delivered = method(channel, 60, 60, b"\x01t\0\0\0\0\0\0\0\x01\0\0\x01q");
        let body = frame(3, channel, &[b'x'; 4_000]);
        let small = [header(channel, 4_000, &sized(b"")), body.clone()].concat();
        match self.sent {
            Sent::Silence => silence(peer).await,
            Sent::Closes => Ok(()),
            Sent::Garbage => hold(peer, &[0xff; 1_000]).await,
            Sent::Http => hold(peer, b"HTTP/1.1 400 Bad Request\r\n\r\n").await,
            Sent::Nested if is_start => hold(peer, &greeting_with(&nested(DEPTH))).await,
            Sent::Wide if is_start => hold(peer, &greeting_with(&wide())).await,
            Sent::Nested => {
                hold(peer, &[returned, header(channel, 0, &nested(DEPTH))].concat()).await
            }
            Sent::Wide => hold(peer, &[returned, header(channel, 0, &wide())].concat()).await,
            Sent::EndlessFrame => {
                send(peer, &[&[1][..], &channel.to_be_bytes(), &[0x7f, 0xff, 0xff, 0xff]].concat())
                    .await?;
                flood(peer, &[0; 4_096]).await
            }
            Sent::ForeignMethod => {
                let arguments = [b"\0\0\x01q\0", &nested(DEPTH)[..]].concat();
                hold(peer, &method(channel, 50, 10, &arguments)).await
            }
            Sent::WrongChannel => hold(peer, &method(channel + 100, 50, 41, b"\0\0\0\0")).await,
            Sent::Heartbeats => flood(peer, &frame(8, 0, b"").repeat(500)).await,
            Sent::Blocked => flood(peer, &method(0, 10, 60, b"\x06memory").repeat(200)).await,
            Sent::Returns => flood(peer, &[returned, small].concat()).await,
            Sent::EndlessReturn => {
                let begin = [returned, header(channel, 1 << 62, &sized(b""))].concat();
                send(peer, &begin).await?;
                flood(peer, &body).await
            }
            Sent::Deliveries => flood(peer, &[delivered, small].concat()).await,
            Sent::TinyFrames => hold(peer, &tune(4_096)).await,
            Sent::FewChannels => hold(peer, &method(0, 10, 30, b"\0\x01\0\x02\0\0\0\0")).await,
            Sent::HugeFrames => {
                send(peer, &tune(u32::MAX)).await?;
                silence(peer).await
            }
        }
    }
}

/// Reads a frame: its type, channel and payload.
pub async fn read_frame(peer: &mut Peer) -> io::Result<(u8, u16, Vec<u8>)> {
    let (kind, channel) = (peer.read_u8().await?, peer.read_u16().await?);
    let mut payload = vec![0; peer.read_u32().await? as usize];
    peer.read_exact(&mut payload).await?;
    peer.read_u8().await?;
    Ok((kind, channel, payload))
}

/// Builds a frame.
pub fn frame(kind: u8, channel: u16, payload: &[u8]) -> Vec<u8> {
    let size = u32::try_from(payload.len()).unwrap();
    [&[kind][..], &channel.to_be_bytes(), &size.to_be_bytes(), payload, &[0xCE]].concat()
}

/// Builds the frame of a method.
pub fn method(channel: u16, class: u16, number: u16, arguments: &[u8]) -> Vec<u8> {
    frame(1, channel, &[&class.to_be_bytes(), &number.to_be_bytes(), arguments].concat())
}

/// Builds the header of a message with a table of headers.
pub fn header(channel: u16, size: u64, table: &[u8]) -> Vec<u8> {
    let flags = (1_u16 << 13).to_be_bytes();
    frame(2, channel, &[b"\0\x3c\0\0", &size.to_be_bytes()[..], &flags, table].concat())
}

/// Puts the length before a text or a table.
pub fn sized(content: &[u8]) -> Vec<u8> {
    [&u32::try_from(content.len()).unwrap().to_be_bytes(), content].concat()
}

/// Builds a table in which this number of arrays are nested.
pub fn nested(depth: usize) -> Vec<u8> {
    let value = (0..depth).fold(b"V".to_vec(), |inner, _| [b"A", &sized(&inner)[..]].concat());
    sized(&[b"\x01k", &value[..]].concat())
}

/// Builds a table with an array of many values.
fn wide() -> Vec<u8> {
    sized(&[b"\x01kA", &sized(&[b'V'; 10_000])[..]].concat())
}

fn properties() -> Vec<u8> {
    let capability =
        |name: &[u8]| [&[u8::try_from(name.len()).unwrap()][..], name, b"t\x01"].concat();
    let capabilities = [&b"publisher_confirms"[..], b"basic.nack", b"consumer_cancel_notify"];
    let capabilities = sized(&capabilities.map(capability).concat());
    [b"\x0ccapabilitiesF", &capabilities[..], b"\x07productS", &sized(b"RabbitMQ")].concat()
}

fn greeting_with(table: &[u8]) -> Vec<u8> {
    method(0, 10, 10, &[b"\0\x09", table, &sized(b"PLAIN"), &sized(b"en_US")].concat())
}

fn tune(frame_max: u32) -> Vec<u8> {
    let channels = 2_047_u16.to_be_bytes();
    method(0, 10, 30, &[&channels[..], &frame_max.to_be_bytes(), &60_u16.to_be_bytes()].concat())
}
