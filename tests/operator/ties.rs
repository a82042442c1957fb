//! Two objects for one lock or queue that were created in the same second, so that their
//! timestamps do not show which one is older. See `owners` for the other conflicts.

use std::collections::HashMap;

use futures::future::join;
use futures::stream::{self, StreamExt};
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams};
use lockkeeper_api::{PressureQueue, Semaphore};
use lockkeeper_testkit::world::{
    Kind, PATIENCE, World, eventually, has_reason, in_a_world, is_ready,
};

use crate::operator::owners::gone;
use crate::operator::queues::send;
use crate::operator::settings::CORRECTED;

/// A kind, with what distinguishes two of its objects for one name.
trait Tied: Kind {
    /// The name of the world's Secret for its server.
    const SECRET: &str;

    /// The key of the server's address in the Secret, and the address.
    fn address(world: &World) -> (&'static str, String);

    fn spec(secret: &str, name: &str, count: i64) -> String;

    /// The slots or the bound that the server has for a name, or `None` if it has nothing.
    async fn on_server(world: &World, name: &str) -> Option<i64>;

    /// The slots or the bound in the status, and the server that the object logged in to.
    fn applied(&self) -> (Option<i64>, Option<&str>);
}

impl Tied for Semaphore {
    const SECRET: &str = "rabbit";

    fn address(world: &World) -> (&'static str, String) {
        ("amqpUri", world.amqp_url())
    }

    fn spec(secret: &str, name: &str, count: i64) -> String {
        format!(
            "{{rabbitmqClusterReference: {{connectionSecret: {{name: {secret}}}}}, lockName: {name}, slots: {count}}}"
        )
    }

    async fn on_server(world: &World, name: &str) -> Option<i64> {
        let slots = slots(world).await;
        slots.get(name).copied()
    }

    fn applied(&self) -> (Option<i64>, Option<&str>) {
        let status = self.status.as_ref().unwrap();
        (status.slots.map(i64::from), status.reached_backend.as_deref())
    }
}

impl Tied for PressureQueue {
    const SECRET: &str = "redis";

    fn address(world: &World) -> (&'static str, String) {
        ("uri", world.redis_url())
    }

    fn spec(secret: &str, name: &str, count: i64) -> String {
        format!(
            "{{redisReference: {{connectionSecret: {{name: {secret}}}}}, queueName: {name}, bound: {count}, deletionPolicy: Delete}}"
        )
    }

    async fn on_server(world: &World, name: &str) -> Option<i64> {
        send(world, &["GET", &format!("__pressure__:{name}:bound")]).await
    }

    fn applied(&self) -> (Option<i64>, Option<&str>) {
        let status = self.status.as_ref().unwrap();
        (status.bound, status.reached_backend.as_deref())
    }
}

/// Returns how many slots each lock in the world's vhost has.
async fn slots(world: &World) -> HashMap<String, i64> {
    let mut slots = HashMap::new();
    for queue in world.queues().await {
        let slot = queue.strip_suffix("-A").and_then(|queue| queue.rsplit_once('-'));
        if let Some((lock, _)) = slot {
            *slots.entry(lock.to_owned()).or_default() += 1;
        }
    }
    slots
}

/// Returns whether both objects were created in the same second.
fn are_tied<K: Kind>(first: &K, second: &K) -> bool {
    first.creation_timestamp() == second.creation_timestamp()
}

/// Number of pairs of each kind that are of the same second. By uids alone, all of them would
/// be decided rightly once in a million runs.
const PAIRS: usize = 20;

/// What the spec of the first and the second object of a pair demands.
const DEMANDS: [(&str, i64); 2] = [("first", 2), ("second", 5)];

/// Creates pairs for one name each, until enough of them are of the same second. Returns how
/// many pairs there are.
async fn create_pairs<K: Tied>(world: &World) -> usize {
    let create = |pair: usize| async move {
        let [first, second] = DEMANDS.map(|(which, count)| {
            let spec = K::spec(K::SECRET, &format!("tie-{pair}"), count);
            async move { world.apply::<K>(&format!("{which}-{pair}"), &spec).await.unwrap() }
        });
        let first = first.await;
        are_tied(&first, &second.await)
    };
    let (mut pairs, mut tied) = (0, 0);
    while tied < PAIRS {
        let missing = pairs..pairs + PAIRS - tied;
        pairs = missing.end;
        let created = stream::iter(missing).map(create).buffer_unordered(8);
        tied += created.filter(|is_tied| std::future::ready(*is_tied)).count().await;
    }
    pairs
}

/// Returns whether the operator has decided about each pair. Asserts that no decision is in
/// favour of the second object.
async fn are_decided<K: Tied>(world: &World, pairs: usize) -> bool {
    let list = world.api::<K>().list(&ListParams::default()).await.unwrap();
    assert_eq!(list.items.len(), 2 * pairs);
    list.iter().all(|object| {
        if object.name_any().starts_with("first-") {
            return is_ready(object) && object.applied().0 == Some(2);
        }
        assert!(!is_ready(object), "{object:?}");
        has_reason(object, "Stalled", "Conflict") && object.applied() == (None, None)
    })
}

/// Returns whether the servers have what the first objects demand. Asserts that they have
/// nothing of the second ones.
async fn have_only_the_first(world: &World, locks: usize, queues: usize) -> bool {
    let slots = slots(world).await;
    assert!(slots.values().all(|slots| *slots <= 2), "{slots:?}");
    let bounds: Vec<String> = (0..queues).map(|n| format!("__pressure__:tie-{n}:bound")).collect();
    let get: Vec<&str> = ["MGET"].into_iter().chain(bounds.iter().map(String::as_str)).collect();
    let bounds: Vec<Option<i64>> = send(world, &get).await;
    assert!(bounds.iter().flatten().all(|bound| *bound == 2), "{bounds:?}");
    let have_all_slots = slots.len() == locks && slots.values().all(|slots| *slots == 2);
    have_all_slots && bounds.iter().all(Option::is_some)
}

/// Deletes the second object of each pair, and waits until only the first ones are left.
async fn delete_second<K: Tied>(world: &World, pairs: usize) {
    let delete = |pair: usize| async move {
        let name = format!("second-{pair}");
        world.api::<K>().delete(&name, &DeleteParams::default()).await.unwrap();
    };
    let () = stream::iter(0..pairs).map(delete).buffer_unordered(8).collect().await;
    eventually("the second objects are gone", PATIENCE, async || {
        let list = world.api::<K>().list(&ListParams::default()).await.unwrap();
        let (first, second): (Vec<_>, Vec<_>) =
            list.iter().partition(|object| object.name_any().starts_with("first-"));
        assert_eq!(first.len(), pairs);
        assert!(first.iter().all(|first| is_ready(*first) && first.applied().0 == Some(2)));
        second.is_empty()
    })
    .await;
}

#[tokio::test]
async fn of_two_objects_created_in_the_same_second_the_first_keeps_the_name() {
    in_a_world("tie", async |world| {
        let _operator = world.operator().await;
        let world = &world;
        let (locks, queues) =
            join(create_pairs::<Semaphore>(world), create_pairs::<PressureQueue>(world)).await;
        eventually("each pair is decided", PATIENCE, || async {
            have_only_the_first(world, locks, queues).await
                && are_decided::<Semaphore>(world, locks).await
                && are_decided::<PressureQueue>(world, queues).await
        })
        .await;
        join(
            delete_second::<Semaphore>(world, locks),
            delete_second::<PressureQueue>(world, queues),
        )
        .await;
        assert!(have_only_the_first(world, locks, queues).await, "also not when it is deleted");
        let (all, none) = (ListParams::default(), DeleteParams::default());
        world.api::<Semaphore>().delete_collection(&none, &all).await.unwrap();
        world.api::<PressureQueue>().delete_collection(&none, &all).await.unwrap();
    })
    .await;
}

/// Two objects for one name, created in the same second, each with a Secret of its own.
struct Pair<'a> {
    world: &'a World,
    name: String,
}

impl<'a> Pair<'a> {
    /// Creates both, the first one earlier, and waits until it owns the name.
    async fn create<K: Tied>(world: &'a World) -> Self {
        for number in 0.. {
            let pair = Self { world, name: format!("tie-{number}") };
            pair.restore_secret::<K>("first").await;
            pair.restore_secret::<K>("second").await;
            let first = pair.demand::<K>("first", 1).await;
            if are_tied(&first, &pair.demand::<K>("second", 1).await) {
                pair.is_owner::<K>("first", 1).await;
                pair.is_in_conflict::<K>("second").await;
                return pair;
            }
            gone::<K>(world, "first").await;
            gone::<K>(world, "second").await;
        }
        unreachable!()
    }

    fn secret<K: Tied>(which: &str) -> String {
        format!("{}-{which}", K::SECRET)
    }

    async fn restore_secret<K: Tied>(&self, which: &str) {
        self.world.secret(&Self::secret::<K>(which), &[K::address(self.world)]).await;
    }

    async fn demand<K: Tied>(&self, which: &str, count: i64) -> K {
        let spec = K::spec(&Self::secret::<K>(which), &self.name, count);
        self.world.apply(which, &spec).await.unwrap()
    }

    /// Waits until the server has what this object demands.
    async fn is_owner<K: Tied>(&self, which: &str, count: i64) {
        let owns = |object: &K| is_ready(object) && object.applied().0 == Some(count);
        self.world.until(which, "the owner", CORRECTED, owns).await;
        assert_eq!(K::on_server(self.world, &self.name).await, Some(count));
    }

    async fn is_in_conflict<K: Tied>(&self, which: &str) {
        let loses = |object: &K| has_reason(object, "Ready", "Conflict");
        self.world.until(which, "Conflict", CORRECTED, loses).await;
    }

    /// Changes the owner, so that it has the higher `resourceVersion` of the two and a
    /// restarted operator takes it for the later one.
    async fn change_owner<K: Tied>(&self, owner: &str) {
        self.demand::<K>(owner, 2).await;
        self.is_owner::<K>(owner, 2).await;
    }

    /// Changes both objects. The owner's change must be applied, the other's must not.
    async fn keeps_owner<K: Tied>(&self, owner: &str, other: &str) {
        self.demand::<K>(other, 5).await;
        self.is_in_conflict::<K>(other).await;
        self.demand::<K>(owner, 3).await;
        self.is_owner::<K>(owner, 3).await;
    }
}

#[tokio::test]
async fn of_two_objects_of_the_same_second_the_owner_keeps_the_name_over_a_restart() {
    in_a_world("tie-restart", async |world| {
        let mut operator = world.operator().await;
        let lock = Pair::create::<Semaphore>(&world).await;
        let queue = Pair::create::<PressureQueue>(&world).await;
        lock.change_owner::<Semaphore>("first").await;
        queue.change_owner::<PressureQueue>("first").await;
        assert!(operator.stop().await.success());
        let _operator = world.operator().await;
        lock.keeps_owner::<Semaphore>("first", "second").await;
        queue.keeps_owner::<PressureQueue>("first", "second").await;
    })
    .await;
}

/// Lets the first object lose the name to the second one, and get its Secret back.
async fn is_replaced<K: Tied>(pair: &Pair<'_>) {
    let world = pair.world;
    let invalid = [("host", "user:password@server".to_owned())];
    world.secret(&Pair::secret::<K>("first"), &invalid).await;
    let is_invalid = |object: &K| has_reason(object, "Ready", "SecretInvalid");
    world.until("first", "SecretInvalid", CORRECTED, is_invalid).await;
    pair.is_owner::<K>("second", 1).await;
    pair.restore_secret::<K>("first").await;
    pair.is_in_conflict::<K>("first").await;
    pair.is_owner::<K>("second", 1).await;
}

#[tokio::test]
async fn an_object_that_lost_its_secret_does_not_take_the_name_back_from_its_successor() {
    in_a_world("tie-secret", async |world| {
        let mut operator = world.operator().await;
        let lock = Pair::create::<Semaphore>(&world).await;
        let queue = Pair::create::<PressureQueue>(&world).await;
        join(is_replaced::<Semaphore>(&lock), is_replaced::<PressureQueue>(&queue)).await;
        lock.change_owner::<Semaphore>("second").await;
        queue.change_owner::<PressureQueue>("second").await;
        assert!(operator.stop().await.success());
        let _operator = world.operator().await;
        lock.keeps_owner::<Semaphore>("second", "first").await;
        queue.keeps_owner::<PressureQueue>("second", "first").await;
    })
    .await;
}
