//! The model of one queue: where each element is, and how often it was tried.

use std::collections::{BTreeMap, BTreeSet};

use lockkeeper_pressure::QueueError;

pub type Element = String;

/// A delivery, as its client got it.
#[derive(Clone, Debug)]
pub struct Held {
    pub element: Element,
    /// The number of the attempt.
    pub attempt: u64,
    /// The place in the order of elements, and the number of the delivery.
    order: u64,
    delivery: u64,
}

/// An element in flight.
#[derive(Debug)]
pub struct Flying {
    element: Element,
    attempts: u64,
    deliveries: u64,
    state: State,
}

#[derive(Debug, PartialEq)]
enum State {
    /// Its lease runs.
    Running,
    /// Its lease has ended, or its client has returned it.
    Ended,
    /// Its client has given it back.
    Back,
}

#[derive(Debug, Default)]
pub struct Model {
    pub bound: u64,
    pub closed: bool,
    /// The oldest first.
    pub queue: Vec<Element>,
    /// By the order in which they were taken from the queue.
    pub flying: BTreeMap<u64, Flying>,
    pub letters: Vec<Element>,
    put: BTreeSet<Element>,
    done: BTreeSet<Element>,
    names: u64,
    taken: u64,
}

impl Model {
    pub fn new(bound: u64) -> Self {
        Self { bound, ..Self::default() }
    }

    /// Returns the name of the next element.
    pub fn name(&mut self) -> Element {
        self.names += 1;
        self.names.to_string()
    }

    /// Puts elements. Returns how many were put, if not all.
    pub fn put(&mut self, all: &[Element], overfills: bool) -> Result<(), (usize, QueueError)> {
        if self.closed {
            return Err((0, QueueError::Closed));
        }
        let room = usize::try_from(self.bound).unwrap().saturating_sub(self.queue.len());
        let fit = if self.bound == 0 || overfills { all.len() } else { room.min(all.len()) };
        self.queue.extend_from_slice(&all[..fit]);
        self.put.extend(all[..fit].iter().cloned());
        if fit == all.len() { Ok(()) } else { Err((fit, QueueError::Full)) }
    }

    fn nothing(&self) -> QueueError {
        let is_over = self.closed && self.flying.is_empty();
        if is_over { QueueError::Closed } else { QueueError::Empty }
    }

    /// Takes the next elements: first those that come again.
    pub fn get(&mut self, most: usize) -> Result<Vec<Element>, QueueError> {
        let is_free = |flying: &Flying| flying.state != State::Running;
        let again = self.flying.iter().filter(|(_, flying)| is_free(flying));
        let again: Vec<u64> = again.map(|(order, _)| *order).take(most).collect();
        let mut got: Vec<Element> =
            again.iter().filter_map(|order| self.flying.remove(order)).map(|f| f.element).collect();
        let fresh = (most - got.len()).min(self.queue.len());
        got.extend(self.queue.drain(..fresh));
        if got.is_empty() { Err(self.nothing()) } else { Ok(got) }
    }

    /// Only this number of these elements was written.
    pub fn wrote(&mut self, got: &[Element], written: usize) {
        self.done.extend(got[..written].iter().cloned());
        self.queue.splice(0..0, got[written..].iter().cloned());
    }

    /// Takes the next elements with a lease.
    pub fn lease(&mut self, most: usize) -> Result<Vec<Held>, QueueError> {
        let mut got = Vec::new();
        let again = self.flying.iter_mut().filter(|(_, flying)| flying.state != State::Running);
        for (order, flying) in again.take(most) {
            flying.deliveries += 1;
            flying.attempts += 1;
            flying.state = State::Running;
            got.push(held(*order, flying));
        }
        while got.len() < most && !self.queue.is_empty() {
            let element = self.queue.remove(0);
            self.taken += 1;
            let flying = Flying { element, attempts: 1, deliveries: 1, state: State::Running };
            got.push(held(self.taken, &flying));
            self.flying.insert(self.taken, flying);
        }
        if got.is_empty() { Err(self.nothing()) } else { Ok(got) }
    }

    fn flying(&self, held: &Held) -> Option<&Flying> {
        self.flying.get(&held.order).filter(|flying| flying.deliveries == held.delivery)
    }

    /// Whether the client may still settle the delivery: no other client got it since.
    pub fn is_held(&self, held: &Held) -> bool {
        self.flying(held).is_some_and(|flying| flying.state != State::Back)
    }

    /// Whether the lease runs.
    pub fn is_running(&self, held: &Held) -> bool {
        self.flying(held).is_some_and(|flying| flying.state == State::Running)
    }

    /// Number of elements that come again with the next get.
    pub fn ended(&self) -> usize {
        self.flying.values().filter(|flying| flying.state != State::Running).count()
    }

    fn set(&mut self, held: &Held, state: State, attempts: u64) {
        if self.is_held(held)
            && let Some(flying) = self.flying.get_mut(&held.order)
        {
            (flying.state, flying.attempts) = (state, attempts);
        }
    }

    pub fn fail(&mut self, held: &Held) {
        self.set(held, State::Ended, held.attempt);
    }

    pub fn give_back(&mut self, held: &Held) {
        self.set(held, State::Back, held.attempt - 1);
    }

    pub fn done(&mut self, held: &Held) {
        if self.is_held(held) {
            self.flying.remove(&held.order);
            self.done.insert(held.element.clone());
        }
    }

    /// Removes an element that is a dead letter.
    pub fn bury(&mut self, held: &Held) {
        if self.is_held(held) {
            self.flying.remove(&held.order);
        }
    }

    /// Checks that each element that was put is in one place. Only one whose lease had ended
    /// may be a dead letter too.
    pub fn account(&self) {
        let flying = self.flying.values().map(|flying| &flying.element);
        let places = self.queue.iter().chain(flying).chain(&self.done);
        let mut all = BTreeSet::new();
        for element in places {
            assert!(all.insert(element.clone()), "{element} twice: {self:?}");
        }
        all.extend(self.letters.iter().cloned());
        assert_eq!(all, self.put, "{self:?}");
    }
}

fn held(order: u64, flying: &Flying) -> Held {
    let Flying { element, attempts, deliveries, .. } = flying;
    Held { element: element.clone(), attempt: *attempts, order, delivery: *deliveries }
}
