//! Which of several replicas acts: the one that holds a Lease, which it took and
//! renews by compare-and-swap on the Lease's resourceVersion. What acting means, and
//! that nobody else does, is asked right before each effect ([`Term`]), so that a
//! process that was paused beyond its term does nothing when it wakes.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::PostParams;
use kube::core::ObjectMeta;
use kube::{Api, Client, ResourceExt};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::error::jitter;
use crate::plan::MayAct;
use crate::semaphore::Moment;

/// How the leader is elected. The durations are those of every controller built on
/// client-go, with the same meaning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderElection {
    /// The Lease's name. Operators that share it never act at the same time.
    pub name: String,
    /// The Lease's namespace; absent, the one that the process runs in.
    pub namespace: Option<String>,
    /// How long after its last renewal a leader that fell silent is replaced, counted
    /// by each candidate on its own clock from when it saw that renewal.
    pub lease_duration: Duration,
    /// How long the leader acts without a renewal; then its process ends.
    pub renew_deadline: Duration,
    /// How often the leader renews, and the others look.
    pub retry_period: Duration,
}

/// What is wrong with [`LeaderElection`]'s durations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the lease duration must be longer than the renew deadline, and that longer than 1.2 times the retry period, of at least 100 ms; the lease duration must be at least 1 s (whole seconds are stored)"
)]
pub struct BadDurations;

impl LeaderElection {
    /// Whether a leader stops before it can be replaced, and can miss a renewal.
    pub fn check(&self) -> Result<(), BadDurations> {
        let fine = self.lease_duration > self.renew_deadline
            && self.renew_deadline > self.retry_period.mul_f64(1.2)
            && self.retry_period >= Duration::from_millis(100)
            && self.lease_duration >= Duration::from_secs(1);
        if fine { Ok(()) } else { Err(BadDurations) }
    }
}

/// Until when this process may act. Cheap to clone; the clones share it.
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

    /// Whether it may act now. The clock goes on while the process is stopped and while
    /// the machine is suspended.
    #[must_use]
    pub fn is_on(&self) -> bool {
        !self.left().is_zero()
    }

    /// The same as a question that other rooms can ask.
    #[must_use]
    pub fn may_act(&self) -> MayAct {
        let term = self.clone();
        MayAct::when(move || term.is_on())
    }
}

/// One candidate for the Lease.
pub struct Candidate {
    api: Api<Lease>,
    election: LeaderElection,
    /// Who this is, as the Lease shows it: the host, which in a pod is the pod's name,
    /// and something that a second process there does not have.
    identity: String,
    term: Term,
    /// The Lease as it was last written by us.
    ours: Option<Lease>,
    /// Another's Lease: its resourceVersion, and since when it is so.
    theirs: Option<(Option<String>, Moment)>,
}

impl Candidate {
    /// Asks nothing yet. `home` is the namespace that the process runs in.
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

    /// The term of whoever wins by this candidate.
    #[must_use]
    pub fn term(&self) -> Term {
        self.term.clone()
    }

    /// Waits until this process is the leader; `false` if it was stopped before.
    /// `standing` is called once it is known that the Lease can be read and written.
    pub async fn wins(&mut self, stop: &CancellationToken, standing: impl FnOnce()) -> bool {
        let mut standing = Some(standing);
        let mut failures = 0;
        loop {
            match limited(self.election.renew_deadline, self.try_once()).await {
                Ok(won) => {
                    failures = 0;
                    if let Some(standing) = standing.take() {
                        standing();
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

    /// Renews until the term is over, which is then lost for good.
    pub async fn keeps(&mut self) {
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

    /// Gives the Lease back, so that another need not wait until it has run out. Call it
    /// when nothing acts any more.
    pub async fn resigns(&mut self) {
        self.term.end();
        let Some(mut lease) = self.ours.take() else { return };
        if let Some(spec) = &mut lease.spec {
            spec.holder_identity = Some(String::new());
            // For those who compare with it: it is over at once.
            spec.lease_duration_seconds = Some(1);
        }
        // Only if it is still the one that we wrote: another's is not touched.
        let name = self.election.name.clone();
        let params = PostParams::default();
        let giving = self.api.replace(&name, &params, &lease);
        match limited(self.election.retry_period, giving).await {
            Ok(_) => info!(lease = name, "the lease is given back"),
            Err(error) => info!(%error, lease = name, "the lease runs out by itself"),
        }
    }

    /// Takes or renews the Lease if it is free, run out or ours; whether it is ours now.
    async fn try_once(&mut self) -> kube::Result<bool> {
        // From before the request: the server may have stored it at any time since.
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
            // Somebody else wrote it meanwhile, or deleted it: the next look tells who
            // has it. Until then the term that we had stands.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {
                Ok(is_ours && self.term.is_on())
            }
            Err(error) => Err(error),
        }
    }

    /// Whether another's Lease was seen unchanged for as long as it lasts.
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
        // Rounded up: nobody may believe that it has run out before it has.
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

/// Why the Lease could not be had or renewed.
#[derive(Debug, thiserror::Error)]
enum LeaseError {
    #[error(transparent)]
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
    fn a_term_ends_with_its_time_and_when_it_is_told_to() {
        let term = Term::default();
        let asked = term.may_act();
        assert!(!asked.now(), "nobody has won yet");
        term.extend(Moment::now() + Duration::from_mins(1));
        assert!(term.is_on() && asked.now());
        term.end();
        assert!(!asked.now());
        term.extend(Moment::now() - Duration::from_nanos(1));
        assert!(!asked.now());
    }
}
