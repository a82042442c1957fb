//! A process of a run: an implementation with its own proxy, whose requests and answers are
//! recorded. See `workload` for the operations that it is asked to perform.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::future::pending;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::sleep;
use url::Url;

use super::aims::Target;
use super::cutter::Cutter;
use super::error::RunError;
use super::options::{RunOptions, Way};
use crate::driver::exec::{Exec, ExecOptions};
use crate::driver::implementation::Implementation;
use crate::driver::message::{Line, Request, UNSUPPORTED};
use crate::driver::process::{Driver, DriverError, Listener};
use crate::history::{KILL, KILL_ALONE, Operation, Phase, ProcessState, Sender, Verb, What};
use crate::wire::{Gate, Observer, Proxy, Recorder, Sprung};

/// Time limit of an operation, in addition to the time that it may wait.
const LIMIT: Duration = Duration::from_secs(30);

/// A fault during an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blow {
    /// The process is killed (SIGKILL).
    Kill,
    /// All connections of the process are cut.
    Cut,
}

/// A running process.
pub struct Actor {
    process: u32,
    lock: String,
    recorder: Recorder,
    proxy: Option<Arc<Proxy>>,
    implementation: Implementation,
    verb: Arc<Mutex<Option<Verb>>>,
    /// Whether its kill has been recorded.
    killed: bool,
}

impl Actor {
    /// Starts a process with this number.
    ///
    /// # Errors
    ///
    /// Fails if the proxy or the process could not be started.
    pub async fn start(
        way: &Way,
        options: &RunOptions,
        recorder: &Recorder,
        process: u32,
    ) -> Result<Self, RunError> {
        Self::observed(way, options, recorder, process, ()).await
    }

    /// Starts a process with this number, and passes the traffic of its proxy to a second
    /// observer after the recorder.
    ///
    /// # Errors
    ///
    /// As [`Actor::start`].
    pub async fn observed(
        way: &Way,
        options: &RunOptions,
        recorder: &Recorder,
        process: u32,
        observer: impl Observer,
    ) -> Result<Self, RunError> {
        let proxy = match &options.url {
            Some(url) => Some(Arc::new(proxy(url, (recorder.observer(process), observer)).await?)),
            None => None,
        };
        let mut environment = Vec::new();
        if let (Some(url), Some(proxy)) = (&options.url, &proxy) {
            environment.push(("AMQP_URL".to_owned(), through(url, proxy.port())?));
        }
        let verb = Arc::new(Mutex::new(None));
        let listener = listener(recorder.clone(), process, Arc::clone(&verb));
        let implementation = match way {
            Way::Driver(command) => {
                Implementation::Driver(Driver::start(command, &environment, listener)?)
            }
            Way::Exec(command, variables) => {
                let options = ExecOptions {
                    command: command.clone(),
                    environment,
                    variables: variables.clone(),
                    program: options.program.clone(),
                };
                Implementation::Exec(Exec::new(options, listener)?)
            }
        };
        let command = way.command();
        recorder.record(What::Process {
            process,
            state: ProcessState::Started,
            implementation: (command != options.way.command()).then(|| command.to_owned()),
        });
        let (lock, recorder) = (options.lock.clone(), recorder.clone());
        Ok(Self { process, lock, recorder, proxy, implementation, verb, killed: false })
    }

    /// Returns the number of the process.
    pub fn process(&self) -> u32 {
        self.process
    }

    /// Delays all data between the process and the broker by this time in each direction, from
    /// now on.
    pub fn delay(&self, delay: Duration) {
        for sender in [Sender::Client, Sender::Broker] {
            if let Some(proxy) = &self.proxy {
                proxy.delay(sender, delay);
            }
        }
    }

    /// Returns the gate of its proxy.
    pub fn gate(&self) -> Option<Gate> {
        self.proxy.as_ref().map(|proxy| proxy.gate())
    }

    /// Returns the reason if some of its data could not be parsed and therefore was not
    /// recorded.
    pub fn unreadable(&self) -> Option<String> {
        self.proxy.as_ref()?.seen().err().map(|error| error.to_string())
    }

    /// Requests one operation and records the request and the answer.
    ///
    /// # Errors
    ///
    /// [`DriverError`] if the process cannot be used any more. Kill it then.
    pub async fn ask(
        &mut self,
        verb: Verb,
        wait: Option<Duration>,
        slots: Option<u32>,
    ) -> Result<Line, DriverError> {
        *self.verb.lock().unwrap_or_else(PoisonError::into_inner) = Some(verb);
        let wait_ms = wait.map(|wait| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX));
        let asked = operation(self.process, verb, Phase::Invoke);
        self.recorder.record(What::Operation(Operation { slots, wait_ms, ..asked }));
        let request = Request { verb, lock: self.lock.clone(), wait_ms, slots };
        let answer = self.implementation.ask(&request, LIMIT + wait.unwrap_or_default()).await;
        if let Err(error) = &answer {
            let mut ended = operation_info(self.process, verb, error);
            ended.slots = slots;
            self.recorder.record(What::Operation(ended));
        }
        answer
    }

    /// Like [`Actor::ask`], but strikes the process after this time if it has not answered.
    /// Returns whether it was struck.
    ///
    /// # Errors
    ///
    /// Fails like [`Actor::ask`]. A process that was killed gives no answer.
    pub async fn ask_and_strike(
        &mut self,
        verb: Verb,
        (wait, slots): (Option<Duration>, Option<u32>),
        (blow, after): (Blow, Duration),
    ) -> (bool, Result<Line, DriverError>) {
        let struck = AtomicBool::new(false);
        let (control, cutter) = (self.implementation.control(), self.cutter());
        let (recorder, process) = (self.recorder.clone(), self.process);
        let strike = async {
            sleep(after).await;
            struck.store(true, Ordering::Relaxed);
            match blow {
                Blow::Kill => {
                    // The fault is recorded before it takes effect.
                    recorder.record(What::Fault { process: Some(process), fault: KILL.to_owned() });
                    control.kill();
                }
                Blow::Cut => {
                    if let Some(cutter) = &cutter {
                        cutter.cut();
                    }
                }
            }
            pending::<Infallible>().await
        };
        let answer = tokio::select! {
            biased;
            answer = self.ask(verb, wait, slots) => answer,
            never = strike => match never {},
        };
        let struck = struck.load(Ordering::Relaxed);
        self.killed |= struck && blow == Blow::Kill;
        (struck, answer)
    }

    /// Arms a cut of the connection on which the client sends this method for the `n`th time
    /// from now on. The fault is recorded before it takes effect.
    pub fn cut_at(&self, target: &Target, n: usize) -> Option<Sprung> {
        Some(self.cutter()?.cut_at(&target.method, target.when, n))
    }

    /// Returns a handle that injects faults, even while a request is unanswered. `None` if no
    /// broker is observed.
    pub fn cutter(&self) -> Option<Cutter> {
        let (proxy, recorder) = (Arc::clone(self.proxy.as_ref()?), self.recorder.clone());
        let control = self.implementation.control();
        Some(Cutter { process: self.process, recorder, proxy, control })
    }

    /// Cuts all connections of the process, for both sides.
    pub fn cut(&self) {
        if let Some(cutter) = self.cutter() {
            cutter.cut();
        }
    }

    /// Delays the requests of the process by this time from now on.
    pub fn slow(&self, delay: Duration) {
        if let Some(proxy) = &self.proxy {
            proxy.delay(Sender::Client, delay);
        }
    }

    /// Disarms the pending cut.
    pub fn disarm(&self) {
        if let Some(proxy) = &self.proxy {
            proxy.disarm();
        }
    }

    /// Returns the names of the methods that the client sent since the last call.
    pub fn sent(&self) -> BTreeSet<String> {
        let Some(proxy) = &self.proxy else { return BTreeSet::new() };
        let seen = proxy.seen().unwrap_or_default();
        proxy.reset();
        let sent = seen.into_iter().filter(|method| method.sender == Sender::Client);
        sent.map(|method| method.name).collect()
    }

    fn suffers(&self, fault: String) {
        self.recorder.record(What::Fault { process: Some(self.process), fault });
    }

    /// Creates the lock. Returns `None` if the process does not support that; then it is killed.
    ///
    /// # Errors
    ///
    /// [`RunError::Create`] with the reason, after the process was killed; [`RunError::Driver`].
    pub async fn create(mut self, slots: u32) -> Result<Option<Self>, RunError> {
        let reason = match self.ask(Verb::Resize, None, Some(slots)).await? {
            Line::Ok(_) => return Ok(Some(self)),
            Line::Fail(why) | Line::Info(why) | Line::Lost(why) => why,
        };
        self.kill().await;
        if reason == UNSUPPORTED { Ok(None) } else { Err(RunError::Create(reason)) }
    }

    /// Kills a command that runs another one under the lock, and not the other one. Waits until
    /// that has ended too, but not longer than `limit`. Does nothing to a driver.
    pub async fn kill_alone(&mut self, limit: Duration) {
        if let Implementation::Exec(_) = self.implementation {
            self.suffers(KILL_ALONE.to_owned());
            self.implementation.kill_alone(limit).await;
        }
    }

    /// Kills the process, regardless of its state.
    pub async fn kill(mut self) {
        if !self.killed {
            self.suffers(KILL.to_owned());
        }
        self.implementation.kill().await;
        let (process, state) = (self.process, ProcessState::Killed);
        self.recorder.record(What::Process { process, state, implementation: None });
    }
}

async fn proxy(url: &Url, observer: impl Observer) -> Result<Proxy, RunError> {
    let host = url.host_str().ok_or(RunError::Url)?.to_owned();
    let address = (host, url.port().unwrap_or(5672));
    Ok(Proxy::observed(address, observer).await?)
}

/// Returns the URL with the address of the proxy.
fn through(url: &Url, port: u16) -> Result<String, RunError> {
    let mut url = url.clone();
    url.set_host(Some("127.0.0.1")).map_err(|_| RunError::Url)?;
    url.set_port(Some(port)).map_err(|()| RunError::Url)?;
    Ok(url.into())
}

/// Returns a listener that records each line when it is read.
fn listener(recorder: Recorder, process: u32, verb: Arc<Mutex<Option<Verb>>>) -> Listener {
    Arc::new(move |line| {
        let done = |verb, phase| operation(process, verb, phase);
        let verb = match line {
            Line::Lost(why) => {
                return recorder.record(What::Lost { process, why: why.clone() });
            }
            _ => verb.lock().unwrap_or_else(PoisonError::into_inner).take(),
        };
        let Some(verb) = verb else { return };
        recorder.record(What::Operation(match line {
            Line::Ok(details) => Operation {
                slot: details.slot,
                token: details.token.clone(),
                fence: details.fence,
                draining: details.draining,
                slots: details.slots,
                ..done(verb, Phase::Ok)
            },
            Line::Fail(why) => Operation { why: Some(why.clone()), ..done(verb, Phase::Fail) },
            Line::Info(why) | Line::Lost(why) => {
                Operation { why: Some(why.clone()), ..done(verb, Phase::Info) }
            }
        }));
    })
}

/// Returns a request or an answer without details.
pub(crate) fn operation(process: u32, verb: Verb, phase: Phase) -> Operation {
    Operation {
        process,
        verb,
        phase,
        slot: None,
        token: None,
        fence: None,
        draining: false,
        slots: None,
        wait_ms: None,
        why: None,
    }
}

fn operation_info(process: u32, verb: Verb, error: &DriverError) -> Operation {
    Operation { why: Some(error.to_string()), ..operation(process, verb, Phase::Info) }
}
