//! Leader election among replicas. The leader holds a Lease, which it acquires and renews
//! by compare-and-swap on the Lease's resourceVersion. Every effect is guarded by
//! [`Term`], so that a process that was paused beyond its term has no effect when it
//! resumes.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::PostParams;
use kube::core::ObjectMeta;
use kube::{Api, Client, ResourceExt};
use lockkeeper_net::clock::Moment;
use lockkeeper_plan::MayAct;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::api_error::explain;
use super::error::jitter;

/// Settings of the leader election. The durations have the same meaning as in controllers
/// based on client-go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderElection {
    /// Name of the Lease. Operators with the same Lease never act at the same time.
    pub name: String,
    /// Namespace of the Lease. Defaults to the namespace of the process.
    pub namespace: Option<String>,
    /// Time since its last renewal after which an unresponsive leader is replaced,
    /// measured by each candidate on its own clock from when it observed that renewal.
    pub lease_duration: Duration,
    /// Time that the leader acts without a renewal. After that, its process exits.
    pub renew_deadline: Duration,
    /// Interval at which the leader renews the Lease and the other replicas check it.
    pub retry_period: Duration,
}

/// Reason why the durations of [`LeaderElection`] are invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the lease duration must be longer than the renew deadline, and that longer than 1.2 times the retry period, of at least 100 ms; the lease duration must be at least 1 s (whole seconds are stored)"
)]
pub struct BadDurations;

impl LeaderElection {
    /// Checks that a leader stops before it can be replaced, and that it may miss a
    /// renewal.
    ///
    /// # Errors
    ///
    /// [`BadDurations`]: one of them is too short or too long for the others.
    pub fn check(&self) -> Result<(), BadDurations> {
        let fine = self.lease_duration > self.renew_deadline
            && self.renew_deadline > self.retry_period.mul_f64(1.2)
            && self.retry_period >= Duration::from_millis(100)
            && self.lease_duration >= Duration::from_secs(1);
        if fine { Ok(()) } else { Err(BadDurations) }
    }
}

/// Guards every side effect: valid while this process holds the Lease. Cheap to clone;
/// clones share their state.
#[derive(Clone, Debug, Default)]
pub struct Term(Arc<AtomicU64>);

impl Term {
    fn extend(&self, until: Moment) {
        self.0.store(until.as_nanos(), Ordering::Release);
    }

    fn end(&self) {
        self.0.store(0, Ordering::Release);
    }

    fn left(&self) -> Duration {
        Moment::from_nanos(self.0.load(Ordering::Acquire)).left()
    }

    /// Returns whether this process may act now. The clock includes time in which the
    /// process is stopped or the machine is suspended.
    #[must_use]
    pub fn is_on(&self) -> bool {
        !self.left().is_zero()
    }

    /// Returns the check as a function, for other modules.
    #[must_use]
    pub fn may_act(&self) -> MayAct {
        let term = self.clone();
        MayAct::when(move || term.is_on())
    }
}

/// A candidate for the Lease.
pub struct Candidate {
    api: Api<Lease>,
    election: LeaderElection,
    /// Identity of this process in the Lease: the hostname, which in a pod is the pod's
    /// name, and a suffix that is unique to the process.
    identity: String,
    term: Term,
    /// The Lease as this process last wrote it.
    ours: Option<Lease>,
    /// The Lease of another holder: its resourceVersion, and when it was first observed.
    theirs: Option<(Option<String>, Moment)>,
}

impl Candidate {
    /// Creates a candidate without a request. `home` is the namespace of the process.
    #[must_use]
    pub fn new(client: Client, election: LeaderElection, home: &str) -> Self {
        let host = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
        let host = host.filter(|name| !name.is_empty()).unwrap_or_else(|| "lockkeeper".to_owned());
        Self {
            api: Api::namespaced(client, election.namespace.as_deref().unwrap_or(home)),
            identity: format!("{host}_{:016x}", rand::random::<u64>()),
            election,
            term: Term::default(),
            ours: None,
            theirs: None,
        }
    }

    /// Returns the term that this candidate acquires.
    #[must_use]
    pub fn term(&self) -> Term {
        self.term.clone()
    }

    /// Acquires the Lease: waits until this process is the leader. Returns `false` if it
    /// was stopped before. `on_candidate` is called once the Lease is known to be readable
    /// and writable.
    pub async fn acquire(&mut self, stop: &CancellationToken, on_candidate: impl FnOnce()) -> bool {
        let mut on_candidate = Some(on_candidate);
        let mut failures = 0;
        loop {
            match limited(self.election.renew_deadline, self.try_once()).await {
                Ok(won) => {
                    failures = 0;
                    if let Some(on_candidate) = on_candidate.take() {
                        on_candidate();
                    }
                    if won {
                        info!(identity = self.identity, lease = self.election.name, "leading");
                        return true;
                    }
                }
                Err(error) => {
                    failures += 1;
                    if failures == 1 {
                        warn!(%error, lease = self.election.name, "can't ask for the lease, trying again");
                    }
                }
            }
            tokio::select! {
                () = stop.cancelled() => return false,
                () = tokio::time::sleep(jitter(self.election.retry_period)) => {}
            }
        }
    }

    /// Renews the Lease until the term is lost. The term cannot be regained.
    pub async fn renew(&mut self) {
        while self.term.is_on() {
            tokio::time::sleep(jitter(self.election.retry_period)).await;
            match limited(self.term.left(), self.try_once()).await {
                Ok(true) => {}
                Ok(false) => {
                    warn!(lease = self.election.name, "another has the lease");
                    break;
                }
                Err(error) => {
                    warn!(%error, lease = self.election.name, "the lease was not renewed");
                }
            }
        }
        self.term.end();
    }

    /// Releases the Lease, so that another replica does not have to wait until it
    /// expires. Call this after all work has stopped.
    pub async fn release(&mut self) {
        self.term.end();
        let Some(mut lease) = self.ours.take() else { return };
        if let Some(spec) = &mut lease.spec {
            spec.holder_identity = Some(String::new());
            // For candidates that check the duration: the Lease expires almost
            // immediately.
            spec.lease_duration_seconds = Some(1);
        }
        // Only succeeds if the Lease is unchanged since our write, so another holder's
        // Lease is never modified.
        let name = self.election.name.clone();
        let params = PostParams::default();
        let giving = self.api.replace(&name, &params, &lease);
        match limited(self.election.retry_period, giving).await {
            Ok(_) => info!(lease = name, "the lease is given back"),
            Err(error) => info!(%error, lease = name, "the lease runs out by itself"),
        }
    }

    /// Acquires or renews the Lease if it is free, expired or already ours. Returns
    /// whether this process now holds it.
    async fn try_once(&mut self) -> kube::Result<bool> {
        // Taken before the request, because the server may store the Lease at any time
        // after it.
        let asked = Moment::now();
        let mut lease = match self.ours.take() {
            Some(lease) => lease,
            None => match self.api.get_opt(&self.election.name).await? {
                Some(lease) => lease,
                None => Lease {
                    metadata: ObjectMeta {
                        name: Some(self.election.name.clone()),
                        ..ObjectMeta::default()
                    },
                    spec: None,
                },
            },
        };
        let old = lease.spec.take().unwrap_or_default();
        let holder = old.holder_identity.as_deref().unwrap_or_default();
        let is_ours = holder == self.identity;
        if !is_ours && !holder.is_empty() && !self.has_run_out(&lease, &old) {
            return Ok(false);
        }
        lease.spec = Some(self.spec(old, is_ours));
        let name = &self.election.name;
        let written = match lease.resource_version() {
            Some(_) => self.api.replace(name, &PostParams::default(), &lease).await,
            None => self.api.create(&PostParams::default(), &lease).await,
        };
        match written {
            Ok(lease) => {
                self.ours = Some(lease);
                self.theirs = None;
                self.term.extend(asked + self.election.renew_deadline);
                Ok(true)
            }
            // Another process changed or deleted the Lease. The next attempt determines
            // its holder. Until then the current term remains valid.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {
                Ok(is_ours && self.term.is_on())
            }
            Err(error) => Err(error),
        }
    }

    /// Returns whether another holder's Lease was observed unchanged for its full
    /// duration.
    fn has_run_out(&mut self, lease: &Lease, spec: &LeaseSpec) -> bool {
        let version = lease.resource_version();
        match &self.theirs {
            Some((seen, since)) if *seen == version => {
                let lasts = spec.lease_duration_seconds.and_then(|s| u64::try_from(s).ok());
                let lasts = lasts.map_or(self.election.lease_duration, Duration::from_secs);
                since.elapsed() > lasts
            }
            _ => {
                self.theirs = Some((version, Moment::now()));
                false
            }
        }
    }

    fn spec(&self, old: LeaseSpec, is_ours: bool) -> LeaseSpec {
        let now = MicroTime(jiff::Timestamp::now());
        let transitions = old.lease_transitions.unwrap_or_default();
        // Rounded up, so that no candidate considers the Lease expired too early.
        let seconds = self.election.lease_duration.as_secs_f64().ceil();
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            #[expect(clippy::cast_possible_truncation, reason = "saturates far beyond any lease")]
            lease_duration_seconds: Some(seconds as i32),
            acquire_time: if is_ours { old.acquire_time } else { Some(now.clone()) },
            renew_time: Some(now),
            lease_transitions: Some(if is_ours { transitions } else { transitions + 1 }),
            ..LeaseSpec::default()
        }
    }
}

/// Reason why the Lease could not be acquired or renewed.
#[derive(Debug, thiserror::Error)]
enum LeaseError {
    #[error("{}", explain(.0))]
    Api(#[from] kube::Error),
    #[error("the API server did not answer within {0:?}")]
    Late(Duration),
}

async fn limited<T>(
    limit: Duration,
    asking: impl Future<Output = kube::Result<T>>,
) -> Result<T, LeaseError> {
    match tokio::time::timeout(limit, asking).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(LeaseError::Late(limit)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn election([lease, renew, retry]: [u64; 3]) -> LeaderElection {
        LeaderElection {
            name: "lockkeeper".to_owned(),
            namespace: None,
            lease_duration: Duration::from_millis(lease),
            renew_deadline: Duration::from_millis(renew),
            retry_period: Duration::from_millis(retry),
        }
    }

    #[test]
    fn a_leader_must_stop_before_it_can_be_replaced() {
        assert_eq!(election([15_000, 10_000, 2_000]).check(), Ok(()));
        assert_eq!(election([1_000, 800, 200]).check(), Ok(()));
        for bad in
            [[10_000, 10_000, 2_000], [15_000, 2_000, 2_000], [900, 500, 100], [15_000, 10_000, 10]]
        {
            assert_eq!(election(bad).check(), Err(BadDurations), "{bad:?}");
        }
    }

    #[test]
    fn a_term_ends_when_it_expires_or_is_ended() {
        let term = Term::default();
        let asked = term.may_act();
        assert!(!asked.now(), "the Lease is not acquired yet");
        term.extend(Moment::now() + Duration::from_mins(1));
        assert!(term.is_on() && asked.now());
        term.end();
        assert!(!asked.now());
        term.extend(Moment::now() - Duration::from_nanos(1));
        assert!(!asked.now());
    }
}
