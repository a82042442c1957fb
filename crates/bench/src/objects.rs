//! Benchmarks many Semaphores with one slot, from create until all are Ready, and the
//! memory of an operator with these objects. The bare run sends the same writes to both
//! servers without an operator, and is measured in the same way. It also writes the finalizer, which
//! the API server adds for the operator, by the chart's policy. See `neighbour` for the same with
//! RabbitMQ's own operator.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use lapin::Channel;
use lockkeeper_api::{FIELD_MANAGER, FINALIZER, Semaphore, SemaphoreStatus};
use lockkeeper_plan::naming::LockName;
use lockkeeper_testkit::environment::{kib, processor_time};
use lockkeeper_testkit::world::{Operator, is_ready};

use crate::environment::{Environment, concurrently, one_slot};
use crate::ready::watch;
use crate::table::{MEMORY_MIB, OBJECTS, OF_THE_NEIGHBOUR, Pair, Table, median};
use crate::{CONCURRENCY, Options, Result, bare, neighbour};

/// Number of objects that the goals apply to.
const GOAL_AT: usize = 1000;

/// Time until an operator counts as idle: every object observed, every drift sweep done
/// once, all events published.
pub const REST: Duration = Duration::from_secs(45);

/// Measures in several rounds, alternating bare and ours.
pub async fn run(environment: &Environment, options: &Options, table: &mut Table) -> Result<()> {
    let names: Vec<String> = (0..options.objects).map(|n| format!("object-{n:04}")).collect();
    let policy = environment.add_finalizers().await?;
    let mut pairs = Vec::new();
    let mut neighbours = Vec::new();
    let [mut rest, mut heap, mut peak] = [0.0; 3];
    let mut processor = Vec::new();
    for round in 1..=options.object_rounds {
        let first = bare_run(environment, &names).await?;
        let mut operator = environment.operator().await;
        let before = processor_time(operator.pid());
        let ours = our_run(environment, &names).await?;
        let spent = processor_time(operator.pid()).saturating_sub(before);
        processor.push(spent.as_secs_f64());
        if round == options.object_rounds {
            tokio::time::sleep(options.rest.unwrap_or(REST)).await;
            [rest, heap, peak] = ["VmRSS", "RssAnon", "VmHWM"].map(|figure| mib(&operator, figure));
        }
        environment.clear(&environment.semaphores(), false).await?;
        operator.stop().await;
        let last = bare_run(environment, &names).await?;
        println!("    bare {first:.2?}, ours {ours:.2?}, bare {last:.2?}");
        pairs.push(Pair { bare: (first + last) / 2, ours });
        if options.neighbour.is_some() {
            let took = neighbour::run(environment, &names).await?;
            println!("    the messaging topology operator {took:.2?}");
            neighbours.push(Pair { bare: took, ours });
        }
    }
    policy.end().await?;

    let count = names.len();
    let goal = |goal| (count == GOAL_AT).then_some(goal);
    let what = format!("{count} objects, create to all Ready");
    table.time(&what, &pairs, goal(OBJECTS));
    table.time("  of the messaging topology operator's", &neighbours, goal(OF_THE_NEIGHBOUR));
    let spent = median(processor.into_iter());
    table.figure("  operator's processor time, s", format!("{spent:.2} s"), spent, None);
    let what = format!("operator memory at rest, {count} objects, MiB");
    // Much of it depends on the allocator of the C library, so the goal is that of the image.
    let of_the_image = goal(MEMORY_MIB).filter(|_| options.operator.is_some());
    table.figure(&what, format!("{rest:.1} MiB"), rest, of_the_image);
    table.figure("  without the program's file, MiB", format!("{heap:.1} MiB"), heap, None);
    table.figure("  at its highest, MiB", format!("{peak:.1} MiB"), peak, None);
    Ok(())
}

/// Returns a figure of the operator's memory, in MiB.
pub fn mib(operator: &Operator, figure: &str) -> f64 {
    f64::from(kib(operator.pid(), figure)) / 1024.0
}

async fn our_run(environment: &Environment, names: &[String]) -> Result<Duration> {
    let api = environment.semaphores();
    let all_ready = watch(&api, names.len(), is_ready).await?;
    let start = Instant::now();
    concurrently(names, async |name| create(&api, name).await).await?;
    all_ready.await??;
    Ok(start.elapsed())
}

/// Sends the requests for each object of an operator that adds the finalizer itself, for
/// [`CONCURRENCY`] objects at a time.
async fn bare_run(environment: &Environment, names: &[String]) -> Result<Duration> {
    let api = environment.bare_semaphores();
    let connection = environment.amqp().await;
    let idle = Mutex::new(bare::channels(&connection, CONCURRENCY).await?);

    let all_ready = watch(&api, names.len(), is_ready).await?;
    let start = Instant::now();
    concurrently(names, async |name| {
        create(&api, name).await?;
        let finalizers = serde_json::json!({"metadata": {"finalizers": [FINALIZER]}});
        let object = api.patch(name, &PatchParams::default(), &Patch::Merge(finalizers)).await?;
        let channel = take(&idle).ok_or("no channel left")?;
        let lock = LockName::new(format!("{}.{name}", environment.namespace))?;
        bare::make_under_mutex(&channel, lock.as_str(), &lock.slot_queue(1)).await?;
        give_back(&idle, channel);
        let body = serde_json::json!({
            "apiVersion": "lockkeeper.dev/v1alpha1", "kind": "Semaphore",
            "metadata": {"name": name, "uid": object.uid()}, "status": status(&object, &lock),
        });
        let params = PatchParams::apply(FIELD_MANAGER).force();
        api.patch_status(name, &params, &Patch::Apply(body)).await?;
        Ok(())
    })
    .await?;
    all_ready.await??;
    let took = start.elapsed();

    environment.clear(&api, true).await?;
    let channel = connection.create_channel().await?;
    let slots: Vec<String> =
        names.iter().map(|name| format!("{}.{name}-1-A", environment.namespace)).collect();
    bare::delete_all(&channel, &slots).await?;
    Ok(took)
}

/// Creates a Semaphore with one slot.
pub async fn create(api: &Api<Semaphore>, name: &str) -> Result<()> {
    api.create(&PostParams::default(), &one_slot(name)?).await?;
    Ok(())
}

fn take(idle: &Mutex<Vec<Channel>>) -> Option<Channel> {
    idle.lock().unwrap_or_else(PoisonError::into_inner).pop()
}

fn give_back(idle: &Mutex<Vec<Channel>>, channel: Channel) {
    idle.lock().unwrap_or_else(PoisonError::into_inner).push(channel);
}

/// The status that the operator reports for a semaphore with one free slot.
fn status(object: &Semaphore, lock: &LockName) -> SemaphoreStatus {
    let condition = |type_: &str, status: &str, reason: &str, message: &str| Condition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        observed_generation: object.metadata.generation,
        last_transition_time: Time(
            Timestamp::from_second(Timestamp::now().as_second()).unwrap_or_default(),
        ),
    };
    SemaphoreStatus {
        observed_generation: object.metadata.generation,
        lock_name: Some(lock.as_str().to_owned()),
        backend: Some("127.0.0.1:25672/bench-01234567".to_owned()),
        slots: Some(1),
        held: Some(0),
        free: Some(1),
        draining: Some(0),
        highest_slot: Some(1),
        selector: Some(format!("lockkeeper.dev/semaphore={}", object.name_any())),
        holders_summary: Some(String::new()),
        conditions: vec![
            condition("Ready", "True", "InSync", "The broker has exactly the desired 1 slot"),
            condition("BackendReachable", "True", "Connected", "The server answers"),
            condition("Drained", "True", "NoneDraining", "No holder is above the count"),
            condition("Saturated", "False", "SlotsFree", "A slot may be taken"),
        ],
        ..SemaphoreStatus::default()
    }
}
