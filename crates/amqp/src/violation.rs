//! What a broker sends that no broker sends, and why its connection ends. See
//! `amqp::incoming` for the check that finds it, and `error` for the error that reports it.

/// Why a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    #[error("it sent bytes that are not AMQP 0-9-1")]
    NotAmqp,
    #[error("it sent a frame of {0} bytes, more than was agreed on")]
    LargeFrame(u32),
    #[error("it sent method {0}.{1}, which only clients send")]
    ForeignMethod(u16, u16),
    #[error("it sent a malformed frame")]
    Malformed,
    #[error("it sent a table that is nested too deeply")]
    DeepTable,
    #[error("it sent a table with too many values")]
    LargeTable,
    #[error("it sent more than 1 MiB that was not asked for")]
    Flood,
    #[error("it returned a message that was not published")]
    ForeignReturn,
    #[error("its frame_max is {0}, and at least 8192 is required")]
    SmallFrameMax(u32),
    #[error("its channel_max is {0}, and at least 3 is required")]
    SmallChannelMax(u16),
}
