//! Semaphores of the other two protocols: the same lifecycle as with exclusive queues,
//! and the specifics of how they are held.

mod mismatch;
mod tokens;

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use kube::api::DeleteParams;
use lockkeeper_api::{Semaphore, SemaphoreStatus};
use lockkeeper_plan::connection::RabbitmqSettings;
use lockkeeper_plan::naming::{LockName, Protocol};
use lockkeeper_semaphore::{
    AcquireError, AcquireOptions, Client, ClientOptions, Lock, Permit, Start,
};
use lockkeeper_testkit::environment::variable;
use lockkeeper_testkit::world::{
    Kind as _, PATIENCE, World, eventually, has_reason, in_a_world, kubectl,
};

use crate::operator::holders::client::Client as Foreign;

/// A protocol, and its visible properties.
#[derive(Clone, Copy)]
struct Row {
    /// As written in the spec.
    spec: &'static str,
    protocol: Protocol,
}

const CONSUMER: Row =
    Row { spec: "protocol: ExclusiveConsumer", protocol: Protocol::ExclusiveConsumer };

/// The semaphore `deploy` of a world, with one protocol.
struct Deploy<'a> {
    world: &'a World,
    row: Row,
}

impl Deploy<'_> {
    async fn apply(&self, slots: u32) {
        self.world.semaphore("deploy", &format!("slots: {slots}, {}", self.row.spec)).await;
    }

    async fn resize(&self, slots: u32) {
        self.apply(slots).await;
        self.world.semaphore_ready("deploy").await;
    }

    /// Returns its queues, with these existing slots and these held ones.
    fn queues(&self, slots: u32, draining: &[u32]) -> BTreeSet<String> {
        let name = format!("{}.deploy", self.world.namespace);
        let mut queues = self.world.lock_queues("deploy", slots);
        let holders = (1..=slots).chain(draining.iter().copied());
        queues.extend(holders.map(|slot| format!("{name}-{slot}-C")));
        queues
    }

    async fn has_queues(&self, slots: u32, draining: &[u32]) {
        let wanted = self.queues(slots, draining);
        let what = format!("the queues of {slots} slots and {draining:?}");
        eventually(&what, PATIENCE, async || self.world.queues().await == wanted).await;
    }

    fn lock(&self) -> Lock {
        let management = variable("RABBITMQ_MANAGEMENT_URL");
        let settings =
            RabbitmqSettings::from_urls(&self.world.amqp_url(), Some(&management)).unwrap();
        let name = LockName::new(format!("{}.deploy", self.world.namespace)).unwrap();
        let name = name.with_protocol(self.row.protocol);
        Client::new(settings, ClientOptions::default()).semaphore(name)
    }

    async fn acquire(&self, slot: u32, identity: &str) -> Permit {
        let options = AcquireOptions::default()
            .with_identity(identity.to_owned())
            .with_reason("release 1.4")
            .with_start(Start::At(slot));
        self.lock().try_acquire(&options).await.unwrap()
    }

    /// Waits until `is` holds for the status of the newest spec.
    async fn until(&self, what: &str, is: impl Fn(&SemaphoreStatus) -> bool) -> Semaphore {
        let so = |s: &Semaphore| {
            let status = s.status.as_ref();
            let status = status.filter(|st| st.observed_generation == s.metadata.generation);
            status.is_some_and(&is)
        };
        self.world.until("deploy", what, PATIENCE, so).await
    }

    async fn until_held(&self, held: i32, draining: i32) -> Semaphore {
        let so = |s: &SemaphoreStatus| s.held == Some(held) && s.draining == Some(draining);
        self.until(&format!("{held} held and {draining} draining"), so).await
    }

    async fn delete(&self) {
        let api = self.world.api::<Semaphore>();
        api.delete("deploy", &DeleteParams::default()).await.unwrap();
    }

    async fn is_gone(&self) {
        eventually("the object is gone", PATIENCE, async || {
            self.world.api::<Semaphore>().get_opt("deploy").await.unwrap().is_none()
        })
        .await;
    }

    async fn until_cleaning_up(&self, held: u32) {
        let units = if self.row.protocol.has_slots() { "slots" } else { "tokens" };
        let are = if held == 1 { "is" } else { "are" };
        let what = format!("{held} of its {units} {are} still held");
        let so = |s: &Semaphore| {
            has_reason(s, "Ready", "CleaningUp")
                && s.condition("Ready").is_some_and(|(.., said)| said.contains(&what))
        };
        let object = self.world.until("deploy", &what, PATIENCE, so).await;
        let (.., said) = object.condition("Ready").unwrap();
        assert!(said.contains("force-finalize"), "{said}");
    }
}

#[tokio::test]
async fn slots_of_consumers_are_made_resized_held_drained_and_removed() {
    in_a_world("consumers", async |world| {
        let _operator = world.operator().await;
        let deploy = Deploy { world: &world, row: CONSUMER };
        for slots in [2, 40, 0, 3] {
            deploy.resize(slots).await;
            deploy.has_queues(slots, &[]).await;
        }
        let [first, third] = [deploy.acquire(1, "alice").await, deploy.acquire(3, "bob").await];
        let facts = |s: &SemaphoreStatus| {
            s.holders.len() == 2 && s.holders.iter().all(|h| h.connection.is_some())
        };
        let object = deploy.until("both reported", facts).await;
        let shown: Vec<_> = object
            .status
            .unwrap()
            .holders
            .into_iter()
            .map(|h| (h.slot, h.identity.unwrap(), h.reason.unwrap(), h.id, h.since.is_some()))
            .collect();
        let held = |slot, who: &str, id: &str| {
            (Some(slot), who.to_owned(), "release 1.4".to_owned(), id.to_owned(), true)
        };
        assert_eq!(shown, [held(1, "alice", first.id()), held(3, "bob", third.id())]);

        // After a shrink, the holders of removed slots are notified, and no holder is
        // interrupted.
        deploy.apply(1).await;
        tokio::time::timeout(PATIENCE, third.draining()).await.expect("notified that it drains");
        let object = deploy.until_held(1, 1).await;
        assert!(has_reason(&object, "Drained", "HoldersDraining"), "{object:#?}");
        assert!(has_reason(&object, "Ready", "InSync"), "{object:#?}");
        let (.., said) = object.condition("Drained").unwrap();
        assert!(said.contains("slot 3"), "{said}");
        deploy.has_queues(1, &[3]).await;

        // Back to three: slot 3 still belongs to its holder.
        deploy.resize(3).await;
        deploy.until_held(2, 0).await;
        let second = deploy.acquire(3, "carol").await;
        assert_eq!(second.slot(), Some(2));
        let full = deploy.lock().try_acquire(&AcquireOptions::default()).await;
        assert!(matches!(full, Err(AcquireError::Full { .. })), "{full:?}");
        assert!(third.is_valid());
        second.release().await.unwrap();

        // After the release, nothing of the draining slot is left.
        deploy.resize(1).await;
        deploy.has_queues(1, &[3]).await;
        third.release().await.unwrap();
        deploy.has_queues(1, &[]).await;
        deploy.until_held(1, 0).await;
        first.release().await.unwrap();
        deploy.delete().await;
        deploy.is_gone().await;
        assert_eq!(world.queues().await, BTreeSet::new());
    })
    .await;
}

#[tokio::test]
async fn a_holder_queue_that_was_deleted_is_made_again_with_an_event() {
    in_a_world("consumers-drift", async |world| {
        let _operator = world.operator().await;
        let deploy = Deploy { world: &world, row: CONSUMER };
        deploy.resize(3).await;
        let lost = deploy.acquire(2, "alice").await;
        deploy.until_held(1, 0).await;
        let foreign = Foreign::connect(&world).await;
        foreign.delete(&format!("{}.deploy-2-C", world.namespace)).await;
        tokio::time::timeout(Duration::from_secs(5), lost.lost())
            .await
            .expect("notified by the broker");
        deploy.has_queues(3, &[]).await;
        eventually("the event is there", PATIENCE, async || {
            let events = world.events("deploy").await;
            events.iter().any(|(reason, note, _)| {
                reason == "DriftRepaired" && note.contains("holder queues made again")
            })
        })
        .await;
        let again = deploy.acquire(2, "bob").await;
        assert_eq!(again.slot(), Some(2));
        again.release().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn an_object_whose_slots_are_held_by_consumers_goes_with_the_last_of_them() {
    in_a_world("consumers-deleted", async |world| {
        let _operator = world.operator().await;
        let deploy = Deploy { world: &world, row: CONSUMER };
        deploy.resize(3).await;
        let [first, second] = [deploy.acquire(1, "alice").await, deploy.acquire(3, "bob").await];
        deploy.delete().await;
        deploy.until_cleaning_up(2).await;
        let name = format!("{}.deploy", world.namespace);
        let left = BTreeSet::from([format!("{name}-1-C"), format!("{name}-3-C")]);
        // Except for the admin mutex, occasionally.
        eventually("no client can acquire", PATIENCE, async || world.queues().await == left).await;
        assert!(first.is_valid() && second.is_valid());
        let none = deploy.lock().try_acquire(&AcquireOptions::default()).await;
        assert!(matches!(none, Err(AcquireError::NoSlots { .. })), "{none:?}");
        second.release().await.unwrap();
        deploy.until_cleaning_up(1).await;
        first.release().await.unwrap();
        deploy.is_gone().await;
        assert_eq!(world.queues().await, BTreeSet::new());
    })
    .await;
}

#[tokio::test]
async fn held_slots_are_left_behind_by_force_and_by_a_deleted_namespace() {
    in_a_world("consumers-left", async |world| {
        let operator = world.operator().await;
        let deploy = Deploy { world: &world, row: CONSUMER };
        let left_behind = async |times: u32| {
            let line = format!(
                "lockkeeper_left_behind_total{{kind=\"Semaphore\",namespace=\"{}\"}} {times}",
                world.namespace
            );
            let text = operator.metrics().await;
            assert!(text.lines().any(|actual| actual == line), "{line} is not in\n{text}");
        };
        deploy.resize(2).await;
        let forced = deploy.acquire(1, "alice").await;
        deploy.delete().await;
        deploy.until_cleaning_up(1).await;
        let force = ["annotate", "sem/deploy", "lockkeeper.dev/force-finalize=true"];
        kubectl(&world, &force).await.unwrap();
        deploy.is_gone().await;
        left_behind(1).await;
        assert!(forced.is_valid());
        forced.release().await.unwrap();

        deploy.resize(2).await;
        let held = deploy.acquire(2, "bob").await;
        let namespaces: Api<Namespace> = Api::all(world.client.clone());
        namespaces.delete(&world.namespace, &DeleteParams::default()).await.unwrap();
        deploy.is_gone().await;
        left_behind(2).await;
        let left = BTreeSet::from([format!("{}.deploy-2-C", world.namespace)]);
        assert_eq!(world.queues().await, left);
        assert!(held.is_valid());
        assert!(operator.logged().contains("the rest of it stays on the server"));
    })
    .await;
}
