//! KEDA: its objects in its own types, and the interfaces that it uses: `/scale` for its
//! autoscaler, and the list in Redis that it measures.

use std::process::Stdio;

use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use kube::Api;
use kube::api::PostParams;
use lockkeeper_api::{PressureQueue, Semaphore};
use lockkeeper_testkit::built;
use lockkeeper_testkit::evaluator::{evaluate, objects};
use lockkeeper_testkit::world::{PATIENCE, World, eventually, in_a_world, kubectl};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

/// Returns the object of a kind in an example's file.
fn of_kind(file: &str, kind: &str) -> Value {
    objects(file).into_iter().find(|object| object["kind"] == kind).unwrap()
}

#[test]
fn the_objects_have_only_what_keda_reads() {
    let decode = |object: &Value| evaluate(&[json!({"do": "decode", "object": object})]).remove(0);
    let mut read = 0;
    for file in ["keda/cron.yaml", "keda/queue.yaml"] {
        for object in objects(file).iter().filter(|o| o["apiVersion"] == "keda.sh/v1alpha1") {
            let said = decode(object);
            assert!(said["error"].is_null(), "{file}: {said}");
            read += 1;
        }
    }
    assert_eq!(read, 3);

    for (file, kind, pointer, wrong) in [
        ("keda/cron.yaml", "ScaledObject", "/spec", json!({"minReplicas": 5})),
        ("keda/cron.yaml", "ScaledObject", "/spec", json!({"minReplicaCount": 21})),
        (
            "keda/cron.yaml",
            "ScaledObject",
            "/spec/triggers/0/metadata",
            json!({"start": "0 25 * * *"}),
        ),
        (
            "keda/cron.yaml",
            "ScaledObject",
            "/spec/triggers/0/metadata",
            json!({"timezone": "Berlin"}),
        ),
        ("keda/queue.yaml", "ScaledJob", "/spec/triggers/0/metadata", json!({"list": "a"})),
        ("keda/queue.yaml", "TriggerAuthentication", "/spec", json!({"secretRef": []})),
    ] {
        let mut object = of_kind(file, kind);
        let place = object.pointer_mut(pointer).unwrap().as_object_mut().unwrap();
        place.extend(wrong.as_object().unwrap().clone());
        let said = decode(&object);
        assert!(said["error"].is_string(), "{kind} {pointer} {wrong}: {said}");
    }
}

#[test]
fn the_trigger_authentication_names_keys_that_the_secret_has() {
    let secret = of_kind("secret/redis.yaml", "Secret");
    let queue = of_kind("keda/queue.yaml", "PressureQueue");
    let authentication = of_kind("keda/queue.yaml", "TriggerAuthentication");
    let job = of_kind("keda/queue.yaml", "ScaledJob");
    let trigger = &job["spec"]["triggers"][0];
    assert_eq!(trigger["authenticationRef"]["name"], authentication["metadata"]["name"]);
    for target in authentication["spec"]["secretTargetRef"].as_array().unwrap() {
        assert_eq!(target["name"], secret["metadata"]["name"]);
        assert_eq!(target["name"], queue["spec"]["redisReference"]["connectionSecret"]["name"]);
        assert!(secret["stringData"][target["key"].as_str().unwrap()].is_string(), "{target}");
    }
    assert_eq!(secret["stringData"]["db"], trigger["metadata"]["databaseIndex"]);
}

/// KEDA creates such an autoscaler for a `ScaledObject` and provides a metric of its own.
/// Here is no such metric, but Kubernetes' own controller still enforces the bounds.
#[tokio::test]
async fn a_horizontal_pod_autoscaler_like_kedas_scales_a_semaphore() {
    in_a_world("keda", async |world| {
        let _operator = world.operator().await;
        let scaled = of_kind("keda/cron.yaml", "ScaledObject");
        let semaphore = of_kind("keda/cron.yaml", "Semaphore");
        let target = &scaled["spec"]["scaleTargetRef"];
        for (name, of) in
            [("apiVersion", "/apiVersion"), ("kind", "/kind"), ("name", "/metadata/name")]
        {
            assert_eq!(target[name], *semaphore.pointer(of).unwrap());
        }
        assert_eq!(semaphore["spec"], json!({}), "its slots are not git's");
        world.semaphore("batch", "").await;
        world.semaphore_ready("batch").await;

        let metric = json!({"type": "External", "external": {
            "metric": {
                "name": "s0-cron",
                "selector": {"matchLabels": {"scaledobject.keda.sh/name": "batch"}},
            },
            "target": {"type": "AverageValue", "averageValue": "1"},
        }});
        let autoscaler = json!({
            "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": "keda-hpa-batch"},
            "spec": {
                "scaleTargetRef": target,
                "minReplicas": scaled["spec"]["minReplicaCount"],
                "maxReplicas": scaled["spec"]["maxReplicaCount"],
                "metrics": [metric],
            },
        });
        let autoscaler = serde_json::from_value(autoscaler).unwrap();
        let api =
            Api::<HorizontalPodAutoscaler>::namespaced(world.client.clone(), &world.namespace);
        api.create(&PostParams::default(), &autoscaler).await.unwrap();
        let scaled = |object: &Semaphore| object.spec.slots == 5;
        world.until("batch", "5 slots by the autoscaler", PATIENCE, scaled).await;
        world.semaphore_ready("batch").await;
        assert_eq!(world.queues().await, world.lock_queues("batch", 5));
        // From the next sync on, it knows the count and the selector.
        eventually("the autoscaler sees the slots", PATIENCE, async || {
            let status = api.get("keda-hpa-batch").await.unwrap().status.unwrap();
            let scalable = status.conditions.unwrap_or_default();
            status.current_replicas == Some(5)
                && scalable.iter().any(|c| c.type_ == "AbleToScale" && c.status == "True")
        })
        .await;
        kubectl(&world, &["delete", "hpa", "keda-hpa-batch"]).await.unwrap();
    })
    .await;
}

/// Returns the name of the example's list, in this world's namespace.
fn list_name(world: &World) -> String {
    let job = of_kind("keda/queue.yaml", "ScaledJob");
    let name = job["spec"]["triggers"][0]["metadata"]["listName"].as_str().unwrap();
    assert!(name.contains(":media."), "{name}");
    name.replace(":media.", &format!(":{}.", world.namespace))
}

#[tokio::test]
async fn the_list_that_keda_measures_is_as_long_as_the_queue_and_the_job_empties_it() {
    in_a_world("keda", async |world| {
        let _operator = world.operator().await;
        let spec = of_kind("keda/queue.yaml", "PressureQueue")["spec"].to_string();
        world.apply::<PressureQueue>("frames", &spec).await.unwrap();
        world.queue_ready("frames").await;
        let queue = format!("{}.frames", world.namespace);
        let mut redis = world.redis().await;
        let list = list_name(&world);
        let mut length = async || -> u64 {
            redis::cmd("LLEN").arg(&list).query_async(&mut redis).await.unwrap()
        };
        assert_eq!(length().await, 0);

        let mut put = Command::new(built::lockkeeper())
            .args(["queue", "put", &queue, "--keep-open"])
            .env("REDIS_URL", world.redis_url())
            .stdin(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        put.stdin.take().unwrap().write_all(b"1\n2\n3\n4\n5\n6\n7\n").await.unwrap();
        assert!(put.wait().await.unwrap().success());
        assert_eq!(length().await, 7);
        let seven = |object: &PressureQueue| {
            object.status.as_ref().is_some_and(|status| status.length == Some(7))
        };
        world.until("frames", "7 long", PATIENCE, seven).await;

        let job = of_kind("keda/queue.yaml", "ScaledJob");
        let container = &job["spec"]["jobTargetRef"]["template"]["spec"]["containers"][0];
        let arguments: Vec<String> = serde_json::from_value(container["args"].clone()).unwrap();
        let script = arguments.last().unwrap();
        for part in ["--timeout 30s", "/usr/local/bin/do-frame"] {
            assert!(script.contains(part), "{script}");
        }
        let script = script.replace("30s", "1s").replace("/usr/local/bin/do-frame", "echo frame");
        let output = Command::new(&arguments[0])
            .args(&arguments[1..arguments.len() - 1])
            .arg(script)
            .env("QUEUE", &queue)
            .env("REDIS_URL", world.redis_url())
            .output()
            .await
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {said}", output.status);
        let frames = String::from_utf8(output.stdout).unwrap();
        assert_eq!(frames, "frame 1\nframe 2\nframe 3\nframe 4\nframe 5\nframe 6\nframe 7\n");
        assert_eq!(length().await, 0);
    })
    .await;
}
