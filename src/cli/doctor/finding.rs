//! One finding of `lockkeeper doctor`.

use serde::Serialize;

use crate::cli::output;

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Level {
    /// Checked, without a problem.
    Ok,
    /// Possibly intended, or temporary.
    Remark,
    /// Requires action by a user.
    Wrong,
}

/// Result of one check.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Finding {
    pub level: Level,
    /// Subject of the finding: `operator`, `crd/NAME`, `NAMESPACE/sem/NAME`.
    pub about: String,
    pub message: String,
    /// Next step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

impl Finding {
    pub fn ok(about: impl Into<String>, message: impl Into<String>) -> Self {
        Self { level: Level::Ok, about: about.into(), message: message.into(), next: None }
    }

    pub fn remark(
        about: impl Into<String>,
        message: impl Into<String>,
        next: impl Into<String>,
    ) -> Self {
        let next = Some(next.into());
        Self { level: Level::Remark, about: about.into(), message: message.into(), next }
    }

    pub fn wrong(
        about: impl Into<String>,
        message: impl Into<String>,
        next: impl Into<String>,
    ) -> Self {
        Self { level: Level::Wrong, ..Self::remark(about, message, next) }
    }

    /// Formats the finding as lines of text.
    pub fn text(&self) -> String {
        let [level, about, message, next] = self.row();
        let next = self.next.as_ref().map(|_| format!("        -> {next}\n"));
        format!("{level:7} {about}: {message}\n{}", next.unwrap_or_default())
    }

    pub fn row(&self) -> [String; 4] {
        let level = match self.level {
            Level::Ok => "ok",
            Level::Remark => "remark",
            Level::Wrong => "WRONG",
        };
        let next = output::or_dash(self.next.as_ref());
        [level.to_owned(), self.about.clone(), self.message.clone(), next]
    }
}
