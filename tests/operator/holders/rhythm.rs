//! How soon a holder is shown with the default intervals: measured by the API server's
//! audit log, and by the operator's traces of its observations.

use std::sync::Mutex;
use std::time::Duration;

use jiff::Timestamp;
use lockkeeper_api::SemaphoreStatus;
use lockkeeper_testkit::audit::{Reader, Request};
use lockkeeper_testkit::collector::{Collector, text};
use lockkeeper_testkit::world::{PATIENCE, World, eventually, in_a_world};
use opentelemetry_proto::tonic::trace::v1::Span;

use super::client::Client;

/// Number of locks, so that a busy machine does not determine the result alone.
const LOCKS: [&str; 3] = ["one", "two", "three"];

/// After this time without a write, the next write is not delayed.
const QUIET: Duration = Duration::from_secs(5);

/// One lock, as observed by its client, the API server and the operator's traces.
struct Lock<'a> {
    world: &'a World,
    collector: &'a Collector,
    log: Mutex<(Reader, Vec<(Timestamp, i64)>)>,
    name: &'static str,
}

impl Lock<'_> {
    fn holder(&self) -> String {
        format!("{}.{}-2-B", self.world.namespace, self.name)
    }

    /// Returns the times of its status writes, and the number of held slots in each.
    fn writes(&self) -> Vec<(Timestamp, i64)> {
        let ours = |r: &Request| {
            r.is_by_an_operator()
                && r.resource() == "semaphores/status"
                && r.code() == 200
                && r.namespace() == self.world.namespace
                && r.name() == self.name
        };
        let held = |r: &Request| r.object()["status"]["held"].as_i64().unwrap_or_default();
        let mut log = self.log.lock().unwrap();
        let (reader, writes) = &mut *log;
        let new = reader.read().into_iter().filter(ours);
        writes.extend(new.map(|r| (r.answered(), held(&r))));
        writes.clone()
    }

    /// Returns start and end of its observations.
    fn looks(&self) -> Vec<(Timestamp, Timestamp)> {
        let time = |nanoseconds: u64| Timestamp::from_nanosecond(nanoseconds.into()).unwrap();
        let spans = self.collector.spans();
        let of_ours = |look: &&Span| {
            spans.iter().any(|span| {
                span.span_id == look.parent_span_id
                    && text(span, "name").as_deref() == Some(self.name)
            })
        };
        let looked = |span: &&Span| ["observe", "sweep"].contains(&span.name.as_str());
        let looks = spans.iter().filter(looked).filter(of_ours);
        looks.map(|s| (time(s.start_time_unix_nano), time(s.end_time_unix_nano))).collect()
    }

    /// Waits until an observation has just ended and nothing was written for 5 s. A
    /// change now has to wait for the longest possible time.
    async fn quiet(&self) {
        let long_ago = |at: Timestamp| since(self.writes().last().unwrap().0, at) > QUIET;
        let settled = |status: &SemaphoreStatus| {
            status.holders.iter().all(|holder| holder.connection.is_some())
        };
        let start = Timestamp::now();
        let looked = async || {
            self.looks().iter().any(|(begin, end)| *end > start && long_ago(*begin))
                && self.world.semaphore_ready(self.name).await.status.is_some_and(|s| settled(&s))
        };
        eventually("it is looked at after 5 quiet seconds", PATIENCE, looked).await;
    }

    /// Returns when a status first reported this number of held slots after this time.
    async fn reported(&self, after: Timestamp, held: i64) -> Timestamp {
        let found = || self.writes().into_iter().find(|(at, now)| *at > after && *now == held);
        eventually("the status reports it", PATIENCE, async || found().is_some()).await;
        found().unwrap().0
    }

    /// Acquires or releases a slot. Returns the time until the status reported it, from
    /// the change and from the first observation that can have seen it.
    async fn changed(&self, client: &Client, take: bool) -> (Duration, Duration) {
        let before = Timestamp::now();
        if take {
            client.take(&self.holder(), &[("x-lockkeeper-id", "4fz7")]).await.unwrap();
        } else {
            client.delete(&self.holder()).await;
        }
        let done = Timestamp::now();
        let reported = self.reported(before, i64::from(take)).await;
        let seen = || self.looks().into_iter().filter(|(begin, _)| *begin >= done).min();
        // The result of an observation that had already started may be written before
        // that one.
        eventually("a look is traced", PATIENCE, async || seen().is_some()).await;
        (since(before, reported), since(seen().unwrap().1, reported))
    }
}

/// 0 if `end` is earlier.
fn since(start: Timestamp, end: Timestamp) -> Duration {
    Duration::try_from(end.duration_since(start)).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_and_its_release_show_within_11_s_or_16_and_250_ms_after_they_are_seen() {
    in_a_world("rhythm", async |world| {
        let collector = Collector::start(Duration::ZERO).await;
        let operator = world.operator_in(&collector.environment(), &[]).await;
        operator.until_ready().await;
        let one = async |name: &'static str| {
            let log = Mutex::new((Reader::from_here(), Vec::new()));
            let lock = Lock { world: &world, collector: &collector, log, name };
            world.semaphore(name, "slots: 3").await;
            world.semaphore_ready(name).await;
            let client = Client::connect(&world).await;
            // Right after a write, and then right after another.
            let soon = [lock.changed(&client, true).await.0, lock.changed(&client, false).await.0];
            lock.quiet().await;
            let taken = lock.changed(&client, true).await;
            lock.quiet().await;
            let released = lock.changed(&client, false).await;
            println!("{name}: {soon:?} after a write; quiet: {taken:?}, {released:?}");
            (soon, taken, released)
        };
        let [first, second, third] = LOCKS;
        let all = tokio::join!(one(first), one(second), one(third));
        let all = [all.0, all.1, all.2];
        for (soon, ..) in &all {
            assert!(soon.iter().all(|time| *time < Duration::from_secs(16)), "{soon:?}");
        }
        // Each of them waits for the maximum time, so a systematic delay affects all. The
        // machine may delay some of them.
        let fastest = |of: &dyn Fn(usize) -> Duration| (0..LOCKS.len()).map(of).min().unwrap();
        for (what, of) in [
            ("taken", (&|n: usize| all[n].1) as &dyn Fn(usize) -> (Duration, Duration)),
            ("given back", &|n: usize| all[n].2),
        ] {
            let (shown, after_look) = (fastest(&|n| of(n).0), fastest(&|n| of(n).1));
            assert!(shown < Duration::from_secs(11), "{what}: {shown:?}");
            assert!(after_look < Duration::from_millis(250), "{what}: {after_look:?}");
        }
    })
    .await;
}
