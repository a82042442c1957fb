//! The resource that the lock guards: a server with a place for each slot. A command enters
//! with its slot and fencing token, which is its first write, and leaves. The register remembers the greatest
//! token of each slot, and rejects a write with a smaller one, because it is late. It
//! records every time that two commands are in the same place.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use lockkeeper_testkit::rabbitmq::eventually;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::tcp::OwnedReadHalf;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::Fault;

/// A running register. Its port is on 127.0.0.1.
pub struct Register {
    port: u16,
    state: Arc<Mutex<State>>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct State {
    places: HashMap<u32, Slot>,
    /// The latest fault. Its consequences may outlast it.
    fault: Option<Fault>,
    /// The holder of each slot and token.
    holders: HashMap<(u32, u64), String>,
    account: Account,
}

#[derive(Default)]
struct Slot {
    greatest: u64,
    inside: Vec<Entry>,
}

/// The account of a register.
#[derive(Clone, Default)]
pub struct Account {
    pub entries: usize,
    pub late_writes: usize,
    /// Entries while another command was in the same place, by the latest fault.
    pub overlaps: BTreeMap<Option<Fault>, Vec<String>>,
    /// Acquisitions without a token, or with the token of another one.
    pub violations: Vec<String>,
}

/// A command in its place, as it describes itself.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    node: usize,
    slot: u32,
    token: u64,
    holder: String,
}

impl Entry {
    /// Parses `enter NODE SLOT HOLDER TOKEN`. Without fencing, there is no token.
    fn parse(line: &str) -> Result<Self, String> {
        let words: Vec<&str> = line.split(' ').collect();
        let ["enter", node, slot, holder, token] = words[..] else {
            return Err(format!("no token: {line:?}"));
        };
        let [node, slot, token] =
            [node, slot, token].map(|number| number.parse::<u64>().map_err(|_| line.to_owned()));
        let slot = u32::try_from(slot?).map_err(|_| line.to_owned())?;
        let node = usize::try_from(node?).map_err(|_| line.to_owned())?;
        Ok(Self { node, slot, token: token?, holder: holder.to_owned() })
    }
}

impl Register {
    /// Opens an empty register.
    pub async fn open() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::<Mutex<State>>::default();
        let shared = Arc::clone(&state);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(Arc::clone(&shared), stream));
            }
        });
        Self { port, state, task }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Attributes what happens from now on to this fault.
    pub fn suffers(&self, fault: Option<Fault>) {
        self.state.lock().unwrap().fault = fault;
    }

    /// Waits until the lock of a command in its place is held at this node.
    pub async fn until_held_at(&self, node: usize) {
        eventually("a lock is held at the node of the next fault", async || {
            let state = self.state.lock().unwrap();
            state.places.values().flat_map(|place| &place.inside).any(|entry| entry.node == node)
        })
        .await;
    }

    /// Returns how many commands have entered.
    pub fn entries(&self) -> usize {
        self.state.lock().unwrap().account.entries
    }

    /// Closes the register. Returns its account.
    pub fn close(self) -> Account {
        self.state.lock().unwrap().account.clone()
    }
}

impl Drop for Register {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl State {
    fn enter(&mut self, entry: &Entry) {
        self.account.entries += 1;
        let holder = self.holders.entry((entry.slot, entry.token)).or_insert(entry.holder.clone());
        if *holder != entry.holder {
            self.account.violations.push(format!("{entry:?} has the token of {holder}"));
        }
        let place = self.places.entry(entry.slot).or_default();
        if !place.inside.is_empty() {
            let overlap = format!("{entry:?} with {:?}", place.inside);
            self.account.overlaps.entry(self.fault).or_default().push(overlap);
        }
        place.inside.push(entry.clone());
    }

    /// Accepts a write, or rejects it. Returns the answer.
    fn write(&mut self, entry: &Entry) -> &'static str {
        let place = self.places.entry(entry.slot).or_default();
        if entry.token < place.greatest {
            self.account.late_writes += 1;
            return "late";
        }
        place.greatest = entry.token;
        "written"
    }

    fn leave(&mut self, entry: &Entry) {
        let place = self.places.entry(entry.slot).or_default();
        place.inside.retain(|other| other != entry);
    }
}

/// Serves one command: one line for each request, and one for its answer. The end of its
/// connection is its end.
async fn serve(state: Arc<Mutex<State>>, stream: TcpStream) {
    let (reader, mut writer) = stream.into_split();
    let mut lines = BufReader::new(reader).lines();
    let Some(line) = next(&mut lines).await else { return };
    let entry = match Entry::parse(&line) {
        Ok(entry) => entry,
        Err(violation) => {
            let mut state = state.lock().unwrap();
            let violation = format!("{violation} after {:?}", state.fault);
            state.account.violations.push(violation);
            return;
        }
    };
    let mut answer = {
        let mut state = state.lock().unwrap();
        state.enter(&entry);
        state.write(&entry)
    };
    while writer.write_all(format!("{answer}\n").as_bytes()).await.is_ok() {
        match next(&mut lines).await.as_deref() {
            Some("write") => answer = state.lock().unwrap().write(&entry),
            Some("leave") => {
                state.lock().unwrap().leave(&entry);
                answer = "left";
            }
            _ => break,
        }
    }
    state.lock().unwrap().leave(&entry);
}

async fn next(lines: &mut Lines<BufReader<OwnedReadHalf>>) -> Option<String> {
    lines.next_line().await.ok().flatten()
}
