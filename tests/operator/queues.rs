//! Pressure queues under live producers and consumers.
