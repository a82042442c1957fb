//! Pipelines and autoscalers on this project's kinds: the examples for Argo CD, Flux and
//! KEDA, and the ownership of fields. See `last::verdicts` for their verdicts on
//! statuses.

mod argocd;
mod flux;
mod keda;
mod owners;
