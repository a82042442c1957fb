//! A program that uses the queue client: a producer that puts its input line by line, or a
//! consumer that writes each element as a line. The producer waits while the queue is
//! full, and closes it at the end. The consumer waits while it is empty, and ends once it
//! is closed and empty.
//!
//! ```sh
//! lockkeeper queue create demo.lines --bound 8
//! seq 100 | REDIS_URL=redis://… cargo run --example queue -- put demo.lines
//! REDIS_URL=redis://… cargo run --example queue -- get demo.lines
//! ```

use std::error::Error;
use std::io::{BufRead, Write, stdin, stdout};

use lockkeeper_client::{Queue, QueueError, Wait};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut argument = |what: &str| arguments.next().ok_or(format!("missing argument: {what}"));
    let (role, name) = (argument("put or get")?, argument("the queue's name")?);
    // The server is that of REDIS_URL.
    let queue = Queue::from_env(&name)?;
    match role.as_str() {
        "put" => put(&queue).await,
        "get" => get(&queue).await,
        other => Err(format!("{other:?} is neither put nor get").into()),
    }
}

async fn put(queue: &Queue) -> Result<(), Box<dyn Error>> {
    // Bytes: a line need not be text.
    for line in stdin().lock().split(b'\n') {
        queue.put(line?).await?;
    }
    Ok(queue.close(Wait::Forever).await?)
}

async fn get(queue: &Queue) -> Result<(), Box<dyn Error>> {
    loop {
        match queue.get().await {
            Ok(element) => {
                let mut out = stdout().lock();
                out.write_all(&element)?;
                out.write_all(b"\n")?;
            }
            Err(QueueError::Closed) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}
