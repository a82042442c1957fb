//! Who holds tokens and who waits for one.
use crate::plan::naming::LockName;
use crate::plan::semaphore::SlotsSeen;
use crate::semaphore::broker::Inner;
use crate::semaphore::error::BrokerError;
use crate::semaphore::holders::Holders;

pub(super) async fn waiting(_: &Inner, _: &LockName) -> Result<Option<u32>, BrokerError> {
    Ok(None)
}

pub(super) async fn holders(_: &Inner, _: &LockName, _: &SlotsSeen, _: u32, _: usize) -> Holders {
    Holders::default()
}
