//! What pipelines and autoscalers do with our kinds: the examples for Argo CD, Flux
//! and KEDA, and who owns which field. The verdicts on statuses are `zz_verdicts`'s.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking, in its helpers too"
)]

#[path = "../support/environment.rs"]
mod environment;
#[path = "../support/evaluator.rs"]
mod evaluator;
#[path = "../support/world.rs"]
mod world;

mod argocd;
mod flux;
mod keda;
mod owners;
