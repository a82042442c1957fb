//! `PressureQueue`s in manifests: the change of a queue on its Redis server.

use futures::FutureExt;
use lockkeeper_api::PressureQueue;
use lockkeeper_api::validate::{self, DefaultRules, SpecError, ValidQueue};
use lockkeeper_plan::pressure_queue::{Applied, PreviousStatus, QueuePlan, Remark, plan};
use lockkeeper_pressure::{Store, StoreError, StoreOptions};

use super::{Kind, Step};
use crate::cli::common::say;
use crate::cli::failure::Failure;
use crate::cli::plan::{Action, Resolver};

impl Kind for PressureQueue {
    const SHORT: &'static str = "pq";

    type Valid = ValidQueue;

    fn validate(&self) -> Result<ValidQueue, SpecError> {
        validate::pressure_queue(self, DefaultRules::ANYTHING)
    }

    async fn plan(&self, valid: ValidQueue, resolver: &Resolver) -> Result<Step, Failure> {
        let namespace = self.metadata.namespace.as_deref().unwrap_or_default();
        let settings = resolver.redis(namespace, valid.secret.as_deref(), valid.database)?;
        // Named as in the keys, because the prefix also distinguishes queues.
        let mut shown = self.shown(settings.address(), valid.queue.data());
        if valid.suspend {
            return Ok(Step { shown, work: None });
        }
        let store = Store::new(settings, StoreOptions::new("lockkeeper-apply"));
        let seen = store.observe(&valid.queue).await.map_err(|error| failed(&error))?;
        let planned = plan(&valid.desired, &seen, &PreviousStatus::default());
        shown.changes = planned.differences(&seen);
        shown.notes = planned.remarks.iter().map(ToString::to_string).collect();
        shown.action = if planned.is_blocked() {
            Action::Blocked
        } else {
            Action::of(seen.bound.is_some(), &shown.changes)
        };
        let called = shown.called();
        let changes = shown.action.changes();
        let work = changes.then(|| converge(store, valid, planned, called).boxed());
        Ok(Step { shown, work })
    }
}

async fn converge(
    store: Store,
    valid: ValidQueue,
    mut planned: QueuePlan,
    called: String,
) -> Result<(), Failure> {
    let later = |message: String| Err(Failure::new(Failure::NOT_ACQUIRED, message));
    for effect in std::mem::take(&mut planned.effects) {
        let applied = store.apply(&valid.queue, &effect).await.map_err(|error| failed(&error))?;
        planned.record(&effect, &applied);
        match applied {
            Applied::Done | Applied::AlreadySo => {}
            Applied::Absent => {
                return later("it was deleted in the meantime: apply again".to_owned());
            }
            Applied::Residue { .. } | Applied::ProducerBusy { .. } => break,
        }
    }
    for remark in &planned.remarks {
        match remark {
            Remark::WaitingForProducer { who } => {
                let who = who.as_deref().unwrap_or("another client");
                return later(format!(
                    "{who} is producer, and it can't be closed before they are done: apply again"
                ));
            }
            remark if remark.blocks() => return later(remark.to_string()),
            _ => {}
        }
    }
    say(format!("{called} is as its manifest says"));
    Ok(())
}

fn failed(error: &StoreError) -> Failure {
    Failure::new(Failure::UNAVAILABLE, error.to_string())
}
