//! Loads the Lua scripts once, and defines their keys. Each script documents itself in
//! its own file.

use std::sync::LazyLock;

use lockkeeper_plan::naming::{KEY_SUFFIXES, QueueName};
use lockkeeper_plan::pressure_queue::DATA_LABEL;
use redis::{Cmd, ErrorKind, FromRedisValue, RedisResult, ServerErrorKind, ToRedisArgs};

/// A script's text: the shared part, then its own.
macro_rules! text {
    ($file:literal) => {
        concat!(include_str!("scripts/shared.lua"), "\n", include_str!(concat!("scripts/", $file)))
    };
}

macro_rules! script {
    ($file:literal) => {
        LazyLock::new(|| Script::new(text!($file)))
    };
}

/// A script, which the server knows by its hash once it was loaded.
pub(super) struct Script {
    text: &'static str,
    hash: String,
}

impl Script {
    fn new(text: &'static str) -> Self {
        Self { text, hash: redis::Script::new(text).get_hash().to_owned() }
    }

    /// Returns a call of the script without keys and arguments.
    pub(super) fn prepare(&'static self) -> Call {
        Call { script: self, keys: Vec::new(), arguments: Vec::new() }
    }
}

/// A call of a script.
pub(super) struct Call {
    script: &'static Script,
    keys: Vec<Vec<u8>>,
    arguments: Vec<Vec<u8>>,
}

impl Call {
    /// Adds keys.
    pub(super) fn key(&mut self, keys: impl ToRedisArgs) -> &mut Self {
        keys.write_redis_args(&mut self.keys);
        self
    }

    /// Adds arguments.
    pub(super) fn arg(&mut self, arguments: impl ToRedisArgs) -> &mut Self {
        arguments.write_redis_args(&mut self.arguments);
        self
    }

    /// Runs the script. If the server does not know it, it has not run, and is loaded
    /// first. A server that does not allow that gets the text with the call.
    pub(super) async fn run<T: FromRedisValue>(
        &self,
        connection: &mut impl redis::aio::ConnectionLike,
    ) -> RedisResult<T> {
        match self.by_hash().query_async(connection).await {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {}
            answer => return answer,
        }
        match self.load(connection).await {
            Ok(()) => self.by_hash().query_async(connection).await,
            Err(error) if error.is_io_error() => Err(error),
            Err(refusal) => self.by_text().query_async(connection).await.map_err(|error| {
                // Which of the two permissions to grant: the documented one.
                if is_refusal(&error) { refusal } else { error }
            }),
        }
    }

    /// Returns a command for this call that needs no further request.
    pub(super) async fn known(
        &self,
        connection: &mut impl redis::aio::ConnectionLike,
    ) -> RedisResult<Cmd> {
        match self.load(connection).await {
            Ok(()) => Ok(self.by_hash()),
            Err(error) if error.is_io_error() => Err(error),
            Err(_) => Ok(self.by_text()),
        }
    }

    async fn load(&self, connection: &mut impl redis::aio::ConnectionLike) -> RedisResult<()> {
        redis::cmd("SCRIPT").arg("LOAD").arg(self.script.text).exec_async(connection).await
    }

    fn by_hash(&self) -> Cmd {
        self.command("EVALSHA", &self.script.hash)
    }

    fn by_text(&self) -> Cmd {
        self.command("EVAL", self.script.text)
    }

    fn command(&self, name: &str, script: &str) -> Cmd {
        let mut command = redis::cmd(name);
        command.arg(script).arg(self.keys.len()).arg(&self.keys).arg(&self.arguments);
        command
    }
}

/// Whether the server does not have the command, or does not allow it.
fn is_refusal(error: &redis::RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoPerm)
        || error.detail().is_some_and(|detail| detail.contains("unknown command"))
}

pub(super) static OBSERVE: LazyLock<Script> = script!("observe.lua");
pub(super) static CREATE: LazyLock<Script> = script!("create.lua");
pub(super) static SET_BOUND: LazyLock<Script> = script!("setbound.lua");
pub(super) static CLOSE: LazyLock<Script> = script!("close.lua");
pub(super) static DELETE: LazyLock<Script> = script!("delete.lua");
pub(super) static REPAIR: LazyLock<Script> = script!("repair.lua");
pub(super) static LOOK: LazyLock<Script> = script!("look.lua");
pub(super) static ALLOWED: LazyLock<Script> = script!("allowed.lua");
pub(super) static PUT: LazyLock<Script> = script!("put.lua");
/// The script's text for a transaction, which would detect too late that the server does
/// not know the script. The text is therefore sent each time, without comments and blank
/// lines.
pub(super) static PUT_TEXT: LazyLock<String> = LazyLock::new(|| {
    let lines = text!("put.lua").lines().map(str::trim);
    lines.filter(|line| !line.is_empty() && !line.starts_with("--")).collect::<Vec<_>>().join("\n")
});
pub(super) static GET: LazyLock<Script> = script!("get.lua");
pub(super) static GIVE_BACK: LazyLock<Script> = script!("giveback.lua");
pub(super) static SETTLE: LazyLock<Script> = script!("settle.lua");

/// Returns the fourteen keys in the order that every script expects: the data list, then
/// those of [`KEY_SUFFIXES`].
pub(super) fn keys(queue: &QueueName) -> Vec<String> {
    let data = queue.data();
    let others = KEY_SUFFIXES.iter().map(|suffix| format!("{data}{suffix}"));
    std::iter::once(data.clone()).chain(others).collect()
}

/// Returns the display name of the key with this number (from 1, as in Lua).
pub(super) fn label(number: usize) -> String {
    match number.checked_sub(2) {
        None => DATA_LABEL,
        Some(index) => KEY_SUFFIXES.get(index).copied().unwrap_or("(unknown)"),
    }
    .to_owned()
}
