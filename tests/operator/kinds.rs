//! What the API server accepts and refuses, and what kubectl shows.
