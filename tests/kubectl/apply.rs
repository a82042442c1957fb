//! `lockkeeper plan` and `lockkeeper apply`: manifests applied to a broker and a Redis
//! server without Kubernetes.

use std::collections::BTreeSet;

use lapin::options::QueueDeleteOptions;
use lockkeeper_api::{PressureQueue, Semaphore};
use lockkeeper_testkit::environment::variable;
use lockkeeper_testkit::world::{PATIENCE, World, eventually, in_a_world};
use redis::AsyncCommands;
use serde_json::Value;

use crate::kubectl::{Ended, Folder, ended, program};

/// Creates a directory with the connection Secrets of a world, as manifests.
fn connections(world: &World) -> Folder {
    let folder = Folder::new();
    let secret = |name: &str, data: &str| {
        format!(
            "---\napiVersion: v1\nkind: Secret\nmetadata: {{name: {name}}}\nstringData: {{{data}}}\n"
        )
    };
    let rabbit = format!(
        "amqpUri: \"{}\", managementUri: \"{}\"",
        world.amqp_url(),
        variable("RABBITMQ_MANAGEMENT_URL")
    );
    let redis = format!("uri: \"{}\"", world.redis_url());
    folder.write("all.yaml", &[secret("rabbit", &rabbit), secret("redis", &redis)].concat());
    folder
}

/// Returns an object on the world's servers.
fn object(kind: &str, name: &str, spec: &str) -> String {
    let connection = match kind {
        "Semaphore" => "rabbitmqClusterReference: {connectionSecret: {name: rabbit}}",
        _ => "redisReference: {connectionSecret: {name: redis}}",
    };
    format!(
        "---\napiVersion: lockkeeper.dev/v1alpha1\nkind: {kind}\nmetadata: {{name: {name}}}\nspec: {{{connection}, {spec}}}\n"
    )
}

/// Runs `verb` with one manifest and the world's Secrets. Does not use Kubernetes.
async fn run(world: &World, verb: &[&str], manifests: &str) -> Ended {
    let (secrets, folder) = (connections(world), Folder::new());
    let file = folder.write("objects.yaml", manifests);
    let arguments =
        ["-f", &file, "--connections", secrets.0.to_str().unwrap(), "-n", &world.namespace];
    let mut command = program(&[verb, &arguments].concat());
    ended(command.env("KUBECONFIG", "/nowhere")).await
}

const PLAN: &[&str] = &["plan", "--detailed-exitcode"];
const APPLY: &[&str] = &["apply", "--yes"];

#[tokio::test]
async fn applied_objects_exist_and_a_second_plan_finds_nothing_to_change() {
    in_a_world("apply", async |world| {
        let all = [
            object("Semaphore", "deploy", "slots: 3"),
            object("Semaphore", "fenced", "slots: 2, fencing: true, lockDelay: 1s"),
            object("Semaphore", "none", "slots: 0"),
            object("Semaphore", "consumer", "slots: 2, protocol: ExclusiveConsumer"),
            object("Semaphore", "token", "slots: 2, protocol: Token"),
            object("PressureQueue", "frames", "bound: 5"),
            object("PressureQueue", "closed", "bound: 1, state: Closed"),
            object("Semaphore", "later", "slots: 9, suspend: true"),
        ]
        .concat();
        let planned = run(&world, PLAN, &all).await;
        assert_eq!(planned.code, Some(2), "{}{}", planned.out, planned.said);
        let line = format!("+ sem/deploy in {0}: {0}.deploy on ", world.namespace);
        assert!(planned.out.contains(&line), "{}", planned.out);
        assert!(planned.out.contains("    + slots: 3\n"), "{}", planned.out);
        assert!(
            planned.out.contains("7 to create, 0 to change, 0 as they should be, 1 suspended"),
            "{}",
            planned.out
        );
        assert_eq!(run(&world, &["plan"], &all).await.code, Some(0));
        // Confirmation is not possible here, so nothing was changed so far.
        let unasked = run(&world, &["apply"], &all).await;
        assert_eq!(unasked.code, Some(64), "{}", unasked.said);
        assert_eq!(world.queues().await, BTreeSet::new());

        let applied = run(&world, APPLY, &all).await;
        assert_eq!(applied.code, Some(0), "{}{}", applied.out, applied.said);
        let queues = world.queues().await;
        assert!(queues.is_superset(&world.lock_queues("deploy", 3)), "{queues:?}");
        assert!(!queues.iter().any(|queue| queue.contains("later")), "{queues:?}");
        let mut redis = world.redis().await;
        let key = format!("__pressure__:{}.frames:bound", world.namespace);
        assert_eq!(redis.get::<_, String>(&key).await.unwrap(), "5");

        for verb in [PLAN, APPLY] {
            let again = run(&world, verb, &all).await;
            assert_eq!(again.code, Some(0), "{verb:?}: {}{}", again.out, again.said);
            assert!(again.out.contains("Nothing to change, 7 as they should be"), "{}", again.out);
        }
        assert_eq!(world.queues().await, queues, "nothing was changed");

        // The operator finds no difference either.
        let _operator = world.operator().await;
        world.semaphore("deploy", "slots: 3").await;
        world.queue("frames", "bound: 5").await;
        world.semaphore_ready("deploy").await;
        world.queue_ready("frames").await;
        for name in ["deploy", "frames"] {
            let events = world.events(name).await;
            let changed = ["Resized", "Created", "BoundChanged", "DriftRepaired"];
            assert!(!events.iter().any(|(r, ..)| changed.contains(&r.as_str())), "{events:?}");
        }
        for said in [&planned, &unasked, &applied] {
            let text = format!("{}{}", said.out, said.said);
            assert!(!text.contains("guest:"), "no password: {text}");
        }
        world.delete_all::<Semaphore>().await;
        world.delete_all::<PressureQueue>().await;
    })
    .await;
}

#[tokio::test]
async fn a_plan_shows_each_difference_and_apply_makes_it() {
    in_a_world("apply", async |world| {
        let of = |slots: u32, bound: u32| {
            let semaphore = object("Semaphore", "deploy", &format!("slots: {slots}"));
            semaphore + &object("PressureQueue", "frames", &format!("bound: {bound}"))
        };
        assert_eq!(run(&world, APPLY, &of(3, 5)).await.code, Some(0));
        // Drift: a slot and the wait queue are missing.
        let amqp = world.amqp().await;
        let channel = amqp.create_channel().await.unwrap();
        for queue in ["deploy-2-A", "deploy-W"] {
            let queue = format!("{}.{queue}", world.namespace);
            channel.queue_delete(queue.into(), QueueDeleteOptions::default()).await.unwrap();
        }
        let planned = run(&world, PLAN, &of(3, 5)).await;
        assert_eq!(planned.code, Some(2), "{}{}", planned.out, planned.said);
        assert!(planned.out.contains("~ slots: 2 -> 3"), "{}", planned.out);
        assert_eq!(run(&world, APPLY, &of(3, 5)).await.code, Some(0));
        assert_eq!(world.queues().await, world.lock_queues("deploy", 3));
        assert_eq!(run(&world, PLAN, &of(3, 5)).await.code, Some(0));

        let json = run(&world, &["plan", "-o", "json"], &of(1, 7)).await;
        assert_eq!(json.code, Some(0), "{}", json.said);
        let json: Value = serde_json::from_str(&json.out).unwrap();
        assert_eq!(json["formatVersion"], 1);
        assert_eq!(json["summary"]["update"], 2);
        let changes: Vec<_> =
            json["objects"].as_array().unwrap().iter().map(|o| &o["changes"][0]).collect();
        assert_eq!((&changes[0]["before"], &changes[0]["after"]), (&3.into(), &1.into()), "{json}");
        assert_eq!((&changes[1]["before"], &changes[1]["after"]), (&5.into(), &7.into()), "{json}");
        assert_eq!(run(&world, APPLY, &of(1, 7)).await.code, Some(0));
        assert_eq!(world.queues().await, world.lock_queues("deploy", 1));

        // Records that are no longer desired are removed as well.
        let fenced = object("Semaphore", "deploy", "slots: 1, fencing: true");
        let planned = run(&world, PLAN, &fenced).await;
        assert!(planned.out.contains("+ slot records: made again"), "{}", planned.out);
        assert_eq!(run(&world, APPLY, &fenced).await.code, Some(0));
        assert_eq!(run(&world, PLAN, &fenced).await.code, Some(0));
        let planned = run(&world, PLAN, &of(1, 7)).await;
        assert_eq!(planned.code, Some(2), "{}", planned.out);
        assert!(planned.out.contains("- slot records"), "{}", planned.out);
        assert_eq!(run(&world, APPLY, &of(1, 7)).await.code, Some(0));
        assert_eq!(run(&world, PLAN, &of(1, 7)).await.code, Some(0));
    })
    .await;
}

#[tokio::test]
async fn held_slots_are_removed_only_when_allowed() {
    in_a_world("apply", async |world| {
        let of = |slots: u32| object("Semaphore", "deploy", &format!("slots: {slots}"));
        assert_eq!(run(&world, APPLY, &of(2)).await.code, Some(0));
        let lock = format!("{}.deploy", world.namespace);
        let mut holders = Vec::new();
        for _ in 0..2 {
            let mut hold = program(&["hold", &lock, "--url", &world.amqp_url()]);
            hold.stdin(std::process::Stdio::null()).stdout(std::process::Stdio::null());
            holders.push(hold.kill_on_drop(true).spawn().unwrap());
        }
        eventually("both slots are held", PATIENCE, async || {
            let held = (1..=2).map(|slot| format!("{lock}-{slot}-B")).collect::<BTreeSet<_>>();
            world.queues().await.is_superset(&held)
        })
        .await;
        let refused = run(&world, APPLY, &of(1)).await;
        assert_eq!(refused.code, Some(1), "{}{}", refused.out, refused.said);
        assert!(refused.out.contains("~ slots: 2 -> 1"), "{}", refused.out);
        assert!(refused.out.contains("! held, and kept until released: 1 "), "{}", refused.out);
        assert!(refused.said.contains("--allow-drain"), "{}", refused.said);
        assert!(world.queues().await.contains(&format!("{lock}-2-A")), "nothing was changed");

        let allowed = run(&world, &[APPLY, &["--allow-drain"]].concat(), &of(1)).await;
        assert_eq!(allowed.code, Some(0), "{}{}", allowed.out, allowed.said);
        let queues = world.queues().await;
        assert!(!queues.contains(&format!("{lock}-2-A")), "{queues:?}");
        assert!(queues.contains(&format!("{lock}-2-B")), "its holder keeps it: {queues:?}");
        assert_eq!(run(&world, PLAN, &of(1)).await.code, Some(0));
    })
    .await;
}

#[tokio::test]
async fn an_impossible_plan_reports_the_reason_and_changes_nothing() {
    in_a_world("apply", async |world| {
        let bare = |kind: &str, spec: &str| {
            format!("---\napiVersion: lockkeeper.dev/v1alpha1\nkind: {kind}\nmetadata: {{name: a}}\nspec: {{{spec}}}\n")
        };
        let good = object("Semaphore", "deploy", "slots: 1");
        for (manifests, code, said) in [
            (good.clone() + &bare("Semaphore", "slots: -1"), 1, "greater than or equal to 0"),
            (good.clone() + "---\na: [\n", 1, "objects.yaml"),
            (bare("Semaphore", ""), 64, "it names no connection"),
            (bare("PressureQueue", ""), 64, "set REDIS_URL"),
            (good.replace("rabbit}", "other}"), 64, "/other is not among the files"),
            (good.clone() + &object("Semaphore", "b", &format!("lockName: {}.deploy", world.namespace)), 1, "both stand for"),
        ] {
            for verb in [&["plan"][..], APPLY] {
                let refused = run(&world, verb, &manifests).await;
                assert_eq!(refused.code, Some(code), "{manifests}: {}{}", refused.out, refused.said);
                assert!(refused.said.contains(said), "{manifests}: {}", refused.said);
            }
        }
        assert_eq!(world.queues().await, BTreeSet::new());

        // A server of the environment that does not exist.
        let folder = Folder::new();
        let file = folder.write("a.yaml", &bare("Semaphore", "slots: 1, lockName: x"));
        let by = async |url: &str, verb: &[&str]| {
            let mut command = program(&[verb, &["-f", &file]].concat());
            ended(command.env("AMQP_URL", url)).await
        };
        assert_eq!(by(&world.amqp_url(), PLAN).await.code, Some(2));
        assert_eq!(by(&world.amqp_url(), APPLY).await.code, Some(0));
        assert_eq!(by(&world.amqp_url(), PLAN).await.code, Some(0));
        let away = "amqp://u:hush@127.0.0.1:1";
        assert_eq!(by(away, &["plan"]).await.code, Some(69));
        let away = by(away, PLAN).await;
        assert_eq!(away.code, Some(1), "{}", away.said);
        assert!(!away.said.contains("hush"), "{}", away.said);

        // Leftovers of a queue are not overwritten by a creation.
        let mut redis = world.redis().await;
        let key = format!("__pressure__:{}.frames:closed", world.namespace);
        let _: () = redis.rpush(&key, "x").await.unwrap();
        let blocked = run(&world, PLAN, &object("PressureQueue", "frames", "bound: 1")).await;
        assert_eq!(blocked.code, Some(1), "{}{}", blocked.out, blocked.said);
        assert!(blocked.out.contains("! pq/frames"), "{}", blocked.out);
        assert!(blocked.out.contains(":closed"), "{}", blocked.out);

        // Neither a queue that was only half created nor a lock of another protocol changes.
        let key = format!("__pressure__:{}.half:bound", world.namespace);
        let _: () = redis.set(&key, 1).await.unwrap();
        assert_eq!(run(&world, APPLY, &good).await.code, Some(0));
        let before = world.queues().await;
        let impossible = object("Semaphore", "deploy", "slots: 2, protocol: Token")
            + &object("PressureQueue", "half", "bound: 2");
        for verb in [PLAN, APPLY] {
            let blocked = run(&world, verb, &impossible).await;
            assert_eq!(blocked.code, Some(1), "{}{}", blocked.out, blocked.said);
            for part in ["! sem/deploy", "one of protocol ExclusiveQueue", "! pq/half", "half created"] {
                assert!(blocked.out.contains(part), "{part}: {}", blocked.out);
            }
        }
        assert_eq!(world.queues().await, before);
    })
    .await;
}

#[tokio::test]
async fn signs_have_colours_only_on_request() {
    in_a_world("apply", async |world| {
        let (secrets, folder) = (connections(&world), Folder::new());
        let file = folder.write("a.yaml", &object("Semaphore", "deploy", "slots: 1"));
        let coloured = async |name: &str| {
            let arguments = ["plan", "-f", &file, "--connections", secrets.0.to_str().unwrap()];
            ended(program(&arguments).env(name, "1")).await.out
        };
        assert!(coloured("CLICOLOR_FORCE").await.contains("\u{1b}[32m+ slots: 1\u{1b}[0m"));
        assert!(!coloured("NO_COLOR").await.contains('\u{1b}'));
    })
    .await;
}

#[tokio::test]
async fn a_manifest_that_generates_its_name_is_valid_and_not_applied() {
    in_a_world("apply-generated", async |world| {
        let object =
            object("Semaphore", "run-", "slots: 2").replace("name: run-", "generateName: run-");
        for verb in [PLAN, APPLY] {
            let ended = run(&world, verb, &object).await;
            assert_eq!(ended.code, Some(1), "{}", ended.said);
            let why = "objects.yaml:4: Semaphore without a name: metadata.generateName: a manifest";
            assert!(ended.said.contains(why), "{}", ended.said);
            assert!(ended.said.contains("Set metadata.name"), "{}", ended.said);
        }
        assert_eq!(world.queues().await, BTreeSet::new());

        let folder = Folder::new();
        let shared = object.replace("slots: 2", "lockName: ci.run");
        for (text, warns) in [(&object, false), (&shared, true)] {
            let file = folder.write("objects.yaml", text);
            let ended = ended(&mut program(&["validate", &file])).await;
            assert_eq!(ended.code, Some(0), "{}{}", ended.out, ended.said);
            let warning =
                "warning: each object that is created from this manifest stands for ci.run";
            assert_eq!(ended.out.contains(warning), warns, "{}", ended.out);
        }
    })
    .await;
}
