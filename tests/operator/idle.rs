//! An operator with nothing to do writes nothing.
