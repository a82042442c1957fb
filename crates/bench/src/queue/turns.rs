//! Benchmarks pairs: a producer and a consumer on a bounded and an unbounded queue, and
//! two processes that alternate through a bound of 1.

use std::process::Stdio;

use lockkeeper_plan::connection::RedisSettings;
use lockkeeper_pressure::Wait;
use lockkeeper_testkit::environment::variable;
use redis::aio::MultiplexedConnection;

use super::server::{Server, timed};
use crate::client::rounds;
use crate::table::{PING_PONG, Table};
use crate::{Options, Result};

/// Number of turns of two processes.
const TURNS: usize = 3000;

/// Measures a concurrent producer and consumer, element by element, compared with LPUSH
/// and BRPOP on an unbounded list.
pub async fn through(
    server: &Server,
    options: &Options,
    table: &mut Table,
    bound: u64,
) -> Result<()> {
    let count = 2000;
    let list = format!("{}:bare-through", server.prefix);
    let ends = [server.bare().await?, server.bare().await?];
    let queues = [server.queue("through")?, server.queue("through")?];
    queues[0].create(bound).await?;
    let bare = async || {
        timed(async {
            let push = async {
                for _ in 0..count {
                    let () = redis::cmd("LPUSH")
                        .arg(&list)
                        .arg("0123456789")
                        .query_async(&mut ends[0].clone())
                        .await?;
                }
                Result::<()>::Ok(())
            };
            let pop = async {
                for _ in 0..count {
                    let _: redis::Value = redis::cmd("BRPOP")
                        .arg(&list)
                        .arg(0)
                        .query_async(&mut ends[1].clone())
                        .await?;
                }
                Result::<()>::Ok(())
            };
            tokio::try_join!(push, pop).map(|_| ())
        })
        .await
    };
    let ours = async || {
        timed(async {
            let put = async {
                for _ in 0..count {
                    queues[0].put("0123456789").await?;
                }
                Result::<()>::Ok(())
            };
            let get = async {
                for _ in 0..count {
                    queues[1].get().await?;
                }
                Result::<()>::Ok(())
            };
            tokio::try_join!(put, get).map(|_| ())
        })
        .await
    };
    let pairs = rounds(options.rounds, bare, ours).await?;
    let what = if bound == 0 { "no bound".to_owned() } else { format!("bound {bound}") };
    table.speed(&format!("put and get at once, {what}, versus an unbounded list"), &pairs, None);
    Ok(queues[0].delete(Wait::Forever).await?)
}

/// Measures two alternating processes on a queue of bound 1, compared with two lists.
pub async fn ping_pong(server: &Server, options: &Options, table: &mut Table) -> Result<()> {
    let queue = server.queue("turns")?;
    queue.create(1).await?;
    let there = format!("{}:bare-there", server.prefix);
    let back = format!("{}:bare-back", server.prefix);
    let connection = server.bare().await?;
    let bare = async || {
        let mut peer = peer(server, "bare")?;
        // The first turn waits for the other process.
        turn(&connection, &there, &back).await?;
        let took = timed(async {
            for _ in 1..TURNS {
                turn(&connection, &there, &back).await?;
            }
            Ok(())
        });
        let took = took.await?;
        peer.wait().await?;
        Ok(took)
    };
    let ours = async || {
        let mut peer = peer(server, "ours")?;
        queue.put("0").await?;
        queue.put("1").await?;
        let took = timed(async {
            for _ in 2..TURNS {
                queue.put("0123456789").await?;
            }
            Ok(())
        });
        let took = took.await?;
        peer.wait().await?;
        Ok(took)
    };
    let pairs = rounds(options.rounds, bare, ours).await?;
    table.speed("two processes through a bound of 1, versus two lists", &pairs, Some(PING_PONG));
    Ok(queue.delete(Wait::Forever).await?)
}

async fn turn(connection: &MultiplexedConnection, push: &str, pop: &str) -> Result<()> {
    let mut connection = connection.clone();
    let () = redis::cmd("LPUSH").arg(push).arg("0123456789").query_async(&mut connection).await?;
    let _: redis::Value = redis::cmd("BRPOP").arg(pop).arg(0).query_async(&mut connection).await?;
    Ok(())
}

fn peer(server: &Server, how: &str) -> Result<tokio::process::Child> {
    Ok(tokio::process::Command::new(std::env::current_exe()?)
        .args(["--peer", how, "--prefix", &server.prefix])
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .spawn()?)
}

/// The work of the other process.
pub async fn run_peer(how: &str, prefix: &str) -> Result<()> {
    let url = variable("REDIS_URL");
    let server =
        Server { settings: RedisSettings::from_url(&url)?, url, prefix: prefix.to_owned() };
    if how == "ours" {
        let queue = server.queue("turns")?;
        for _ in 0..TURNS {
            queue.get().await?;
        }
        return Ok(());
    }
    let mut connection = server.bare().await?;
    for _ in 0..TURNS {
        let _: redis::Value = redis::cmd("BRPOP")
            .arg(format!("{prefix}:bare-there"))
            .arg(0)
            .query_async(&mut connection)
            .await?;
        let () = redis::cmd("LPUSH")
            .arg(format!("{prefix}:bare-back"))
            .arg("0123456789")
            .query_async(&mut connection)
            .await?;
    }
    Ok(())
}
