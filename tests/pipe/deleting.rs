//! `lockkeeper queue delete`, and queues that lost a key: nothing is deleted that the
//! question did not count, nothing starts that can't be finished, and there is a way back.

use lockkeeper_pressure::{ObservedQueue, Queue, QueueOptions, TakenRoles, Wait};
use lockkeeper_testkit::redis::{PrivateRedis, TestQueue, eventually, random_word};
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::pipe::{content, fill, finish, outcome, queue, run, shell, succeed};

async fn seen(place: &TestQueue) -> ObservedQueue {
    place.store().observe(&place.queue).await.unwrap()
}

/// Creates a queue with these elements, of which the first are in flight.
async fn filled(place: &TestQueue, elements: usize, in_flight: usize) {
    succeed(place, "create", &[]).await;
    if elements > 0 {
        fill(place, crate::pipe::seq(1, elements).as_bytes()).await;
    }
    let queue = Queue::new(place.settings(), place.queue.clone(), QueueOptions::default());
    for _ in 0..in_flight {
        let delivery = queue.get_acked(Wait::No).await.unwrap();
        // As by a worker that died.
        std::thread::spawn(move || drop(delivery)).join().unwrap();
    }
}

/// Takes the consumer role as a plain client that dies.
async fn die_as_consumer(place: &TestQueue) {
    let _: String = place.run(&["RPOP", &place.key(":consumer_free")]).await;
    let () = place.run(&["SET", &place.key(":consumer"), "dead/1/1"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn elements_in_flight_are_counted_by_the_question_and_by_the_answer() {
    let place = TestQueue::new().await;
    filled(&place, 1, 1).await;
    let refused = run(&place, "delete", &[]).await;
    assert_eq!(refused.code, Some(64), "{refused:?}");
    for part in ["with 0 elements and 1 in flight?", "a confirmation needs a terminal"] {
        assert!(refused.stderr.contains(part), "{refused:?}");
    }
    assert_eq!((seen(&place).await.length, seen(&place).await.in_flight), (0, 1));
    // A terminal, by script(1).
    let line = "echo n | script -qec 'lockkeeper queue delete jobs' /dev/null";
    let asked = outcome(shell(&place, line)).await;
    let question = "Delete the queue jobs with 0 elements and 1 in flight?";
    assert!(asked.text().contains(question), "{asked:?}");
    assert_eq!(seen(&place).await.in_flight, 1);
    let deleted = run(&place, "delete", &["--yes"]).await;
    assert_eq!(deleted.code, Some(0), "{deleted:?}");
    assert!(deleted.stderr.contains("gone with 0 elements and 1 in flight"), "{deleted:?}");
    assert_eq!(place.present().await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_lost_its_bound_is_restored_with_its_elements() {
    for loss in [&[":bound"][..], &[":bound", ":not_full"], &[":bound", ":stats:consumed_bytes"]] {
        let place = TestQueue::new().await;
        filled(&place, 20, 2).await;
        for suffix in loss {
            let () = place.run(&["DEL", &place.key(suffix)]).await;
        }
        let cases: [(&str, &[&str], i32); 9] = [
            ("stat", &[], 81),
            ("length", &[], 81),
            ("peek", &[], 81),
            ("closed", &[], 81),
            ("put", &[], 81),
            ("get", &[], 81),
            ("close", &[], 81),
            ("set-bound", &["3"], 81),
            ("create", &[], 82),
        ];
        for (verb, arguments, code) in cases {
            let refused = run(&place, verb, arguments).await;
            assert_eq!(refused.code, Some(code), "{verb}: {refused:?}");
            assert!(refused.stderr.contains("queue create --adopt"), "{verb}: {refused:?}");
            assert!(!refused.stderr.contains("left over"), "{verb}: {refused:?}");
        }
        let refused = run(&place, "delete", &[]).await;
        assert_eq!(refused.code, Some(64), "there are elements: {refused:?}");
        assert_eq!((seen(&place).await.length, seen(&place).await.in_flight), (18, 2));
        let restored = run(&place, "create", &["--adopt", "--bound", "30"]).await;
        assert_eq!(restored.code, Some(0), "{restored:?}");
        assert!(restored.stderr.contains("has 18 elements and 2 in flight"), "{restored:?}");
        assert_eq!(run(&place, "create", &["--adopt"]).await.code, Some(82));
        let seen = seen(&place).await;
        assert_eq!((seen.bound, seen.length, seen.in_flight), (Some(30), 18, 2));
        crate::pipe::is_at_rest(&place).await;
        let numbers = succeed(&place, "get", &["--count", "18"]).await;
        assert_eq!(numbers, crate::pipe::seq(3, 20).as_bytes());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rest_of_a_queue_without_a_bound_is_deleted_after_a_confirmation() {
    let place = TestQueue::new().await;
    filled(&place, 3, 1).await;
    let () = place.run(&["DEL", &place.key(":bound")]).await;
    let deleted = run(&place, "delete", &["--yes"]).await;
    assert_eq!(deleted.code, Some(0), "{deleted:?}");
    assert!(deleted.stderr.contains("2 elements and 1 in flight"), "{deleted:?}");
    assert_eq!(place.present().await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_does_not_start_while_a_dead_client_holds_a_role() {
    let place = TestQueue::new().await;
    filled(&place, 3, 0).await;
    die_as_consumer(&place).await;
    let before = place.dump().await;
    let refused = run(&place, "delete", &["--yes", "--no-wait"]).await;
    assert_eq!(refused.code, Some(75), "{refused:?}");
    for part in ["dead/1/1", "Nothing is deleted", "doctor --repair", "--force"] {
        assert!(refused.stderr.contains(part), "{part}: {refused:?}");
    }
    assert_eq!(place.dump().await, before);
    let given_up = run(&place, "delete", &["--yes", "--timeout", "3s"]).await;
    assert_eq!(given_up.code, Some(75), "{given_up:?}");
    assert!(given_up.stderr.contains("waiting for dead/1/1"), "{given_up:?}");
    assert_eq!(place.dump().await, before);

    // It waits until the role is released.
    let mut deleting = queue(&place, "delete", &["--yes"]).spawn().unwrap();
    let mut said = BufReader::new(deleting.stderr.take().unwrap()).lines();
    let line = said.next_line().await.unwrap().unwrap();
    assert!(line.contains("waiting for dead/1/1, which holds the consumer role"), "{line}");
    assert_eq!(place.dump().await, before);
    let () = place.run(&["LPUSH", &place.key(":consumer_free"), "1"]).await;
    assert_eq!(finish(deleting).await.code, Some(0));
    assert_eq!(place.present().await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn force_deletes_a_queue_whose_role_is_taken_also_after_the_start() {
    for has_started in [false, true] {
        let place = TestQueue::new().await;
        filled(&place, 3, 1).await;
        die_as_consumer(&place).await;
        if has_started {
            place.store().delete(&place.queue, TakenRoles::Wait).await.unwrap();
            let waiting = run(&place, "delete", &["--yes", "--timeout", "1s"]).await;
            assert_eq!(waiting.code, Some(75), "{waiting:?}");
            assert!(waiting.stderr.contains("--force finishes it"), "{waiting:?}");
        }
        let deleted = run(&place, "delete", &["--yes", "--force"]).await;
        assert_eq!(deleted.code, Some(0), "{deleted:?}");
        assert!(deleted.stderr.contains("gone with 2 elements and 1 in flight"), "{deleted:?}");
        assert_eq!(place.present().await, [""; 0]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn run_says_that_its_queue_was_deleted_under_a_command() {
    let place = TestQueue::new().await;
    filled(&place, 1, 0).await;
    let go = std::env::temp_dir().join(format!("lockkeeper-{}", random_word()));
    let mut running = queue(&place, "run", &["--lease", "1h"]);
    running.args(["--", "sh", "-c", r#"until [ -e "$0" ]; do sleep 0.1; done"#]).arg(&go);
    let running = running.spawn().unwrap();
    eventually("it is in flight", async || seen(&place).await.in_flight == 1).await;
    succeed(&place, "delete", &["--yes"]).await;
    std::fs::write(&go, "").unwrap();
    let ran = finish(running).await;
    std::fs::remove_file(&go).unwrap();
    assert_eq!(ran.code, Some(81), "{ran:?}");
    assert!(ran.stderr.contains("the queue was deleted while a command ran"), "{ran:?}");
    assert!(!ran.stderr.contains("may be processed again"), "{ran:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_that_may_evict_queues_is_named_by_create_and_doctor() {
    let server = PrivateRedis::start(&["--maxmemory-policy", "allkeys-lru"]).await;
    let place = TestQueue::at(&server.url()).await;
    let warning = "maxmemory-policy is allkeys-lru";
    for (verb, policy, warns) in [
        ("create", "allkeys-lru", true),
        ("doctor", "allkeys-lru", true),
        ("doctor", "volatile-lru", false),
        ("doctor", "noeviction", false),
    ] {
        let () = place.run(&["CONFIG", "SET", "maxmemory-policy", policy]).await;
        let ran = run(&place, verb, &[]).await;
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let says = warning.replace("allkeys-lru", policy);
        assert_eq!(ran.stderr.contains(&says), warns, "{verb}: {ran:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_of_another_type_is_named_by_every_verb() {
    let place = TestQueue::new().await;
    for (suffix, at) in [("", true), (":bound", false)] {
        succeed(&place, "create", &[]).await;
        let () = place.run(&["DEL", &place.key(suffix)]).await;
        let other = if at { "foo" } else { "0x10" };
        let () = place.run(&["SET", &place.key(suffix), other]).await;
        for (verb, arguments) in [
            ("put", &[][..]),
            ("get", &["--no-wait"]),
            ("run", &["--no-wait", "--", "true"]),
            ("peek", &[]),
            ("length", &[]),
            ("exists", &[]),
            ("closed", &[]),
            ("set-bound", &["3"]),
        ] {
            let refused = run(&place, verb, arguments).await;
            assert_eq!(refused.code, Some(64), "{verb} {suffix}: {refused:?}");
            let names = format!("the key {} holds", place.key(suffix));
            assert!(refused.stderr.contains(&names), "{verb}: {refused:?}");
        }
        let () = place.run(&["DEL", &place.key(suffix)]).await;
        let () = place.run(&["SET", &place.key(":bound"), "0"]).await;
        succeed(&place, "delete", &[]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn any_number_of_elements_may_be_peeked_at() {
    let place = TestQueue::new().await;
    filled(&place, 3, 0).await;
    for most in ["3", "99999999999999999", "18446744073709551615"] {
        assert_eq!(succeed(&place, "peek", &["--count", most]).await, b"1\n2\n3\n");
    }
    assert_eq!(content(&place).await.len(), 3);
    let wrong = run(&place, "peek", &["--prefix", ""]).await;
    assert!(wrong.stderr.contains("the prefix \"\" can't be used"), "{wrong:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_the_command_script_gets_the_text_of_each_script() {
    let server = PrivateRedis::start(&["--rename-command", "SCRIPT", ""]).await;
    let place = TestQueue::at(&server.url()).await;
    filled(&place, 3, 1).await;
    assert_eq!(succeed(&place, "get", &["--count", "2"]).await, b"2\n3\n");
    let doctor = run(&place, "doctor", &[]).await;
    assert_eq!(doctor.code, Some(0), "{doctor:?}");
    succeed(&place, "delete", &["--yes"]).await;
    assert_eq!(place.present().await, [""; 0]);
}
