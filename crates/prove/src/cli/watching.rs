//! The verb `watch`: records an application until Ctrl-C, and judges the broker's side of it. See
//! `judging` for processes that answer requests.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use url::Url;

use super::exit::exit;
use super::judging::{print, put};
use crate::history::Rules;
use crate::report::Report;
use crate::report::text::Text;
use crate::watch::{Watch, WatchOptions};

#[derive(Debug, clap::Args)]
pub struct WatchArguments {
    /// Address to which the application connects instead of the broker
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:5673")]
    listen: SocketAddr,

    /// URL of the broker. The application uses its own user name and password
    #[arg(long, env = "AMQP_URL", hide_env_values = true)]
    url: Url,

    /// Protocol of the application
    #[arg(long, value_enum)]
    protocol: Rules,

    /// Name of the lock
    #[arg(long, value_name = "NAME")]
    lock: String,

    /// Duration, in seconds [default: until Ctrl-C]
    #[arg(long = "for", value_name = "SECONDS")]
    seconds: Option<u64>,

    /// Write the history, the report and pictures of violations to this directory
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Records and judges an application.
///
/// # Errors
///
/// The broker or the address cannot be used, or nothing connected.
pub async fn watch(arguments: WatchArguments) -> Result<ExitCode, String> {
    let options = WatchOptions {
        listen: arguments.listen,
        url: arguments.url,
        rules: arguments.protocol,
        lock: arguments.lock,
    };
    let watch = Watch::start(&options).await.map_err(|error| error.to_string())?;
    let (port, slots) = (watch.port(), watch.slots());
    print(&format!("listening on port {port}; the lock has {slots} slots\n"))?;
    let over = async {
        match arguments.seconds {
            Some(seconds) => tokio::time::sleep(Duration::from_secs(seconds)).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = over => {}
        pressed = tokio::signal::ctrl_c() => pressed.map_err(|error| error.to_string())?,
    }
    let history = watch.finish();
    let report = Report::new(&history, None, &[]).map_err(|error| error.to_string())?;
    put(arguments.out.as_deref(), &history, &report)?;
    print(&Text { report: &report, directory: arguments.out.as_deref() }.to_string())?;
    if history.events.is_empty() {
        return Err(format!("nothing connected to port {port}, so there is nothing to judge"));
    }
    Ok(exit(&report.verdict))
}
