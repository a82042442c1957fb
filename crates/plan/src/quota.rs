//! Namespace quotas: the limits of one namespace, and which of its objects exceed them.
//! Older objects take precedence. Pure logic. The operator determines the objects.

/// The limits per namespace. `None`: unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Slots (or tokens) of all its Semaphores together.
    pub slots: Option<u32>,
    /// Number of Semaphores, and separately of `PressureQueue`s.
    pub objects: Option<u32>,
}

/// The demand of one object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Its desired slots. 0 for a queue.
    pub slots: u32,
    /// The slots that it may already have.
    pub made: u32,
    /// Whether it stands for a lock or queue. Of objects that were created in the same
    /// second, those that do count as older.
    pub stands: bool,
}

/// The limit that an object exceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OverLimit {
    /// The older objects already reach the limit.
    #[error(
        "the namespace limit of {limit} objects of this kind is reached by {older} older ones. Delete older objects or raise the operator's --max-objects-per-namespace. Until then this object is not reconciled"
    )]
    Objects {
        /// The maximum number of objects.
        limit: u32,
        /// The number of older objects.
        older: u32,
    },
    /// The older objects leave too few slots.
    #[error(
        "the namespace limit of {limit} slots is exceeded: older Semaphores use {used}, and this one requests {requested}. Lower spec.slots here to {} or there, or raise the operator's --max-slots-per-namespace. Until then this object is not reconciled",
        .limit.saturating_sub(*.used)
    )]
    Slots {
        /// The maximum number of slots.
        limit: u32,
        /// The slots counted for the older objects.
        used: u32,
        /// The slots that this object requests.
        requested: u32,
    },
}

/// Whether an object fits into the quota, given the `older` ones of its namespace and
/// kind, the oldest first. An older object that exceeds the quota itself counts only with
/// the slots that it keeps. A mistake in one object must not block all younger ones.
///
/// # Errors
///
/// [`OverLimit`]: the limit that the object exceeds.
pub fn fits(limits: Limits, older: &[Demand], own: Demand) -> Result<(), OverLimit> {
    let count = u32::try_from(older.len()).unwrap_or(u32::MAX);
    if let Some(limit) = limits.objects
        && count >= limit
    {
        return Err(OverLimit::Objects { limit, older: count });
    }
    let Some(limit) = limits.slots else { return Ok(()) };
    let mut used = 0_u32;
    for Demand { slots, made, .. } in older {
        let all = used.saturating_add(*slots);
        used = if all <= limit { all } else { used.saturating_add((*made).min(*slots)) };
    }
    let requested = own.slots;
    // An object without slots never exceeds the quota.
    if requested > 0 && used.saturating_add(requested) > limit {
        return Err(OverLimit::Slots { limit, used, requested });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asks(slots: u32) -> Demand {
        Demand { slots, ..Demand::default() }
    }

    #[test]
    fn without_limits_everything_fits_in() {
        let many = vec![asks(10_000); 10_000];
        assert_eq!(fits(Limits::default(), &many, asks(10_000)), Ok(()));
    }

    #[test]
    fn the_oldest_objects_count_first() {
        let limits = Limits { objects: Some(2), slots: None };
        assert_eq!(fits(limits, &[asks(0)], asks(0)), Ok(()));
        let refused = fits(limits, &[asks(0), asks(0)], asks(0));
        assert_eq!(refused, Err(OverLimit::Objects { limit: 2, older: 2 }));
        let none = Limits { objects: Some(0), slots: None };
        assert_eq!(fits(none, &[], asks(0)), Err(OverLimit::Objects { limit: 0, older: 0 }));
    }

    #[test]
    fn slots_are_counted_up_to_the_limit_exactly() {
        let limits = Limits { slots: Some(10), objects: None };
        assert_eq!(fits(limits, &[asks(4), asks(2)], asks(4)), Ok(()));
        let refused = fits(limits, &[asks(4), asks(2)], asks(5)).unwrap_err();
        assert_eq!(refused, OverLimit::Slots { limit: 10, used: 6, requested: 5 });
        assert!(refused.to_string().contains("Lower spec.slots here to 4"), "{refused}");
        assert_eq!(fits(limits, &[asks(10)], asks(0)), Ok(()));
        let most = asks(u32::MAX);
        fits(limits, &[most, most], most).unwrap_err();
    }

    #[test]
    fn an_object_over_the_quota_counts_with_the_slots_it_keeps() {
        let limits = Limits { slots: Some(10), objects: None };
        let grown = Demand { slots: 20, made: 3, stands: true };
        assert_eq!(fits(limits, &[grown], asks(7)), Ok(()));
        let refused = fits(limits, &[grown], asks(8));
        assert_eq!(refused, Err(OverLimit::Slots { limit: 10, used: 3, requested: 8 }));
        // Slots above the desired count are removed anyway.
        let shrinks = Demand { slots: 2, made: 9, stands: true };
        assert_eq!(fits(limits, &[shrinks], asks(8)), Ok(()));
    }
}
