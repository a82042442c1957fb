//! `lockkeeper doctor --lock`: whether a client can hold a lock from here, with the URL, the user
//! and the protocol of the arguments. See `objects` for the objects in Kubernetes.

use std::time::Duration;

use lockkeeper_plan::naming::Protocol;
use lockkeeper_semaphore::{
    AcquireError, AcquireOptions, Broker, BrokerError, BrokerOptions, Client, ClientOptions,
    Presence,
};

use super::finding::Finding;
use crate::cli::failure::Failure;
use crate::cli::semaphore::target::missing;
use crate::cli::target::{FoundLock, LockLocation};
use crate::cli::waiting::who_holds;

/// Maximum time to connect.
const PATIENCE: Duration = Duration::from_secs(5);

/// Checks the lock from its URL to its holders. Ends at the first fault that hides the others.
pub(super) async fn look(place: &LockLocation, lock: &str) -> Vec<Finding> {
    let found = match place.find(lock).await {
        Ok(found) => found,
        Err(failure) => {
            let next = "correct the arguments or the environment, and run this again";
            return vec![Finding::wrong(lock, failure.message.unwrap_or_default(), next)];
        }
    };
    let mut findings = Vec::new();
    let options = BrokerOptions::default().with_connect_timeout(PATIENCE);
    let broker = Broker::new(found.settings.clone(), options);
    if let Err((message, next)) = examine(&found, &broker, &mut findings).await {
        findings.push(Finding::wrong(lock, message, next));
    }
    findings
}

type Fault = (String, &'static str);

async fn examine(
    found: &FoundLock,
    broker: &Broker,
    findings: &mut Vec<Finding>,
) -> Result<(), Fault> {
    let (name, place) = (&found.name, found.settings.place());
    broker.log_in().await.map_err(|error| fault(&error))?;
    let user = &found.settings.username;
    findings.push(Finding::ok(&place, format!("accepts the user {user:?} and the virtual host")));
    match broker.check_management().await {
        Ok(()) if broker.has_management() => {
            findings.push(Finding::ok(&place, "its management API answers"));
        }
        Ok(()) => {
            let next = "set RABBITMQ_MANAGEMENT_URL, or give --management-url";
            let message = "no management API is set, so nothing names the holders";
            findings.push(Finding::remark(&place, message, next));
        }
        Err(error) => {
            let next = "correct the URL or the user; until then, nothing names the holders";
            findings.push(Finding::remark(&place, error.to_string(), next));
        }
    }
    match broker.presence(name).await.map_err(|error| fault(&error))? {
        Presence::Absent => {
            let Failure { message, .. } = missing(name.as_str());
            let next = "`lockkeeper semaphore create NAME --slots NUMBER`, or apply a Semaphore; `kubectl get sem -A` lists those of a cluster";
            return Err((message.unwrap_or_default(), next));
        }
        Presence::Changing => {
            let next = "look again in a few seconds; if it stays so, see its holder in `lockkeeper mutex holders`";
            let message = "is being created or removed, or a mutex of that name is held";
            findings.push(Finding::remark(name.as_str(), message, next));
        }
        Presence::Closed => {
            let next = "give it slots: `kubectl scale sem/NAME --replicas=NUMBER`, or `lockkeeper semaphore set NAME NUMBER`";
            findings.push(Finding::remark(
                name.as_str(),
                "has no slots, so no client can acquire it",
                next,
            ));
        }
        _ => {
            let who = who_holds(broker, found).await;
            findings.push(Finding::ok(name.as_str(), format!("exists{who}")));
        }
    }
    permissions(found, broker).await.map_err(|error| fault(&error))?;
    findings.push(Finding::ok(
        name.as_str(),
        format!("the user {user:?} has the permissions to hold it"),
    ));
    Ok(())
}

/// Tries the permissions of the user. A token's client needs only to read the lock's own queue, so
/// a token is taken and given back if one is free.
async fn permissions(found: &FoundLock, broker: &Broker) -> Result<(), BrokerError> {
    if !matches!(found.name.protocol(), Protocol::Token(_)) {
        return broker.try_permissions(&found.name).await;
    }
    let client = Client::new(found.settings.clone(), ClientOptions::default().with_warm(0));
    let mut options = AcquireOptions::default();
    options.identity = Some("lockkeeper doctor".to_owned());
    match found.lock(&client).try_acquire(&options).await {
        Ok(permit) => {
            // A token that was lost is back in any case.
            let _ = permit.release().await;
            Ok(())
        }
        Err(AcquireError::Broker(error)) => Err(error),
        Err(_) => Ok(()),
    }
}

fn fault(error: &BrokerError) -> Fault {
    let next = match error {
        BrokerError::ProtocolMismatch { .. } => "give --protocol, or leave it to sem/NAME",
        BrokerError::AccessRefused { .. } => "docs/permissions.md has the permissions of clients",
        BrokerError::VhostNotFound { .. } => {
            "correct the end of the URL, or give --vhost; %2F in a URL is the virtual host /"
        }
        BrokerError::AuthenticationFailed { .. } | BrokerError::CertificateRefused { .. } => {
            "docs/connections.md has the keys and variables of a connection"
        }
        _ => "check the URL; from a Pod, also the Service and the network policies",
    };
    (error.to_string(), next)
}
