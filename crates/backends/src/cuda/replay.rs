//! Ranges of a program that are launched again and again, as the driver's graphs: one call instead of one for each kernel.
//!
//! A program's addresses never change, so what was noted once stays right. A range is noted when it has been launched
//! [`WORTHWHILE`] times; what the driver refuses to note is launched kernel by kernel for ever.

use super::context::Context;
use super::handles::{RawGraphExec, RawStream};
use crate::error::Fault;
use smallvec::SmallVec;
use std::ops::Range;

/// Launches after which a range is noted.
const WORTHWHILE: u32 = 2;
/// Fewer kernels than this are launched one by one.
const LEAST_KERNELS: usize = 4;
/// Ranges of a program that are looked at.
const MOST_RANGES: usize = 8;

/// What is known of the ranges of a program.
#[derive(Debug, Default)]
pub(crate) struct Replays(SmallVec<[Replay; 1]>);

#[derive(Debug)]
struct Replay {
    kernels: Range<usize>,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Launched so many times.
    Counted(u32),
    /// Noted.
    Ready(RawGraphExec),
    /// It cannot be noted.
    Refused,
}

impl Replays {
    /// Launches a range of kernels: as a graph, or by `put`. Errors: the driver's.
    pub(crate) fn launch<E: From<Fault>>(
        &mut self,
        context: &Context,
        stream: &RawStream,
        kernels: Range<usize>,
        put: impl Fn() -> Result<(), E>,
    ) -> Result<(), E> {
        let Some(replay) = self.find(kernels) else { return put() };
        if let State::Counted(times) = &mut replay.state {
            *times += 1;
            if *times <= WORTHWHILE {
                return put();
            }
            let noted = stream.capture(|| put().is_ok()).and_then(|graph| graph.instantiate());
            replay.state = noted.map_or(State::Refused, State::Ready);
            context.alive()?;
        }
        match &replay.state {
            // SAFETY: graph and stream live. What the kernels touch was checked when the program was compiled, which owns
            // the graph and keeps the buffers.
            State::Ready(exec) => Ok(context.call(|driver| unsafe { driver.graph_launch(exec.raw(), stream.raw()) })?),
            _ => put(),
        }
    }

    fn find(&mut self, kernels: Range<usize>) -> Option<&mut Replay> {
        if kernels.len() < LEAST_KERNELS {
            return None;
        }
        if let Some(i) = self.0.iter().position(|replay| replay.kernels == kernels) {
            return self.0.get_mut(i);
        }
        if self.0.len() == MOST_RANGES {
            return None;
        }
        self.0.push(Replay { kernels, state: State::Counted(0) });
        self.0.last_mut()
    }
}
