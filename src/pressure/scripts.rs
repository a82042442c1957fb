//! Loads the Lua scripts once, and defines their keys. Each script documents itself in
//! its own file.

use std::sync::LazyLock;

use redis::Script;

use crate::plan::naming::{KEY_SUFFIXES, QueueName};
use crate::plan::pressure_queue::DATA_LABEL;

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
