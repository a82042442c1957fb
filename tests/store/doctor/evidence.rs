//! What a repair rests on: evidence that went stale changes nothing, a server that
//! does not tell gets no repair, a restart begins anew (hazard P12).

use std::time::Duration;

use lockkeeper::plan::pressure_queue::doctor::{Against, Remedy, Repair};
use lockkeeper::pressure::{Repaired, Store, StoreOptions};

use super::{IDLE, Ward, reasons, repairs, server};
use crate::redis_support::{AclUser, PrivateRedis, eventually};

/// A queue of bound 3 with one element whose producer has just died.
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

/// The one repair that the doctor allows once everything was idle.
async fn decided(ward: &mut Ward) -> Repair {
    ward.look(IDLE).await;
    let diagnosis = ward.look(IDLE).await;
    let [repair] = repairs(&diagnosis).try_into().unwrap();
    repair
}

#[tokio::test]
async fn a_repair_whose_evidence_is_stale_changes_nothing() {
    let server = server().await;
    let changes: [&[&str]; 7] = [
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
        let command: Vec<&str> = [&[change[0], &key], &change[2..]].concat();
        let _: redis::Value = ward.place.run(&command).await;
        let before = ward.place.dump().await;
        let repaired = ward.store.repair(&ward.place.queue, &repair).await.unwrap();
        assert_eq!(repaired, Repaired::Stale, "{change:?}");
        assert_eq!(ward.place.dump().await, before, "{change:?}");
    }
}

#[tokio::test]
async fn a_repair_is_made_once_and_for_the_server_that_was_asked() {
    let server = server().await;
    let mut ward = Ward::with_queue(&server, 1, 3).await;
    with_dead_producer(&ward).await;
    let repair = decided(&mut ward).await;
    let Repair::GiveBack { role, evidence } = repair.clone() else { panic!("{repair:?}") };
    let mut elsewhere = evidence.clone();
    elsewhere.run_id = "0".repeat(40);
    let elsewhere = Repair::GiveBack { role, evidence: elsewhere };
    let store = &ward.store;
    assert_eq!(store.repair(&ward.place.queue, &elsewhere).await.unwrap(), Repaired::Stale);
    let Repaired::Done(deeds) = store.repair(&ward.place.queue, &repair).await.unwrap() else {
        panic!("it fits")
    };
    let deeds: Vec<String> = deeds.iter().map(ToString::to_string).collect();
    assert_eq!(deeds, ["pushed an element to :producer_free"]);
    assert_eq!(store.repair(&ward.place.queue, &repair).await.unwrap(), Repaired::Stale);
    ward.check_invariants().await;
    ward.check_use().await;
}

#[tokio::test]
async fn of_two_who_decided_on_the_same_repair_one_finds_its_evidence_stale() {
    let server = server().await;
    let mut ward = Ward::with_queue(&server, 1, 3).await;
    with_dead_producer(&ward).await;
    let repair = decided(&mut ward).await;
    let Repair::GiveBack { role, mut evidence } = repair else { panic!("{repair:?}") };
    // Without pauses they keep step.
    evidence.idle = Duration::ZERO;
    let repair = Repair::GiveBack { role, evidence };
    // Over one connection: both have looked before either has changed anything, so
    // only the script itself can tell.
    let both = tokio::join!(
        ward.store.repair(&ward.place.queue, &repair),
        ward.store.repair(&ward.place.queue, &repair)
    );
    let both = [both.0.unwrap(), both.1.unwrap()];
    assert!(both.contains(&Repaired::Stale), "{both:?}");
    assert!(both.iter().any(|one| matches!(one, Repaired::Done(_))), "{both:?}");
    ward.check_invariants().await;
}

#[tokio::test]
async fn where_client_list_or_info_is_forbidden_nothing_is_given_back_and_that_is_said() {
    let server = server().await;
    for (database, forbidden) in [(1, "-client"), (2, "-info"), (3, "-client|list")] {
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
                      +ltrim +del +select +info +client|list +client|setname";
    let rules: Vec<&str> = [keys.as_str()].into_iter().chain(documented.split(' ')).collect();
    user.set(&ward.place, &rules).await;
    ward.store = Store::new(user.settings.clone(), StoreOptions::new("doctor"));
    assert_eq!(ward.heal().await.len(), 1);
    ward.check_invariants().await;
    let () = ward.place.run(&["LPUSH", &ward.place.key(":not_full"), "1", "1"]).await;
    assert_eq!(ward.heal().await.len(), 1);
    let () = ward.place.run(&["DEL", &ward.place.key(":bound")]).await;
    let () = ward.place.run(&["LPUSH", &ward.place.key(":closed"), "1", "1"]).await;
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
async fn a_restart_of_the_server_takes_no_role_from_whoever_comes_back() {
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
    ward.place.raw = crate::redis_support::connect(&ward.place.url).await;
    let () = ward.place.run(&["CLIENT", "SETNAME", "lockkeeper/test"]).await;
    assert!(ward.seen().await.producer.busy, "the server has kept its data");
    // Its holder is back, as clients that connect again by themselves are, with
    // another number.
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
