//! Queues that dead clients left damaged: the condition, the events and the metrics that
//! report it, and the effect of `repairPolicy`.

use std::time::Duration;

use kube::api::DeleteParams;
use lockkeeper_api::PressureQueue;
use lockkeeper_testkit::pressure_text::{Returning, TextClient, Worker};
use lockkeeper_testkit::world::{
    Kind, Operator, PATIENCE, World, eventually, has, has_reason, in_a_world, is_ready,
};

use crate::operator::queues::{data, send, text, until_blocked};

/// Starts an operator with quick intervals, for which two seconds without activity are
/// long.
async fn operator(world: &World) -> Operator {
    world.operator_with(&["--observe-interval", "500ms", "--repair-idle", "2s"]).await
}

/// Kills a client as producer, after it wrote its id and before its element.
async fn kill_a_producer(world: &World, name: &str) {
    let client = TextClient::connect(&text(world, name), "camera").await.unwrap();
    let number = client.client.to_string();
    client.die_after(4).put("frame").await.unwrap_err();
    eventually("its connection is gone", PATIENCE, async || {
        let list: String = send(world, &["CLIENT", "LIST", "ID", &number]).await;
        list.trim().is_empty()
    })
    .await;
}

/// Returns the lines of a metric about a queue with this name.
async fn lines_of(operator: &Operator, metric: &str, name: &str) -> Vec<String> {
    let name = format!("name=\"{name}\"");
    let text = operator.metrics().await;
    text.lines()
        .filter(|line| line.starts_with(metric) && line.contains(&name))
        .map(ToOwned::to_owned)
        .collect()
}

/// Returns how many reconciles of queues have ended.
async fn reconciles(operator: &Operator) -> u64 {
    let text = operator.metrics().await;
    let counted = |line: &&str| {
        line.starts_with("controller_runtime_reconcile_total{") && line.contains("pressurequeue")
    };
    text.lines()
        .filter(counted)
        .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
        .sum()
}

async fn damaged(world: &World, name: &str, reason: &str) -> PressureQueue {
    world
        .until(name, &format!("damaged: {reason}"), PATIENCE, |queue: &PressureQueue| {
            has(queue, "Damaged", "True") && has_reason(queue, "Damaged", reason)
        })
        .await
}

async fn whole(world: &World, name: &str) -> PressureQueue {
    world
        .until(name, "without damage", PATIENCE, |queue: &PressureQueue| {
            has(queue, "Damaged", "False") && is_ready(queue)
        })
        .await
}

async fn notes(world: &World, name: &str, reason: &str) -> Vec<String> {
    let events = world.events(name).await;
    events.into_iter().filter(|(is, ..)| is == reason).map(|(_, note, _)| note).collect()
}

#[tokio::test]
async fn a_dead_producer_is_reported_until_repair_is_asked_for_and_then_gives_way() {
    in_a_world("stuck", async |world| {
        let operator = operator(&world).await;
        world.queue("frames", "bound: 2").await;
        whole(&world, "frames").await;
        kill_a_producer(&world, "frames").await;

        let broken = damaged(&world, "frames", "RoleStuck").await;
        assert!(is_ready(&broken), "the queue matches the spec nevertheless");
        let (_, _, message) = broken.condition("Damaged").unwrap();
        for part in ["producer role is taken by camera", "repairPolicy: Repair", "doctor --repair"]
        {
            assert!(message.contains(part), "{part}: {message}");
        }
        eventually("an event", PATIENCE, async || {
            notes(&world, "frames", "RoleStuck").await.len() == 1
        })
        .await;
        let line = lines_of(&operator, "lockkeeper_queue_damaged{", "frames").await.concat();
        assert!(line.contains("reason=\"RoleStuck\"") && line.ends_with(" 1"), "{line}");
        // Reported damage is not repaired, however long it lasts.
        tokio::time::sleep(Duration::from_secs(4)).await;
        assert!(has(&damaged(&world, "frames", "RoleStuck").await, "Damaged", "True"));
        assert_eq!(notes(&world, "frames", "Repaired").await.len(), 0);
        assert_eq!(notes(&world, "frames", "RoleStuck").await.len(), 1, "recorded once");

        world.queue("frames", "bound: 2, repairPolicy: Repair, suspend: true").await;
        tokio::time::sleep(Duration::from_secs(3)).await;
        let taken: u64 =
            send(&world, &["LLEN", &format!("{}:producer_free", data(&world, "frames"))]).await;
        assert_eq!(taken, 0, "a suspended queue is not repaired");

        world.queue("frames", "bound: 2, repairPolicy: Repair").await;
        whole(&world, "frames").await;
        eventually("an event", PATIENCE, async || {
            notes(&world, "frames", "Repaired").await.len() == 1
        })
        .await;
        let note = notes(&world, "frames", "Repaired").await.concat();
        assert!(
            note.contains("camera") && note.contains("pushed an element to :producer_free"),
            "{note}"
        );
        let repairs =
            lines_of(&operator, "lockkeeper_queue_repairs_total{", "frames").await.concat();
        assert!(repairs.contains("reason=\"RoleStuck\"") && repairs.ends_with(" 1"), "{repairs}");
        assert_eq!(lines_of(&operator, "lockkeeper_queue_damaged{", "frames").await, [""; 0]);
        assert!(!operator.metrics().await.contains("camera"), "no client in a label");

        let mut client = TextClient::connect(&text(&world, "frames"), "next").await.unwrap();
        client.put("frame").await.unwrap();
        assert_eq!(client.get().await.unwrap(), "frame");
        drop(client);
        world.api::<PressureQueue>().delete("frames", &DeleteParams::default()).await.unwrap();
        eventually("its metrics go with it", PATIENCE, async || {
            !operator.metrics().await.contains("name=\"frames\"")
        })
        .await;
    })
    .await;
}

#[tokio::test]
async fn with_repair_nothing_is_taken_from_clients_that_live_and_wait() {
    in_a_world("living", async |world| {
        let operator = operator(&world).await;
        for (name, more) in [("full", "bound: 1"), ("empty", "bound: 0"), ("slow", "bound: 3")] {
            world.queue(name, &format!("{more}, repairPolicy: Repair")).await;
            whole(&world, name).await;
        }
        let frames = (0..2).map(|n| format!("frame-{n}"));
        let producer = Worker::produce(&text(&world, "full"), "camera", frames).await;
        let consumer = Worker::consume(&text(&world, "empty"), "encoder", 1).await;
        until_blocked(&world, &producer, 1).await;
        until_blocked(&world, &consumer, 0).await;
        let mut slow =
            TextClient::connect(&text(&world, "slow"), "sloth").await.unwrap().rest_after(4);
        let sloth = tokio::spawn(async move { slow.put("frame").await });

        // The queue that could continue but does not is reported, with its connection.
        let broken = damaged(&world, "slow", "RoleStuck").await;
        let (_, _, message) = broken.condition("Damaged").unwrap();
        assert!(message.contains("taken by sloth") && message.contains("127.0.0.1:"), "{message}");
        tokio::time::sleep(Duration::from_secs(6)).await;
        for name in ["full", "empty"] {
            assert!(has(&world.queue_ready(name).await, "Damaged", "False"), "{name}");
        }
        for name in ["full", "empty", "slow"] {
            assert_eq!(notes(&world, name, "Repaired").await.len(), 0, "{name}");
        }
        let free = |name: &str, role: &str| format!("{}:{role}_free", data(&world, name));
        for key in [free("full", "producer"), free("empty", "consumer"), free("slow", "producer")] {
            let length: u64 = send(&world, &["LLEN", &key]).await;
            assert_eq!(length, 0, "{key} was given back");
        }
        // All of them are, once their clients are dead.
        producer.kill().await;
        consumer.kill().await;
        sloth.abort();
        let _ = sloth.await;
        for name in ["full", "empty", "slow"] {
            eventually(&format!("{name} is repaired"), PATIENCE, async || {
                notes(&world, name, "Repaired").await.len() == 1
            })
            .await;
            whole(&world, name).await;
        }
        drop(operator);
    })
    .await;
}

#[tokio::test]
async fn with_repair_a_client_with_a_connection_for_each_operation_keeps_its_role() {
    in_a_world("returning", async |world| {
        let _operator = operator(&world).await;
        world.queue("frames", "bound: 2, repairPolicy: Repair").await;
        whole(&world, "frames").await;
        let patience = Duration::from_millis(1300);
        let consumer = Returning::consume(&text(&world, "frames"), "cron", patience);
        let free = format!("{}:consumer_free", data(&world, "frames"));
        eventually("it has begun many times", PATIENCE, async || {
            let free: u64 = send(&world, &["LLEN", &free]).await;
            assert!(free <= 1, "another's role was given back too");
            consumer.tries() >= 12
        })
        .await;
        assert_eq!(notes(&world, "frames", "Repaired").await, [""; 0]);
        assert!(has(&world.queue_ready("frames").await, "Damaged", "False"));
        drop(consumer);
    })
    .await;
}

#[tokio::test]
async fn a_closed_queue_that_lost_its_bound_is_left_alone_with_repair_too() {
    in_a_world("evicted", async |world| {
        let _operator = operator(&world).await;
        world.queue("frames", "bound: 3, repairPolicy: Repair").await;
        whole(&world, "frames").await;
        let mut client = TextClient::connect(&text(&world, "frames"), "camera").await.unwrap();
        client.put("frame").await.unwrap();
        client.close().await.unwrap();
        drop(client);
        let bound = format!("{}:bound", data(&world, "frames"));
        let _: u64 = send(&world, &["DEL", &bound]).await;
        let status = damaged(&world, "frames", "Residue").await;
        let (_, _, message) = status.condition("Damaged").unwrap();
        assert!(message.contains("its elements are left alone"), "{message}");
        let left: u64 = send(&world, &["LLEN", &data(&world, "frames")]).await;
        assert_eq!(left, 1);
        let () = send(&world, &["SET", &bound, "3"]).await;
        whole(&world, "frames").await;
        assert_eq!(notes(&world, "frames", "Repaired").await, [""; 0]);
    })
    .await;
}

#[tokio::test]
async fn a_half_creation_is_finished_and_a_half_deletion_too_after_which_the_queue_is_made_again() {
    in_a_world("halves", async |world| {
        let _operator = operator(&world).await;
        let mut creator =
            TextClient::connect(&text(&world, "half"), "creator").await.unwrap().die_after(2);
        creator.create(5).await.unwrap_err();
        drop(creator);
        world.queue("half", "bound: 5, repairPolicy: Repair").await;
        let ready = whole(&world, "half").await;
        assert_eq!(ready.status.unwrap().bound, Some(5));
        assert!(notes(&world, "half", "Repaired").await.concat().contains(":not_full"));

        world.queue("gone", "bound: 5, repairPolicy: Repair").await;
        whole(&world, "gone").await;
        let mut deleter = TextClient::connect(&text(&world, "gone"), "deleter").await.unwrap();
        deleter.put("frame").await.unwrap();
        deleter.get().await.unwrap();
        deleter.die_after(5).delete().await.unwrap_err();
        let status = damaged(&world, "gone", "Residue").await;
        assert!(!is_ready(&status));
        whole(&world, "gone").await;
        let events = world.events("gone").await;
        for reason in ["Residue", "Repaired"] {
            assert!(events.iter().any(|(is, ..)| is == reason), "{reason}: {events:?}");
        }
        let mut client = TextClient::connect(&text(&world, "gone"), "next").await.unwrap();
        client.put("frame").await.unwrap();
        assert_eq!(client.get().await.unwrap(), "frame");
    })
    .await;
}

#[tokio::test]
async fn lost_tokens_are_pushed_and_drifted_counters_only_reported() {
    in_a_world("tokens", async |world| {
        let operator = operator(&world).await;
        world.queue("frames", "bound: 3, repairPolicy: Repair").await;
        whole(&world, "frames").await;
        let mut client = TextClient::connect(&text(&world, "frames"), "camera").await.unwrap();
        client.put("frame").await.unwrap();
        // Open connections prove nothing here: no client works on the queue.
        let key = |suffix: &str| format!("{}{suffix}", data(&world, "frames"));
        let _: u64 = send(&world, &["DEL", &key(":not_full")]).await;
        eventually("the token is back", PATIENCE, async || {
            send::<u64>(&world, &["LLEN", &key(":not_full")]).await == 1
        })
        .await;
        let _: u64 = send(&world, &["LPUSH", &key(":not_full"), "1", "1"]).await;
        eventually("one token is left", PATIENCE, async || {
            send::<u64>(&world, &["LLEN", &key(":not_full")]).await == 1
        })
        .await;
        let _: u64 = send(&world, &["INCRBY", &key(":stats:produced_messages"), "4"]).await;
        let drifted = damaged(&world, "frames", "CounterDrift").await;
        assert!(drifted.condition("Damaged").unwrap().2.contains("don't add up"));
        let line = lines_of(&operator, "lockkeeper_queue_counter_drift{", "frames").await.concat();
        assert!(line.ends_with(" 4"), "{line}");
        let produced: u64 = send(&world, &["GET", &key(":stats:produced_messages")]).await;
        assert_eq!(produced, 5, "never corrected");
        let events = world.events("frames").await;
        let repaired = events.iter().filter(|(reason, ..)| reason == "Repaired").count();
        assert_eq!(repaired, 2, "{events:?}");
    })
    .await;
}

#[tokio::test]
async fn damage_stays_reported_across_an_operator_restart_with_a_single_event() {
    in_a_world("reported", async |world| {
        let mut first = operator(&world).await;
        world.queue("frames", "bound: 2").await;
        whole(&world, "frames").await;
        kill_a_producer(&world, "frames").await;
        let before = damaged(&world, "frames", "RoleStuck").await;
        first.stop().await;
        let second = operator(&world).await;
        eventually("it is seen again", PATIENCE, async || {
            lines_of(&second, "lockkeeper_queue_damaged{", "frames").await.len() == 1
        })
        .await;
        let after = damaged(&world, "frames", "RoleStuck").await;
        let since = |queue: &PressureQueue| {
            let conditions = &queue.status.as_ref().unwrap().conditions;
            let damaged = conditions.iter().find(|c| c.type_ == "Damaged").unwrap();
            damaged.last_transition_time.clone()
        };
        assert_eq!(since(&before), since(&after), "it was never False in between");
        let times: i32 = world
            .events("frames")
            .await
            .iter()
            .filter(|(reason, ..)| reason == "RoleStuck")
            .map(|(.., times)| times)
            .sum();
        assert_eq!(times, 1);
    })
    .await;
}

#[tokio::test]
async fn a_deletion_that_waits_for_a_dead_client_is_finished_with_repair_only() {
    in_a_world("buried", async |world| {
        let operator = operator(&world).await;
        world.queue("frames", "bound: 2, deletionPolicy: Delete").await;
        whole(&world, "frames").await;
        kill_a_producer(&world, "frames").await;
        world.api::<PressureQueue>().delete("frames", &DeleteParams::default()).await.unwrap();
        let waits = world
            .until("frames", "cleaning up", PATIENCE, |queue: &PressureQueue| {
                has_reason(queue, "Ready", "CleaningUp")
            })
            .await;
        assert!(waits.condition("Ready").unwrap().2.contains("repairPolicy: Repair"));
        let before = reconciles(&operator).await;
        tokio::time::sleep(Duration::from_secs(4)).await;
        let looks = reconciles(&operator).await - before;
        assert!(looks <= 8, "{looks} looks in 4 s: the pauses between them are to grow");
        assert!(world.api::<PressureQueue>().get_opt("frames").await.unwrap().is_some());
        world.queue("frames", "bound: 2, deletionPolicy: Delete, repairPolicy: Repair").await;
        eventually("the object is gone", PATIENCE, async || {
            world.api::<PressureQueue>().get_opt("frames").await.unwrap().is_none()
        })
        .await;
        assert_eq!(crate::operator::queues::keys(&world).await, [""; 0]);
        assert!(notes(&world, "frames", "Repaired").await.concat().contains("removed :producer"));
    })
    .await;
}
