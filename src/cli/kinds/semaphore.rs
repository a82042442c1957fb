//! Semaphores in manifests: the change of a lock on its broker.

use futures::FutureExt;
use lockkeeper_api::Semaphore;
use lockkeeper_api::validate::{self, DefaultRules, SpecError, ValidSemaphore};
use lockkeeper_plan::semaphore::Observed;
use lockkeeper_semaphore::{Broker, BrokerError, BrokerOptions, ManagedLock, Source};
use tokio_util::sync::CancellationToken;

use super::{Kind, Step};
use crate::cli::common::say;
use crate::cli::failure::Failure;
use crate::cli::plan::{Action, Resolver};
use crate::cli::semaphore::target::failed;

impl Kind for Semaphore {
    const SHORT: &'static str = "sem";

    type Valid = ValidSemaphore;

    fn validate(&self) -> Result<ValidSemaphore, SpecError> {
        validate::semaphore(self, DefaultRules::ANYTHING)
    }

    async fn plan(&self, valid: ValidSemaphore, resolver: &Resolver) -> Result<Step, Failure> {
        let namespace = self.metadata.namespace.as_deref().unwrap_or_default();
        // Only Kubernetes knows where a RabbitmqCluster is. Here the environment provides it.
        let secret = valid.broker.as_ref().filter(|broker| !broker.is_cluster);
        let of = secret.and_then(|secret| secret.namespace.as_deref()).unwrap_or(namespace);
        let secret = secret.map(|secret| secret.name.as_str());
        let settings = resolver.rabbitmq(of, secret, valid.vhost.as_deref())?;
        let mut shown = self.shown(settings.place(), valid.lock.to_string());
        if valid.suspend {
            return Ok(Step { shown, work: None });
        }
        if self.spec.drain.is_some() {
            shown.notes.push("drain.revokeAfter is ignored: only the operator revokes".to_owned());
        }
        let broker = Broker::new(settings, BrokerOptions::default());
        let managed = ManagedLock::new(&broker, &valid.lock, valid.desired);
        let mark = managed.mark(None).await.map_err(|error| failed(&error))?;
        let seen = managed.observe(mark, Source::Probes).await.map_err(|error| failed(&error))?;
        match broker.check_protocol(&valid.lock, &seen).await {
            Ok(()) => {}
            Err(error @ BrokerError::ProtocolMismatch { .. }) => {
                shown.action = Action::Blocked;
                shown.notes.push(error.to_string());
                return Ok(Step { shown, work: None });
            }
            Err(error) => return Err(failed(&error)),
        }
        let auxiliary = managed.observe_auxiliary(&seen, Source::Probes).await;
        let planned = managed.plan(&seen, auxiliary.map_err(|error| failed(&error))?, None);
        shown.draining = planned.draining(valid.desired, &seen);
        shown.changes = planned.differences(&valid.lock, valid.desired, &seen);
        shown.action = Action::of(planned.auxiliary.exists, &shown.changes);
        let called = shown.called();
        let work = shown.action.changes().then(|| converge(broker, valid, mark, called).boxed());
        Ok(Step { shown, work })
    }
}

async fn converge(
    broker: Broker,
    valid: ValidSemaphore,
    mark: Option<u32>,
    called: String,
) -> Result<(), Failure> {
    let ValidSemaphore { lock, desired, .. } = &valid;
    let managed = ManagedLock::new(&broker, lock, *desired);
    let done = managed.apply(mark, true, &CancellationToken::new()).await;
    let done = done.map_err(|error| failed(&error))?;
    say(format!(
        "{called} has {}: {} added, {} removed",
        lock.unit().count(desired.slots),
        done.declared,
        done.deleted
    ));
    if let (Observed::Counted(_), left @ 1..) = (&done.seen, done.left) {
        let message =
            format!("surplus tokens are still held: {left}. Apply again when they are released");
        return Err(Failure::new(Failure::NOT_ACQUIRED, message));
    }
    Ok(())
}
