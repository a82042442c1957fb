//! An operator that is killed in the middle of its work.
