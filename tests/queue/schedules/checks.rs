//! The invariants of a schedule: at every moment, and at its end.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use lockkeeper_plan::pressure_queue::{ObservedQueue, QueueEffect};
use lockkeeper_pressure::{Applied, Awaited, Deletion, QueueRole, TakenRoles};

use super::clients::{Client, Kind, Mode, Refusal};
use super::workers::{Got, is, set};
use super::{PATIENCE, Schedule};

/// The pseudo-code's counter keys, which its own Delete does not remove.
const PSEUDO_COUNTERS: [&str; 4] =
    [":produced_messages", ":produced_bytes", ":consumed_messages", ":consumed_bytes"];

impl Schedule {
    /// Checks the lists that may have at most one element. `:not_full` may have one more
    /// for each of two foreign clients between its push and its trim, and one for a
    /// change of the bound.
    pub(super) fn check_moment(&self, seen: &ObservedQueue) {
        let Some(bound) = seen.bound else { return };
        // Our clients leave no intermediate states.
        if !self.shared.has_foreign {
            assert_eq!(seen.not_full, u64::from(seen.has_room(bound)), "{seen:?}");
        }
        assert!(seen.producer_free <= 1 && seen.consumer_free <= 1, "{seen:?}");
        assert!(seen.not_full <= 3, "{seen:?}");
        // One for a put that was in progress when the bound rose, one for a get that
        // compared before it fell, and one for a get that never compares.
        let extra = match (self.shared.has_foreign, self.has_pseudo()) {
            (false, _) => 0,
            (true, false) => 2,
            (true, true) => 3,
        };
        let most = self.highest.map(|highest| highest + extra);
        assert!(most.is_none_or(|most| seen.length <= most), "over {most:?}: {seen:?}");
    }

    fn has_pseudo(&self) -> bool {
        self.plan.kinds().any(|kind| kind == Kind::Pseudo)
    }

    pub(super) async fn check_the_end(mut self) {
        let left: Vec<String> = self.place.run(&["LRANGE", &self.place.key(""), "0", "-1"]).await;
        self.check_elements(&left);
        if !is(&self.shared.delete_begun) {
            let seen = self.store.observe(&self.place.queue).await.unwrap();
            self.check_moment(&seen);
            if !self.shared.is_stuck() {
                self.check_rest(&seen);
            }
        }
        if self.shared.is_stuck() {
            self.check_stuck().await;
            self.free_by_force().await;
        } else if !is(&self.shared.gone) {
            set(&self.shared.delete_begun);
            let mut deleter = Client::connect(self.plan.deleter, &self.place, "deleter").await;
            deleter.delete().await.unwrap();
        }
        for worker in self.workers.drain(..) {
            worker.task.abort();
        }
        let keys = self.place.dump().await;
        assert!(keys.is_empty(), "left behind: {keys:?}");
        let pattern = format!("{}*", self.place.queue.data());
        let others: Vec<String> = self.place.run(&["KEYS", &pattern]).await;
        let is_known = |key: &String| PSEUDO_COUNTERS.iter().any(|c| key.ends_with(c));
        assert!(others.iter().all(is_known) && (others.is_empty() || self.has_pseudo()));
    }

    /// Checks that nothing is lost or doubled, and that each producer's elements are in
    /// order.
    fn check_elements(&self, left: &[String]) {
        let put: BTreeSet<String> = self.shared.put.lock().unwrap().iter().cloned().collect();
        let got = self.shared.got.lock().unwrap();
        let mut seen = BTreeSet::new();
        for element in got.iter().map(|got| &got.element).chain(left) {
            assert!(seen.insert(element.clone()), "{element} twice: {got:?}");
        }
        let offered = self.shared.offered.lock().unwrap();
        let strange: Vec<_> = seen.difference(&offered).collect();
        assert!(strange.is_empty(), "put by no producer: {strange:?}");
        if !is(&self.shared.delete_begun) {
            let lost: Vec<_> = put.difference(&seen).collect();
            assert!(lost.is_empty(), "lost: {lost:?}, left: {left:?}, got: {got:?}");
            // Some elements of a waiting batch may already be in the queue.
            let unconfirmed: Vec<_> = seen.difference(&put).collect();
            assert!(unconfirmed.is_empty() || !self.workers.is_empty(), "{unconfirmed:?}");
        }
        let mut by_producer: BTreeMap<&str, Vec<(usize, &Got, usize)>> = BTreeMap::new();
        for (place, one) in got.iter().enumerate() {
            let (producer, number) = one.element.split_once('/').unwrap();
            let number = number.parse().unwrap();
            by_producer.entry(producer).or_default().push((number, one, place));
        }
        for all in by_producer.values() {
            for (number, one, place) in all {
                for (later, other, other_place) in all.iter().filter(|(n, ..)| n > number) {
                    // By one client, or by operations that did not overlap.
                    let is_before =
                        other.ended < one.begun || (other.by == one.by && other_place < place);
                    assert!(!is_before, "{later} before {number}: {other:?} {one:?}");
                }
            }
        }
    }

    /// Checks that every client has ended properly.
    fn check_rest(&self, seen: &ObservedQueue) {
        assert_eq!((seen.producer_free, seen.consumer_free), (1, 1), "{seen:?}");
        let has_room = seen.has_room(seen.bound.unwrap());
        assert!(seen.not_full == 1 || (!has_room && seen.not_full == 0), "{seen:?}");
        assert_eq!(seen.closed, is(&self.shared.close_done), "{seen:?}");
        if !self.has_pseudo() {
            let (put, got) = (self.shared.put.lock().unwrap(), self.shared.got.lock().unwrap());
            let bytes = |texts: &mut dyn Iterator<Item = usize>| texts.sum::<usize>() as u64;
            assert_eq!(seen.produced_messages, put.len() as u64);
            assert_eq!(seen.consumed_messages, got.len() as u64);
            assert_eq!(seen.produced_bytes, bytes(&mut put.iter().map(String::len)));
            assert_eq!(seen.consumed_bytes, bytes(&mut got.iter().map(|g| g.element.len())));
        }
    }

    /// A foreign client keeps a role: checks that all other clients are informed.
    async fn check_stuck(&self) {
        let mut probe = Client::connect(Kind::Ours, &self.place, "probe").await;
        let seen = self.store.observe(&self.place.queue).await.unwrap();
        let exists = seen.bound.is_some();
        let short = Mode::Timed(Duration::from_millis(3));
        if let Some(who) = self.shared.stuck(QueueRole::Producer) {
            let (role, who) = (QueueRole::Producer, Some(who));
            let (expected, in_time, close) = if !exists {
                (Refusal::Missing, Refusal::Missing, Applied::Absent)
            } else if seen.closed {
                (Refusal::Closed, Refusal::Closed, Applied::AlreadySo)
            } else {
                let awaited = Awaited::Role { role, who: who.clone() };
                let busy = Applied::ProducerBusy { who: who.clone() };
                (Refusal::InUse(role, who), Refusal::TimedOut(Some(awaited)), busy)
            };
            let element = ["probe/0".to_owned()];
            assert_eq!(probe.put(&element, Mode::Unblocked).await, (0, Err(expected)));
            assert_eq!(probe.put(&element, short).await, (0, Err(in_time)));
            let closed = self.store.apply(&self.place.queue, &QueueEffect::Close).await;
            assert_eq!(closed.unwrap(), close);
        }
        if let Some(who) = self.shared.stuck(QueueRole::Consumer) {
            let (role, who) = (QueueRole::Consumer, Some(who));
            let awaited = Awaited::Role { role, who: who.clone() };
            let (expected, in_time) = if exists {
                (Refusal::InUse(role, who), Refusal::TimedOut(Some(awaited)))
            } else {
                (Refusal::Missing, Refusal::Missing)
            };
            assert_eq!(probe.get(1, Mode::Unblocked).await, Err(expected));
            assert_eq!(probe.get(1, short).await, Err(in_time));
        }
        set(&self.shared.delete_begun);
        let deletion = self.store.delete(&self.place.queue, TakenRoles::Wait).await.unwrap();
        let Deletion::WaitingFor { producer, consumer } = deletion else {
            panic!("{deletion:?} while a role is kept")
        };
        for (role, holder) in [(QueueRole::Producer, producer), (QueueRole::Consumer, consumer)] {
            if let Some(who) = self.shared.stuck(role) {
                assert_eq!(holder.expect("the role is kept").id, Some(who), "{role}");
            }
        }
    }

    /// Ends the foreign clients and removes the queue by force. Checks that our clients
    /// are informed.
    async fn free_by_force(&mut self) {
        for worker in &self.workers {
            if worker.kind != Kind::Ours {
                worker.task.abort();
            }
        }
        let deadline = Instant::now() + PATIENCE;
        while !self.workers.is_empty() || !self.place.dump().await.is_empty() {
            assert!(Instant::now() < deadline, "not freed: {}", self.tell().await);
            self.store.delete(&self.place.queue, TakenRoles::Ignore).await.unwrap();
            self.reap().await;
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}
