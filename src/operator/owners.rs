//! Determines which of several objects for the same lock or queue owns it (hazards K1,
//! K20, K21). On the default connection this is an object of the namespace that the name
//! starts with, otherwise the oldest object. Of objects that were created in the same
//! second, the one that already stands for the lock or queue keeps it. An object must
//! prove access to a server to own anything there, because any user can write another
//! server's address into a Secret.

use std::sync::{Arc, PoisonError};

use futures::future::join_all;
use kube::runtime::reflector::ObjectRef;
use kube::{Resource, ResourceExt};

use super::error::Owner;
use super::fetch::Connected;
use super::kind::{Kind, ReportedStatus};
use super::kind_context::KindContext;

/// Returns the other object that owns the lock or queue of `object`. If there is none,
/// `object` stands for it from now on.
///
/// Only this process remembers that until the kind writes it into the status (see
/// [`announce`](super::report::announce)), before its first effect.
pub(super) async fn claim<K: Kind>(
    kind: &KindContext<K>,
    object: &K,
    valid: &K::Valid,
    ours: &Connected<K::Server>,
) -> Option<Owner> {
    let ctx = &*kind.shared;
    let name = &object.server_name();
    loop {
        let before = going_before(kind, object);
        let owns = before.iter().map(|other| async move {
            // An object with an invalid spec owns nothing.
            let Ok(its) = other.validate(ctx.default_rules) else { return false };
            let namespace = other.namespace().unwrap_or_default();
            let theirs = K::connect(&ctx.connections, &namespace, &its).await;
            let reached = other.status().and_then(ReportedStatus::reached_backend);
            let ask =
                async |theirs: &K::Server| K::is_same_server(valid, &ours.handle, theirs).await;
            kind.proofs.proves(name, ours, theirs, reached, ask).await
        });
        if let Some(owner) = first(&before, join_all(owns).await, object) {
            kind.states.decide(object, false);
            return Some(owner);
        }
        if is_claimed(kind, object, &before) {
            return None;
        }
    }
}

/// Lets `object` stand for its lock or queue, unless an object precedes it now that was not
/// `asked` yet.
fn is_claimed<K: Kind>(kind: &KindContext<K>, object: &K, asked: &[Arc<K>]) -> bool {
    let _alone = kind.claiming.lock().unwrap_or_else(PoisonError::into_inner);
    let was_asked = |other: &Arc<K>| asked.iter().any(|known| known.uid() == other.uid());
    let is_first = going_before(kind, object).iter().all(was_asked);
    if is_first {
        kind.states.decide(object, true);
    }
    is_first
}

/// Returns the sort key among objects with the same name. The owner is the least. Of two
/// objects that do not stand for it, the first one `seen` precedes.
fn rank<K: Kind>(object: &K, stands: bool, seen: u64) -> impl Ord + use<K> {
    let is_deleted = object.meta().deletion_timestamp.is_some();
    let created = object.creation_timestamp();
    (!object.is_native(), created, !stands, is_deleted, seen, object.uid())
}

/// Returns the objects with the same name that precede `object`.
fn going_before<K: Kind>(kind: &KindContext<K>, object: &K) -> Vec<Arc<K>> {
    let name = object.server_name();
    let alike = kind.names.of::<K>(&name);
    let rank = |object: &K| {
        let status = || object.status().is_some_and(ReportedStatus::stands);
        let stands = kind.states.stands(object).unwrap_or_else(status);
        let at = ObjectRef::from_obj(object);
        let seen = alike.iter().find(|(other, _)| *other == at).map_or(u64::MAX, |(_, seen)| *seen);
        rank(object, stands, seen)
    };
    let own = rank(object);
    let mut before: Vec<_> = alike
        .iter()
        .filter_map(|(at, _)| kind.cache.get(at))
        // A recreated object may have a different name now.
        .filter(|other| other.uid() != object.uid() && other.server_name() == name)
        .map(|other| (rank(&other), other))
        .filter(|(other, _)| *other < own)
        .collect();
    before.sort_by(|(one, _), (other, _)| one.cmp(other));
    before.into_iter().map(|(_, other)| other).collect()
}

/// Returns the first of these objects that owns the lock or queue of `object`.
fn first<K: Kind>(before: &[Arc<K>], owns: Vec<bool>, object: &K) -> Option<Owner> {
    let (other, _) = before.iter().zip(owns).find(|(_, owns)| *owns)?;
    let why = if other.creation_timestamp() < object.creation_timestamp() {
        "is older"
    } else if other.is_native() != object.is_native() {
        "is in the namespace that the name starts with"
    } else {
        "came first"
    };
    let (namespace, name) = (other.namespace().unwrap_or_default(), other.name_any());
    Some(Owner { object: format!("{} {namespace}/{name}", <K as Resource>::kind(&())), why })
}

#[cfg(test)]
mod tests;
