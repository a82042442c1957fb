//! Pipelines and autoscalers on this project's kinds: the examples for Argo CD, Flux, KEDA and
//! CI systems, and the ownership of fields. See `last::verdicts` for their verdicts on
//! statuses.

mod argocd;
mod ci;
mod flux;
mod keda;
mod owners;
