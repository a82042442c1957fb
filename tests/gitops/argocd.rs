//! Argo CD: its scripts in its interpreter, on objects of a real API server.

use kube::api::{Patch, PatchParams};
use lockkeeper_api::Semaphore;
use lockkeeper_testkit::evaluator::{Verdicts, answer, example, objects};
use lockkeeper_testkit::world::{PATIENCE, World, has_reason, in_a_world};
use serde_json::{Value, json};

/// The kinds, the directories of their actions, and the actions.
const ACTIONS: [(&str, &str, &[&str]); 2] = [
    ("Semaphore", "semaphore", &["suspend", "resume", "scale-up", "scale-down", "hold"]),
    ("PressureQueue", "pressure-queue", &["suspend", "resume"]),
];

/// Returns the path of an action's script.
fn script(folder: &str, action: &str) -> String {
    let shared = matches!(action, "suspend" | "resume");
    let folder = if shared { String::new() } else { format!("{folder}/") };
    example(&format!("argocd/actions/{folder}{action}.lua"))
}

#[test]
fn the_config_map_has_the_scripts_word_by_word() {
    let map = objects("argocd/argocd-cm.yaml").remove(0);
    assert_eq!(map["metadata"]["name"], "argocd-cm");
    assert_eq!(map["data"].as_object().unwrap().len(), 2 * ACTIONS.len());
    for (kind, folder, names) in ACTIONS {
        let data = |what: &str| {
            map["data"][format!("resource.customizations.{what}.lockkeeper.dev_{kind}")].as_str()
        };
        assert_eq!(data("health").unwrap(), example("argocd/health.lua"), "{kind}");
        let actions: Value = serde_yaml::from_str(data("actions").unwrap()).unwrap();
        let discovery = example(&format!("argocd/actions/{folder}/discovery.lua"));
        assert_eq!(actions["discovery.lua"], discovery, "{kind}");
        let definitions = actions["definitions"].as_array().unwrap();
        assert_eq!(definitions.len(), names.len(), "{kind}");
        for (definition, name) in definitions.iter().zip(names) {
            assert_eq!(definition["name"], *name, "{kind}");
            assert_eq!(definition["action.lua"], script(folder, name), "{kind} {name}");
        }
    }
}

#[test]
fn each_kind_offers_the_actions_that_it_has_scripts_for() {
    for (kind, folder, names) in ACTIONS {
        let object = json!({"kind": kind, "apiVersion": "lockkeeper.dev/v1alpha1",
            "metadata": {"name": "a"}, "spec": {"slots": 3}});
        let discovery = example(&format!("argocd/actions/{folder}/discovery.lua"));
        let answer = answer(&json!({"do": "actions", "object": object, "script": discovery}));
        let mut offered: Vec<_> = answer["actions"].as_object().unwrap().keys().collect();
        let mut expected = names.to_vec();
        offered.sort();
        expected.sort_unstable();
        assert_eq!(offered, expected, "{kind}");
    }
}

/// Returns the object as the API server stores it.
async fn live(world: &World) -> Value {
    serde_json::to_value(world.api::<Semaphore>().get("deploy").await.unwrap()).unwrap()
}

/// Does what Argo CD does when a user clicks an action. Works only if it is offered.
async fn click(world: &World, action: &str) {
    let object = live(world).await;
    let discovery = example("argocd/actions/semaphore/discovery.lua");
    let offered = answer(&json!({"do": "actions", "object": object, "script": discovery}));
    assert_eq!(offered["actions"][action], true, "{action}: {offered}");
    let script = script("semaphore", action);
    let acted = answer(&json!({"do": "act", "object": object, "script": script}));
    let patch = Patch::Merge(&acted["patch"]);
    world.api::<Semaphore>().patch("deploy", &PatchParams::default(), &patch).await.unwrap();
}

#[tokio::test]
async fn each_action_has_the_effect_of_its_name() {
    in_a_world("argocd", async |world| {
        let _operator = world.operator().await;
        let verdicts = Verdicts::of_the_examples();
        let health = async || verdicts.on(&[live(&world).await]).remove(0)[1].clone();
        world.semaphore("deploy", "slots: 2").await;
        assert!(["Progressing", "Healthy"].contains(&health().await.as_str()));
        world.semaphore_ready("deploy").await;
        assert_eq!(health().await, "Healthy");

        for (action, slots) in [("scale-up", 3), ("scale-down", 2), ("scale-down", 1)] {
            click(&world, action).await;
            world.semaphore_ready("deploy").await;
            assert_eq!(world.queues().await, world.lock_queues("deploy", slots), "{action}");
        }
        click(&world, "suspend").await;
        world.semaphore_ready("deploy").await;
        assert_eq!(health().await, "Suspended");
        click(&world, "hold").await;
        let suspended = |object: &Semaphore| has_reason(object, "Stalled", "Suspended");
        world.until("deploy", "Suspended", PATIENCE, suspended).await;
        assert_eq!(health().await, "Suspended");
        assert_eq!(world.queues().await, world.lock_queues("deploy", 1), "nothing is changed");
        click(&world, "resume").await;
        world.semaphore_ready("deploy").await;
        assert_eq!(health().await, "Healthy");
        assert!(world.slot_queues("deploy", 1).is_disjoint(&world.queues().await));
    })
    .await;
}

/// Checks that the path is that of a Semaphore's slots. See `owners` for the effect of
/// the options.
#[test]
fn the_application_ignores_the_slots_of_semaphores_and_nothing_else() {
    let application = objects("argocd/application.yaml").remove(0);
    let ignored = application["spec"]["ignoreDifferences"].as_array().unwrap();
    let [ignored] = ignored.as_slice() else { panic!("{ignored:?}") };
    assert_eq!(
        (&ignored["group"], &ignored["kind"]),
        (&json!("lockkeeper.dev"), &json!("Semaphore"))
    );
    let semaphore = objects("semaphore/deploy.yaml").remove(0);
    for pointer in ignored["jsonPointers"].as_array().unwrap() {
        assert_eq!(semaphore.pointer(pointer.as_str().unwrap()), Some(&json!(3)));
    }
    let options = application["spec"]["syncPolicy"]["syncOptions"].as_array().unwrap();
    assert!(options.contains(&json!("RespectIgnoreDifferences=true")), "{options:?}");
}
