//! Connections: Secrets that are missing, incomplete, wrong or corrected.
