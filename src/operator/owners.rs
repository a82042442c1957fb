//! Determines which of several objects for the same lock or queue owns it (hazards K1,
//! K20, K21). On the default connection this is an object of the namespace that the name
//! starts with, otherwise the oldest object. An object must prove access to a server to
//! own anything there, because any user can write another server's address into a Secret.

use std::sync::Arc;

use futures::future::join_all;
use kube::runtime::reflector::Store as Cache;
use kube::{Resource, ResourceExt};

use super::error::Owner;
use super::fetch::Connected;
use super::kind::{Kind, ReportedStatus, age};
use super::kind_context::KindContext;
use super::names::Names;

/// Returns the other object that owns the lock or queue of `object`, if any.
pub(super) async fn of<K: Kind>(
    kind: &KindContext<K>,
    object: &K,
    valid: &K::Valid,
    ours: &Connected<K::Server>,
) -> Option<Owner> {
    let ctx = &*kind.shared;
    let name = object.server_name();
    let before = going_before(&kind.cache, &kind.names, object, &name);
    let name = name.as_str();
    let owns = before.iter().map(|other| async move {
        // An object with an invalid spec owns nothing.
        let Ok(its) = other.validate(ctx.default_rules) else { return false };
        let namespace = other.namespace().unwrap_or_default();
        let theirs = K::connect(&ctx.connections, &namespace, &its).await;
        let reached = other.status().and_then(ReportedStatus::reached_backend);
        let ask = async |theirs: &K::Server| K::is_same_server(valid, &ours.handle, theirs).await;
        kind.proofs.proves(name, ours, theirs, reached, ask).await
    });
    first(&before, join_all(owns).await, object)
}

/// Returns the sort key among objects with the same name. The owner is the least.
fn rank<K: Kind>(object: &K) -> impl Ord + use<K> {
    (!object.is_native(), age(object))
}

/// Returns the objects with the same name that precede `object`. The order is the same
/// for all observers.
fn going_before<K: Kind>(cache: &Cache<K>, names: &Names, object: &K, name: &str) -> Vec<Arc<K>> {
    let alike = names.of::<K>(name).into_iter().filter_map(|at| cache.get(&at));
    let mut before: Vec<_> = alike
        .filter(|other| other.uid() != object.uid() && rank(&**other) < rank(object))
        // A recreated object may have a different name now.
        .filter(|other| other.server_name() == name)
        .collect();
    before.sort_by_key(|other| rank(&**other));
    before
}

/// Returns the first of these objects that owns the lock or queue of `object`.
fn first<K: Kind>(before: &[Arc<K>], owns: Vec<bool>, object: &K) -> Option<Owner> {
    let (other, _) = before.iter().zip(owns).find(|(_, owns)| *owns)?;
    let why = if age(&**other) < age(object) {
        "is older"
    } else {
        "is in the namespace that the name starts with"
    };
    let (namespace, name) = (other.namespace().unwrap_or_default(), other.name_any());
    Some(Owner { object: format!("{} {namespace}/{name}", <K as Resource>::kind(&())), why })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Semaphore;

    fn semaphore(namespace: &str, second: u32, spec: &str) -> Semaphore {
        let text = format!(
            "{{metadata: {{name: x, namespace: {namespace}, creationTimestamp: '2026-01-01T00:00:0{second}Z'}}, spec: {{{spec}}}}}"
        );
        serde_yaml::from_str(&text).unwrap()
    }

    #[test]
    fn the_names_own_namespace_goes_before_older_foreign_objects() {
        let own = "rabbitmqClusterReference: {connectionSecret: {name: s}}";
        let squatter = semaphore("evil", 0, &format!("lockName: team.x, {own}"));
        let native = semaphore("team", 1, "");
        assert!(rank(&native) < rank(&squatter));
        // A connection of the namespace's own does not have this precedence.
        assert!(rank(&squatter) < rank(&semaphore("team", 1, own)));
        // Nor does a name of another namespace, where any name is allowed.
        assert!(rank(&native) < rank(&semaphore("evil", 0, "lockName: team.x")));
        assert!(rank(&semaphore("team", 0, "")) < rank(&native));
    }
}
