//! Acquires and releases one lock on request, as a process of its own: ours, or a peer that has a
//! library in Rust. See the parent module for the requests, and `locker` for the other end.

use std::env;
use std::fs::File;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use lockkeeper_plan::connection::RabbitmqSettings;
use lockkeeper_plan::naming::LockName;
use lockkeeper_semaphore::{
    AcquireOptions, Broker, BrokerOptions, Client, ClientOptions, Lock, Permit,
};
use redis::Script;
use redis::aio::MultiplexedConnection;
use tokio::io::{AsyncBufReadExt, BufReader, stdin};
use tokio::task::{JoinHandle, block_in_place};
use tokio::time::sleep;

use crate::Result;
use crate::client::resize;
use crate::protocols::PROTOCOLS;

/// Time after which Redis deletes the key of a holder that is gone, and etcd its lease. With a
/// shorter time, a slow network would cost locks.
const TTL: Duration = Duration::from_secs(10);

/// Time between two attempts of a peer that cannot wait (the default of redis-py's lock).
const TRY_EVERY: Duration = Duration::from_millis(100);

/// Deletes the key if it is still this holder's, as the documentation of SET recommends.
const RELEASE: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then \
                       return redis.call('del', KEYS[1]) else return 0 end";

/// Prolongs the key if it is still this holder's.
const RENEW: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then \
                     return redis.call('pexpire', KEYS[1], ARGV[2]) else return 0 end";

/// A lock with one slot.
trait OneLock {
    /// Creates the lock on the server, if that needs a request.
    async fn create(&mut self) -> Result<()>;
    /// Returns when the lock is held.
    async fn acquire(&mut self) -> Result<()>;
    async fn release(&mut self) -> Result<()>;
}

/// Answers the requests on stdin until it ends.
pub async fn serve(kind: &str) -> Result<()> {
    let variable = |name: &str| env::var(name).map_err(|_| format!("{name} is not set"));
    let (url, lock) = (variable("LOCKER_URL")?, variable("LOCKER_LOCK")?);
    match kind {
        "redis" => answer(Redis::new(&url, lock).await?).await,
        "flock" => answer(Flock { path: lock.into(), held: None }).await,
        _ => answer(Ours::new(kind, &url, lock)?).await,
    }
}

async fn answer(mut lock: impl OneLock) -> Result<()> {
    let mut lines = BufReader::new(stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        let answer = match line.split_once(' ') {
            Some(("run", millis)) => {
                let end = Instant::now() + Duration::from_millis(u64::from_str(millis)?);
                let mut cycles = 0;
                while Instant::now() < end {
                    lock.acquire().await?;
                    lock.release().await?;
                    cycles += 1;
                }
                cycles
            }
            None if line == "create" => {
                lock.create().await?;
                0
            }
            None if line == "acquire" => {
                lock.acquire().await?;
                now()?
            }
            None if line == "release" => {
                let begun = now()?;
                lock.release().await?;
                begun
            }
            _ => return Err(format!("unknown request {line:?}").into()),
        };
        println!("{answer}");
    }
    Ok(())
}

/// Returns the time in nanoseconds since 1970, which processes of one machine can compare.
pub fn now() -> Result<u64> {
    Ok(u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos())?)
}

/// A Semaphore with one slot.
struct Ours {
    settings: RabbitmqSettings,
    name: LockName,
    lock: Lock,
    permit: Option<Permit>,
}

impl Ours {
    fn new(protocol: &str, url: &str, lock: String) -> Result<Self> {
        let settings = RabbitmqSettings::from_urls(url, None)?;
        let mut protocols = PROTOCOLS.iter();
        let (_, protocol) = protocols.find(|(name, _)| *name == protocol).ok_or("no such peer")?;
        let name = LockName::new(lock)?.with_protocol(*protocol);
        let options = ClientOptions::default().with_warm(0);
        let lock = Client::new(settings.clone(), options).semaphore(name.clone());
        Ok(Self { settings, name, lock, permit: None })
    }
}

impl OneLock for Ours {
    async fn create(&mut self) -> Result<()> {
        let broker = Broker::new(self.settings.clone(), BrokerOptions::default());
        resize(&broker, &self.name, 1).await
    }

    async fn acquire(&mut self) -> Result<()> {
        self.permit = Some(self.lock.acquire(&AcquireOptions::default()).await?);
        Ok(())
    }

    async fn release(&mut self) -> Result<()> {
        let permit = self.permit.take().ok_or("not held")?;
        Ok(permit.release().await?)
    }
}

/// A key that only one holder can create (SET NX PX), and prolongs while it holds.
struct Redis {
    connection: MultiplexedConnection,
    key: String,
    token: u64,
    renewing: Option<JoinHandle<Result<()>>>,
    release: Script,
}

impl Redis {
    async fn new(url: &str, key: String) -> Result<Self> {
        let connection = redis::Client::open(url)?.get_multiplexed_async_connection().await?;
        Ok(Self { connection, key, token: 0, renewing: None, release: Script::new(RELEASE) })
    }
}

/// Prolongs the key three times as often as it would expire.
async fn renew(mut connection: MultiplexedConnection, key: String, token: u64) -> Result<()> {
    let script = Script::new(RENEW);
    loop {
        sleep(TTL / 3).await;
        let mut renew = script.key(&key);
        renew.arg(token).arg(TTL.as_secs() * 1000);
        let () = renew.invoke_async(&mut connection).await?;
    }
}

impl OneLock for Redis {
    async fn create(&mut self) -> Result<()> {
        Ok(())
    }

    async fn acquire(&mut self) -> Result<()> {
        self.token = rand::random();
        let mut set = redis::cmd("SET");
        set.arg(&self.key).arg(self.token).arg("NX").arg("PX").arg(TTL.as_secs() * 1000);
        while set.query_async::<Option<String>>(&mut self.connection).await?.is_none() {
            sleep(TRY_EVERY).await;
        }
        let renewing = renew(self.connection.clone(), self.key.clone(), self.token);
        self.renewing = Some(tokio::spawn(renewing));
        Ok(())
    }

    async fn release(&mut self) -> Result<()> {
        self.renewing.take().ok_or("not held")?.abort();
        let mut invocation = self.release.key(&self.key);
        let deleted: u32 = invocation.arg(self.token).invoke_async(&mut self.connection).await?;
        if deleted == 1 { Ok(()) } else { Err("the key had expired".into()) }
    }
}

/// A file that the kernel locks (flock).
struct Flock {
    path: PathBuf,
    held: Option<File>,
}

impl OneLock for Flock {
    async fn create(&mut self) -> Result<()> {
        Ok(())
    }

    async fn acquire(&mut self) -> Result<()> {
        let file = File::options().create(true).append(true).open(&self.path)?;
        block_in_place(|| file.lock())?;
        self.held = Some(file);
        Ok(())
    }

    async fn release(&mut self) -> Result<()> {
        self.held.take().ok_or("not held")?.unlock().map_err(Into::into)
    }
}
