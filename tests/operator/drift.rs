//! Slots changed behind the operator's back, and two operators at once.
