//! Which of several objects that stand for the same lock or queue owns it: the oldest
//! (hazard K1). Two addresses of one server are seen to be that by what the server says
//! of itself, which is asked only where names are the same.

use std::sync::Arc;
use std::time::Duration;

use kube::runtime::reflector::Store as Cache;
use kube::{Resource, ResourceExt};

use super::context::Context;
use super::fetch::Connected;
use super::names::Names;
use super::report::Managed;
use crate::api::{PressureQueue, Semaphore, validate};
use crate::plan::naming::{LockName, QueueName};
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
    let all = ctx.all_semaphores.get()?;
    for other in older(all, &ctx.semaphore_names, semaphore, lock.as_str()) {
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
    let all = ctx.all_pressure_queues.get()?;
    for other in older(all, &ctx.pressure_queue_names, queue, &name.data()) {
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

/// What objects are compared by, the oldest being the least.
pub(super) fn age<K: ResourceExt>(object: &K) -> impl Ord + use<K> {
    (object.creation_timestamp(), object.uid())
}

/// All that are older than `object` and named alike, the order of ages being the same
/// for everyone who looks.
fn older<K: Managed>(cache: &Cache<K>, names: &Names, object: &K, name: &str) -> Vec<Arc<K>> {
    let alike = names.of::<K>(name).into_iter().filter_map(|at| cache.get(&at));
    alike
        .filter(|other| other.uid() != object.uid() && age(&**other) < age(object))
        // Another one of that name may have come meanwhile.
        .filter(|other| other.server_name() == name)
        .collect()
}

fn called<K: Resource<DynamicType = ()>>(object: &K) -> String {
    format!("{} {}/{}", K::kind(&()), object.namespace().unwrap_or_default(), object.name_any())
}
