//! Deleting resources and namespaces: what goes, what stays, and that nothing hangs.
