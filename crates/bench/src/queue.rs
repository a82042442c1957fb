//! Benchmarks the queue client: put and get, single, in batches, contended and bounded.
//! Compares them with the bare Redis operations that each requires, and with the
//! protocol's own sequence of commands.

mod server;
mod turns;

use futures::future::try_join_all;
use lockkeeper_plan::connection::RedisSettings;
use lockkeeper_pressure::{Limit, Wait};
use lockkeeper_testkit::environment::variable;
use redis::aio::MultiplexedConnection;

pub use self::turns::run_peer;

use self::server::{Server, timed};
use crate::client::rounds;
use crate::environment::Environment;
use crate::table::{BATCH, OF_THE_SEQUENCE, PUT, Table};
use crate::{Options, Result};

/// Bytes per element, and number of elements per round.
const SIZES: [(usize, usize); 4] = [(10, 2000), (1000, 2000), (100_000, 300), (1_000_000, 60)];
/// Number of elements of a batch.
const BATCHED: usize = 500;
const BOUNDS: [u64; 4] = [1, 10, 100, 0];

/// Measures everything in several rounds.
pub async fn run(environment: &Environment, options: &Options, table: &mut Table) -> Result<()> {
    let url = variable("REDIS_URL");
    let settings = RedisSettings::from_url(&url)?;
    let server = Server { settings, url, prefix: environment.namespace.clone() };
    for (bytes, count) in SIZES {
        put_and_get(&server, options, table, bytes, count).await?;
    }
    sequence(&server, options, table).await?;
    batches(&server, options, table).await?;
    contended(&server, options, table).await?;
    for bound in BOUNDS {
        turns::through(&server, options, table, bound).await?;
    }
    turns::ping_pong(&server, options, table).await
}

async fn put_and_get(
    server: &Server,
    options: &Options,
    table: &mut Table,
    bytes: usize,
    count: usize,
) -> Result<()> {
    let element = vec![b'x'; bytes];
    let queue = server.queue(&format!("single-{bytes}"))?;
    queue.create(0).await?;
    let (list, connection) = (format!("{}:bare-{bytes}", server.prefix), server.bare().await?);
    let clear = async || -> Result<()> {
        let mut connection = connection.clone();
        let () = redis::cmd("DEL")
            .arg(&list)
            .arg(queue.name().data())
            .query_async(&mut connection)
            .await?;
        Ok(())
    };
    let lpush = async || {
        clear().await?;
        timed(async {
            let mut connection = connection.clone();
            for _ in 0..count {
                let () = redis::cmd("LPUSH")
                    .arg(&list)
                    .arg(&element)
                    .query_async(&mut connection)
                    .await?;
            }
            Ok(())
        })
        .await
    };
    let put = async || {
        clear().await?;
        timed(async {
            for _ in 0..count {
                queue.put(&element).await?;
            }
            Ok(())
        })
        .await
    };
    let pairs = rounds(options.rounds, lpush, put).await?;
    table.speed(&format!("put, {bytes} bytes"), &pairs, Some(PUT));
    let rpop = async || {
        lpush().await?;
        timed(async {
            let mut connection = connection.clone();
            for _ in 0..count {
                let _: Vec<u8> = redis::cmd("RPOP").arg(&list).query_async(&mut connection).await?;
            }
            Ok(())
        })
        .await
    };
    let get = async || {
        put().await?;
        timed(async {
            for _ in 0..count {
                queue.get().await?;
            }
            Ok(())
        })
        .await
    };
    let pairs = rounds(options.rounds, rpop, get).await?;
    table.speed(&format!("get, {bytes} bytes"), &pairs, None);
    clear().await?;
    Ok(queue.delete(Wait::Forever).await?)
}

/// Performs one Put as the text of pressure 0.15 describes it, command by command.
async fn put_by_the_text(connection: &mut MultiplexedConnection, data: &str) -> Result<()> {
    let key = |suffix: &str| format!("{data}{suffix}");
    let run = async |words: &[&str]| -> Result<redis::Value> {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        Ok(command.query_async(&mut connection.clone()).await?)
    };
    run(&["EXISTS", &key(":bound")]).await?;
    run(&["EXISTS", &key(":closed")]).await?;
    run(&["BRPOP", &key(":producer_free"), "0"]).await?;
    run(&["SET", &key(":producer"), "bench"]).await?;
    run(&["BRPOP", &key(":not_full"), "0"]).await?;
    run(&["LPUSH", data, "0123456789"]).await?;
    run(&["INCR", &key(":stats:produced_messages")]).await?;
    run(&["INCRBY", &key(":stats:produced_bytes"), "10"]).await?;
    run(&["GET", &key(":bound")]).await?;
    run(&["LLEN", data]).await?;
    run(&["LPUSH", &key(":not_full"), "0"]).await?;
    run(&["LTRIM", &key(":not_full"), "0", "0"]).await?;
    run(&["LPUSH", &key(":producer_free"), "0"]).await?;
    Ok(())
}

async fn sequence(server: &Server, options: &Options, table: &mut Table) -> Result<()> {
    let count = 500;
    let queue = server.queue("sequence")?;
    queue.create(0).await?;
    let (connection, data) = (server.bare().await?, queue.name().data());
    let by_the_text = async || {
        timed(async {
            for _ in 0..count {
                put_by_the_text(&mut connection.clone(), &data).await?;
            }
            Ok(())
        })
        .await
    };
    let ours = async || {
        timed(async {
            for _ in 0..count {
                queue.put("0123456789").await?;
            }
            Ok(())
        })
        .await
    };
    let pairs = rounds(options.rounds, by_the_text, ours).await?;
    table.speed("put, versus the text's 13 commands", &pairs, Some(OF_THE_SEQUENCE));
    Ok(queue.delete(Wait::Forever).await?)
}

/// Compares batches with single operations, both ours.
async fn batches(server: &Server, options: &Options, table: &mut Table) -> Result<()> {
    let queue = server.queue("batched")?;
    queue.create(0).await?;
    let elements = vec![b"0123456789"; 4 * BATCHED];
    let fill = async || -> Result<()> { Ok(queue.put_batch(&elements, Wait::No).await?) };
    let drain = async || -> Result<()> {
        while queue.len().await? > 0 {
            queue.get_batch(Limit { elements: BATCHED, bytes: usize::MAX }, Wait::No).await?;
        }
        Ok(())
    };
    let one_by_one = async || {
        let took = timed(async {
            for element in &elements {
                queue.put(element).await?;
            }
            Ok(())
        });
        let took = took.await?;
        drain().await?;
        Ok(took)
    };
    let batched = async || {
        let took = timed(async {
            for batch in elements.chunks(BATCHED) {
                queue.put_batch(batch, Wait::No).await?;
            }
            Ok(())
        });
        let took = took.await?;
        drain().await?;
        Ok(took)
    };
    let pairs = rounds(options.rounds, one_by_one, batched).await?;
    table.speed(&format!("put {BATCHED} at once, versus one by one"), &pairs, Some(BATCH));
    let one_by_one = async || {
        fill().await?;
        timed(async {
            for _ in &elements {
                queue.get().await?;
            }
            Ok(())
        })
        .await
    };
    let batched = async || {
        fill().await?;
        timed(async {
            let mut left = elements.len();
            while left > 0 {
                let limit = Limit { elements: BATCHED, bytes: usize::MAX };
                left -= queue.get_batch(limit, Wait::No).await?.len();
            }
            Ok(())
        })
        .await
    };
    let pairs = rounds(options.rounds, one_by_one, batched).await?;
    table.speed(&format!("get {BATCHED} at once, versus one by one"), &pairs, Some(BATCH));
    Ok(queue.delete(Wait::Forever).await?)
}

/// Measures eight producers, each with its own connection, on one unbounded queue.
async fn contended(server: &Server, options: &Options, table: &mut Table) -> Result<()> {
    let (producers, count) = (8, 500);
    let queue = server.queue("contended")?;
    queue.create(0).await?;
    let list = format!("{}:bare-contended", server.prefix);
    let connections = try_join_all((0..producers).map(|_| server.bare())).await?;
    let queues = (0..producers).map(|_| server.queue("contended")).collect::<Result<Vec<_>>>()?;
    let lpush = async || {
        timed(async {
            let all = connections.iter().map(async |connection| -> Result<()> {
                let mut connection = connection.clone();
                for _ in 0..count {
                    let () = redis::cmd("LPUSH")
                        .arg(&list)
                        .arg("0123456789")
                        .query_async(&mut connection)
                        .await?;
                }
                Ok(())
            });
            try_join_all(all).await.map(|_| ())
        })
        .await
    };
    let put = async || {
        timed(async {
            let all = queues.iter().map(async |queue| -> Result<()> {
                for _ in 0..count {
                    queue.put("0123456789").await?;
                }
                Ok(())
            });
            try_join_all(all).await.map(|_| ())
        })
        .await
    };
    let pairs = rounds(options.rounds, lpush, put).await?;
    table.speed(&format!("put, {producers} producers at once"), &pairs, None);
    let () = redis::cmd("DEL").arg(&list).query_async(&mut server.bare().await?).await?;
    Ok(queue.delete(Wait::Forever).await?)
}
