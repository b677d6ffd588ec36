//! Tests every path between two devices before it is trusted: a pattern is sent and what arrives is compared.

use super::paths::{CopyPath, PathReport};
use loadmaster_alloc::{Buffer, BufferType};
use loadmaster_backends::{CopyCommand, Device, DeviceError, DeviceKind, PeerAccess, Region, Stream};
use loadmaster_graph::{Bytes, DeviceId, IdVec};
use std::sync::Arc;
use std::time::Instant;

/// Bytes of a test: several pages, and no whole number of them.
const TEST_BYTES: u64 = 256 * 1024 + 64;

/// As much as a test may take of two devices: no more than an eighth of what is free.
fn test_size(from: End<'_>, to: End<'_>) -> Bytes {
    let room = |end: End<'_>| {
        let free = end.device.memory().free.map_or(u64::MAX, |b| b.get() / 8);
        free.min(end.device.buffer_type().max_size().map_or(u64::MAX, Bytes::get))
    };
    Bytes(TEST_BYTES.min(room(from)).min(room(to)).max(64))
}

/// One end of a path.
#[derive(Clone, Copy)]
struct End<'a> {
    id: DeviceId,
    device: &'a Arc<dyn Device>,
    stream: &'a Arc<dyn Stream>,
}

/// Tests all ordered pairs of devices with memory of their own, the best path first. A device that fails here is not
/// reported: it says so itself when it is used.
pub(super) fn test_all(
    devices: &IdVec<DeviceId, Arc<dyn Device>>,
    streams: &IdVec<DeviceId, Arc<dyn Stream>>,
) -> Vec<PathReport> {
    let host = devices.values().find(|d| d.kind() == DeviceKind::Cpu);
    let ends: Vec<End<'_>> = devices
        .iter()
        .filter(|(_, d)| d.kind() == DeviceKind::Gpu)
        .map(|(id, device)| End { id, device, stream: &streams[id] })
        .collect();
    let pairs = ends.iter().flat_map(|from| ends.iter().map(move |to| (from, to)));
    pairs.filter(|(from, to)| from.id != to.id).map(|(from, to)| test_pair(*from, *to, host)).collect()
}

fn test_pair(from: End<'_>, to: End<'_>, host: Option<&Arc<dyn Device>>) -> PathReport {
    let report = |path, why: String, bandwidth| PathReport { from: from.id, to: to.id, path, why, bandwidth };
    let claim = from.device.peer(to.device.as_ref());
    if !from.device.keeps_bytes() || !to.device.keeps_bytes() {
        let path = if claim == PeerAccess::Direct { CopyPath::Direct } else { CopyPath::Pinned };
        return report(path, "not tested: the memory holds no bytes".into(), None);
    }
    let mut why = match claim {
        PeerAccess::None { why } => format!("no direct path: {why}"),
        PeerAccess::Direct => match try_path(from, to, None) {
            Ok(bandwidth) => return report(CopyPath::Direct, "tested".into(), bandwidth),
            Err(fault) => format!("the direct path failed its test: {fault}"),
        },
    };
    let pinned = from.device.staging_type().or_else(|| to.device.staging_type());
    match pinned {
        None => why += "; no pinned memory",
        Some(memory) => match try_path(from, to, Some(&memory)) {
            Ok(bandwidth) => return report(CopyPath::Pinned, why, bandwidth),
            Err(fault) => why += &format!("; the path through pinned memory failed its test: {fault}"),
        },
    }
    let pageable = host.map(|h| h.buffer_type());
    let outcome = pageable.map(|memory| try_path(from, to, Some(&memory)));
    match outcome {
        Some(Ok(bandwidth)) => report(CopyPath::Pageable, why, bandwidth),
        Some(Err(fault)) => report(
            CopyPath::Pageable,
            format!("{why}; the path through pageable memory failed its test: {fault}"),
            None,
        ),
        None => report(CopyPath::Pageable, format!("{why}; not tested: there is no host device"), None),
    }
}

/// Sends a pattern and compares it. Bytes a second, or what went wrong.
fn try_path(from: End<'_>, to: End<'_>, through: Option<&Arc<dyn BufferType>>) -> Result<Option<f64>, String> {
    let outcome = send(from, to, through);
    if outcome.is_err() {
        // The next path is tried on streams that work, if they can.
        [from, to].iter().for_each(|end| drop(end.stream.recover()));
    }
    outcome
}

fn send(from: End<'_>, to: End<'_>, through: Option<&Arc<dyn BufferType>>) -> Result<Option<f64>, String> {
    let says = |e: DeviceError| e.to_string();
    let size = test_size(from, to);
    let take = |memory: &Arc<dyn BufferType>| memory.alloc_buffer(size).map_err(|e| e.to_string());
    let (source, target) = (take(&from.device.buffer_type())?, take(&to.device.buffer_type())?);
    let middle = through.map(take).transpose()?;
    let pattern = pattern(from.id, to.id, size);
    from.device.upload(&whole(&source), &pattern).map_err(says)?;
    // What was there before must not pass for what was sent.
    to.device.upload(&whole(&target), &vec![0; pattern.len()]).map_err(says)?;
    let start = Instant::now();
    let copy =
        |from: &Arc<dyn Buffer>, to: &Arc<dyn Buffer>| CopyCommand { from: whole(from), to: whole(to), tensor: None };
    match &middle {
        None => from.stream.copy(&copy(&source, &target)).and_then(|()| from.stream.synchronize()).map_err(says)?,
        Some(middle) => {
            from.stream.copy(&copy(&source, middle)).and_then(|()| from.stream.synchronize()).map_err(says)?;
            to.stream.copy(&copy(middle, &target)).and_then(|()| to.stream.synchronize()).map_err(says)?;
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let mut arrived = vec![0; pattern.len()];
    to.device.download(&whole(&target), &mut arrived).map_err(says)?;
    match pattern.iter().zip(&arrived).position(|(a, b)| a != b) {
        Some(byte) => {
            let (found, sent) = (arrived[byte], pattern[byte]);
            Err(format!("byte {byte} of {} arrived as {found:#04x}, not {sent:#04x}", size.get()))
        }
        None => Ok((seconds > 0.0).then(|| size.get() as f64 / seconds)),
    }
}

fn whole(buffer: &Arc<dyn Buffer>) -> Region {
    Region { buffer: Arc::clone(buffer), offset: Bytes::ZERO, len: buffer.size() }
}

/// Bytes that differ from pair to pair and from byte to byte.
fn pattern(from: DeviceId, to: DeviceId, size: Bytes) -> Vec<u8> {
    let seed = (from.index() as u64) << 32 | to.index() as u64 | 1 << 63;
    let byte = |i: u64| ((i ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8;
    (0..size.get()).map(byte).collect()
}
