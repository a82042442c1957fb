//! The subcommands that judge a run: `run` starts a workload, `check` reads a recorded run. See
//! `replaying` for `replay`.

use std::fs::File;
use std::io::{BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use url::Url;

use crate::check::rules;
use crate::check::verdict::{Property, Verdict};
use crate::controls::{self, Control};
use crate::history::{Faults, History, Rules, Variables};
use crate::report::text::Text;
use crate::report::{self, Report, Scheduled, directory};
use crate::run::{RunOptions, Way, run_on};
use crate::steps::schedules::schedules;

use super::driven::administrator;
use super::exit::{NOT_DONE, exit};

/// Maximum time between two resizes.
const RESIZE_WITHIN: Duration = Duration::from_millis(600);

/// The part of the duration of a run for which random schedules are executed before: one of this
/// many.
const SCHEDULED: u32 = 4;

/// The folder in the directory of a run for the random schedule that violates a property.
const SCHEDULE: &str = "schedule";

#[derive(Debug, clap::Args)]
pub struct RunArguments {
    /// Command that starts the driver. The driver reads the URL of the broker from AMQP_URL
    #[arg(long, value_name = "COMMAND", required_unless_present = "exec")]
    driver: Option<String>,

    /// Command that runs another command under the lock, for example
    /// 'flock -w {wait} -E 75 /tmp/{lock} {work}'
    ///
    /// Placeholders: {lock} is the name of the lock, {work} the command to run under the lock,
    /// and {wait} the time limit for acquiring, in seconds. A command that finds no free slot
    /// must end with exit code 75, or with another one except 0, 126 and 127.
    #[arg(long, value_name = "COMMAND", conflicts_with = "driver")]
    exec: Option<String>,

    #[command(flatten)]
    variables: Variables,

    /// Protocol of the implementation
    #[arg(long, value_enum)]
    protocol: Rules,

    /// Driver of a second implementation, which every other client process runs
    ///
    /// Both implementations then share the lock. The first one resizes it, if it supports that.
    #[arg(long, value_name = "COMMAND")]
    second_driver: Option<String>,

    /// Driver that resizes the lock if the implementation does not support resize [default: that of
    /// lockkeeper for the protocol]
    #[arg(long, value_name = "COMMAND")]
    administrator: Option<String>,

    /// URL of the broker. Ignored with --protocol None
    #[arg(long, env = "AMQP_URL", hide_env_values = true)]
    url: Option<Url>,

    /// Seed of the workload [default: a random seed, which is printed]
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,

    /// Duration of the workload, in seconds. Random schedules take up to a quarter of it in addition
    #[arg(long = "for", value_name = "SECONDS", default_value_t = 60)]
    seconds: u64,

    /// Time after which the run ends even if a situation that a grade requires is missing, in
    /// seconds
    ///
    /// The run goes on after --for until then, or until no such situation is missing. Without
    /// this option, it ends after --for.
    #[arg(long, value_name = "SECONDS", default_value_t = 0, hide_default_value = true)]
    at_most: u64,

    /// Number of client processes
    #[arg(long, value_name = "NUMBER", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    clients: u32,

    /// Maximum number of slots
    #[arg(long, value_name = "NUMBER", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    slots: u32,

    /// Inject no faults: do not kill processes or cut connections
    #[arg(long)]
    no_faults: bool,

    /// Skip the controls: clients with seeded bugs that must be caught
    ///
    /// Without controls, no grade is given.
    #[arg(long)]
    no_controls: bool,

    /// Property or rule, such as S5 or PS-6, whose violations are known: they do not change the exit
    /// code. Can be repeated
    #[arg(long, value_name = "NAME", value_parser = known)]
    known: Vec<String>,

    /// Write the recorded run (run.jsonl), the report (report.json) and an SVG picture of each
    /// violation to this directory
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub struct CheckArguments {
    /// Recorded run: run.jsonl, which run --out writes
    file: PathBuf,

    /// Print the report as JSON
    #[arg(long)]
    json: bool,

    /// Write the recorded run (run.jsonl), the report (report.json) and an SVG picture of each
    /// violation to this directory
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Judges a recorded run.
///
/// # Errors
///
/// Fails if the file cannot be read or judged.
pub fn check(arguments: &CheckArguments) -> Result<ExitCode, String> {
    let history = read(&arguments.file)?;
    let name = arguments.file.display();
    let report = Report::new(&history, None, &[]).map_err(|error| format!("{name}: {error}"))?;
    let text = if arguments.json {
        serde_json::to_string_pretty(&report).map_err(|error| error.to_string())? + "\n"
    } else {
        Text { report: &report, directory: arguments.out.as_deref() }.to_string()
    };
    put(arguments.out.as_deref(), &history, &report)?;
    print(&text)?;
    Ok(exit(&report.verdict))
}

/// Reads a recorded run.
pub fn read(path: &Path) -> Result<History, String> {
    let name = path.display();
    let file = File::open(path).map_err(|error| format!("{name}: {error}"))?;
    History::read(BufReader::new(file)).map_err(|error| format!("{name}: {error}"))
}

/// Writes the report to the directory, if one is given.
pub fn put(directory: Option<&Path>, history: &History, report: &Report) -> Result<(), String> {
    let Some(directory) = directory else { return Ok(()) };
    directory::write(directory, history, report).map_err(|error| error.to_string())
}

/// Runs a workload and judges it.
///
/// # Errors
///
/// Fails if the implementation or the broker cannot be used.
pub async fn play(arguments: RunArguments) -> Result<ExitCode, String> {
    let options = options(&arguments)?;
    print(&format!("seed {}\n", options.seed))?;
    let mut tested = None;
    if options.url.is_some() && !arguments.no_controls {
        tested = Some(run_controls(&options).await?);
    }
    let at_most = Duration::from_secs(arguments.at_most);
    let out = arguments.out.as_deref();
    let (scheduled, trouble) = schedule(&options, at_most.max(options.duration), out).await?;
    // A schedule that violates a property denies the grades, whatever else is seen.
    let is_denied = scheduled.as_ref().is_some_and(|one| !one.violations.is_empty());
    let at_most = if is_denied { options.duration } else { at_most };
    let mut outcome =
        run_on(&options, at_most, report::is_enough).await.map_err(|error| error.to_string())?;
    outcome.troubles.extend(trouble);
    let (controls, troubles) = (tested.as_deref(), &outcome.troubles);
    let report = Report::with_schedules(&outcome.history, controls, scheduled, troubles)
        .map_err(|error| error.to_string())?;
    put(out, &outcome.history, &report)?;
    print(&Text { report: &report, directory: out }.to_string())?;
    granted(&report.verdict)?;
    let right = tested.is_none_or(|tested| tested.iter().all(Control::is_right));
    let mut unknown = report.verdict;
    unknown.violations.extend(report.scheduled.into_iter().flat_map(|one| one.violations));
    unknown.violations.retain(|violation| !arguments.known.contains(&violation.name()));
    Ok(if right { exit(&unknown) } else { ExitCode::from(NOT_DONE) })
}

/// Executes random schedules for a part of the duration. Prints the one that violates a property,
/// and writes it to a folder of the directory, if one is given. Returns a warning if the schedules
/// could not be executed.
async fn schedule(
    options: &RunOptions,
    duration: Duration,
    out: Option<&Path>,
) -> Result<(Option<Scheduled>, Option<String>), String> {
    let schedules = match schedules(options, duration / SCHEDULED).await {
        Ok(Some(schedules)) => schedules,
        Ok(None) => return Ok((None, None)),
        Err(error) => return Ok((None, Some(format!("random schedules: {error}")))),
    };
    if let Some((steps, violated)) = &schedules.violation {
        let report =
            Report::new(&violated.history, None, &[]).map_err(|error| error.to_string())?;
        let folder = out.map(|out| out.join(SCHEDULE));
        put(folder.as_deref(), &violated.history, &report)?;
        print("the requests of the random schedule that violates a property:\n")?;
        let lines = steps.iter().zip(1..).map(|(step, number)| format!("{number:3}  {step}\n"));
        print(&lines.collect::<String>())?;
    }
    Ok((Some(Scheduled::new(&schedules)), None))
}

/// Parses the name of a property or a rule.
fn known(name: &str) -> Result<String, String> {
    let property = serde_json::from_value::<Property>(name.into()).is_ok();
    if property || rules::all().any(|rule| rule.id == name) {
        return Ok(name.to_owned());
    }
    Err("expected a property such as S5, or a rule that `lockkeeper-prove rules` lists".to_owned())
}

fn options(arguments: &RunArguments) -> Result<RunOptions, String> {
    let way = match (&arguments.driver, &arguments.exec) {
        (Some(driver), _) => Way::Driver(driver.clone()),
        (None, Some(exec)) => Way::Exec(exec.clone(), arguments.variables.clone()),
        (None, None) => return Err("no implementation given. Set --driver or --exec".to_owned()),
    };
    let url = if arguments.protocol == Rules::None { None } else { arguments.url.clone() };
    if url.is_none() && arguments.protocol != Rules::None {
        return Err("no URL of the broker given. Set --url or AMQP_URL".to_owned());
    }
    Ok(RunOptions {
        way,
        second_driver: arguments.second_driver.clone(),
        administrator: administrator(arguments.administrator.clone(), arguments.protocol),
        url,
        rules: arguments.protocol,
        lock: format!("prove.run-{:016x}", rand::random::<u64>()),
        seed: arguments.seed.unwrap_or_else(rand::random),
        duration: Duration::from_secs(arguments.seconds),
        clients: arguments.clients,
        slots: arguments.slots,
        faults: if arguments.no_faults { Faults::AGAIN } else { Faults::SOME },
        resize_within: RESIZE_WITHIN,
        program: std::env::current_exe().map_err(|error| error.to_string())?,
    })
}

/// Runs the controls and prints the result of each.
async fn run_controls(options: &RunOptions) -> Result<Vec<Control>, String> {
    let bugs = controls::bugs(options.rules);
    let mut tested = Vec::new();
    for bug in std::iter::once(None).chain(bugs.into_iter().map(Some)) {
        let control = controls::control(options, bug).await.map_err(|error| error.to_string())?;
        let name = bug.map_or("correct", crate::straw::Bug::name);
        let result = match (control.is_right(), bug) {
            (true, None) => "passes".to_owned(),
            (true, Some(bug)) => format!("caught by {:?}", bug.property()),
            (false, None) => format!("WRONG, violations were reported: {:?}", control.found),
            (false, Some(_)) => {
                format!("WRONG, the bug was missed; other violations: {:?}", control.others)
            }
        };
        print(&format!("control {name}: {result}\n"))?;
        tested.push(control);
    }
    Ok(tested)
}

/// Requires something to judge.
///
/// # Errors
///
/// Nothing was granted, and nothing is violated.
pub fn granted(verdict: &Verdict) -> Result<(), String> {
    let grants = verdict.counts.get("grants").copied().unwrap_or_default();
    if grants == 0 && verdict.violations.is_empty() {
        return Err("no acquire was granted, so nothing can be judged. See the warnings above, or check the driver with `lockkeeper-prove speak`".to_owned());
    }
    Ok(())
}

/// Writes to stdout.
///
/// # Errors
///
/// Fails if stdout cannot be written.
pub fn print(text: &str) -> Result<(), String> {
    let mut out = std::io::stdout();
    write!(out, "{text}").and_then(|()| out.flush()).map_err(|error| error.to_string())
}
