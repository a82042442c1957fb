//! Which of several objects that stand for the same lock or queue owns it: the oldest
//! (hazard K1). Two addresses of one server are seen to be that by what the server says
//! of itself, which is asked only where names are the same.

use std::sync::Arc;
use std::time::Duration;

use kube::runtime::reflector::Store as Cache;
use kube::{Resource, ResourceExt};

use super::context::Context;
use super::fetch::Connected;
use crate::api::{PressureQueue, Semaphore, validate};
use crate::plan::naming::{DEFAULT_PREFIX, LockName, QueueName};
use crate::pressure::Store;
use crate::semaphore::Broker;

/// How long the other object's server is asked who it is: one that does not answer is
/// taken for another than ours.
const PATIENCE: Duration = Duration::from_secs(1);

/// The older Semaphore that owns the lock, in words.
pub(super) async fn of_lock(
    ctx: &Context,
    semaphore: &Semaphore,
    ours: &Connected<Broker>,
    lock: &LockName,
) -> Option<String> {
    let named = |other: &Semaphore| is_named(other, other.spec.lock_name.as_deref(), lock.as_str());
    for other in older(ctx.all_semaphores.get()?, semaphore, named) {
        let backend = other.status.as_ref().and_then(|status| status.backend.as_deref());
        // One whose spec can't be acted on owns nothing.
        let Ok(valid) = validate::semaphore(&other, ctx.default_names) else { continue };
        let asking = Box::pin(async {
            let namespace = other.namespace().unwrap_or_default();
            let (broker, vhost) = (valid.broker.as_ref(), valid.vhost.as_deref());
            let theirs = ctx.connections.broker(&namespace, broker, vhost).await.ok()?;
            theirs.handle.is_same_as(&ours.handle).await.ok()
        });
        if backend == Some(ours.backend.as_str()) || in_time(asking).await {
            return Some(called(&*other));
        }
    }
    None
}

/// The older `PressureQueue` that owns the queue, in words.
pub(super) async fn of_queue(
    ctx: &Context,
    queue: &PressureQueue,
    ours: &Connected<Store>,
    name: &QueueName,
) -> Option<String> {
    // As the keys have it: another prefix with another name can give the same ones.
    let data = name.data();
    let named = |other: &PressureQueue| {
        let reference = other.spec.redis_reference.as_ref();
        let rest = data.strip_prefix(reference.map_or(DEFAULT_PREFIX, |r| r.prefix.as_str()));
        let rest = rest.and_then(|rest| rest.strip_prefix(':'));
        rest.is_some_and(|name| is_named(other, other.spec.queue_name.as_deref(), name))
    };
    for other in older(ctx.all_pressure_queues.get()?, queue, named) {
        let backend = other.status.as_ref().and_then(|status| status.backend.as_deref());
        let Ok(valid) = validate::pressure_queue(&other, ctx.default_names) else { continue };
        let asking = Box::pin(async {
            let namespace = other.namespace().unwrap_or_default();
            let (secret, database) = (valid.secret.as_deref(), valid.database);
            let theirs = ctx.connections.store(&namespace, secret, database).await.ok()?;
            theirs.handle.is_same_as(&ours.handle).await.ok()
        });
        if backend == Some(ours.backend.as_str()) || in_time(asking).await {
            return Some(called(&*other));
        }
    }
    None
}

async fn in_time(asking: impl Future<Output = Option<bool>>) -> bool {
    matches!(tokio::time::timeout(PATIENCE, asking).await, Ok(Some(true)))
}

/// Whether it has this name, without making one: every reconcile passes by all objects.
fn is_named<K: ResourceExt>(object: &K, given: Option<&str>, name: &str) -> bool {
    match given {
        Some(given) => given == name,
        None => {
            let meta = object.meta();
            let namespace = meta.namespace.as_deref().unwrap_or_default();
            let rest = name.strip_prefix(namespace).and_then(|rest| rest.strip_prefix('.'));
            rest.is_some() && rest == meta.name.as_deref()
        }
    }
}

/// What objects are compared by, the oldest being the least.
pub(super) fn age<K: ResourceExt>(object: &K) -> impl Ord + use<K> {
    (object.creation_timestamp(), object.uid())
}

/// All that are older than `object` and named alike, the order of ages being the same
/// for everyone who looks.
fn older<K>(cache: &Cache<K>, object: &K, is_named: impl Fn(&K) -> bool) -> Vec<Arc<K>>
where
    K: Resource<DynamicType = ()> + Clone + 'static,
{
    let mut found: Vec<Arc<K>> = Vec::new();
    while let Some(other) = cache.find(|other| {
        // Hardly ever true, so first: the rest copies.
        is_named(other)
            && other.uid() != object.uid()
            && age(other) < age(object)
            && !found.iter().any(|found| found.uid() == other.uid())
    }) {
        found.push(other);
    }
    found
}

fn called<K: Resource<DynamicType = ()>>(object: &K) -> String {
    format!("{} {}/{}", K::kind(&()), object.namespace().unwrap_or_default(), object.name_any())
}
