//! The file: a JSON array of events, written as they come, so that memory stays flat however long it gets.
//!
//! A file that was not ended, because the process was, still opens: viewers do not ask for the closing bracket.
//! One lock, taken for each event and held while it is written.

use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// A trace file that is being written.
#[derive(Debug)]
pub struct ChromeFile {
    path: PathBuf,
    epoch: Instant,
    writer: Mutex<Writer>,
}

/// A process of the trace and one of its tracks.
pub(super) type Track<'a> = (&'a str, &'a str);

#[derive(Debug)]
struct Writer {
    out: BufWriter<File>,
    processes: BTreeMap<String, u64>,
    tracks: BTreeMap<(u64, String), u64>,
    events: u64,
    ended: bool,
    failure: Option<io::Error>,
}

impl ChromeFile {
    /// Makes the file. Times in it count from now. Errors: those of the system.
    pub fn create(path: &Path) -> io::Result<Self> {
        let out = BufWriter::new(File::create(path)?);
        let (processes, tracks) = (BTreeMap::new(), BTreeMap::new());
        let writer = Writer { out, processes, tracks, events: 0, ended: false, failure: None };
        Ok(Self { path: path.to_owned(), epoch: Instant::now(), writer: Mutex::new(writer) })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Ends the file; what comes later is left out. Errors: the first that came up while writing.
    pub fn finish(&self) -> io::Result<()> {
        let mut writer = self.lock();
        if !std::mem::replace(&mut writer.ended, true) {
            let begin = if writer.events == 0 { "[" } else { "" };
            let outcome = writer.out.write_all(format!("{begin}\n]\n").as_bytes()).and_then(|()| writer.out.flush());
            writer.note(outcome);
        }
        writer.failure.take().map_or(Ok(()), Err)
    }

    /// Something with a length.
    pub(super) fn slice(
        &self,
        track: Track<'_>,
        name: &str,
        category: &str,
        (start, end): (Instant, Instant),
        args: &Map<String, Value>,
    ) {
        let (start, end) = (self.micros(start), self.micros(end));
        self.put(track, |pid, tid| {
            json!({ "ph": "X", "name": name, "cat": category, "pid": pid, "tid": tid, "ts": start, "dur": end - start, "args": args })
        });
    }

    /// Something without.
    pub(super) fn instant(&self, track: Track<'_>, name: &str, category: &str, at: Instant, args: &Map<String, Value>) {
        let at = self.micros(at);
        self.put(track, |pid, tid| {
            json!({ "ph": "i", "s": "t", "name": name, "cat": category, "pid": pid, "tid": tid, "ts": at, "args": args })
        });
    }

    fn put(&self, (process, track): Track<'_>, event: impl FnOnce(u64, u64) -> Value) {
        let mut writer = self.lock();
        let pid = writer.process(process);
        let tid = writer.track(pid, track);
        writer.write(&event(pid, tid));
    }

    fn micros(&self, at: Instant) -> f64 {
        at.saturating_duration_since(self.epoch).as_nanos() as f64 / 1000.0
    }

    fn lock(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Writer {
    fn process(&mut self, name: &str) -> u64 {
        if let Some(&pid) = self.processes.get(name) {
            return pid;
        }
        let pid = self.processes.len() as u64 + 1;
        self.processes.insert(name.to_owned(), pid);
        self.write(&json!({ "ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": { "name": name } }));
        pid
    }

    fn track(&mut self, pid: u64, name: &str) -> u64 {
        let key = (pid, name.to_owned());
        if let Some(&tid) = self.tracks.get(&key) {
            return tid;
        }
        let tid = self.tracks.len() as u64 + 1;
        self.tracks.insert(key, tid);
        self.write(&json!({ "ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": { "name": name } }));
        tid
    }

    fn write(&mut self, event: &Value) {
        if self.ended || self.failure.is_some() {
            return;
        }
        let before = if self.events == 0 { "[\n" } else { ",\n" };
        self.events += 1;
        let written = self.out.write_all(before.as_bytes());
        let outcome = written.and_then(|()| serde_json::to_writer(&mut self.out, event).map_err(io::Error::from));
        self.note(outcome);
    }

    fn note(&mut self, outcome: io::Result<()>) {
        if let Err(error) = outcome {
            self.failure.get_or_insert(error);
        }
    }
}
