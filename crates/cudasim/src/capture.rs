//! Stream capture, graphs, and their launches.

use std::collections::BTreeMap;
use std::thread::{self, ThreadId};

use crate::clock::{Clock, Lane};
use crate::code::{Code, Outcome};
use crate::queue::OpId;
use crate::state::{Sort, State};
use crate::stream::{Legacy, Queued};
use crate::task::Task;

/// A recorded operation.
#[derive(Clone, Debug)]
pub struct Node {
    task: Task,
    /// Nodes before it, by index.
    deps: Vec<usize>,
    /// The stream that it was recorded in.
    branch: u64,
}

/// A capture that goes on.
#[derive(Debug)]
pub struct Capture {
    pub device: u32,
    origin: u64,
    nodes: Vec<Node>,
    spoilt: bool,
    reach: Reach,
}

/// Whose forbidden calls spoil a capture.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reach {
    /// Every thread's.
    Process,
    /// Those of the thread that began it.
    Thread(ThreadId),
    /// Nobody's.
    Nobody,
}

impl Reach {
    /// By the driver's number of the mode.
    fn of(mode: i32) -> Option<Reach> {
        match mode {
            0 => Some(Reach::Process),
            1 => Some(Reach::Thread(thread::current().id())),
            2 => Some(Reach::Nobody),
            _ => None,
        }
    }

    fn includes_this_thread(self) -> bool {
        match self {
            Reach::Process => true,
            Reach::Thread(id) => id == thread::current().id(),
            Reach::Nobody => false,
        }
    }
}

/// What was captured.
#[derive(Debug)]
pub struct Graph {
    pub device: u32,
    nodes: Vec<Node>,
}

/// A graph that can be launched.
#[derive(Debug)]
pub struct Exec {
    pub device: u32,
    nodes: Vec<Node>,
    pub lanes: BTreeMap<u64, Lane>,
    /// Its last launch: two never overlap.
    last: Option<(OpId, Clock)>,
}

impl State {
    pub(crate) fn begin_capture(&mut self, stream: u64, mode: i32) -> Outcome<()> {
        let device = self.here()?;
        let stream = self.stream(stream)?;
        let found = self.known(stream)?;
        if found.legacy == Legacy::Itself || found.device != device {
            return Err(self.invalid(Code::STREAM_CAPTURE_UNSUPPORTED, "capture of this stream"));
        }
        if found.capture.is_some() {
            return Err(self.invalid(Code::ILLEGAL_STATE, "capture of a stream that is being captured"));
        }
        let Some(reach) = Reach::of(mode) else {
            return Err(self.invalid(Code::INVALID_VALUE, format_args!("capture mode {mode}")));
        };
        let id = self.new_handle(Sort::Graph);
        self.captures.insert(id, Capture { device, origin: stream, nodes: Vec::new(), spoilt: false, reach });
        self.set_capture(stream, Some((id, Vec::new())));
        Ok(())
    }

    fn set_capture(&mut self, stream: u64, capture: Option<(u64, Vec<usize>)>) {
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.capture = capture;
        }
    }

    /// Records a task in the capture of a stream.
    pub(crate) fn record_node(&mut self, handle: u64, task: Task) -> Outcome<()> {
        let Some((id, tail)) = self.known(handle)?.capture.clone() else { return Err(Code::ILLEGAL_STATE) };
        let Some(capture) = self.captures.get_mut(&id).filter(|c| !c.spoilt) else {
            return Err(Code::STREAM_CAPTURE_INVALIDATED);
        };
        capture.nodes.push(Node { task, deps: tail, branch: handle });
        let node = capture.nodes.len() - 1;
        self.set_capture(handle, Some((id, vec![node])));
        Ok(())
    }

    /// A stream waits for an event of a capture, and so belongs to it.
    pub(crate) fn join_capture(&mut self, stream: u64, capture: u64, nodes: &[usize]) -> Outcome<()> {
        if !self.captures.contains_key(&capture) {
            return Err(self.invalid(Code::INVALID_VALUE, "a wait for an event of a capture that has ended"));
        }
        let mut tail = match self.known(stream)?.capture.clone() {
            Some((other, _)) if other != capture => {
                self.spoil(other);
                self.spoil(capture);
                return Err(self.invalid(Code::STREAM_CAPTURE_MERGE, "a wait would merge two captures"));
            }
            Some((_, tail)) => tail,
            None => Vec::new(),
        };
        tail.extend(nodes.iter().filter(|n| !tail.contains(n)).copied().collect::<Vec<_>>());
        self.set_capture(stream, Some((capture, tail)));
        Ok(())
    }

    /// A captured stream cannot wait for work outside its capture.
    pub(crate) fn refuse_captured_wait(&mut self, stream: u64) -> Outcome<()> {
        let Some((capture, _)) = self.known(stream)?.capture else { return Ok(()) };
        self.spoil(capture);
        Err(self.invalid(Code::STREAM_CAPTURE_ISOLATION, "a captured stream waits for work outside"))
    }

    /// A captured stream has nothing to wait for.
    pub(crate) fn refuse_captured(&mut self, stream: u64, call: &str) -> Outcome<()> {
        if self.known(stream)?.capture.is_none() {
            return Ok(());
        }
        Err(self.capture_forbids(stream, call))
    }

    /// The capture of a stream is lost by a forbidden call.
    pub(crate) fn capture_forbids(&mut self, stream: u64, call: &str) -> Code {
        if let Ok(Some((capture, _))) = self.known(stream).map(|s| s.capture.clone()) {
            self.spoil(capture);
        }
        self.invalid(Code::STREAM_CAPTURE_UNSUPPORTED, format_args!("{call} during a capture"))
    }

    /// Calls that no capture allows.
    pub(crate) fn not_capturing(&mut self, call: &str) -> Outcome<()> {
        let hit = self.captures.iter().find(|(_, c)| c.reach.includes_this_thread());
        let Some(id) = hit.map(|(id, _)| *id) else { return Ok(()) };
        self.spoil(id);
        Err(self.invalid(Code::STREAM_CAPTURE_UNSUPPORTED, format_args!("{call} during a capture")))
    }

    /// Calls that no capture in their context allows, whichever thread began it and in whatever mode.
    pub(crate) fn not_captured_on(&mut self, device: u32, call: &str) -> Outcome<()> {
        let hit = self.captures.iter().find(|(_, c)| c.device == device);
        let Some(id) = hit.map(|(id, _)| *id) else { return Ok(()) };
        self.spoil(id);
        Err(self.invalid(Code::STREAM_CAPTURE_UNSUPPORTED, format_args!("{call} during a capture in the context")))
    }

    pub(crate) fn spoil(&mut self, capture: u64) {
        if let Some(capture) = self.captures.get_mut(&capture) {
            capture.spoilt = true;
        }
    }

    pub(crate) fn spoil_all(&mut self) {
        for capture in self.captures.values_mut() {
            capture.spoilt = true;
        }
    }

    pub(crate) fn end_capture(&mut self, stream: u64) -> Outcome<u64> {
        let stream = self.stream(stream)?;
        let Some((id, tail)) = self.known(stream)?.capture.clone() else {
            return Err(self.invalid(Code::ILLEGAL_STATE, "the end of a capture that did not begin"));
        };
        if self.captures.get(&id).is_some_and(|c| c.origin != stream) {
            return Err(self.invalid(Code::STREAM_CAPTURE_UNMATCHED, "a capture ended in another stream"));
        }
        for other in self.streams.values_mut().filter(|s| s.capture.as_ref().is_some_and(|c| c.0 == id)) {
            other.capture = None;
        }
        let Some(capture) = self.captures.remove(&id) else { return Err(Code::STREAM_CAPTURE_INVALIDATED) };
        if capture.spoilt {
            return Err(Code::STREAM_CAPTURE_INVALIDATED);
        }
        if !joined(&capture.nodes, &tail) {
            return Err(self.invalid(Code::STREAM_CAPTURE_UNJOINED, "a captured stream was not waited for"));
        }
        let handle = self.new_handle(Sort::Graph);
        self.graphs.insert(handle, Graph { device: capture.device, nodes: capture.nodes });
        Ok(handle)
    }

    /// 0 not captured, 1 captured, 2 captured in vain.
    pub(crate) fn capture_status(&mut self, stream: u64) -> Outcome<i32> {
        let stream = self.stream(stream)?;
        let Some((id, _)) = self.known(stream)?.capture else { return Ok(0) };
        Ok(if self.captures.get(&id).is_some_and(|c| !c.spoilt) { 1 } else { 2 })
    }

    pub(crate) fn graph_destroy(&mut self, handle: u64) -> Outcome<()> {
        self.ready()?;
        match self.graphs.remove(&handle) {
            Some(_) => Ok(()),
            None => Err(self.bad_handle(Sort::Graph, handle)),
        }
    }

    pub(crate) fn graph_nodes(&mut self, handle: u64) -> Outcome<usize> {
        self.ready()?;
        match self.graphs.get(&handle) {
            Some(graph) => Ok(graph.nodes.len()),
            None => Err(self.bad_handle(Sort::Graph, handle)),
        }
    }

    pub(crate) fn instantiate(&mut self, handle: u64) -> Outcome<u64> {
        self.here()?;
        let Some(graph) = self.graphs.get(&handle) else {
            return Err(self.bad_handle(Sort::Graph, handle));
        };
        let (device, nodes) = (graph.device, graph.nodes.clone());
        self.alive(device)?;
        let mut lanes = BTreeMap::new();
        for node in &nodes {
            let eagerness = self.draw_eagerness();
            lanes.entry(node.branch).or_insert_with(|| self.queue.lane(eagerness));
        }
        let exec = self.new_handle(Sort::Exec);
        self.execs.insert(exec, Exec { device, nodes, lanes, last: None });
        Ok(exec)
    }

    pub(crate) fn exec_destroy(&mut self, handle: u64) -> Outcome<()> {
        self.ready()?;
        match self.execs.remove(&handle) {
            Some(_) => Ok(()),
            None => Err(self.bad_handle(Sort::Exec, handle)),
        }
    }

    /// Checks a handle, for uploads.
    pub(crate) fn exec_known(&mut self, handle: u64, stream: u64) -> Outcome<()> {
        self.stream(stream)?;
        if self.execs.contains_key(&handle) {
            return Ok(());
        }
        Err(self.bad_handle(Sort::Exec, handle))
    }

    /// Queues every node of a graph: after what the stream holds, before what it gets next.
    pub(crate) fn graph_launch(&mut self, handle: u64, stream: u64) -> Outcome<()> {
        self.here()?;
        let stream = self.stream(stream)?;
        self.exec_known(handle, stream)?;
        let fault = self.late.take();
        let Some(start) = self.submit(stream, Task::Mark { event: None })? else {
            return Err(self.capture_forbids(stream, "cuGraphLaunch"));
        };
        let Some(exec) = self.execs.get(&handle) else { return Err(Code::INVALID_HANDLE) };
        let (device, nodes, lanes) = (exec.device, exec.nodes.clone(), exec.lanes.clone());
        let mut begin = (vec![start], self.known(stream)?.clock.clone());
        if let Some((op, clock)) = &exec.last {
            begin.0.push(*op);
            begin.1.join(clock);
        }
        let mut queued: Vec<(OpId, Clock)> = Vec::new();
        for node in &nodes {
            let (mut deps, mut clock) = begin.clone();
            for dep in &node.deps {
                deps.push(queued[*dep].0);
                clock.join(&queued[*dep].1);
            }
            let lane = lanes[&node.branch];
            let place = format!("a graph on cuda:{device}");
            let fault = fault.filter(|_| queued.is_empty());
            queued.push(self.push(Queued { device, lane, deps, clock, place: &place, fault }, node.task.clone()));
        }
        if let Some(stream) = self.streams.get_mut(&stream) {
            for (op, clock) in queued {
                stream.tail.push(op);
                stream.clock.join(&clock);
            }
        }
        let Some(end) = self.submit(stream, Task::Mark { event: None })? else { return Err(Code::ILLEGAL_STATE) };
        let clock = self.known(stream)?.clock.clone();
        if let Some(exec) = self.execs.get_mut(&handle) {
            exec.last = Some((end, clock));
        }
        Ok(())
    }
}

/// Whether every node comes before one of `tail`.
fn joined(nodes: &[Node], tail: &[usize]) -> bool {
    let mut reached = vec![false; nodes.len()];
    let mut stack = tail.to_vec();
    while let Some(node) = stack.pop() {
        if !std::mem::replace(&mut reached[node], true) {
            stack.extend_from_slice(&nodes[node].deps);
        }
    }
    reached.into_iter().all(|r| r)
}
