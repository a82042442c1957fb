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
/// [`announce`](super::status_writer::announce)), before its first effect.
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
mod tests {
    // The watch cache lags behind the API server, over restarts and failed writes. No server is
    // asked: one connection is one server.

    use std::collections::{BTreeMap, BTreeSet, VecDeque};
    use std::time::Duration;

    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use k8s_openapi::jiff::Timestamp;
    use kube::Client;
    use kube::runtime::reflector::{self, store::Writer};
    use kube::runtime::watcher::Event;
    use lockkeeper_api::Semaphore;
    use lockkeeper_api::conditions::reason::CONFLICT;
    use lockkeeper_api::conditions::{ConditionUpdate, STALLED, merge};
    use lockkeeper_api::validate::DefaultRules;
    use lockkeeper_plan::MayAct;
    use lockkeeper_plan::quota::Limits;
    use proptest::prelude::*;
    use secrecy::SecretString;
    use serde_json::json;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::operator::Options;
    use crate::operator::context::{Context, Intervals};
    use crate::operator::defaults::DefaultSources;
    use crate::operator::events::Events;
    use crate::operator::metrics::Metrics;

    const BROKER: &str = "127.0.0.1:1/";

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
        let rank = |object: &Semaphore| super::rank(object, false, 0);
        assert!(rank(&native) < rank(&squatter));
        // A connection of the namespace's own does not have this precedence.
        assert!(rank(&squatter) < rank(&semaphore("team", 1, own)));
        // Nor does a name of another namespace, where any name is allowed.
        assert!(rank(&native) < rank(&semaphore("evil", 0, "lockName: team.x")));
        assert!(rank(&semaphore("team", 0, "")) < rank(&native));
    }

    /// The operator's context, with a default broker that is never connected.
    fn context() -> Arc<Context> {
        let second = Duration::from_secs(1);
        let options = Options {
            http_address: ([127, 0, 0, 1], 0).into(),
            watch_namespaces: BTreeSet::new(),
            watch_labels: None,
            defaults: DefaultSources {
                amqp_url: Some(SecretString::from(format!("amqp://u:p@{BROKER}"))),
                ..DefaultSources::default()
            },
            intervals: Intervals { observe: second, drift: second, repair_idle: second },
            default_rules: DefaultRules::default(),
            limits: Limits::default(),
            leader_election: None,
            metrics_per_object: false,
        };
        let nowhere = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
        let client = Client::try_from(nowhere).unwrap();
        let (events, _) = Events::new(client.clone());
        let (may_act, stop) = (MayAct::default(), CancellationToken::new());
        let metrics = Metrics::new(false);
        Arc::new(crate::operator::context(&options, &client, events, metrics, may_act, stop))
    }

    /// An API server with objects for one lock, and an operator that watches them.
    struct Cluster {
        ctx: Arc<Context>,
        stored: BTreeMap<&'static str, Semaphore>,
        version: u64,
        /// Events that the operator has not received yet.
        sent: VecDeque<Event<Semaphore>>,
        kind: KindContext<Semaphore>,
        cache: Writer<Semaphore>,
        is_write_failing: bool,
        /// The objects that changed the broker, since the last owner was removed.
        acted: Vec<&'static str>,
    }

    impl Cluster {
        fn new(ctx: &Arc<Context>) -> Self {
            let (kind, cache) = start(ctx);
            let mut cluster = Self {
                ctx: Arc::clone(ctx),
                stored: BTreeMap::new(),
                version: 0,
                sent: VecDeque::new(),
                kind,
                cache,
                is_write_failing: false,
                acted: Vec::new(),
            };
            cluster.restart();
            cluster
        }

        /// Stores an object. All are created in the same second.
        fn create(&mut self, name: &'static str, uid: &str) {
            let object = json!({
                "metadata": {
                    "name": name, "namespace": "ns", "uid": uid,
                    "creationTimestamp": "2026-01-01T00:00:00Z",
                },
                "spec": {"lockName": "ns.tie"},
            });
            self.stored.insert(name, serde_json::from_value(object).unwrap());
            self.change(name, |_| {});
        }

        fn change(&mut self, name: &str, change: impl FnOnce(&mut Semaphore)) {
            let Some(object) = self.stored.get_mut(name) else { return };
            self.version += 1;
            object.metadata.resource_version = Some(self.version.to_string());
            change(object);
            self.sent.push_back(Event::Apply(object.clone()));
        }

        fn receive(&mut self) {
            if let Some(event) = self.sent.pop_front() {
                self.see(&event);
            }
        }

        fn see(&mut self, event: &Event<Semaphore>) {
            self.kind.names.see(event);
            self.cache.apply_watcher_event(event);
        }

        /// Starts another operator, which lists the objects first.
        fn restart(&mut self) {
            (self.kind, self.cache) = start(&self.ctx);
            self.sent.clear();
            self.see(&Event::Init);
            for object in self.stored.values().cloned().collect::<Vec<_>>() {
                self.see(&Event::InitApply(object));
            }
            self.see(&Event::InitDone);
        }

        /// Reconciles an object as the drivers do, up to its first effect.
        async fn reconcile(&mut self, name: &'static str) {
            let at = ObjectRef::new(name).within("ns");
            let Some(object) = self.kind.cache.get(&at) else { return };
            let _state = self.kind.states.of(&*object);
            let valid = object.validate(self.ctx.default_rules).unwrap();
            let ours = Semaphore::connect(&self.ctx.connections, "ns", &valid).await.unwrap();
            let owner = claim(&self.kind, &*object, &valid, &ours).await;
            if object.metadata.deletion_timestamp.is_some() {
                self.acted.extend(owner.is_none().then_some(name));
                if let Some(gone) = self.stored.remove(name) {
                    self.sent.push_back(Event::Delete(gone));
                }
                self.kind.states.forget(object.metadata.uid.as_deref().unwrap());
                return;
            }
            if std::mem::take(&mut self.is_write_failing) {
                return;
            }
            let conflict =
                owner.as_ref().map(|_| ConditionUpdate::new(STALLED, true, CONFLICT, ""));
            let said =
                merge(&[], conflict.into_iter().collect(), None, &Time(Timestamp::UNIX_EPOCH));
            self.change(name, |object| {
                let status = object.status.get_or_insert_default();
                status.conditions = said;
                if owner.is_none() {
                    status.reached_backend = Some(ours.backend.clone());
                }
            });
            self.acted.extend(owner.is_none().then_some(name));
        }

        /// Returns the object that changed the broker, if only one did.
        fn only_actor(&self) -> Option<&'static str> {
            let first = *self.acted.first()?;
            assert!(self.acted.iter().all(|name| *name == first), "{:?}", self.acted);
            Some(first)
        }
    }

    fn start(ctx: &Arc<Context>) -> (KindContext<Semaphore>, Writer<Semaphore>) {
        let (cache, writer) = reflector::store();
        (KindContext::new(Arc::clone(ctx), cache, Limits::default()), writer)
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        CreateSecond,
        Receive,
        Reconcile(&'static str),
        Restart,
        Label(&'static str),
        FailNextWrite,
        DeleteSecond,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        use Step::{CreateSecond, DeleteSecond, FailNextWrite, Label, Receive, Reconcile, Restart};
        let objects = prop_oneof![Just("first"), Just("second")];
        let step = prop_oneof![
            2 => Just(CreateSecond),
            6 => Just(Receive),
            6 => objects.clone().prop_map(Reconcile),
            1 => Just(Restart),
            1 => objects.prop_map(Label),
            1 => Just(FailNextWrite),
            1 => Just(DeleteSecond),
        ];
        prop::collection::vec(step, 4..40)
    }

    /// Runs the steps, and checks after each that only one of the two objects acts. It is the
    /// first one, unless the operator was started when it could not know the order any more.
    async fn check(ctx: &Arc<Context>, uids: [&str; 2], steps: &[Step]) {
        let mut cluster = Cluster::new(ctx);
        cluster.create("first", uids[0]);
        let mut has_restarted = false;
        for step in steps {
            match *step {
                Step::CreateSecond if !cluster.stored.contains_key("second") => {
                    cluster.create("second", uids[1]);
                }
                Step::CreateSecond => {}
                Step::Receive => cluster.receive(),
                Step::Reconcile(name) => cluster.reconcile(name).await,
                Step::Restart => {
                    has_restarted |= cluster.acted.is_empty();
                    cluster.restart();
                }
                Step::Label(name) => cluster.change(name, |_| {}),
                Step::FailNextWrite => cluster.is_write_failing = true,
                Step::DeleteSecond => {
                    let now = Time(Timestamp::now());
                    cluster
                        .change("second", |second| second.metadata.deletion_timestamp = Some(now));
                }
            }
            let actor = cluster.only_actor();
            assert!(has_restarted || actor != Some("second"), "the second one acts");
            if actor == Some("second") && !cluster.stored.contains_key("second") {
                cluster.acted.clear();
            }
        }
    }

    #[test]
    fn of_two_objects_of_the_same_second_the_first_keeps_the_name_in_any_order_of_events() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let ctx = runtime.block_on(async { context() });
        let config = ProptestConfig { cases: 400, ..ProptestConfig::default() };
        proptest!(config, |(steps in steps(), is_reversed: bool)| {
            let uids = if is_reversed { ["1", "0"] } else { ["0", "1"] };
            runtime.block_on(check(&ctx, uids, &steps));
        });
    }

    #[tokio::test]
    async fn an_object_that_claims_the_name_first_is_asked_by_one_that_did_not_know_of_it() {
        let mut cluster = Cluster::new(&context());
        cluster.create("first", "1");
        cluster.create("second", "0");
        cluster.receive();
        cluster.receive();
        let get = |name| cluster.kind.cache.get(&ObjectRef::new(name).within("ns")).unwrap();
        let (first, second) = (get("first"), get("second"));
        let _states = [&first, &second].map(|object| cluster.kind.states.of(&**object));
        // Both are about to claim the name: the second one found out that the first one owns
        // nothing, for example because its login was refused just then.
        let asked = going_before(&cluster.kind, &*second);
        assert_eq!(asked.len(), 1);
        assert!(is_claimed(&cluster.kind, &*second, &asked));
        assert!(!is_claimed(&cluster.kind, &*first, &[]), "it has not asked the second one yet");
        assert_eq!(going_before(&cluster.kind, &*first), [second]);
    }
}
