//! What all objects of a kind share, besides the context of all kinds.

use std::sync::{Arc, Mutex};

use kube::runtime::reflector::Store as Cache;
use lockkeeper_plan::quota::Limits;

use super::context::Context;
use super::kind::Kind;
use super::names::NameIndex;
use super::quota::QuotaTracker;
use super::same_server::Proofs;
use super::state::StateStore;

/// What all objects of a kind share.
pub struct KindContext<K: Kind> {
    /// What all kinds share.
    pub shared: Arc<Context>,
    /// The watched objects.
    pub cache: Cache<K>,
    /// Their names on the servers.
    pub names: NameIndex,
    /// Their demands on the quotas of their namespaces.
    pub quota: QuotaTracker<K>,
    /// Their states.
    pub states: StateStore<K::Status, K::State>,
    /// Connections that lead to the same server.
    pub proofs: Proofs,
    /// Locked while an object claims its name, so that two never do so at the same time.
    pub claiming: Mutex<()>,
}

impl<K: Kind> KindContext<K> {
    /// Creates the context of a kind whose objects are in `cache`.
    pub fn new(shared: Arc<Context>, cache: Cache<K>, limits: Limits) -> Self {
        Self {
            shared,
            cache,
            names: NameIndex::default(),
            quota: QuotaTracker::new(limits),
            states: StateStore::default(),
            proofs: Proofs::default(),
            claiming: Mutex::default(),
        }
    }
}
