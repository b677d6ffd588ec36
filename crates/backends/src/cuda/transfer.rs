//! Copies between the caller's bytes and a GPU, through two pieces of pinned memory in turn: while the GPU reads one, the
//! host fills the other.

use super::core::Core;
use super::driver::Driver;
use super::handles::{PinnedBytes, RawEvent, RawStream};
use crate::error::Fault;
use std::sync::Arc;

/// Bytes of a piece.
const PIECE: usize = 1 << 20;

/// A stream of its own, and the pieces. Used by one caller at a time.
#[derive(Debug)]
pub(crate) struct Transfer {
    core: Arc<Core>,
    stream: RawStream,
    pieces: [Piece; 2],
}

#[derive(Debug)]
struct Piece {
    pinned: PinnedBytes,
    event: RawEvent,
}

impl Transfer {
    /// Takes a stream and pinned memory of a device. Errors: the driver's.
    pub(crate) fn new(core: &Arc<Core>) -> Result<Self, Fault> {
        let piece = || {
            let pinned = PinnedBytes::new(&core.context, PIECE as u64).map_err(|code| core.context.fault(code))?;
            Ok::<_, Fault>(Piece { pinned, event: RawEvent::new(&core.context)? })
        };
        let stream = RawStream::new(&core.context)?;
        Ok(Self { core: Arc::clone(core), stream, pieces: [piece()?, piece()?] })
    }

    /// Copies the caller's bytes to the GPU and waits for it.
    ///
    /// # Safety
    /// `bytes.len()` bytes from `to` must be memory of the device that nothing else uses meanwhile.
    pub(crate) unsafe fn upload(&mut self, to: u64, bytes: &[u8]) -> Result<(), Fault> {
        let outcome = bytes.chunks(PIECE).enumerate().try_for_each(|(i, chunk)| {
            let piece = &self.pieces[i % 2];
            if i >= 2 {
                piece.event.synchronize()?;
            }
            let pinned = piece.pinned.address().as_ptr();
            // SAFETY: a chunk is no longer than a piece; the GPU has read what was there before.
            unsafe { pinned.copy_from_nonoverlapping(chunk.as_ptr(), chunk.len()) };
            let at = to + (i * PIECE) as u64;
            let stream = self.stream.raw();
            // SAFETY: the caller vouches for the target; the piece is not written again before the event.
            let put = |d: &Driver| unsafe { d.copy_to_device(at, pinned.cast(), chunk.len(), stream) };
            self.core.context.call(put)?;
            piece.event.record(&self.stream)
        });
        outcome.and(self.stream.synchronize())
    }

    /// Copies bytes of the GPU to the caller and waits for it.
    ///
    /// # Safety
    /// `bytes.len()` bytes from `from` must be memory of the device that nothing writes meanwhile.
    pub(crate) unsafe fn download(&mut self, from: u64, bytes: &mut [u8]) -> Result<(), Fault> {
        let outcome = self.try_download(from, bytes);
        outcome.and(self.stream.synchronize())
    }

    fn try_download(&mut self, from: u64, bytes: &mut [u8]) -> Result<(), Fault> {
        let mut waiting: Option<(&mut [u8], usize)> = None;
        for (i, chunk) in bytes.chunks_mut(PIECE).enumerate() {
            let piece = &self.pieces[i % 2];
            let at = from + (i * PIECE) as u64;
            let pinned = piece.pinned.address().as_ptr();
            let stream = self.stream.raw();
            // SAFETY: the caller of `download` vouches for the source; the piece was emptied before.
            let put = |d: &Driver| unsafe { d.copy_to_host(pinned.cast(), at, chunk.len(), stream) };
            self.core.context.call(put)?;
            piece.event.record(&self.stream)?;
            if let Some((chunk, piece)) = waiting.replace((chunk, i % 2)) {
                self.take(piece, chunk)?;
            }
        }
        waiting.map_or(Ok(()), |(chunk, piece)| self.take(piece, chunk))
    }

    fn take(&self, piece: usize, chunk: &mut [u8]) -> Result<(), Fault> {
        let piece = &self.pieces[piece];
        piece.event.synchronize()?;
        // SAFETY: the copy into the piece has ended; a chunk is no longer than a piece.
        unsafe { chunk.as_mut_ptr().copy_from_nonoverlapping(piece.pinned.address().as_ptr(), chunk.len()) };
        Ok(())
    }
}
