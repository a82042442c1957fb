//! `lockkeeper revoke`, and the permissions that it requires: the chart's policies,
//! tested by users with limited permissions.

use kube::api::{Patch, PatchParams};
use lockkeeper_api::{PressureQueue, REVOKE, Semaphore};
use lockkeeper_semaphore::LostReason;
use lockkeeper_testkit::built;
use lockkeeper_testkit::pressure_text::TextClient;
use lockkeeper_testkit::world::{PATIENCE, World, eventually, in_a_world, kubectl};
use serde_json::json;
use tokio::process::Command;

use super::{QUEUE, acquire, ids, lost, with_administrator};
use crate::operator::queues::text;
use crate::operator::rights;

/// Grants users of this world permissions on resources.
async fn allow(world: &World, name: &str, users: &[&str], group: &str, resources: &[&str]) {
    let verbs = if name == "revoke" { vec!["create"] } else { vec!["*"] };
    let rules = json!([{"apiGroups": [group], "resources": resources, "verbs": verbs}]);
    rights::give(world, name, rules, users.iter().map(|user| rights::user(user)).collect()).await;
}

/// alice may do everything with our kinds, and bob may also revoke.
async fn users(world: &World) {
    let both = ["alice", "bob"];
    allow(world, "edit", &both, "lockkeeper.dev", &["semaphores", "pressurequeues"]).await;
    allow(world, "events", &both, "events.k8s.io", &["events"]).await;
    allow(world, "revoke", &["bob"], "lockkeeper.dev", &["semaphores/revoke"]).await;
}

/// Returns kubectl's output as this user.
async fn as_user(world: &World, user: &str, arguments: &[&str]) -> Result<String, String> {
    let mut all = vec!["--as", user];
    all.extend(arguments);
    kubectl(world, &all).await
}

/// Returns exit code and messages of `lockkeeper revoke` as this user.
async fn revoke(world: &World, user: &str, arguments: &[&str]) -> (Option<i32>, String) {
    let file = rights::kubeconfig_of(world, user);
    let output = Command::new(built::lockkeeper())
        .args(["revoke", "sem/deploy", "-n", &world.namespace])
        .args(arguments)
        .env("KUBECONFIG", &file)
        .stdin(std::process::Stdio::null())
        .output()
        .await
        .unwrap();
    std::fs::remove_file(&file).unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[tokio::test]
async fn the_right_to_change_a_semaphore_does_not_include_the_right_to_revoke() {
    in_a_world("revoke-rights", async |world| {
        users(&world).await;
        world.semaphore("deploy", "slots: 1").await;
        let refused = "needs the verb create on semaphores/revoke";
        let annotation = |value: &str| format!("{REVOKE}={value}");
        let annotate = async |user: &str, what: &str| {
            as_user(&world, user, &["annotate", "--overwrite", "sem/deploy", what]).await
        };
        let said = annotate("alice", &annotation("a")).await.unwrap_err();
        assert!(said.contains(refused) && said.contains("\"alice\""), "{said}");
        annotate("bob", &annotation("a")).await.unwrap();
        let said = annotate("alice", &annotation("b")).await.unwrap_err();
        assert!(said.contains(refused), "a request is not to be changed: {said}");
        // She may change everything else while the request exists, and may withdraw it.
        annotate("alice", "team=red").await.unwrap();
        as_user(&world, "alice", &["scale", "--replicas=2", "sem/deploy"]).await.unwrap_err();
        annotate("alice", &format!("{REVOKE}-")).await.unwrap();
        let manifest = format!("{}/{}.json", env!("CARGO_TARGET_TMPDIR"), world.namespace);
        let new = json!({
            "apiVersion": "lockkeeper.dev/v1alpha1", "kind": "Semaphore",
            "metadata": {"name": "new", "annotations": {REVOKE: "a"}}, "spec": {},
        });
        std::fs::write(&manifest, new.to_string()).unwrap();
        let said = as_user(&world, "alice", &["create", "-f", &manifest]).await.unwrap_err();
        assert!(said.contains(refused), "{said}");
        as_user(&world, "bob", &["create", "-f", &manifest]).await.unwrap();
        std::fs::remove_file(&manifest).unwrap();
    })
    .await;
}

#[tokio::test]
async fn revoking_by_revoke_after_needs_the_same_permission() {
    in_a_world("revoke-after-rights", async |world| {
        users(&world).await;
        let both = ["alice", "bob"];
        allow(&world, "scale", &both, "lockkeeper.dev", &["semaphores/scale"]).await;
        with_administrator(&world).await;
        let _operator = world.operator().await;
        world.semaphore("deploy", "slots: 3").await;
        world.semaphore_ready("deploy").await;
        let permit = acquire(&world, QUEUE, 3).await;
        ids(&world, 1).await;
        let refused = "needs the verb create on semaphores/revoke";
        let patch = async |user: &str, spec: &str| {
            let spec = format!("{{\"spec\": {spec}}}");
            as_user(&world, user, &["patch", "sem/deploy", "--type=merge", "-p", &spec]).await
        };
        let forbidden = async |spec: &str| {
            let said = patch("alice", spec).await.unwrap_err();
            assert!(said.contains(refused) && said.contains("\"alice\""), "{said}");
        };
        forbidden(r#"{"slots": 0, "drain": {"revokeAfter": "0s"}}"#).await;
        patch("bob", r#"{"drain": {"revokeAfter": "1h"}}"#).await.unwrap();
        forbidden(r#"{"drain": {"revokeAfter": "59m60s500ms"}, "slots": 2}"#).await;
        forbidden(r#"{"drain": {"revokeAfter": "59m"}}"#).await;
        forbidden(r#"{"slots": 2}"#).await;
        // A Scale only contains what the operator has written.
        let selector = |s: &Semaphore| {
            let selector = s.status.as_ref().and_then(|status| status.selector.as_deref());
            selector.is_some_and(|selector| selector.ends_with("/revoke-after=1h"))
        };
        world.until("deploy", "revokeAfter in the selector", PATIENCE, selector).await;
        let scale = async |user: &str, to: &str| {
            as_user(&world, user, &["scale", &format!("--replicas={to}"), "sem/deploy"]).await
        };
        for fewer in ["2", "0"] {
            let said = scale("alice", fewer).await.unwrap_err();
            assert!(said.contains(refused), "{said}");
        }
        permit.verify().await.unwrap();
        // She may make changes that revoke no slot.
        scale("alice", "4").await.unwrap();
        patch("alice", r#"{"drain": {"revokeAfter": "2h"}}"#).await.unwrap();
        patch("alice", r#"{"drain": null, "slots": 3}"#).await.unwrap();
        patch("alice", r#"{"slots": 2}"#).await.unwrap();
        permit.verify().await.unwrap();
        permit.release().await.unwrap();
        // A new object for the same lock could revoke slots as well.
        let new = json!({
            "apiVersion": "lockkeeper.dev/v1alpha1", "kind": "Semaphore",
            "metadata": {"name": "new"}, "spec": {"drain": {"revokeAfter": "10m"}},
        });
        let manifest = format!("{}/{}.json", env!("CARGO_TARGET_TMPDIR"), world.namespace);
        std::fs::write(&manifest, new.to_string()).unwrap();
        let said = as_user(&world, "alice", &["create", "-f", &manifest]).await.unwrap_err();
        assert!(said.contains(refused), "{said}");
        as_user(&world, "bob", &["create", "-f", &manifest]).await.unwrap();
        let mut null = new;
        (null["metadata"]["name"], null["spec"]["drain"]) = ("null".into(), json!(null));
        std::fs::write(&manifest, null.to_string()).unwrap();
        as_user(&world, "alice", &["create", "-f", &manifest]).await.unwrap();
        std::fs::remove_file(&manifest).unwrap();
    })
    .await;
}

#[tokio::test]
async fn the_command_revokes_and_reports_the_result_or_the_missing_permission() {
    in_a_world("revoke-command", async |world| {
        users(&world).await;
        with_administrator(&world).await;
        let _operator = world.operator().await;
        world.semaphore("deploy", "slots: 2").await;
        world.semaphore_ready("deploy").await;
        let permit = acquire(&world, QUEUE, 2).await;
        let id = ids(&world, 1).await.remove(0);
        let of = ["--slot", "2", "--holder", &id, "--reason", "it hangs"];
        let yes = |more: &[&'static str]| -> Vec<&str> {
            of.iter().copied().chain(["--yes"]).chain(more.iter().copied()).collect()
        };
        let (code, said) = revoke(&world, "bob", &of).await;
        assert_eq!(code, Some(64), "no terminal for a confirmation: {said}");
        let (code, said) = revoke(&world, "alice", &yes(&[])).await;
        assert_eq!(code, Some(77), "{said}");
        assert!(said.contains("create on semaphores/revoke"), "{said}");
        let other = ["--slot", "2", "--holder", "other", "--reason", "x", "--yes"];
        let (code, said) = revoke(&world, "bob", &other).await;
        assert_eq!(code, Some(64), "{said}");
        assert!(said.contains(&format!("slot 2 by {id}")), "{said}");
        permit.verify().await.unwrap();

        let (code, said) = revoke(&world, "bob", &yes(&["--timeout", "2m"])).await;
        assert_eq!(code, Some(0), "{said}");
        assert!(said.contains("Revoked slot 2 from holder"), "{said}");
        assert_eq!(lost(&permit).await, LostReason::Revoked { text: "it hangs".to_owned() });
    })
    .await;
}

#[tokio::test]
async fn a_guarded_object_in_use_is_deleted_only_after_an_override() {
    in_a_world("guard-policy", async |world| {
        users(&world).await;
        let _operator = world.operator().await;
        world.semaphore("deploy", "slots: 1, deletionGuard: Unused").await;
        world.semaphore("free", "slots: 1, deletionGuard: Unused").await;
        world.semaphore("unguarded", "slots: 1").await;
        world.queue("frames", "deletionGuard: Empty").await;
        for name in ["deploy", "free", "unguarded"] {
            world.semaphore_ready(name).await;
        }
        world.queue_ready("frames").await;
        let permit = acquire(&world, QUEUE, 1).await;
        let mut client = TextClient::connect(&text(&world, "frames"), "camera").await.unwrap();
        client.put("frame").await.unwrap();
        let held = |s: &Semaphore| s.status.as_ref().is_some_and(|s| s.held == Some(1));
        world.until("deploy", "held", PATIENCE, held).await;
        let long = |q: &PressureQueue| q.status.as_ref().is_some_and(|s| s.length == Some(1));
        world.until("frames", "filled", PATIENCE, long).await;

        for object in ["sem/deploy", "pq/frames"] {
            let said = as_user(&world, "alice", &["delete", object]).await.unwrap_err();
            assert!(said.contains("deletionGuard is"), "{said}");
        }
        as_user(&world, "alice", &["delete", "sem/unguarded"]).await.unwrap();
        // When deleting all, each object is checked.
        let said = as_user(&world, "alice", &["delete", "sem", "--all"]).await.unwrap_err();
        assert!(said.contains("\"deploy\" is forbidden"), "{said}");
        // If one deletion is rejected, kubectl does not wait for the others.
        eventually("only the guarded object in use is left", PATIENCE, async || {
            let left = kubectl(&world, &["get", "sem", "-o", "name"]).await.unwrap();
            left.trim() == "semaphore.lockkeeper.dev/deploy"
        })
        .await;
        let none = json!({"spec": {"deletionGuard": "None"}});
        let api = world.api::<PressureQueue>();
        api.patch("frames", &PatchParams::default(), &Patch::Merge(none)).await.unwrap();
        as_user(&world, "alice", &["delete", "pq/frames"]).await.unwrap();
        let force = "lockkeeper.dev/force-finalize=true";
        as_user(&world, "alice", &["annotate", "sem/deploy", force]).await.unwrap();
        as_user(&world, "alice", &["delete", "sem/deploy"]).await.unwrap();
        permit.release().await.unwrap();
    })
    .await;
}
