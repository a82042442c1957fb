//! The seeded bugs: the protocol, the property and the cause of each. See `controls` for how they
//! are caught.

use crate::check::verdict::{Cause, Property};
use crate::history::Rules;

/// A seeded bug: one deviation from a correct client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, clap::ValueEnum)]
pub enum Bug {
    /// Does not probe A after the declare of B.
    NoLook,
    /// Verifies by probing only A, on any connection.
    VerifyAOnly,
    /// Verifies by publishing to B, which shows that B exists but not which connection owns it.
    VerifyPublishes,
    /// Releases by closing the channel, which does not delete B.
    ReleaseClosesChannel,
    /// Reconnects and declares B again without notifying its caller.
    Reconnects,
    /// Grants the slot twice on the connection that holds it.
    TwoPermitsOneConnection,
    /// Treats 405 as success.
    AlreadyMine,
    /// Declares only the highest new slot.
    GrowOnlyLast,
    /// Changes slots without the admin mutex.
    NoAdminMutex,
    /// Does not probe A after the consume of C.
    NoLookConsumer,
    /// Consumes without exclusivity.
    SharedConsumer,
    /// Deletes C of a removed slot even if the slot is held.
    ShrinkDeletesHeld,
    /// Acknowledges its token to release it.
    AckInsteadOfReject,
    /// Returns its token before it cancels its consumer, and therefore receives the token again.
    NoCancelBeforeReject,
    /// Waits with prefetch 10, and therefore keeps further tokens in its buffer.
    #[value(name = "prefetch-10")]
    Prefetch10,
    /// Publishes a token whenever it finds none ready.
    PublishesAtStart,
}

impl Bug {
    /// Every bug.
    pub const ALL: [Self; 16] = [
        Self::NoLook,
        Self::VerifyAOnly,
        Self::VerifyPublishes,
        Self::ReleaseClosesChannel,
        Self::Reconnects,
        Self::TwoPermitsOneConnection,
        Self::AlreadyMine,
        Self::GrowOnlyLast,
        Self::NoAdminMutex,
        Self::NoLookConsumer,
        Self::SharedConsumer,
        Self::ShrinkDeletesHeld,
        Self::AckInsteadOfReject,
        Self::NoCancelBeforeReject,
        Self::Prefetch10,
        Self::PublishesAtStart,
    ];

    /// Returns the value of the option `--bug`.
    pub fn name(self) -> &'static str {
        match self {
            Self::NoLook => "no-look",
            Self::VerifyAOnly => "verify-a-only",
            Self::VerifyPublishes => "verify-publishes",
            Self::ReleaseClosesChannel => "release-closes-channel",
            Self::Reconnects => "reconnects",
            Self::TwoPermitsOneConnection => "two-permits-one-connection",
            Self::AlreadyMine => "already-mine",
            Self::GrowOnlyLast => "grow-only-last",
            Self::NoAdminMutex => "no-admin-mutex",
            Self::NoLookConsumer => "no-look-consumer",
            Self::SharedConsumer => "shared-consumer",
            Self::ShrinkDeletesHeld => "shrink-deletes-held",
            Self::AckInsteadOfReject => "ack-instead-of-reject",
            Self::NoCancelBeforeReject => "no-cancel-before-reject",
            Self::Prefetch10 => "prefetch-10",
            Self::PublishesAtStart => "publishes-at-start",
        }
    }

    /// Returns the protocol of the client with this bug.
    pub fn protocol(self) -> Rules {
        match self {
            Self::NoLook
            | Self::VerifyAOnly
            | Self::VerifyPublishes
            | Self::ReleaseClosesChannel
            | Self::Reconnects
            | Self::TwoPermitsOneConnection
            | Self::AlreadyMine
            | Self::GrowOnlyLast
            | Self::NoAdminMutex => Rules::ExclusiveQueue,
            Self::NoLookConsumer | Self::SharedConsumer | Self::ShrinkDeletesHeld => {
                Rules::ExclusiveConsumer
            }
            Self::AckInsteadOfReject
            | Self::NoCancelBeforeReject
            | Self::Prefetch10
            | Self::PublishesAtStart => Rules::Token,
        }
    }

    /// Returns the property that must detect the bug. Other properties may detect it too.
    pub fn property(self) -> Property {
        match self {
            Self::Reconnects | Self::TwoPermitsOneConnection | Self::SharedConsumer => Property::S2,
            Self::NoLook | Self::NoLookConsumer | Self::AlreadyMine => Property::S4,
            Self::VerifyAOnly | Self::VerifyPublishes => Property::S5,
            Self::ReleaseClosesChannel | Self::NoCancelBeforeReject | Self::Prefetch10 => {
                Property::S6
            }
            Self::AckInsteadOfReject => Property::TokensConserved,
            Self::GrowOnlyLast
            | Self::NoAdminMutex
            | Self::ShrinkDeletesHeld
            | Self::PublishesAtStart => Property::S9,
        }
    }

    /// Returns the cause that the verdict must name.
    pub fn cause(self) -> Cause {
        match self {
            Self::GrowOnlyLast | Self::NoAdminMutex | Self::ShrinkDeletesHeld => {
                Cause::Administrator
            }
            _ => Cause::Client,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::ValueEnum;

    use super::*;

    #[test]
    fn every_bug_is_listed_once_with_the_name_of_its_option() {
        assert_eq!(Bug::value_variants(), Bug::ALL);
        for bug in Bug::ALL {
            assert_eq!(bug.to_possible_value().unwrap().get_name(), bug.name());
        }
        assert_eq!(Bug::ALL.iter().collect::<BTreeSet<_>>().len(), Bug::ALL.len());
    }

    #[test]
    fn only_administrators_are_blamed_for_resizes() {
        for bug in Bug::ALL {
            if bug.cause() == Cause::Administrator {
                assert_eq!(bug.property(), Property::S9, "{bug:?}");
            }
        }
    }
}
