//! Which objects are beyond what their namespace may have, by what is watched: no
//! request is made for it. What the limits mean is [`plan::quota`](crate::plan::quota)'s.

use kube::runtime::reflector::Store as Cache;
use kube::{Resource, ResourceExt};

use super::context::Context;
use super::owners::age;
use crate::api::{PressureQueue, Semaphore};
use crate::plan::quota::{Demand, OverLimit, fits};

/// Whether this Semaphore fits in beside the older ones of its namespace.
pub(super) fn of_semaphore(ctx: &Context, object: &Semaphore) -> Result<(), OverLimit> {
    let demand = |object: &Semaphore| {
        let count = |number: i32| u32::try_from(number).unwrap_or(0);
        let made = object.status.as_ref().and_then(|status| status.highest_slot);
        Demand { slots: count(object.spec.slots), made: made.map_or(0, count) }
    };
    check(ctx, ctx.all_semaphores.get(), object, demand)
}

/// Whether this `PressureQueue` fits in beside the older ones of its namespace.
pub(super) fn of_queue(ctx: &Context, object: &PressureQueue) -> Result<(), OverLimit> {
    check(ctx, ctx.all_pressure_queues.get(), object, |_| Demand::default())
}

fn check<K>(
    ctx: &Context,
    cache: Option<&Cache<K>>,
    object: &K,
    demand: impl Fn(&K) -> Demand,
) -> Result<(), OverLimit>
where
    K: Resource<DynamicType = ()> + Clone + 'static,
{
    let limits = ctx.limits;
    if limits.slots.is_none() && limits.objects.is_none() {
        return Ok(());
    }
    let namespace = &object.meta().namespace;
    let all = cache.map(Cache::state).unwrap_or_default();
    let mut older: Vec<_> = all
        .iter()
        .filter(|other| other.meta().namespace == *namespace && other.uid() != object.uid())
        .filter(|other| age(&***other) < age(object))
        .collect();
    older.sort_by_key(|other| age(&***other));
    let older: Vec<Demand> = older.into_iter().map(|other| demand(other)).collect();
    fits(limits, &older, demand(object))
}
