//! Permissions in a test's own namespace, granted by its administrator.

use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::Api;
use kube::api::PostParams;
use lockkeeper_testkit::environment::variable;
use lockkeeper_testkit::world::{PATIENCE, World, eventually};
use serde_json::{Value, json};

const GROUP: &str = "rbac.authorization.k8s.io";

/// Returns a user as a subject.
pub fn user(name: &str) -> Value {
    json!({"apiGroup": GROUP, "kind": "User", "name": name})
}

/// Grants the subjects permissions by these rules. Waits until the API server knows all of them:
/// it learns of a Role by a watch, as everyone does.
pub async fn give(world: &World, name: &str, rules: Value, subjects: Vec<Value>) {
    let users: Vec<String> = subjects.iter().map(user_of).collect();
    let attributes = attributes(&rules, &world.namespace);
    let granted = json!({"metadata": {"name": name}, "rules": rules});
    let binding = json!({
        "metadata": {"name": name},
        "roleRef": {"apiGroup": GROUP, "kind": "Role", "name": name},
        "subjects": subjects,
    });
    let granted: Role = serde_json::from_value(granted).unwrap();
    let binding: RoleBinding = serde_json::from_value(binding).unwrap();
    let (client, namespace) = (|| world.client.clone(), &world.namespace);
    let params = PostParams::default();
    Api::namespaced(client(), namespace).create(&params, &granted).await.unwrap();
    Api::namespaced(client(), namespace).create(&params, &binding).await.unwrap();
    let reviews: Api<SubjectAccessReview> = Api::all(client());
    for user in &users {
        for attributes in &attributes {
            let spec = json!({"spec": {"user": user, "resourceAttributes": attributes}});
            let review: SubjectAccessReview = serde_json::from_value(spec).unwrap();
            eventually(&format!("{user} has {attributes}"), PATIENCE, async || {
                let answer = reviews.create(&params, &review).await.unwrap();
                answer.status.is_some_and(|status| status.allowed)
            })
            .await;
        }
    }
}

/// Writes a kubeconfig for this user, and returns its path. Programs that have no argument
/// for impersonation need one.
pub fn kubeconfig_of(world: &World, user: &str) -> String {
    let kubeconfig = std::fs::read_to_string(variable("KUBECONFIG")).unwrap();
    let mut kubeconfig: Value = serde_yaml::from_str(&kubeconfig).unwrap();
    kubeconfig["users"][0]["user"]["as"] = json!(user);
    let file = format!("{}/{}-{user}.kubeconfig", env!("CARGO_TARGET_TMPDIR"), world.namespace);
    std::fs::write(&file, kubeconfig.to_string()).unwrap();
    file
}

/// Returns the user name of a subject.
fn user_of(subject: &Value) -> String {
    let name = subject["name"].as_str().unwrap();
    match subject["namespace"].as_str() {
        Some(namespace) => format!("system:serviceaccount:{namespace}:{name}"),
        None => name.to_owned(),
    }
}

/// Returns each single permission of these rules, as attributes of a `SubjectAccessReview`.
fn attributes(rules: &Value, namespace: &str) -> Vec<Value> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut all = Vec::new();
    for rule in list(rules) {
        let names = list(&rule["resourceNames"]);
        let names = if names.is_empty() { vec![Value::Null] } else { names };
        // Each rule of the tests is about one API group.
        let group = &rule["apiGroups"][0];
        for resource in list(&rule["resources"]) {
            let (resource, subresource) = match resource.as_str().unwrap().split_once('/') {
                Some((resource, subresource)) => (json!(resource), json!(subresource)),
                None => (resource, Value::Null),
            };
            for verb in list(&rule["verbs"]) {
                all.extend(names.iter().map(|name| {
                    json!({
                        "namespace": namespace, "group": group, "resource": resource,
                        "subresource": subresource, "verb": verb, "name": name,
                    })
                }));
            }
        }
    }
    all
}
