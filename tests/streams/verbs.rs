//! The table of all verbs: how each is run, and its use of the standard streams.

/// A verb. In its lines, NAME is a name of the case's own, and NAMESPACE the test's.
#[allow(clippy::struct_excessive_bools, reason = "the columns of a table")]
pub struct Row {
    /// The verb as on the command line, such as `queue get`.
    pub verb: &'static str,
    /// The line of bash that runs it.
    pub line: &'static str,
    /// The exit code if nothing is wrong with its streams.
    pub code: i32,
    /// Whether it writes to standard output.
    pub writes: bool,
    /// Whether it needs standard input.
    pub reads: bool,
    /// Whether it takes elements that only its output receives.
    pub takes_for_output: bool,
    /// Whether it starts a command, for which an inherited, ignored SIGCHLD may be an error.
    pub starts_command: bool,
    /// What must be there before.
    pub before: &'static str,
    /// If the verb failed because of its streams, this line prints `unchanged`.
    pub kept: &'static str,
    pub unchanged: &'static str,
}

const fn row(verb: &'static str, code: i32, line: &'static str) -> Row {
    Row {
        verb,
        line,
        code,
        writes: false,
        reads: false,
        takes_for_output: false,
        starts_command: false,
        before: "",
        kept: "",
        unchanged: "",
    }
}

impl Row {
    const fn writing(self) -> Self {
        Self { writes: true, ..self }
    }

    const fn reading(self) -> Self {
        Self { reads: true, ..self }
    }

    const fn taking(self) -> Self {
        Self { takes_for_output: true, writes: true, ..self }
    }

    const fn starting(self) -> Self {
        Self { starts_command: true, ..self }
    }

    const fn before(self, before: &'static str) -> Self {
        Self { before, ..self }
    }

    const fn kept(self, kept: &'static str, unchanged: &'static str) -> Self {
        Self { kept, unchanged, ..self }
    }
}

const LOCK: &str = "lockkeeper semaphore create NAME --slots 2";
const BACKGROUND: &str = "lockkeeper semaphore create NAME --slots 2; \
    lockkeeper hold NAME --background --state NAME.state --release-after 5m";
const QUEUE: &str = "lockkeeper queue create NAME";
const ELEMENTS: &str = "lockkeeper queue put NAME --create 0 <<<$'a\\nb\\nc'";
/// An element that a command did not get is in flight until the next get.
const ALL: &str = "lockkeeper queue stat NAME -o json | awk '/length|inFlight/ {gsub(/[^0-9]/, \"\"); n += $0} END {print n}'";
const LENGTH: &str = "lockkeeper queue length NAME";

/// One row for each verb.
pub const TABLE: &[Row] = &[
    row("operator", 69, "KUBECONFIG=/nonexistent lockkeeper operator"),
    row("crds", 0, "lockkeeper crds").writing(),
    row("exec", 0, "lockkeeper exec NAME --timeout 30s -- true").starting().before(LOCK),
    row("verify", 64, "lockkeeper verify"),
    row("hold", 0, "timeout --preserve-status -s TERM 5 lockkeeper hold NAME --timeout 30s")
        .writing()
        .before(LOCK),
    row("release", 0, "lockkeeper release --state NAME.state").writing().before(BACKGROUND),
    row("drive", 0, "lockkeeper drive").reading(),
    row("semaphore create", 0, "lockkeeper semaphore create NAME --slots 1").writing(),
    row("semaphore set", 0, "lockkeeper semaphore set NAME 3").writing().before(LOCK),
    row("semaphore grow", 0, "lockkeeper semaphore grow NAME 1").writing().before(LOCK),
    row("semaphore shrink", 0, "lockkeeper semaphore shrink NAME 1").writing().before(LOCK),
    row("semaphore destroy", 0, "lockkeeper semaphore destroy NAME --yes").before(LOCK),
    row("semaphore count", 0, "lockkeeper semaphore count NAME").writing().before(LOCK),
    row("semaphore holders", 0, "lockkeeper semaphore holders NAME").writing().before(LOCK),
    row("semaphore waiters", 0, "lockkeeper semaphore waiters NAME").writing().before(LOCK),
    row(
        "semaphore revoke",
        64,
        "lockkeeper semaphore revoke NAME --slot 1 --holder x --reason y --yes",
    )
    .before(LOCK),
    row("semaphore verify", 1, "lockkeeper semaphore verify NAME --slots 3").writing().before(LOCK),
    row("semaphore wait", 0, "lockkeeper semaphore wait NAME --until released").before(LOCK),
    row("mutex count", 0, "lockkeeper mutex count NAME").writing(),
    row("mutex holders", 0, "lockkeeper mutex holders NAME").writing(),
    row("mutex waiters", 0, "lockkeeper mutex waiters NAME").writing(),
    row("mutex revoke", 64, "lockkeeper mutex revoke NAME --holder x --reason y --yes"),
    row("mutex verify", 0, "lockkeeper mutex verify NAME"),
    row("mutex wait", 0, "lockkeeper mutex wait NAME --until released"),
    row("queue create", 0, "lockkeeper queue create NAME"),
    row("queue set-bound", 0, "lockkeeper queue set-bound NAME 5").before(QUEUE),
    row("queue put", 0, "lockkeeper queue put NAME")
        .reading()
        .before(QUEUE)
        .kept("lockkeeper queue closed NAME", "false\n"),
    row("queue get", 0, "lockkeeper queue get NAME").taking().before(ELEMENTS).kept(LENGTH, "3\n"),
    row("queue run", 0, "lockkeeper queue run NAME -- true")
        .starting()
        .before(ELEMENTS)
        .kept(ALL, "3\n"),
    row("queue length", 0, "lockkeeper queue length NAME").writing().before(QUEUE),
    row("queue exists", 0, "lockkeeper queue exists NAME").writing().before(QUEUE),
    row("queue closed", 1, "lockkeeper queue closed NAME").writing().before(QUEUE),
    row("queue close", 0, "lockkeeper queue close NAME").before(QUEUE),
    row("queue delete", 0, "lockkeeper queue delete NAME --yes").before(QUEUE),
    row("queue peek", 0, "lockkeeper queue peek NAME")
        .writing()
        .before(ELEMENTS)
        .kept(LENGTH, "3\n"),
    row("queue stat", 0, "lockkeeper queue stat NAME").writing().before(QUEUE),
    row("queue doctor", 0, "lockkeeper queue doctor NAME -o json").writing().before(QUEUE),
    row("list", 0, "lockkeeper list -n NAMESPACE").writing(),
    row("holders", 0, "lockkeeper holders deploy -n NAMESPACE").writing(),
    row("waiters", 0, "lockkeeper waiters deploy -n NAMESPACE").writing(),
    row("suspend", 0, "lockkeeper suspend sem/deploy -n NAMESPACE").writing(),
    row("resume", 0, "lockkeeper resume pq/jobs -n NAMESPACE").writing(),
    row("doctor", 1, "lockkeeper doctor -n NAMESPACE").writing(),
    row("validate", 0, "lockkeeper validate -o json -f - <NAME.yaml").writing().reading(),
    row("plan", 0, "lockkeeper plan -f NAME.yaml").writing(),
    row("apply", 0, "lockkeeper apply -f NAME.yaml --yes").writing(),
    row(
        "revoke",
        75,
        "lockkeeper revoke sem/deploy -n NAMESPACE --slot 1 --holder x --reason y --yes --timeout 1s",
    ),
    row("completion", 0, "lockkeeper completion bash").writing(),
    row("man", 0, "lockkeeper man").writing(),
    // A copy for each case would take minutes.
    row("install", 73, "lockkeeper install /nowhere"),
];
