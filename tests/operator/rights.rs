//! Permissions in a test's own namespace, granted by its administrator.

use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};

use crate::operator::world::World;

const GROUP: &str = "rbac.authorization.k8s.io";

/// Returns a user as a subject.
pub fn user(name: &str) -> Value {
    json!({"apiGroup": GROUP, "kind": "User", "name": name})
}

/// Grants the subjects permissions by these rules.
pub async fn give(world: &World, name: &str, rules: Value, subjects: Vec<Value>) {
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
}
