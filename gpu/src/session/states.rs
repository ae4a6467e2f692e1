//! States of a session beside its logits: final hidden states, and keys and values taken out and put back.

use super::{GpuSession, Want};
use crate::error::Result;
use crate::kernel::Kv;
use shohin_core::Error as CoreError;
use shohin_core::cpu::op::rmsnorm::rmsnorm_in_place;
use std::iter::once;
use std::ops::Range;
use wgpu::{Buffer, BufferUsages, CommandEncoderDescriptor};

impl GpuSession {
    /// Feeds `tokens`; calls `sink(i, hidden)` with the final hidden state `(hidden)` at each of them, in order, as
    /// [`shohin_core::Session::forward_hidden`] does. The last norm is computed on this side.
    ///
    /// # Errors
    /// As [`GpuSession::forward`].
    pub async fn forward_hidden(
        &mut self,
        tokens: &[u32],
        sink: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<()> {
        self.check(tokens, Want::Nothing)?;
        let start = self.position;
        let done = self.run_hidden(tokens, sink).await;
        if done.is_err() {
            self.position = start;
        }
        done
    }

    async fn run_hidden(&mut self, tokens: &[u32], sink: &mut dyn FnMut(usize, &[f32])) -> Result<()> {
        let (h, eps) = (self.model.config.hidden_size, self.model.config.rms_norm_eps);
        let floats = |bytes: Vec<u8>| -> Vec<f32> {
            bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect()
        };
        let mut bytes = Vec::new();
        self.download(&self.model.output_norm, once(0..4 * h as u64), &mut bytes).await?;
        let norm = floats(bytes);
        for (first, chunk) in (0..).step_by(self.options.batch).zip(tokens.chunks(self.options.batch)) {
            self.feed(chunk, Want::Nothing, 0)?;
            let mut bytes = Vec::new();
            self.download(&self.x, once(0..4 * (chunk.len() * h) as u64), &mut bytes).await?;
            for (row, hidden) in floats(bytes).chunks_exact_mut(h).enumerate() {
                rmsnorm_in_place(hidden, &norm, eps);
                sink(first + row, hidden);
            }
        }
        Ok(())
    }

    /// Bytes of the keys and values of all tokens seen.
    pub fn export_len(&self) -> usize {
        let buffers = 2 * self.caches.len() as u64;
        (buffers * self.spans(self.position).iter().map(|span| span.end - span.start).sum::<u64>()) as usize
    }

    /// Appends the keys and values of all tokens seen to `out`: [`GpuSession::export_len`] bytes for a session of any
    /// capacity on any GPU, over the same model and with the same [`Kv`], to go on from.
    ///
    /// # Errors
    /// What the GPU says.
    pub async fn export(&self, out: &mut Vec<u8>) -> Result<()> {
        let spans = self.spans(self.position);
        for buffer in self.caches.iter().flatten() {
            self.download(buffer, spans.iter().cloned(), out).await?;
        }
        Ok(())
    }

    /// Goes on behind the `len` tokens whose keys and values are in `from`, as [`GpuSession::export`] wrote them. What
    /// it held before is forgotten, also when this fails. Content is not checked: other bytes of the right number give
    /// another conversation, or nonsense.
    ///
    /// # Errors
    /// [`CoreError::ContextFull`] if they do not fit, [`CoreError::Length`] for a wrong number of bytes, or what the GPU
    /// says.
    pub fn import(&mut self, len: usize, from: &[u8]) -> Result<()> {
        self.position = 0;
        self.assume(len)?;
        let (expected, found) = (self.export_len() as u64, from.len() as u64);
        self.position = 0;
        if expected != found {
            return Err(CoreError::Length { what: "imported keys and values", expected, found }.into());
        }
        self.gpu().check()?;
        let spans = self.spans(len);
        let mut rest = from;
        for buffer in self.caches.iter().flatten() {
            for span in &spans {
                let (part, behind) = rest.split_at((span.end - span.start) as usize);
                self.gpu().queue.write_buffer(buffer, span.start, part);
                rest = behind;
            }
        }
        self.position = len;
        Ok(())
    }

    /// Where the first `len` positions of each head lie in a buffer of keys or of values.
    fn spans(&self, len: usize) -> Vec<Range<u64>> {
        if len == 0 {
            return Vec::new();
        }
        let heads = &self.sizes.heads;
        let [count, capacity, d, len] =
            [heads.kv_heads, heads.capacity, heads.head_dim, len].map(|n| n as u64);
        let rows = |at: u64, row: u64| {
            (0..count).map(move |head| at + head * capacity * row..at + (head * capacity + len) * row)
        };
        match heads.kv {
            Kv::F32 => rows(0, 4 * d).collect(),
            Kv::F16 => rows(0, 2 * d).collect(),
            Kv::Q8 => rows(0, d).chain(rows(count * capacity * d, d / 8)).collect(),
        }
    }

    /// Appends parts of a buffer to `out`.
    async fn download(
        &self,
        from: &Buffer,
        parts: impl Iterator<Item = Range<u64>> + Clone,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let size = parts.clone().map(|part| part.end - part.start).sum();
        if size == 0 {
            return Ok(());
        }
        let gpu = self.gpu();
        let into = gpu.buffer("download", size, BufferUsages::MAP_READ | BufferUsages::COPY_DST).await?;
        let mut encoder = gpu.device.create_command_encoder(&CommandEncoderDescriptor::default());
        let mut at = 0;
        for part in parts {
            let len = part.end - part.start;
            encoder.copy_buffer_to_buffer(from, part.start, &into, at, len);
            at += len;
        }
        gpu.queue.submit([encoder.finish()]);
        let mut bytes = Vec::new();
        gpu.read(&into, size, &mut bytes).await?;
        out.extend_from_slice(&bytes);
        Ok(())
    }
}
