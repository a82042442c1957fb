//! Pipelines and autoscalers on this project's kinds: the examples for Argo CD, Flux and
//! KEDA, and the ownership of fields. See `last::verdicts` for their verdicts on
//! statuses.

use crate::{environment, evaluator, world};

mod argocd;
mod flux;
mod keda;
mod owners;
