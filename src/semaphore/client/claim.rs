//! Taking one slot, on one channel of the connection that is to hold it: look
//! that the slot exists, declare its holder queue, look again, all sent
//! together. Which slot to take is `search`'s.

use lapin::options::QueueDeclareOptions;
use lapin::types::FieldTable;

use crate::semaphore::error::BrokerError;
use crate::semaphore::lane::{Lane, short};

/// How taking a slot ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Claimed {
    /// The holder queue is ours, and the slot existed after that.
    Yes,
    /// There is no such slot. Nothing was declared.
    NoSlot,
    /// Another connection has the holder queue.
    Locked,
    /// The holder queue is ours, but the slot was deleted meanwhile: give it
    /// back (hazard A8: 1,500 of 1,500 forced races).
    SlotWent,
}

impl Lane {
    /// Declares `holder` exclusive to this connection, and looks that `slot`
    /// exists before (unless `looked`: somebody just did) and after it. Three
    /// methods, one round trip.
    pub(super) async fn claim(
        &mut self,
        slot: &str,
        looked: bool,
        holder: &str,
        facts: FieldTable,
    ) -> Result<Claimed, BrokerError> {
        let channel = self.channel().await?;
        self.count_declares(3);
        let passive = QueueDeclareOptions::default().passive();
        let before = async {
            if looked {
                return Ok(());
            }
            channel.queue_declare(short(slot)?, passive, FieldTable::default()).await?;
            Ok(())
        };
        let exclusive = QueueDeclareOptions::exclusive();
        let declare = async {
            channel.queue_declare(short(holder)?, exclusive, facts).await?;
            Ok(())
        };
        let after = async {
            channel.queue_declare(short(slot)?, passive, FieldTable::default()).await?;
            Ok(())
        };
        // A refusal closes the channel, and what was sent after it is not done:
        // so the first error is the one that counts.
        let all = async { Ok(futures::join!(before, declare, after)) };
        let (before, declare, after): (Step, Step, Step) =
            match self.answer("to queue.declare", holder, all).await? {
                Ok(answers) => answers,
                Err(refused) => return Err(refused.error),
            };
        let (error, queue, on_404, on_405) = match (before, declare, after) {
            (Ok(()), Ok(()), Ok(())) => return Ok(Claimed::Yes),
            (Err(error), _, _) => (error, slot, Claimed::NoSlot, None),
            (_, Err(error), _) => (error, holder, Claimed::Locked, Some(Claimed::Locked)),
            (_, _, Err(error)) => (error, slot, Claimed::SlotWent, Some(Claimed::Yes)),
        };
        let error = match error {
            StepError::Name(error) => return Err(error),
            StepError::Lapin(error) => error,
        };
        let refused = self.refused(&error, queue)?;
        match (refused.code, on_405, refused.error) {
            (404, _, error @ BrokerError::NodeDown { .. }) => Err(error),
            (404, _, _) => Ok(on_404),
            (405, Some(claimed), _) => Ok(claimed),
            (_, _, error) => Err(error),
        }
    }
}

type Step = Result<(), StepError>;

enum StepError {
    Name(BrokerError),
    Lapin(lapin::Error),
}

impl From<BrokerError> for StepError {
    fn from(error: BrokerError) -> Self {
        Self::Name(error)
    }
}

impl From<lapin::Error> for StepError {
    fn from(error: lapin::Error) -> Self {
        Self::Lapin(error)
    }
}
