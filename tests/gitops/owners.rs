//! Ownership of fields on a real API server: applying the same files again changes
//! nothing, and slots that git omits belong to the writer that scales.

use std::path::{Path, PathBuf};

use kube::ResourceExt;
use kube::api::ListParams;
use lockkeeper_api::{PressureQueue, Semaphore};
use lockkeeper_testkit::environment::random;
use lockkeeper_testkit::evaluator::objects;
use lockkeeper_testkit::world::{Kind, PATIENCE, World, eventually, in_a_world, kubectl};
use serde_json::{Value, json};

/// How pipelines apply: Flux and Argo CD with `ServerSideApply=true`, and Argo CD
/// without.
const WAYS: [&[&str]; 2] = [&["--server-side", "--field-manager=pipeline"], &[]];

/// Objects in a file, as they are in git.
struct Git(PathBuf);

impl Git {
    fn new(objects: &[Value]) -> Self {
        let path = format!("{}/git-{}.json", env!("CARGO_TARGET_TMPDIR"), random());
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
        std::fs::write(&path, list.to_string()).unwrap();
        Self(path.into())
    }

    async fn run(&self, world: &World, verb: &str, way: &[&str]) -> Result<String, String> {
        let mut arguments = vec![verb, "-f", self.0.to_str().unwrap()];
        arguments.extend(way);
        kubectl(world, &arguments).await
    }
}

impl Drop for Git {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Returns all `Semaphore`s and `PressureQueue`s of the examples, with unique names.
fn examples() -> Vec<Value> {
    let mut all = Vec::new();
    for folder in ["semaphore", "pressure-queue", "keda"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(folder);
        for entry in std::fs::read_dir(path).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            for mut object in objects(&format!("{folder}/{name}")) {
                if object["apiVersion"] == "lockkeeper.dev/v1alpha1" {
                    object["metadata"] = json!({"name": format!("example-{}", all.len())});
                    all.push(object);
                }
            }
        }
    }
    assert!(all.len() >= 9, "{}", all.len());
    all
}

/// Returns the name and version of every applied object.
async fn versions(world: &World) -> Vec<(String, String)> {
    async fn of<K: Kind>(world: &World) -> Vec<(String, String)> {
        let list = world.api::<K>().list(&ListParams::default()).await.unwrap();
        list.iter().map(|o| (o.name_any(), o.resource_version().unwrap())).collect()
    }
    let mut all = of::<Semaphore>(world).await;
    all.extend(of::<PressureQueue>(world).await);
    all
}

/// Returns whether the operator has observed the newest spec of every object.
async fn looked_at(world: &World) -> bool {
    async fn of<K: Kind>(world: &World) -> bool {
        let list = world.api::<K>().list(&ListParams::default()).await.unwrap();
        list.iter().all(|object| object.condition("Ready").is_some())
    }
    of::<Semaphore>(world).await && of::<PressureQueue>(world).await
}

#[tokio::test]
async fn applying_the_examples_again_changes_nothing_and_kubectl_diff_finds_nothing() {
    for way in WAYS {
        in_a_world("again", async move |world| {
            let git = Git::new(&examples());
            git.run(&world, "apply", way).await.unwrap();
            let before = versions(&world).await;
            git.run(&world, "apply", way).await.unwrap();
            assert_eq!(versions(&world).await, before, "{way:?}");

            let _operator = world.operator().await;
            eventually("the operator has looked", PATIENCE, async || looked_at(&world).await).await;
            // The operator may write a status between the two reads of kubectl.
            eventually("kubectl diff finds nothing", PATIENCE, async || {
                git.run(&world, "diff", way).await.is_ok()
            })
            .await;
            let generations = async || -> Vec<Option<i64>> {
                let list = world.api::<Semaphore>().list(&ListParams::default()).await.unwrap();
                list.iter().map(|object| object.metadata.generation).collect()
            };
            let before = generations().await;
            git.run(&world, "apply", way).await.unwrap();
            assert_eq!(generations().await, before, "{way:?}: no spec was changed");
        })
        .await;
    }
}

/// A Semaphore as it is in git.
fn deploy(spec: &Value) -> Git {
    Git::new(&[json!({
        "apiVersion": "lockkeeper.dev/v1alpha1", "kind": "Semaphore",
        "metadata": {"name": "deploy"}, "spec": spec,
    })])
}

async fn slots(world: &World) -> i32 {
    world.api::<Semaphore>().get("deploy").await.unwrap().spec.slots
}

async fn scale(world: &World, slots: i32) {
    let replicas = format!("--replicas={slots}");
    kubectl(world, &["scale", "sem/deploy", &replicas]).await.unwrap();
}

#[tokio::test]
async fn slots_that_git_omits_keep_their_scaled_value() {
    for way in WAYS {
        in_a_world("scaled", async move |world| {
            let git = deploy(&json!({"deletionPolicy": "Retain"}));
            git.run(&world, "apply", way).await.unwrap();
            assert_eq!(slots(&world).await, 1, "the default");
            for replicas in [4, 0] {
                scale(&world, replicas).await;
                git.run(&world, "apply", way).await.unwrap();
                assert_eq!(slots(&world).await, replicas, "{way:?}");
                git.run(&world, "diff", way).await.unwrap();
                // Git changes for another reason.
                deploy(&json!({"deletionPolicy": "Delete"}))
                    .run(&world, "apply", way)
                    .await
                    .unwrap();
                assert_eq!(slots(&world).await, replicas, "{way:?}");
            }
        })
        .await;
    }
}

#[tokio::test]
async fn slots_that_git_has_are_gits_and_a_forced_apply_sets_them_back() {
    in_a_world("owned", async |world| {
        let [server_side, client_side] = WAYS;
        let git = deploy(&json!({"slots": 3}));
        git.run(&world, "apply", client_side).await.unwrap();
        scale(&world, 5).await;
        git.run(&world, "diff", client_side).await.unwrap_err();
        git.run(&world, "apply", client_side).await.unwrap();
        assert_eq!(slots(&world).await, 3);
        kubectl(&world, &["delete", "sem/deploy"]).await.unwrap();

        git.run(&world, "apply", server_side).await.unwrap();
        scale(&world, 5).await;
        let refused = git.run(&world, "apply", server_side).await.unwrap_err();
        assert!(refused.contains("conflict") && refused.contains(".spec.slots"), "{refused}");
        let force = [server_side, &["--force-conflicts"]].concat();
        git.run(&world, "apply", &force).await.unwrap();
        assert_eq!(slots(&world).await, 3);
        // As Argo CD does with RespectIgnoreDifferences: it applies the current value.
        scale(&world, 5).await;
        deploy(&json!({"slots": slots(&world).await})).run(&world, "apply", &force).await.unwrap();
        assert_eq!(slots(&world).await, 5);
    })
    .await;
}

#[tokio::test]
async fn slots_removed_from_git_stay_scaled_only_with_server_side_apply() {
    let [server_side, client_side] = WAYS;
    in_a_world("handed", async move |world| {
        for (way, scaled, left) in
            [(server_side, true, 5), (server_side, false, 1), (client_side, true, 1)]
        {
            deploy(&json!({"slots": 3})).run(&world, "apply", way).await.unwrap();
            if scaled {
                scale(&world, 5).await;
            }
            deploy(&json!({})).run(&world, "apply", way).await.unwrap();
            assert_eq!(slots(&world).await, left, "{way:?}, scaled: {scaled}");
            kubectl(&world, &["delete", "sem/deploy"]).await.unwrap();
        }
    })
    .await;
}
