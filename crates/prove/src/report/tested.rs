//! The results of the controls in a report. See `controls` for how they are run.

use serde::{Deserialize, Serialize};

use crate::check::verdict::{Cause, Property};
use crate::controls::Control;
use crate::straw::Bug;

/// The result of one control: a client with a seeded bug, or a correct client, that was judged
/// in the same run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tested {
    /// The seeded bug. `None` for the correct client.
    pub bug: Option<String>,
    /// The property that the bug violates.
    pub property: Option<Property>,
    /// The cause that the verdict must name.
    pub cause: Option<Cause>,
    /// Number of violations of the property by the cause. For the correct client: the number of
    /// all violations.
    pub found: usize,
    /// Number of other violations in the last round.
    pub others: usize,
    /// Whether it was judged correctly.
    pub right: bool,
}

impl Tested {
    /// Creates the result of this control.
    pub(super) fn new(control: &Control) -> Self {
        Self {
            bug: control.bug.map(|bug| bug.name().to_owned()),
            property: control.bug.map(Bug::property),
            cause: control.bug.map(Bug::cause),
            found: control.found.len(),
            others: control.others.len(),
            right: control.is_right(),
        }
    }
}
