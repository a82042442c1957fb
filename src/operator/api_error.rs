//! Errors of the Kubernetes API as one sentence each: the problem, and the next step. See
//! `kubeconfig` for how the API server is found.

use std::error::Error;

use kube::core::Status;

/// Describes an error of the Kubernetes API, or one that it caused.
pub fn explain(error: &(dyn Error + 'static)) -> String {
    match chain(error).find_map(|each| each.downcast_ref::<kube::Error>()) {
        Some(error) => of_kube(error),
        None => error.to_string(),
    }
}

/// Whether the API server rejected a request because the user lacks a permission.
pub fn is_forbidden(error: &(dyn Error + 'static)) -> bool {
    chain(error).any(|each| {
        matches!(each.downcast_ref(), Some(kube::Error::Api(status)) if status.is_forbidden())
    })
}

/// Returns an error and its causes, from the outermost.
fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&each| each.source())
}

fn of_kube(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => answer(status),
        kube::Error::Service(_) | kube::Error::HyperError(_) => format!(
            "the API server can't be reached ({}): check the address in the kubeconfig, and the network",
            innermost(error)
        ),
        kube::Error::Auth(_) => {
            format!("there are no credentials for the API server ({})", innermost(error))
        }
        kube::Error::SerdeError(error) => {
            format!("the API server answered unexpectedly ({error})")
        }
        kube::Error::ProxyProtocolUnsupported { .. } | kube::Error::ProxyProtocolDisabled { .. } => {
            "the proxy for the API server has an unsupported protocol: use http:// or https:// in HTTPS_PROXY, or list the API server in NO_PROXY"
                .to_owned()
        }
        other => other.to_string(),
    }
}

/// Returns the text of the API server. It names the user, the verb and the resource of a
/// forbidden request, and the field of an invalid one.
fn answer(status: &Status) -> String {
    if status.code == 404 && status.message.contains("page not found") {
        return "the API server does not have this kind: install the chart, or run `lockkeeper crds | kubectl apply --server-side -f -`"
            .to_owned();
    }
    let text = [&status.message, &status.reason].into_iter().find(|text| !text.is_empty());
    let text = text.map_or("the API server rejected the request", |text| text.trim());
    match status.code {
        401 => format!("the API server rejected the credentials ({text}): log in again"),
        403 => format!("{text} (403): ask for this permission, see docs/permissions.md"),
        0 => text.to_owned(),
        code => format!("{text} ({code})"),
    }
}

fn innermost(error: &(dyn Error + 'static)) -> String {
    chain(error).last().map(ToString::to_string).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn api(code: u16, message: &str, reason: &str) -> kube::Error {
        let status = Status::failure(message, reason).with_code(code);
        kube::Error::Api(Box::new(status))
    }

    #[test]
    fn each_answer_of_the_api_server_is_one_sentence_without_debug_output() {
        let forbidden = "semaphores.lockkeeper.dev is forbidden: User \"x\" cannot list resource \"semaphores\" in API group \"lockkeeper.dev\" in the namespace \"team\"";
        for (error, expected) in [
            (api(404, "404 page not found", "Failed to parse error data"), "lockkeeper crds"),
            (api(404, "404 page not found\n", ""), "does not have this kind"),
            (api(403, forbidden, "Forbidden"), "cannot list resource"),
            (api(401, "Unauthorized", "Unauthorized"), "log in again"),
            (api(400, "unable to parse requirement: found '='", "BadRequest"), "found '=' (400)"),
            (api(500, "", ""), "rejected the request (500)"),
            (api(409, "", "Conflict"), "Conflict (409)"),
            (kube::Error::TlsRequired, "TLS required"),
        ] {
            let text = explain(&error);
            assert!(text.contains(expected), "{text}");
            for dump in ["Status {", "Some(", "None", "ApiError", "ServiceError"] {
                assert!(!text.contains(dump), "{text}");
            }
        }
    }

    #[test]
    fn the_cause_of_a_lost_connection_is_named() {
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let text = explain(&kube::Error::Service(Box::new(refused)));
        assert!(text.contains("connection refused") && text.contains("can't be reached"), "{text}");
    }
}
