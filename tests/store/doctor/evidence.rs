//! The evidence for a repair: outdated evidence causes no change, a server that does not
//! provide it gets no repair, and a restart starts over (hazard P12).

use std::time::Duration;

use lockkeeper_plan::pressure_queue::doctor::{Against, Effort, Remedy, Repair};
use lockkeeper_pressure::{Repaired, Store, StoreOptions};
use lockkeeper_testkit::redis::{AclUser, PrivateRedis, eventually};

use super::{IDLE, Ward, reasons, repairs, server};

/// Creates a queue of bound 3 with one element whose producer has just died.
async fn with_dead_producer(ward: &Ward) {
    ward.client("before").await.put("x").await.unwrap();
    let mut client = ward.client("dying").await.die_after(4);
    let number = client.client;
    client.put("y").await.unwrap_err();
    drop(client);
    ward.until_gone(number).await;
    eventually("only the test is connected", async || {
        let list: String = ward.place.run(&["CLIENT", "LIST"]).await;
        list.lines().all(|line| line.contains("name=lockkeeper/"))
    })
    .await;
}

/// Returns the only repair that the doctor permits once everything was idle.
async fn decided(ward: &mut Ward) -> Repair {
    ward.look(IDLE).await;
    let diagnosis = ward.look(IDLE).await;
    let [repair] = repairs(&diagnosis).try_into().unwrap();
    repair
}

#[tokio::test]
async fn a_repair_whose_evidence_is_stale_changes_nothing() {
    let server = server().await;
    let changes: [&[&str]; 8] = [
        // Released and taken again by the same client: the keys look as before.
        &["LPUSH", ":producer_free", "1", "RPOP"],
        &["LPUSH", "", "z"],
        &["INCR", ":stats:produced_messages"],
        &["INCR", ":stats:consumed_bytes"],
        &["SET", ":producer", "another"],
        &["SET", ":bound", "4"],
        &["LPUSH", ":producer_free", "1"],
        &["LPUSH", ":closed", "0", "0"],
    ];
    for (database, change) in (1..).zip(changes) {
        let mut ward = Ward::with_queue(&server, database, 3).await;
        with_dead_producer(&ward).await;
        let repair = decided(&mut ward).await;
        let key = ward.place.key(change[1]);
        let (rest, again) = match change.last() {
            Some(&"RPOP") => (&change[2..change.len() - 1], true),
            _ => (&change[2..], false),
        };
        let command: Vec<&str> = [&[change[0], &key], rest].concat();
        let _: redis::Value = ward.place.run(&command).await;
        if again {
            let _: String = ward.place.run(&["RPOP", &key]).await;
        }
        let before = ward.place.dump().await;
        assert_eq!(ward.repair(&repair).await, Repaired::Stale, "{change:?}");
        assert_eq!(ward.place.dump().await, before, "{change:?}");
    }
}

#[tokio::test]
async fn a_repair_is_made_once_and_only_with_the_guard_that_it_rests_on() {
    let server = server().await;
    let mut ward = Ward::with_queue(&server, 1, 3).await;
    with_dead_producer(&ward).await;
    let repair = decided(&mut ward).await;
    let mut other = ward.store.doctor(ward.place.queue.clone(), IDLE, Duration::ZERO);
    assert_eq!(other.repair(&ward.store, &repair).await.unwrap(), Repaired::Stale);
    let Repaired::Done(actions) = ward.repair(&repair).await else { panic!("it fits") };
    let actions: Vec<String> = actions.iter().map(ToString::to_string).collect();
    assert_eq!(actions, ["pushed an element to :producer_free"]);
    assert_eq!(ward.repair(&repair).await, Repaired::Stale);
    ward.check_invariants().await;
    ward.check_use().await;
}

#[tokio::test]
async fn a_closed_guard_connection_starts_the_evidence_over() {
    let server = server().await;
    let mut ward = Ward::with_queue(&server, 1, 3).await;
    with_dead_producer(&ward).await;
    let repair = decided(&mut ward).await;
    let list: String = ward.place.run(&["CLIENT", "LIST"]).await;
    let guard = list.lines().find(|line| line.contains("name=lockkeeper/watch-")).unwrap();
    let number = guard.split(' ').find_map(|field| field.strip_prefix("id=")).unwrap();
    let killed: u64 = ward.place.run(&["CLIENT", "KILL", "ID", number]).await;
    assert_eq!(killed, 1);
    assert!(repairs(&ward.look(IDLE).await).is_empty());
    assert!(ward.doctor.repair(&ward.store, &repair).await.is_ok_and(|is| is == Repaired::Stale));
    assert_eq!(ward.heal().await.len(), 1);
    ward.check_invariants().await;
}

#[tokio::test]
async fn of_two_doctors_with_the_same_repair_one_finds_its_evidence_stale() {
    let server = server().await;
    let mut ward = Ward::with_queue(&server, 1, 3).await;
    with_dead_producer(&ward).await;
    let first = decided(&mut ward).await;
    let mut other = ward.store.doctor(ward.place.queue.clone(), IDLE, Duration::ZERO);
    for at in [Duration::ZERO, IDLE] {
        let seen = ward.seen().await;
        let diagnosis = other.look(&ward.store, seen, at, Effort::Full).await.unwrap();
        assert!(at.is_zero() || repairs(&diagnosis).len() == 1);
        if let [second] = repairs(&diagnosis).as_slice() {
            let both = tokio::join!(
                ward.doctor.repair(&ward.store, &first),
                other.repair(&ward.store, second)
            );
            let both = [both.0.unwrap(), both.1.unwrap()];
            assert!(both.contains(&Repaired::Stale), "{both:?}");
            assert!(both.iter().any(|one| matches!(one, Repaired::Done(_))), "{both:?}");
        }
    }
    ward.check_invariants().await;
}

#[tokio::test]
async fn without_one_of_its_permissions_no_role_is_released_and_the_reason_is_reported() {
    let server = server().await;
    let needed = ["-client", "-client|list", "-client|setname", "-watch", "-multi", "-exec"];
    for (database, forbidden) in (1..).zip(needed) {
        let mut ward = Ward::with_queue(&server, database, 3).await;
        with_dead_producer(&ward).await;
        let user = AclUser::named_for(&ward.place);
        user.set(&ward.place, &["~*", "+@all", forbidden]).await;
        let options = StoreOptions::new("doctor");
        ward.store = Store::new(user.settings.clone(), options);
        ward.look(IDLE).await;
        let diagnosis = ward.look(IDLE * 1000).await;
        assert_eq!(reasons(&diagnosis), ["RoleStuck"], "{forbidden}");
        assert_eq!(diagnosis.damage[0].remedy, Remedy::Wait(Against::NotTold), "{forbidden}");
    }
}

#[tokio::test]
async fn the_documented_permissions_suffice_for_every_repair() {
    let server = server().await;
    let mut ward = Ward::with_queue(&server, 1, 3).await;
    with_dead_producer(&ward).await;
    let user = AclUser::named_for(&ward.place);
    let keys = format!("~{}:*", ward.place.queue.prefix());
    let documented = "+evalsha +script|load +type +exists +get +getrange +llen +set +lpush +rpop \
                      +ltrim +del +select +client|list +client|setname +watch +multi +exec";
    let rules: Vec<&str> = [keys.as_str()].into_iter().chain(documented.split(' ')).collect();
    user.set(&ward.place, &rules).await;
    ward.store = Store::new(user.settings.clone(), StoreOptions::new("doctor"));
    assert_eq!(ward.heal().await.len(), 1);
    ward.check_invariants().await;
    let () = ward.place.run(&["LPUSH", &ward.place.key(":not_full"), "1", "1"]).await;
    assert_eq!(ward.heal().await.len(), 1);
    let () = ward.place.run(&["DEL", &ward.place.key(":bound")]).await;
    let () = ward.place.run(&["LPUSH", &ward.place.key(":closed"), "1", "1", "1"]).await;
    assert!(!ward.heal().await.is_empty());
    let () = ward.place.run(&["SET", &ward.place.key(":bound"), "1"]).await;
    assert_eq!(ward.heal().await.len(), 3);
    ward.check_use().await;
}

#[tokio::test]
async fn a_dead_producers_role_is_given_back_on_valkey_too() {
    let server = PrivateRedis::valkey().await;
    let mut ward = Ward::with_queue(&server, 1, 3).await;
    with_dead_producer(&ward).await;
    let living = ward.client("living").await;
    assert!(ward.heal().await.is_empty());
    let number = living.client;
    drop(living);
    ward.until_gone(number).await;
    assert_eq!(ward.heal().await.len(), 1);
    ward.check_invariants().await;
    ward.check_use().await;
}

#[tokio::test]
async fn a_restart_of_the_server_takes_no_role_from_a_client_that_reconnects() {
    let arguments = ["--databases", "64", "--appendonly", "yes", "--appendfsync", "always"];
    let mut server = PrivateRedis::start(&arguments).await;
    let mut ward = Ward::with_queue(&server, 1, 3).await;
    ward.client("before").await.put("x").await.unwrap();
    let mut slow = ward.client("slow").await.rest_after(4);
    let task = tokio::spawn(async move { slow.put("y").await });
    eventually("the role is taken", async || ward.seen().await.producer.busy).await;
    assert!(repairs(&ward.look(IDLE).await).is_empty());
    server.kill();
    server.restart().await;
    ward.place.raw = lockkeeper_testkit::redis::connect(&ward.place.url).await;
    let () = ward.place.run(&["CLIENT", "SETNAME", "lockkeeper/test"]).await;
    assert!(ward.seen().await.producer.busy, "the server has kept its data");
    // Its holder is back with another number, as clients that reconnect automatically
    // are.
    let back = ward.client("slow").await;
    for _ in 0..3 {
        let diagnosis = ward.look(IDLE * 10).await;
        assert!(repairs(&diagnosis).is_empty(), "{diagnosis:?}");
    }
    let number = back.client;
    drop(back);
    ward.until_gone(number).await;
    assert!(!ward.heal().await.is_empty());
    ward.check_invariants().await;
    task.abort();
}
