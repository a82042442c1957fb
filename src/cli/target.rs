//! The lock or queue of a command: from arguments, from the environment, or from a
//! resource in Kubernetes. See `lock` and `queue` for the arguments of each, and `broker`
//! for those of a lock's broker.

mod broker;
mod lock;
mod queue;

use std::fmt::Display;

use kube::CustomResourceExt;
use lockkeeper_plan::connection::variable_text;

pub(super) use self::broker::BrokerLocation;
pub(super) use self::lock::{FoundLock, LockLocation, LockTarget};
pub(super) use self::queue::{QueueLocation, QueueTarget};
use super::failure::Failure;

/// Returns the name of the resource that an argument refers to, such as `sem/NAME`, or
/// `None` for a name on the server. Accepts the same kinds as kubectl.
pub(super) fn resource<K: CustomResourceExt>(argument: &str) -> Option<&str> {
    let (kind, name) = argument.split_once('/')?;
    let api = K::api_resource();
    let kind = kind.strip_suffix(&format!(".{}", api.group)).unwrap_or(kind);
    let is_kind = kind == api.plural || kind == api.kind.to_lowercase();
    (is_kind || K::shortnames().contains(&kind)).then_some(name)
}

/// Returns an environment variable. An empty one counts as unset.
pub(super) fn variable(name: &'static str) -> Result<Option<String>, Failure> {
    variable_text(name, std::env::var_os(name)).map_err(|error| usage(&error))
}

/// Returns the error for a resource whose server this command was not told.
fn on_default_connection(resource: &str, server: &str, variable: &str) -> Failure {
    usage(&format!(
        "{resource} names no connection, so it is on the operator's default {server}: set {variable} to that, or give --url"
    ))
}

/// Lets a client that may not read a resource's Secret log in with a URL of its own, if that
/// leads to the resource's server. `refused` is the failure to read the Secret. `own` is the
/// server of the URL with its settings, and `backend` the one in the status.
fn own_login<S>(
    refused: &Failure,
    resource: &str,
    variable: &str,
    own: Option<(String, S)>,
    backend: Option<&str>,
) -> Result<S, Failure> {
    let instead = match (own, backend) {
        (Some((own, settings)), Some(backend)) if own == backend => return Ok(settings),
        (Some((own, _)), Some(backend)) => {
            format!(
                "{variable} is not used instead: it leads to {own}, and {resource} is on {backend}"
            )
        }
        (Some(_), None) => {
            format!(
                "{variable} is not used instead: the status does not say which server {resource} is on"
            )
        }
        (None, _) => {
            format!(
                "ask for the permission, or set {variable} to the same server with a user of your own"
            )
        }
    };
    let message = refused.message.as_deref().unwrap_or_default();
    Err(Failure::new(refused.code, format!("{message}; {instead}")))
}

fn usage(error: &(impl Display + ?Sized)) -> Failure {
    Failure::new(Failure::USAGE, error.to_string())
}

#[cfg(test)]
mod tests {
    use lockkeeper_api::{PressureQueue, Semaphore};

    use super::*;

    #[test]
    fn a_resource_is_named_as_for_kubectl_and_anything_else_is_a_name_on_the_server() {
        for kind in ["sem", "semaphore", "semaphores", "semaphores.lockkeeper.dev"] {
            assert_eq!(resource::<Semaphore>(&format!("{kind}/deploy")), Some("deploy"), "{kind}");
            assert_eq!(resource::<PressureQueue>(&format!("{kind}/deploy")), None, "{kind}");
        }
        assert_eq!(resource::<PressureQueue>("pq/frames"), Some("frames"));
        for name in ["deploy", "ci/deploy", "a.semaphore/b", "/deploy", "sem.other.dev/deploy"] {
            assert_eq!(resource::<Semaphore>(name), None, "{name}");
        }
    }
}
