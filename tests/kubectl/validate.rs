//! `lockkeeper validate`: gives the same verdict as the API server, without one.

use kube::api::{DynamicObject, PostParams};
use kube::core::{ApiResource, GroupVersionKind, Request};
use kube::{Api, ResourceExt};
use lockkeeper_api::all_crds;
use lockkeeper_testkit::world::{World, in_a_world};
use serde_json::{Value, json};

use crate::kubectl::{Ended, Folder, ended, program};

/// Specs, and the text that the rejection must contain. Empty for accepted specs.
const SEMAPHORES: &[(&str, &str)] = &[
    ("{}", ""),
    ("{slots: 0}", ""),
    ("{slots: 10001}", "less than or equal to 10000"),
    ("{slots: -1}", "greater than or equal to 0"),
    ("{slots: 1.5}", "must be of type integer"),
    ("{slots: '1'}", "must be of type integer"),
    ("{slots: null}", ""),
    ("{lockName: null}", ""),
    ("{token: null, slots: 2}", ""),
    ("{slotz: 2}", "unknown field"),
    ("{resize: {overshot: 2}}", "unknown field"),
    ("{resize: {}}", ""),
    ("{resize: {order: Random}}", "\"Descending\", \"Ascending\""),
    ("{resize: {order: Ascending, overshoot: 0}}", "needs resize.overshoot of at least 1"),
    ("{profile: AmqpLocksPython, fencing: true}", "fencing is not possible with profile"),
    ("{profile: AmqpLocksPython, lockDelay: 1ms}", "lockDelay is not possible with profile"),
    ("{profile: AmqpLocksPython, lockDelay: 0s}", ""),
    ("{lockDelay: \"15\"}", "lockDelay must be a duration such as 15s"),
    ("{lockDelay: \"\"}", "at least 2 chars long"),
    ("{lockDelay: 61m}", "lockDelay must be at most 1h"),
    ("{lockDelay: 59m59s999ms}", ""),
    ("{protocol: Paper}", "\"ExclusiveQueue\", \"ExclusiveConsumer\", \"Token\""),
    ("{protocol: Token, profile: AmqpLocksPython}", "profile AmqpLocksPython is only for"),
    ("{token: {}}", "token is only for protocol Token"),
    ("{protocol: Token, token: {}}", ""),
    ("{protocol: Token, fencing: true}", "needs token.queueType: Quorum"),
    ("{protocol: Token, lockDelay: 1s}", "lockDelay is not possible with protocol Token"),
    ("{protocol: Token, token: {queueType: Quorum}, fencing: true}", ""),
    ("{lockName: amq.x}", "must not start with amq."),
    ("{lockName: ci.x-3-A}", "must not end in"),
    ("{lockName: ci.semaphore}", "must not end in"),
    ("{lockName: \"\"}", "at least 1 chars long"),
    ("{lockName: \"a\\tb\"}", "should match"),
    ("{rabbitmqClusterReference: {connectionSecret: {name: rabbit}}}", ""),
    ("{rabbitmqClusterReference: {connectionSecret: {}}}", "Required value"),
    ("{rabbitmqClusterReference: [], slots: 1}", "must be of type object"),
];

const QUEUES: &[(&str, &str)] = &[
    ("{}", ""),
    ("{bound: -1}", "greater than or equal to 0"),
    ("{bound: 2147483648}", "less than or equal to 2147483647"),
    ("{redisReference: {database: -1}}", "greater than or equal to 0"),
    ("{redisReference: {}}", ""),
    ("{state: Shut}", "\"Open\", \"Closed\""),
    ("{bounds: 2}", "unknown field"),
    ("{queueName: 'a:x:bound'}", "must not end in a key suffix"),
    ("{queueName: 'x:bound'}", "must not end in a key suffix"),
    ("{queueName: 'a:bounds'}", ""),
];

/// Returns the API server's message if it rejects this object.
async fn refusal(world: &World, object: &Value) -> Option<String> {
    let text = |field: &str| object[field].as_str().unwrap_or_default().to_owned();
    let kind = GroupVersionKind::gvk("lockkeeper.dev", "v1alpha1", &text("kind"));
    let api: Api<DynamicObject> =
        Api::namespaced_with(world.client.clone(), &world.namespace, &ApiResource::from_gvk(&kind));
    let params = PostParams { dry_run: true, ..PostParams::default() };
    let body = serde_json::to_vec(object).unwrap();
    let mut request = Request::new(api.resource_url()).create(&params, body).unwrap();
    // PostParams does not support it: requested in the same way as kubectl does.
    let strict = format!("{}&fieldValidation=Strict", request.uri());
    *request.uri_mut() = strict.parse().unwrap();
    match world.client.request::<DynamicObject>(request).await {
        Ok(created) => {
            assert!(!created.name_any().is_empty());
            None
        }
        Err(kube::Error::Api(answer)) => {
            assert!(matches!(answer.code, 400 | 422), "{answer:?}");
            Some(answer.message.clone())
        }
        Err(error) => panic!("{error}"),
    }
}

/// Returns objects of this kind with these specs.
fn objects(kind: &str, specs: &[(&str, &str)]) -> Vec<(Value, String)> {
    let object = |spec: &str| {
        let spec: Value = serde_yaml::from_str(spec).unwrap();
        json!({
            "apiVersion": "lockkeeper.dev/v1alpha1", "kind": kind,
            "metadata": {"name": "a"}, "spec": spec
        })
    };
    specs.iter().map(|(spec, said)| (object(spec), (*said).to_owned())).collect()
}

/// Returns variants for each field of each kind: the name of a similar field, values
/// around its limits, values of other types, and overlong values.
fn around_every_field() -> Vec<Value> {
    fn walk(schema: &Value, path: &[String], found: &mut Vec<(Vec<String>, Value)>) {
        for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
            let path = [path, std::slice::from_ref(name)].concat();
            let mut values = vec![json!("text"), json!(3), json!(true), json!({}), json!([])];
            for limit in ["minimum", "maximum"] {
                if let Some(limit) = schema[limit].as_f64() {
                    #[allow(clippy::cast_possible_truncation, reason = "limits are whole")]
                    let limit = limit as i64;
                    values.extend([json!(limit - 1), json!(limit), json!(limit + 1)]);
                }
            }
            if let Some(length) = schema["maxLength"].as_u64() {
                let length = usize::try_from(length).unwrap();
                values.extend([json!("x".repeat(length)), json!("é".repeat(length + 1))]);
            }
            values.extend(schema["enum"].as_array().into_iter().flatten().cloned());
            found.extend(values.into_iter().map(|value| (path.clone(), value)));
            let typo = [&path[..path.len() - 1], &[format!("{name}s")]].concat();
            found.push((typo, json!(1)));
            walk(schema, &path, found);
        }
    }
    let mut objects = Vec::new();
    for crd in all_crds() {
        let crd = serde_json::to_value(crd).unwrap();
        let spec = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
        let mut found = Vec::new();
        walk(spec, &[], &mut found);
        for (path, value) in found {
            let spec = path.iter().rev().fold(value, |inner, name| json!({name: inner}));
            objects.push(json!({
                "apiVersion": "lockkeeper.dev/v1alpha1", "kind": crd["spec"]["names"]["kind"],
                "metadata": {"name": "a"}, "spec": spec
            }));
        }
    }
    objects
}

pub(super) async fn validate(arguments: &[&str]) -> Ended {
    let mut command = program(&[&["validate"], arguments].concat());
    // Kubernetes is not used.
    ended(command.env("KUBECONFIG", "/nowhere")).await
}

/// Returns the problems of each object, offline, by its document's number.
async fn offline(objects: &[Value]) -> Vec<Vec<String>> {
    let folder = Folder::new();
    let documents: Vec<String> = objects.iter().map(ToString::to_string).collect();
    let text = format!("---\n{}\n", documents.join("\n---\n"));
    let file = folder.write("all.yaml", &text);
    let answer = validate(&["-f", &file, "-o", "json"]).await;
    let answer: Value = serde_json::from_str(&answer.out).unwrap();
    assert_eq!(answer["objects"], objects.len());
    let mut found = vec![Vec::new(); objects.len()];
    for problem in answer["problems"].as_array().unwrap() {
        assert_eq!(problem["warning"], false, "{problem}");
        // The first document is empty: it is the text before the first marker.
        let document = problem["document"].as_u64().unwrap();
        found[usize::try_from(document).unwrap() - 1]
            .push(problem["message"].as_str().unwrap().to_owned());
    }
    found
}

#[tokio::test]
async fn validate_and_the_api_server_agree_about_each_manifest() {
    in_a_world("validate", async |world| {
        let tables = [objects("Semaphore", SEMAPHORES), objects("PressureQueue", QUEUES)].concat();
        let names = ["-a", "a.b", "A", "a_b", "a..b"].map(|name| {
            let metadata = json!({"name": name});
            json!({"apiVersion": "lockkeeper.dev/v1alpha1", "kind": "Semaphore", "metadata": metadata, "spec": {}})
        });
        let more = [
            json!({"apiVersion": "lockkeeper.dev/v1alpha1", "kind": "Semaphore", "metadata": {"name": "a", "labelz": {}}, "spec": {}}),
            json!({"apiVersion": "lockkeeper.dev/v1alpha1", "kind": "Semaphore", "metadata": {"name": "a"}, "spec": {}, "specs": {}}),
            json!({"apiVersion": "lockkeeper.dev/v1alpha1", "kind": "Semaphore", "metadata": {"name": "a", "labels": {"a": 1}}, "spec": {}}),
        ];
        let generated = around_every_field();
        assert!(generated.len() > 150, "{}", generated.len());
        let all: Vec<Value> = tables
            .iter()
            .map(|(object, _)| object.clone())
            .chain(names)
            .chain(more)
            .chain(generated)
            .collect();
        let found = offline(&all).await;
        let (mut refused, mut wrong) = (0, Vec::new());
        for (number, object) in all.iter().enumerate() {
            let server = refusal(&world, object).await;
            refused += usize::from(server.is_some());
            if server.is_some() == found[number].is_empty() {
                wrong.push(format!("{object}: server {server:?}, offline {:?}", found[number]));
            }
            if let Some((_, said)) = tables.get(number) {
                assert_eq!(server.is_none(), said.is_empty(), "{object}: {server:?}");
                // Both give the same reason in the same words.
                let server = server.unwrap_or_default();
                assert!(server.contains(said.as_str()), "{object}: {said:?} {server}");
                let offline = found[number].join("\n");
                assert!(offline.contains(said.as_str()), "{object}: {said:?} {offline}");
            }
        }
        assert!(wrong.is_empty(), "{} of {}: {}", wrong.len(), all.len(), wrong.join("\n"));
        assert!(refused > 100 && all.len() - refused > 30, "{refused} of {}", all.len());
    })
    .await;
}

const GOOD: &str =
    "apiVersion: lockkeeper.dev/v1alpha1\nkind: Semaphore\nmetadata: {name: deploy}\n";

#[tokio::test]
async fn errors_are_reported_with_file_line_and_suggestion() {
    let folder = Folder::new();
    let file = folder.write(
        "a.yaml",
        &format!("{GOOD}spec:\n  slotz: 3\n---\n{GOOD}spec:\n  fencing: true\n  protocol: Token\n---\nkind: ConfigMap\nmetadata: {{name: x}}\n"),
    );
    let answer = validate(&["-f", &file]).await;
    assert_eq!(answer.code, Some(1));
    let lines: Vec<&str> = answer.out.lines().collect();
    assert_eq!(
        lines[0],
        format!(
            "{file}:5: Semaphore deploy: spec.slotz: unknown field \"spec.slotz\", did you mean \"slots\"?"
        )
    );
    let rule = format!(
        "{file}:11: Semaphore deploy: spec.fencing: Invalid value: fencing with protocol Token needs token.queueType: Quorum"
    );
    assert!(lines[1].starts_with(&rule), "{}", answer.out);
    assert_eq!(lines.len(), 2, "{}", answer.out);
    assert!(answer.said.contains(":14: ConfigMap x is not looked at"), "{}", answer.said);
    assert!(answer.said.contains("0 of 2 objects are valid, 1 of other kinds"), "{}", answer.said);

    // A directory, a List, stdin, and as called by pre-commit.
    let folder = Folder::new();
    let list = format!(
        "kind: List\napiVersion: v1\nitems:\n- {}\n  spec: {{}}\n",
        GOOD.trim_end().replace('\n', "\n  ")
    );
    let good = folder.write("good.yml", &list);
    folder.write("readme.txt", "no manifest");
    for arguments in [&["-f", folder.0.to_str().unwrap()][..], &[good.as_str(), good.as_str()]] {
        let answer = validate(arguments).await;
        assert_eq!((answer.code, answer.out.as_str()), (Some(0), ""), "{}", answer.said);
        assert!(answer.said.contains("objects are valid"), "{}", answer.said);
    }
    let bad = folder.write("bad.yaml", &list.replace("{}", "\n    slots: -1\n"));
    let answer = validate(&["-f", folder.0.to_str().unwrap()]).await;
    assert_eq!(answer.code, Some(1));
    assert!(
        answer.out.starts_with(&format!("{bad}:8: Semaphore deploy: spec.slots: ")),
        "{}",
        answer.out
    );

    for (text, said) in [
        ("a: [1", "not YAML"),
        ("a: 1\na: 2\n", "duplicate"),
        (
            "apiVersion: lockkeeper.dev/v1\nkind: Semaphore\nmetadata: {name: a}\n",
            "the kind Semaphore is in lockkeeper.dev/v1alpha1",
        ),
        (
            "apiVersion: lockkeeper.dev/v1alpha1\nkind: Semaphor\nmetadata: {name: a}\n",
            "did you mean \"Semaphore\"?",
        ),
        (
            "apiVersion: lockkeeper.dev/v1alpha1\nkind: Semaphore\n",
            "name or generateName is required",
        ),
    ] {
        let bad = folder.write("bad.yaml", text);
        let answer = validate(&["-f", &bad]).await;
        assert_eq!(answer.code, Some(1), "{text}: {}", answer.said);
        assert!(answer.out.contains(said), "{text}: {}", answer.out);
    }
    // Specs that only the operator rejects cause a warning.
    let long = folder.write("bad.yaml", &(GOOD.replace("deploy", "x.semaphore") + "spec: {}\n"));
    let answer = validate(&["-f", &long]).await;
    assert_eq!(answer.code, Some(0), "{}", answer.out);
    assert!(answer.out.contains("warning: the operator will refuse it"), "{}", answer.out);

    assert_eq!(validate(&["-f", "/nowhere/x.yaml"]).await.code, Some(64));
    assert_eq!(validate(&[]).await.code, Some(64));
}

#[tokio::test]
async fn every_example_is_valid() {
    let examples = format!("{}/examples", env!("CARGO_MANIFEST_DIR"));
    let answer = validate(&["-R", "-f", &examples]).await;
    assert_eq!((answer.code, answer.out.as_str()), (Some(0), ""), "{}", answer.said);
}
