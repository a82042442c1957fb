//! `lockkeeper doctor`: finds problems, and suggests the next steps.

use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;
use kube::api::{Patch, PatchParams};
use lockkeeper_api::Semaphore;
use lockkeeper_testkit::environment::variable;
use lockkeeper_testkit::world::{PATIENCE, World, has_reason, in_a_world};
use serde_json::{Value, json};

use crate::kubectl::in_namespace;

/// Installs an operator's Deployment in the world's namespace, without pods. Its status
/// reports this number of ready pods.
async fn deployment(world: &World, version: &str, account: &str, ready: i32) {
    let labels =
        json!({"app.kubernetes.io/name": "lockkeeper", "app.kubernetes.io/version": version});
    let object = json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "lockkeeper", "labels": labels},
        "spec": {
            "selector": {"matchLabels": {"a": "b"}},
            "template": {
                "metadata": {"labels": {"a": "b"}},
                "spec": {"serviceAccountName": account, "containers": [{"name": "a", "image": "a"}]}
            }
        }
    });
    let api: Api<Deployment> = Api::namespaced(world.client.clone(), &world.namespace);
    let params = PatchParams::apply("test").force();
    api.patch("lockkeeper", &params, &Patch::Apply(object)).await.unwrap();
    let status = json!({"status": {"replicas": 1, "readyReplicas": ready}});
    let params = PatchParams::default();
    api.patch_status("lockkeeper", &params, &Patch::Merge(status)).await.unwrap();
}

/// Returns the findings of the doctor as (level, about, message), and its exit code.
async fn examine(world: &World) -> (Option<i32>, Vec<(String, String, String)>, String) {
    let found =
        in_namespace(world, &["doctor", "--operator-namespace", &world.namespace, "-o", "json"])
            .await;
    let json: Value = serde_json::from_str(&found.out)
        .unwrap_or_else(|error| panic!("{error}: {}{}", found.out, found.said));
    let findings = json["findings"].as_array().unwrap();
    let text = |finding: &Value, field: &str| finding[field].as_str().unwrap().to_owned();
    let all = findings.iter().map(|finding| {
        // Every problem has a next step.
        assert_eq!(finding["next"].is_null(), finding["level"] == "ok", "{finding}");
        (text(finding, "level"), text(finding, "about"), text(finding, "message"))
    });
    assert_eq!(json["healthy"], found.code == Some(0), "{json}");
    (found.code, all.collect(), found.out)
}

#[tokio::test]
async fn the_doctor_finds_errors_of_the_operator_and_suggests_fixes() {
    in_a_world("kdoctor", async |world| {
        let is = |all: &[(String, String, String)], level: &str, about: &str, said: &str| {
            let found =
                all.iter().any(|(l, a, m)| l == level && a.contains(about) && m.contains(said));
            assert!(found, "no {level} {about}: {said} in {all:#?}");
        };
        let (code, all, _) = examine(&world).await;
        assert_eq!(code, Some(0), "a remark is nothing wrong");
        is(&all, "remark", "operator", "no Deployment has the label");
        is(&all, "ok", "crd/semaphores.lockkeeper.dev", "is the one of this version");
        is(&all, "ok", "crd/pressurequeues.lockkeeper.dev", "is the one of this version");

        deployment(&world, env!("CARGO_PKG_VERSION"), "nobody", 0).await;
        let (code, all, _) = examine(&world).await;
        assert_eq!(code, Some(1));
        is(&all, "wrong", "operator", "no pod of it is ready");
        is(&all, "wrong", "serviceaccount", "may not list semaphores");
        is(&all, "wrong", "serviceaccount", "patch semaphores/status");

        deployment(&world, "0.0.1", "nobody", 1).await;
        let (_, all, _) = examine(&world).await;
        is(&all, "remark", "operator", "runs version 0.0.1, and this program is version");

        // The chart's account and its Deployment, which has no pods here.
        let chart =
            in_namespace(&world, &["doctor", "--operator-namespace", "lockkeeper-system"]).await;
        assert_eq!(chart.code, Some(1), "{}", chart.out);
        assert!(chart.out.contains("has the rights that the operator needs"), "{}", chart.out);
        assert!(chart.out.contains("-> `kubectl -n lockkeeper-system describe"), "{}", chart.out);
    })
    .await;
}

#[tokio::test]
async fn the_doctor_finds_errors_of_objects_and_shows_no_secret() {
    in_a_world("kdoctor", async |world| {
        let _operator = world.operator().await;
        world.semaphore("well", "slots: 1").await;
        world.queue("queue", "bound: 1").await;
        let own = |secret: &str| {
            format!("rabbitmqClusterReference: {{connectionSecret: {{name: {secret}}}}}")
        };
        world
            .secret("poor", &[("host", "127.0.0.1".to_owned()), ("password", "hush-1".to_owned())])
            .await;
        world.secret("deaf", &[("amqpUri", "amqp://u:hush-2@127.0.0.1:1".to_owned())]).await;
        let useless = format!("{}/api", variable("RABBITMQ_MANAGEMENT_URL"));
        let dim = [("amqpUri", world.amqp_url()), ("managementUri", useless)];
        world.secret("dim", &dim).await;
        for (name, secret) in
            [("poor", "poor"), ("deaf", "deaf"), ("none", "nowhere"), ("dim", "dim")]
        {
            world.apply::<Semaphore>(name, &format!("{{{}}}", own(secret))).await.unwrap();
        }
        world.apply::<Semaphore>("foreign", "{lockName: prod.deploy}").await.unwrap();
        world.semaphore_ready("well").await;
        world.queue_ready("queue").await;
        for (name, reason) in [
            ("poor", "SecretKeyMissing"),
            ("none", "SecretNotFound"),
            ("foreign", "NameNotAllowed"),
        ] {
            world
                .until::<Semaphore>(name, reason, PATIENCE, |s| has_reason(s, "Ready", reason))
                .await;
        }
        let (code, all, text) = examine(&world).await;
        assert_eq!(code, Some(1), "{text}");
        let of = |name: &str| {
            let about = format!("{}/sem/{name}", world.namespace);
            all.iter()
                .filter(|(_, a, _)| *a == about)
                .map(|(l, _, m)| (l.as_str(), m.as_str()))
                .collect::<Vec<_>>()
        };
        assert_eq!(of("well"), [("ok", "is as it should be")]);
        // The default connection, as an option instead of in the environment.
        let url = "amqp://u:hush@127.0.0.1:1";
        let asked = ["doctor", "--operator-namespace", &world.namespace, "--url", url];
        let found = in_namespace(&world, &asked).await.out;
        let foreign =
            "/sem/foreign: its server does not answer from here: the broker at 127.0.0.1:1";
        assert!(found.contains(foreign) && !found.contains("hush"), "{found}");
        assert!(
            of("dim").iter().any(|(l, m)| *l == "remark" && m.contains("/api is unusable: ")),
            "{all:#?}"
        );
        let queue = format!("{}/pq/queue", world.namespace);
        assert!(
            all.contains(&("ok".to_owned(), queue, "is as it should be".to_owned())),
            "{all:#?}"
        );
        assert!(
            of("poor").iter().any(|(l, m)| *l == "wrong" && m.contains("add the key username")),
            "{all:#?}"
        );
        assert!(
            of("deaf")
                .iter()
                .any(|(l, m)| *l == "wrong" && m.contains("does not answer from here")),
            "{all:#?}"
        );
        assert!(
            of("none").iter().any(|(l, m)| *l == "wrong" && m.contains("there is no Secret")),
            "{all:#?}"
        );
        assert!(
            of("foreign").iter().any(|(l, m)| *l == "wrong" && m.contains("NameNotAllowed")),
            "{all:#?}"
        );
        // The operator's finding and this program's are of the same fault.
        for name in ["poor", "none"] {
            assert_eq!(of(name).len(), 1, "{all:#?}");
        }
        assert!(!text.contains("hush"), "{text}");
    })
    .await;
}
