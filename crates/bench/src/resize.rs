//! Benchmarks a semaphore that grows from no slots to many and shrinks back: by the
//! library, and by an operator from the change of the spec until Ready. Each is compared
//! with bare declares and deletes of the same number of queues.

use std::time::{Duration, Instant};

use futures::StreamExt;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use lockkeeper_api::Semaphore;
use lockkeeper_plan::naming::LockName;
use lockkeeper_plan::semaphore::{DesiredSlots, sweep_to};
use lockkeeper_semaphore::Broker;
use lockkeeper_testkit::world::{PATIENCE, is_ready};
use tokio_util::sync::CancellationToken;

use crate::environment::Environment;
use crate::table::{GROW, Pair, SHRINK, Table};
use crate::{Options, Result, bare};

/// Number of channels for the bare declares; more are no faster.
const CHANNELS: usize = 16;

/// The size that the goals apply to. With fewer slots, observing and locking dominate.
const GOAL_AT: u32 = 1000;

/// Measures every size, in several rounds.
pub async fn run(environment: &Environment, options: &Options, table: &mut Table) -> Result<()> {
    let connection = environment.amqp().await;
    let broker = environment.broker()?;
    let mut operator = environment.operator().await;
    let api = environment.semaphores();
    for &slots in &options.slots {
        // Small sizes take only milliseconds and vary more. At the size of the goals, the deletes
        // of a round take up to a third longer than those of another.
        let rounds = options.rounds * if slots <= 100 { 3 } else { 2 };
        let mut library = (Vec::new(), Vec::new());
        let mut operated = (Vec::new(), Vec::new());
        for round in 0..=rounds {
            let bare = bare_round(&connection, environment, slots).await?;
            let (grow, shrink) = by_library(&broker, environment, slots).await?;
            let (grow_operated, shrink_operated) = by_operator(&api, slots).await?;
            let again = bare_round(&connection, environment, slots).await?;
            if round == 0 {
                // The first round opens connections and channels, and warms up the
                // servers.
                continue;
            }
            // Bare before and after, so that other work of the servers affects both.
            let pair = |a: Duration, b: Duration, ours| Pair { bare: (a + b) / 2, ours };
            library.0.push(pair(bare.0, again.0, grow));
            library.1.push(pair(bare.1, again.1, shrink));
            operated.0.push(pair(bare.0, again.0, grow_operated));
            operated.1.push(pair(bare.1, again.1, shrink_operated));
        }
        let goal = |goal| (slots == GOAL_AT).then_some(goal);
        table.speed(&format!("0 → {slots} slots, library"), &library.0, goal(GROW));
        table.speed(&format!("{slots} → 0 slots, library"), &library.1, goal(SHRINK));
        table.speed(&format!("0 → {slots} slots, apply to Ready"), &operated.0, None);
        table.speed(&format!("{slots} → 0 slots, apply to Ready"), &operated.1, None);
    }
    environment.clear(&environment.semaphores(), false).await?;
    operator.stop().await;
    Ok(())
}

/// Declares this many queues, and deletes them, without observations or checks.
pub async fn bare_round(
    connection: &lapin::Connection,
    environment: &Environment,
    slots: u32,
) -> Result<(Duration, Duration)> {
    let lock = LockName::new(format!("{}.bare", environment.namespace))?;
    let names: Vec<String> = (1..=slots).map(|slot| lock.slot_queue(slot)).collect();
    let channels = bare::channels(connection, CHANNELS).await?;
    let grow = bare::declare_all(&channels, &names).await?;
    let shrink = bare::delete_all(&channels[0], &names).await?;
    for channel in &channels {
        channel.close(200, "OK".into()).await?;
    }
    Ok((grow, shrink))
}

/// Grows a lock from no slots to this many, and shrinks it back.
pub async fn by_library(
    broker: &Broker,
    environment: &Environment,
    slots: u32,
) -> Result<(Duration, Duration)> {
    let lock = LockName::new(format!("{}.library", environment.namespace))?;
    let never = CancellationToken::new();
    let mut took = [Duration::ZERO; 2];
    for (took, (from, to)) in took.iter_mut().zip([(0, slots), (slots, 0)]) {
        let desired = DesiredSlots::new(to);
        let start = Instant::now();
        let converged =
            broker.converge(&lock, desired, sweep_to(desired, from), false, &never).await?;
        *took = start.elapsed();
        if converged.declared + converged.deleted != slots || !converged.seen.has_exactly(to) {
            return Err(format!("{from} → {to} slots came to {converged:?}").into());
        }
    }
    Ok(took.into())
}

async fn by_operator(api: &Api<Semaphore>, slots: u32) -> Result<(Duration, Duration)> {
    const NAME: &str = "operated";
    if api.get_opt(NAME).await?.is_none() {
        let body = serde_json::json!({
            "apiVersion": "lockkeeper.dev/v1alpha1", "kind": "Semaphore",
            "metadata": {"name": NAME}, "spec": {"slots": 0},
        });
        api.create(&PostParams::default(), &serde_json::from_value(body)?).await?;
        until_ready(api, NAME, 0).await?;
    }
    let mut took = [Duration::ZERO; 2];
    for (took, to) in took.iter_mut().zip([slots, 0]) {
        let spec = serde_json::json!({"spec": {"slots": to}});
        let start = Instant::now();
        api.patch(NAME, &PatchParams::default(), &Patch::Merge(spec)).await?;
        until_ready(api, NAME, to).await?;
        *took = start.elapsed();
    }
    Ok(took.into())
}

/// Waits with a watch until the object is Ready with this many slots.
async fn until_ready(api: &Api<Semaphore>, name: &str, slots: u32) -> Result<()> {
    let wanted = i32::try_from(slots)?;
    let params = WatchParams::default().fields(&format!("metadata.name={name}"));
    let waiting = async {
        // From version 0, so that the current object comes first.
        let mut events = api.watch(&params, "0").await?.boxed();
        while let Some(event) = events.next().await {
            if let WatchEvent::Added(object) | WatchEvent::Modified(object) = event?
                && object.spec.slots == wanted
                && object.status.as_ref().is_some_and(|status| status.slots == Some(wanted))
                && is_ready(&object)
            {
                return Ok(());
            }
        }
        Err("the watch ended".into())
    };
    tokio::time::timeout(PATIENCE, waiting)
        .await
        .map_err(|_| format!("{name} is not Ready with {slots} slots"))?
}
