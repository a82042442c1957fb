//! Semaphores: slots created, changed and removed on the broker according to the spec.

use std::collections::BTreeSet;
use std::time::Instant;

use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams};
use lockkeeper_api::Semaphore;
use lockkeeper_testkit::world::{
    Kind as _, PATIENCE, World, eventually, has, has_reason, in_a_world, is_ready, kubectl,
};
use reqwest::Method;
use serde_json::json;

use crate::operator::holders::client::Client;
use crate::operator::settings::{CORRECTED, management};

#[tokio::test]
async fn the_broker_has_exactly_the_slots_of_the_spec_after_each_apply() {
    in_a_world("resize", async |world| {
        let _operator = world.operator().await;
        for slots in [3, 1000, 5, 0, 3] {
            world.semaphore("deploy", &format!("slots: {slots}")).await;
            let start = Instant::now();
            let ready = world.semaphore_ready("deploy").await;
            println!("Ready with {slots} slots after {:?}", start.elapsed());
            assert_eq!(world.queues().await, world.lock_queues("deploy", slots), "{slots} slots");
            let status = ready.status.unwrap();
            assert_eq!(status.slots, Some(i32::try_from(slots).unwrap()));
        }
        let table = kubectl(&world, &["get", "sem"]).await.unwrap();
        assert!(
            table.starts_with("NAME     SLOTS   HELD   FREE   WAITING   READY   AGE"),
            "{table}"
        );
        println!("{table}");
    })
    .await;
}

#[tokio::test]
async fn kubectl_scale_resizes_and_the_scale_subresource_has_replicas_and_selector() {
    in_a_world("scale", async |world| {
        let _operator = world.operator().await;
        world.semaphore("deploy", "slots: 2").await;
        world.semaphore_ready("deploy").await;
        kubectl(&world, &["scale", "sem/deploy", "--replicas=4"]).await.unwrap();
        world.semaphore_ready("deploy").await;
        assert_eq!(world.queues().await, world.lock_queues("deploy", 4));

        let path = format!(
            "/apis/lockkeeper.dev/v1alpha1/namespaces/{}/semaphores/deploy/scale",
            world.namespace
        );
        let scale = kubectl(&world, &["get", "--raw", &path]).await.unwrap();
        let scale: serde_json::Value = serde_json::from_str(&scale).unwrap();
        assert_eq!(scale["spec"]["replicas"], 4);
        assert_eq!(scale["status"]["replicas"], 4);
        assert_eq!(scale["status"]["selector"], "lockkeeper.dev/semaphore=deploy");
    })
    .await;
}

#[tokio::test]
async fn deleting_a_semaphore_removes_its_slots_and_leaves_its_holders() {
    in_a_world("delete", async |world| {
        let _operator = world.operator().await;
        world.semaphore("deploy", "slots: 40").await;
        world.semaphore("other", "slots: 2").await;
        world.semaphore_ready("deploy").await;
        world.semaphore_ready("other").await;
        let holder = Client::connect(&world).await;
        let held = format!("{}.deploy-7-B", world.namespace);
        holder.take(&held, &[]).await.unwrap();

        delete(&world, "deploy").await;
        let mut left = world.lock_queues("other", 2);
        left.insert(held.clone());
        assert_eq!(world.queues().await, left);
        assert!(holder.owns(&held).await, "the holder keeps its queue");
    })
    .await;
}

#[tokio::test]
async fn a_semaphore_with_policy_retain_leaves_its_slots_when_deleted() {
    in_a_world("retain", async |world| {
        let _operator = world.operator().await;
        world.semaphore("deploy", "slots: 3, deletionPolicy: Retain").await;
        world.semaphore_ready("deploy").await;
        delete(&world, "deploy").await;
        assert_eq!(world.queues().await, world.lock_queues("deploy", 3));
    })
    .await;
}

#[tokio::test]
async fn an_object_made_again_under_its_name_starts_afresh() {
    in_a_world("again", async |world| {
        // Long intervals: cached state of the first object would be used for a long time.
        let rhythm = ["--observe-interval", "1s", "--drift-interval", "10m"];
        let operator = world.operator_with(&rhythm).await;
        world.semaphore("deploy", "slots: 3, lockName: first").await;
        let first = world.semaphore_ready("deploy").await;
        // It neither observes the end of the first object nor has anything to clean up.
        operator.signal("STOP");
        let nobodys = serde_json::json!({"metadata": {"finalizers": null}});
        let api = world.api::<Semaphore>();
        api.patch("deploy", &PatchParams::default(), &Patch::Merge(nobodys)).await.unwrap();
        delete(&world, "deploy").await;
        world.semaphore("deploy", "slots: 2, lockName: second").await;
        operator.signal("CONT");
        let second = world.semaphore_ready("deploy").await;
        assert_ne!(first.uid(), second.uid());
        let status = second.status.unwrap();
        assert_eq!((status.lock_name.as_deref(), status.highest_slot), (Some("second"), Some(2)));
        let queues = |name: &str, slots: u32| {
            let slots = (1..=slots).map(|slot| format!("{name}-{slot}-A"));
            slots.chain([format!("{name}-W")]).collect::<BTreeSet<_>>()
        };
        assert_eq!(world.queues().await, &queues("first", 3) | &queues("second", 2));
    })
    .await;
}

#[tokio::test]
async fn slots_that_exist_are_adopted_and_only_the_difference_is_made() {
    in_a_world("adopt", async |world| {
        let administrator = Client::connect(&world).await;
        for lock in ["same", "more"] {
            let slots = if lock == "same" { 3 } else { 40 };
            for queue in world.slot_queues(lock, slots) {
                administrator.declare_slot(&queue).await;
            }
        }
        let _operator = world.operator().await;
        for lock in ["same", "more"] {
            world.semaphore(lock, "slots: 3").await;
            world.semaphore_ready(lock).await;
        }
        let wanted: BTreeSet<_> =
            ["same", "more"].iter().flat_map(|lock| world.lock_queues(lock, 3)).collect();
        assert_eq!(world.queues().await, wanted);
        let notes = async |lock| resizes(&world, lock).await;
        assert_eq!(notes("same").await, Vec::<String>::new());
        assert_eq!(notes("more").await, ["3 slots: 0 added, 37 removed"]);
    })
    .await;
}

#[tokio::test]
async fn a_suspended_semaphore_reports_and_touches_nothing_until_it_is_resumed() {
    in_a_world("suspend", async |world| {
        let _operator = world.operator().await;
        world.semaphore("deploy", "slots: 3, suspend: true").await;
        let suspended = |s: &Semaphore| has_reason(s, "Ready", "Suspended");
        let status = world.until("deploy", "suspended", PATIENCE, suspended).await.status.unwrap();
        assert_eq!(world.queues().await, BTreeSet::new());
        assert_eq!(status.slots, Some(0), "the actual count is reported, not the desired one");

        world.semaphore("deploy", "slots: 3, suspend: false").await;
        world.semaphore_ready("deploy").await;
        assert_eq!(world.queues().await, world.lock_queues("deploy", 3));

        // In sync, it is Ready although suspended.
        world.semaphore("deploy", "slots: 3, suspend: true").await;
        world.semaphore_ready("deploy").await;
        // Holders are also reported while the slots are not in sync.
        world.semaphore("deploy", "slots: 1, suspend: true").await;
        let object = world.until("deploy", "suspended", PATIENCE, suspended).await;
        let (.., message) = object.condition("Ready").unwrap();
        assert!(message.contains("0 slots to add and 2 to remove"), "{message}");
        let holder = Client::connect(&world).await;
        holder.take(&format!("{}.deploy-2-B", world.namespace), &[]).await.unwrap();
        let reported = |s: &Semaphore| {
            let status = s.status.as_ref().unwrap();
            status.draining == Some(1) && status.holders.len() == 1 && suspended(s)
        };
        world.until("deploy", "its holder reported", PATIENCE, reported).await;
        holder.leave().await;
        assert_eq!(world.queues().await, world.lock_queues("deploy", 3));

        world.semaphore("deploy", "slots: 1, suspend: false").await;
        world.semaphore_ready("deploy").await;
        assert_eq!(world.queues().await, world.lock_queues("deploy", 1));
    })
    .await;
}

#[tokio::test]
async fn a_queue_with_other_arguments_is_shown_and_left_alone() {
    in_a_world("other", async |world| {
        let stranger = Client::connect(&world).await;
        let slot = |slot| format!("{}.deploy-{slot}-A", world.namespace);
        // One in place of a slot to create, one in place of a slot to remove.
        stranger.declare_other(&slot(2)).await;
        stranger.declare_other(&slot(5)).await;
        let _operator = world.operator().await;
        world.semaphore("deploy", "slots: 3").await;
        let refused = |s: &Semaphore| has_reason(s, "Ready", "IncompatibleQueue");
        let object = world.until("deploy", "refused", PATIENCE, refused).await;
        let (.., message) = object.condition("Ready").unwrap();
        assert!(message.contains(&slot(2)) || message.contains(&slot(5)), "{message}");
        assert!(has(&object, "Stalled", "True") && has(&object, "BackendReachable", "True"));
        // Changes that are not blocked are made, and blocking queues stay unchanged:
        // declared again with their own arguments, they are accepted.
        let mut there = world.lock_queues("deploy", 3);
        there.insert(slot(5));
        assert_eq!(world.queues().await, there);
        stranger.declare_other(&slot(2)).await;
        stranger.declare_other(&slot(5)).await;

        // Holders that connect and disconnect in the meantime are reported.
        let holder = Client::connect(&world).await;
        holder.take(&format!("{}.deploy-1-B", world.namespace), &[]).await.unwrap();
        let reported = |s: &Semaphore| {
            let status = s.status.as_ref().unwrap();
            status.held == Some(1) && status.holders.len() == 1 && refused(s)
        };
        world.until("deploy", "its holder reported", PATIENCE, reported).await;
        holder.leave().await;

        stranger.delete(&slot(2)).await;
        stranger.delete(&slot(5)).await;
        world.semaphore_ready("deploy").await;
        assert_eq!(world.queues().await, world.lock_queues("deploy", 3));
    })
    .await;
}

#[tokio::test]
async fn slots_that_another_administrator_made_without_arguments_are_adopted() {
    in_a_world("adopt", async |world| {
        let other = Client::connect(&world).await;
        let slot = |slot| format!("{}.deploy-{slot}-A", world.namespace);
        for number in 1..=3 {
            other.declare_plain(&slot(number)).await;
        }
        let held = format!("{}.deploy-2-B", world.namespace);
        other.take(&held, &[]).await.unwrap();
        let _operator = world.operator().await;
        world.semaphore("deploy", "slots: 3").await;
        world.semaphore_ready("deploy").await;
        for (slots, draining) in [(5, 0), (1, 1)] {
            let spec = serde_json::json!({"spec": {"slots": slots}});
            let api = world.api::<Semaphore>();
            api.patch("deploy", &PatchParams::default(), &Patch::Merge(spec)).await.unwrap();
            let resized = |s: &Semaphore| {
                let status = s.status.as_ref().unwrap();
                let seen = (status.slots, status.draining);
                has(s, "Ready", "True") && seen == (Some(slots), Some(draining))
            };
            world.until("deploy", "resized", PATIENCE, resized).await;
        }
        let mut left = world.lock_queues("deploy", 1);
        left.insert(held.clone());
        assert_eq!(world.queues().await, left);
        assert!(other.owns(&held).await);
        assert_eq!(other.declare_plain(&slot(1)).await, 0, "the probes left messages");
    })
    .await;
}

#[tokio::test]
async fn an_admin_mutex_that_another_holds_is_shown_and_waited_for() {
    in_a_world("mutex", async |world| {
        let other = Client::connect(&world).await;
        let mutex = format!("{}.deploy", world.namespace);
        other.take(&mutex, &[]).await.unwrap();
        let _operator = world.operator().await;
        world.semaphore("deploy", "slots: 3").await;
        let busy = |s: &Semaphore| {
            has_reason(s, "Ready", "AdminMutexBusy") && has(s, "Reconciling", "True")
        };
        let object = world.until("deploy", "shown as busy", PATIENCE, busy).await;
        let (.., message) = object.condition("Ready").unwrap();
        assert!(message.contains(&mutex), "{message}");
        assert_eq!(world.queues().await, BTreeSet::from([mutex.clone()]), "nothing was made");

        other.leave().await;
        world.semaphore_ready("deploy").await;
        assert_eq!(world.queues().await, world.lock_queues("deploy", 3));
    })
    .await;
}

/// Sets the limit on queues to the number that the world's vhost has.
async fn forbid_more_queues(world: &World) {
    let body = json!({"value": world.queues().await.len()});
    management(Method::PUT, &queue_limit(world), Some(body)).await;
}

fn queue_limit(world: &World) -> String {
    format!("vhost-limits/{}/max-queues", world.vhost)
}

/// Waits until the broker has this number of slots, and no others.
async fn until_sized(world: &World, name: &str, slots: u32) {
    let is_sized = |s: &Semaphore| is_ready(s) && s.spec.slots == slots.cast_signed();
    world.until(name, "resized", CORRECTED, is_sized).await;
    let start = format!("{}.{name}-", world.namespace);
    let mut found = world.queues().await;
    found.retain(|queue| queue.starts_with(&start) && queue.ends_with("-A"));
    assert_eq!(found, world.slot_queues(name, slots));
}

async fn until_limited(world: &World, name: &str) {
    let is_limited = |s: &Semaphore| has_reason(s, "Stalled", "QuotaExceeded");
    let object = world.until(name, "limited", PATIENCE, is_limited).await;
    let (.., message) = object.condition("Ready").unwrap();
    assert!(message.contains("raise the limit, or delete a queue"), "{message}");
}

#[tokio::test]
async fn at_a_queue_limit_semaphores_shrink_and_go_and_growth_waits_for_a_higher_limit() {
    in_a_world("queue-limit", async |world| {
        let _operator = world.operator().await;
        let resize = async |name: &str, slots: u32| {
            let more = match name {
                "fenced" => "fencing: true, protocol: ExclusiveConsumer, ",
                _ => "",
            };
            world.semaphore(name, &format!("{more}slots: {slots}")).await;
        };
        let both = ["plain", "fenced"];
        for name in both {
            resize(name, 3).await;
            until_sized(&world, name, 3).await;
        }
        forbid_more_queues(&world).await;
        let before = world.queues().await;
        for name in ["plain", "fenced", "new"] {
            resize(name, 5).await;
            until_limited(&world, name).await;
        }
        assert_eq!(world.queues().await, before, "nothing is changed");
        delete(&world, "new").await;
        management(Method::DELETE, &queue_limit(&world), None).await;
        for name in both {
            until_sized(&world, name, 5).await;
        }
        for name in both {
            forbid_more_queues(&world).await;
            resize(name, 9).await;
            until_limited(&world, name).await;
            resize(name, 2).await;
            until_sized(&world, name, 2).await;
        }
        for name in both {
            forbid_more_queues(&world).await;
            delete(&world, name).await;
        }
        assert_eq!(world.queues().await, BTreeSet::new());
    })
    .await;
}

/// Deletes a Semaphore and waits until it is gone.
async fn delete(world: &World, name: &str) {
    let api = world.api::<Semaphore>();
    api.delete(name, &DeleteParams::default()).await.unwrap();
    eventually(&format!("{name} is gone"), PATIENCE, async || {
        api.get_opt(name).await.unwrap().is_none()
    })
    .await;
}

/// Returns the messages of events about changes to a semaphore's slots.
async fn resizes(world: &World, name: &str) -> Vec<String> {
    let events = world.events(name).await;
    events.into_iter().filter(|(reason, ..)| reason == "Resized").map(|(_, note, _)| note).collect()
}
