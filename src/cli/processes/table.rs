//! The processes of this machine as `/proc` lists them. See `processes` for the descendants
//! of this one.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;

use lockkeeper_plan::clean_text;

/// A process that is not a zombie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Process {
    pub pid: i32,
    pub parent: i32,
    group: i32,
    /// Clock ticks from the machine's start to the process's.
    started: u64,
}

impl Process {
    /// Reads `/proc/<pid>/stat`. Returns `None` for a zombie, which its parent has not
    /// reaped yet.
    fn parse(stat: &[u8]) -> Option<Self> {
        let open = stat.iter().position(|&byte| byte == b'(')?;
        // The program's name is in parentheses and may contain any byte, also these.
        let close = stat.iter().rposition(|&byte| byte == b')')?;
        let pid = str::from_utf8(&stat[..open]).ok()?.trim().parse().ok()?;
        let fields: Vec<&str> =
            str::from_utf8(&stat[close + 1..]).ok()?.split_ascii_whitespace().collect();
        let number = |field: usize| fields.get(field)?.parse::<i64>().ok();
        // proc_pid_stat(5) counts from 1 and the pid: here the state is field 0.
        let (state, threads) = (*fields.first()?, number(17)?);
        // A process whose first thread has ended looks like a zombie while others run.
        if matches!(state, "Z" | "X" | "x") && threads <= 1 {
            return None;
        }
        let id = |field| i32::try_from(number(field)?).ok();
        let started = u64::try_from(number(19)?).ok()?;
        Some(Self { pid, parent: id(1)?, group: id(2)?, started })
    }

    /// Returns what identifies the process: a pid is used again.
    pub fn id(&self) -> (i32, u64) {
        (self.pid, self.started)
    }

    pub fn is_leader(&self) -> bool {
        self.pid == self.group
    }
}

/// All processes, by their parents.
pub(super) struct Table(BTreeMap<i32, Vec<Process>>);

impl Table {
    /// Lists the processes. One that ends during the read may be missing.
    pub fn read() -> io::Result<Self> {
        let mut table: BTreeMap<i32, Vec<Process>> = BTreeMap::new();
        for entry in fs::read_dir("/proc")? {
            let name = entry?.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else {
                continue;
            };
            match fs::read(format!("/proc/{pid}/stat")) {
                Ok(stat) => {
                    if let Some(process) = Process::parse(&stat) {
                        table.entry(process.parent).or_default().push(process);
                    }
                }
                // Any other error than its end hides a process.
                Err(error) if has_ended(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Self(table))
    }

    /// Returns the children of this process.
    pub fn children(&self, parent: i32) -> impl Iterator<Item = &Process> {
        self.0.get(&parent).into_iter().flatten()
    }

    /// Returns the descendants of a process, parents first, without those that are excluded
    /// or below one that is.
    pub fn descendants(
        &self,
        root: i32,
        others: &BTreeSet<(i32, u64)>,
        is_excluded: impl Fn(&Process) -> bool,
    ) -> Vec<Process> {
        let mut found: Vec<Process> = Vec::new();
        let mut next = 0;
        let mut parent = root;
        loop {
            found.extend(
                self.children(parent)
                    .filter(|child| !others.contains(&child.id()) && !is_excluded(child)),
            );
            let Some(process) = found.get(next) else { return found };
            parent = process.pid;
            next += 1;
        }
    }
}

fn has_ended(error: &io::Error) -> bool {
    use nix::libc::ESRCH;
    error.kind() == io::ErrorKind::NotFound
        || error.kind() == io::ErrorKind::PermissionDenied
        || error.raw_os_error() == Some(ESRCH)
}

/// Returns the living process with this pid.
pub(super) fn find(pid: i32) -> Option<Process> {
    Process::parse(&fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// Returns whether this process is alive.
pub(super) fn is_alive(pid: i32) -> bool {
    find(pid).is_some()
}

/// Maximum number of generations between a process and its descendant.
const GENERATIONS: usize = 256;

/// Returns whether one process is, or descends from, the other.
pub(super) fn descends_from(pid: i32, ancestor: i32) -> bool {
    let parent = |pid: &i32| find(*pid).map(|process| process.parent);
    std::iter::successors(Some(pid), parent).take(GENERATIONS).any(|pid| pid == ancestor)
}

/// Returns whether this process is the guardian of an `exec`.
pub(super) fn is_guardian(pid: i32) -> bool {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.starts_with(b"lockkeeper\0guardian\0")
}

/// Returns the process's name and pid, for a message.
pub(super) fn name(pid: i32) -> String {
    let name = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    format!("{} ({pid})", clean_text(String::from_utf8_lossy(&name).trim(), 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    const REST: &str = "0 -1 4194304 1 0 0 0 0 0 0 0 20 0";

    fn process(head: &[u8], state: &str, threads: u32) -> Option<Process> {
        let tail = format!(" {state} 7 8 9 {REST} {threads} 0 555 0 0");
        Process::parse(&[head, tail.as_bytes()].concat())
    }

    #[test]
    fn a_process_is_read_whatever_its_name_is() {
        let expected = Process { pid: 12, parent: 7, group: 8, started: 555 };
        for name in [&b"sh"[..], b"a) Z 1 8", b"((", b"t\xf6\xf6\xf6", "töö".as_bytes(), b""] {
            let head = [b"12 (", name, b")"].concat();
            assert_eq!(process(&head, "S", 1), Some(expected), "{name:?}");
        }
        assert_eq!(Process::parse(b""), None);
    }

    #[test]
    fn a_zombie_is_no_process_unless_one_of_its_threads_runs() {
        assert_eq!(process(b"12 (sh)", "Z", 1), None);
        assert!(process(b"12 (sh)", "Z", 3).is_some());
        assert!(process(b"12 (sh)", "T", 1).is_some(), "a stopped process is alive");
    }

    #[test]
    fn descendants_are_found_through_all_generations_and_excluded_with_their_own() {
        let process = |pid, parent| Process { pid, parent, group: pid, started: 1 };
        let mut table = BTreeMap::<i32, Vec<Process>>::new();
        for (pid, parent) in [(1, 0), (10, 1), (11, 10), (12, 11), (13, 10), (20, 1), (21, 20)] {
            table.entry(parent).or_default().push(process(pid, parent));
        }
        let table = Table(table);
        let pids = |root, others: &[(i32, u64)], excluded: i32| {
            let others = others.iter().copied().collect();
            let found = table.descendants(root, &others, |process| process.pid == excluded);
            found.iter().map(|process| process.pid).collect::<Vec<_>>()
        };
        assert_eq!(pids(10, &[], 0), [11, 13, 12]);
        assert_eq!(pids(1, &[(20, 1)], 11), [10, 13]);
        assert_eq!(pids(1, &[(20, 2)], 11), [10, 20, 13, 21], "another process of that pid");
        assert_eq!(pids(99, &[], 0), [0; 0]);
    }

    #[test]
    fn a_process_descends_from_its_ancestors_and_from_no_other() {
        let own = std::process::id().cast_signed();
        assert!(descends_from(own, own));
        assert!(descends_from(own, std::os::unix::process::parent_id().cast_signed()));
        assert!(!descends_from(std::os::unix::process::parent_id().cast_signed(), own));
        assert!(!descends_from(0, own), "a process of another namespace");
    }

    #[test]
    fn the_children_of_this_process_are_listed() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let own = i32::try_from(std::process::id()).unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let is_listed = || Table::read().unwrap().children(own).any(|child| child.pid == pid);
        assert!(is_listed() && is_alive(pid));
        assert_eq!(name(pid), format!("sleep ({pid})"));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!is_listed() && !is_alive(pid));
    }
}
