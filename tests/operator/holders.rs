//! Who holds a slot: counts, draining, and facts about holders in status.
