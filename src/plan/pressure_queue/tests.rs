//! Tests of the decisions about pressure queues.
