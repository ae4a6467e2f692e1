//! Runs a program's operations on the CPU.
#![forbid(unsafe_code)]

use core::ops::Range;

use heapless::Vec as ArrayVec;

use super::activations::{q8_blocks, quantize};
use super::attention::{CausalAttention, FlashCodec};
use super::cache::CpuCache;
use super::isa::Isa;
use super::matmul::{Input, MAX_PRODUCTS, build_lut, lut_len, matmul, matmul_each};
use super::op::rmsnorm::{RmsNorm, rmsnorm, rmsnorm_in_place};
use super::op::rope::{rotate, rotate_interleaved};
use super::op::route::Route;
use super::op::swiglu::swiglu;
use super::op::{argmax, dot};
use super::parallel::for_each_chunk;
use super::repack::{PANEL_ROWS, PackedMatrix};
use super::scratch::Scratch;
use super::simd::{SimdOp, dispatch};
use super::weights::CpuWeights;
use super::window::Operand;
use crate::cache::{KvStorage, presence, with_codec};
use crate::collective::Collective;
use crate::device::{Output, Readout, Sink};
use crate::error::{Error, Name, Result};
use crate::model::program::{BufferId, Exchange, Experts, Op, QkNorm, RopePairing, TensorId};
use crate::model::split::MAX_RANKS;
use crate::model::weights::ModelBytes;
use crate::pool::{Pool, Serial};
use crate::rows::{Rows, Segment};

/// The state shared by all operations of a batch.
pub(super) struct Forward<'f, B> {
    pub(super) weights: &'f CpuWeights<B>,
    pub(super) isa: Isa,
    pub(super) pool: &'f dyn Pool,
    /// The other ranks of a split program.
    pub(super) collective: Option<&'f dyn Collective>,
}

/// Rows that are read out together.
const MAX_ROWS: usize = 64;

impl<B: ModelBytes> Forward<'_, B> {
    /// The pool, or a serial one for so little work that waking another thread would take longer.
    fn pool_for(&self, elements: usize) -> &dyn Pool {
        const FEW: usize = 1 << 18; // some ten microseconds
        if elements < FEW { &Serial } else { self.pool }
    }

    /// The same for products of `n` rows with `weights`: of a model of a few million parameters, one thread
    /// computes a token as fast as several, in less processor time.
    pub(super) fn pool_for_products<'w>(
        &self,
        n: usize,
        weights: impl IntoIterator<Item = PackedMatrix<'w>>,
    ) -> &dyn Pool {
        self.pool_for(n * weights.into_iter().map(|weight| weight.data().len()).sum::<usize>())
    }

    /// Runs `rows` through the body: fills the caches at their positions and leaves the residual stream.
    pub(super) fn body(
        &self,
        rows: &Rows<'_>,
        caches: &mut [&mut CpuCache<'_>],
        scratch: &mut Scratch<'_>,
    ) -> Result<()> {
        let program = self.weights.program();
        let half = program.heads.dim / 2;
        for Segment { row, tokens, position, .. } in rows.segments() {
            for t in 0..tokens.len() {
                let angles = (row + t) * half..(row + t + 1) * half;
                let (cos, sin) = (&mut scratch.cos[angles.clone()], &mut scratch.sin[angles]);
                program.rope.angles(position + t, cos, sin);
            }
        }
        program.body.iter().enumerate().try_for_each(|(i, op)| match (op, scratch.taking_part) {
            (Op::Merge { .. }, _) | (_, None | Some(1..)) => {
                if self.weights.paging().is_some() {
                    self.announce(i, rows, scratch);
                }
                self.op(op, rows, caches, scratch)
            }
            (_, Some(0)) => Ok(()),
        })
    }

    /// Ends what [`Forward::body`] began for the same rows.
    pub(super) fn tail(
        &self,
        rows: &Rows<'_>,
        caches: &mut [&mut CpuCache<'_>],
        scratch: &mut Scratch<'_>,
    ) -> Result<()> {
        self.weights.program().tail.iter().try_for_each(|op| self.op(op, rows, caches, scratch))
    }

    fn op(
        &self,
        op: &Op,
        rows: &Rows<'_>,
        caches: &mut [&mut CpuCache<'_>],
        scratch: &mut Scratch<'_>,
    ) -> Result<()> {
        let n = scratch.taking_part.unwrap_or(rows.len());
        match *op {
            Op::Experts(_) | Op::Select { .. } | Op::Merge { .. } | Op::Swiglu { .. }
                if !cfg!(feature = "variants") =>
            {
                Err(error!(Device { problem: "this build lacks the feature `variants`" }))
            }
            Op::Embed { table, out } => {
                if let Some(paging) = self.weights.paging() {
                    return self.embed_paged(paging, table, out, rows, scratch);
                }
                let table = self.weights.matrix(table)?;
                let x = scratch.buffer_mut(out, n * table.cols());
                let tokens = rows.segments().flat_map(|segment| segment.tokens);
                for (&token, x) in tokens.zip(x.chunks_exact_mut(table.cols())) {
                    table.unpack_row(token as usize, x)?;
                }
                Ok(())
            }
            Op::RmsNorm { x, weight, eps, out } => {
                self.rmsnorm(x, weight, eps, out, n, scratch);
                Ok(())
            }
            Op::Linear { x, ref outputs } => self.linear(x, outputs, n, scratch),
            Op::LinearAdd { x, weight, to } => self.linear_add(x, weight, to, n, scratch),
            Op::LinearSwiglu { x, gate, up, out } => self.linear_swiglu(x, gate, up, out, n, scratch),
            Op::Swiglu { gate, up } => {
                let gate_rows = scratch.lend(gate);
                let f = self.weights.program().cols(up);
                self.gated_product(&mut gate_rows[..n * f], scratch.buffer(up, n * f), f);
                scratch.put_back(gate, gate_rows);
                Ok(())
            }
            Op::Experts(ref experts) => {
                let probabilities = scratch.lend(experts.probabilities);
                let done = self.experts(experts, probabilities, n, scratch);
                scratch.put_back(experts.probabilities, probabilities);
                done
            }
            Op::RopeStore { layer, q, k, v, norm, eps } => {
                let (q_rows, k_rows) = (scratch.lend(q), scratch.lend(k));
                let mut done = Ok(());
                for segment in rows.segments() {
                    let cache = &mut *caches[segment.sequence];
                    let rows = scratch.current(segment.row..segment.row + segment.tokens.len());
                    if rows.is_empty() {
                        continue;
                    }
                    let start = cache.stored(layer, segment.position)?;
                    let part = Part { rows, start, q: q_rows, k: k_rows, v };
                    let stored = with_codec!(cache.format, C => {
                        self.rope_store::<C>(layer, part, norm, eps, cache, scratch)
                    });
                    done = done.and(stored);
                }
                scratch.put_back(q, q_rows);
                scratch.put_back(k, k_rows);
                done
            }
            Op::Attention { layer, q, out } => {
                let out_rows = scratch.lend(out);
                let mut done = Ok(());
                for segment in rows.segments() {
                    let cache = &mut *caches[segment.sequence];
                    let rows = scratch.current(segment.row..segment.row + segment.tokens.len());
                    if rows.is_empty() {
                        continue;
                    }
                    let start = cache.stored(layer, segment.position)?;
                    let attended = with_codec!(cache.format, C => {
                        self.attention::<C>(layer, (rows, start), q, out_rows, cache, scratch)
                    });
                    done = done.and(attended);
                }
                scratch.put_back(out, out_rows);
                done
            }
            Op::Select { layer, x, router, out } => {
                let selected = scratch.lend(out);
                let done =
                    self.select(layer, (x, self.weights.vector(router)), selected, rows, caches, scratch);
                scratch.put_back(out, selected);
                done
            }
            Op::Merge { x, to } => {
                let cols = self.weights.program().cols(x);
                let selected = scratch.lend(x);
                let mut selected_rows = selected.chunks_exact(cols);
                for row in 0..rows.len() {
                    let gate = scratch.gates[row];
                    if gate > 0.0
                        && let Some(x) = selected_rows.next()
                    {
                        let to = &mut scratch.buffer_mut(to, (row + 1) * cols)[row * cols..];
                        to.iter_mut().zip(x).for_each(|(to, x)| *to += gate * (x - *to));
                    }
                }
                scratch.put_back(x, selected);
                scratch.swap_angles();
                scratch.taking_part = None;
                Ok(())
            }
            Op::Exchange(exchange) => self.exchange(exchange, n, scratch),
        }
    }

    /// Copies the rows of `x` for which the router is over 0 to `selected`, and notes in the caches which they are.
    fn select(
        &self,
        layer: usize,
        (x, router): (BufferId, &[f32]),
        selected: &mut [f32],
        rows: &Rows<'_>,
        caches: &mut [&mut CpuCache<'_>],
        scratch: &mut Scratch<'_>,
    ) -> Result<()> {
        let (cols, half) = (router.len(), self.weights.program().heads.dim / 2);
        let mut n = 0;
        for segment in rows.segments() {
            let present = caches[segment.sequence].present(layer)?;
            let bits = present.ok_or(error!(Device { problem: "the cache was made by another one" }))?;
            for t in 0..segment.tokens.len() {
                let row = segment.row + t;
                let x = &scratch.buffer(x, (row + 1) * cols)[row * cols..];
                let gate = dot(router, x);
                let takes_part = gate > 0.0;
                presence::set(bits, segment.position + t, takes_part);
                if takes_part {
                    selected[n * cols..(n + 1) * cols].copy_from_slice(x);
                    let (from, to) = (row * half..(row + 1) * half, n * half..(n + 1) * half);
                    scratch.routed_cos[to.clone()].copy_from_slice(&scratch.cos[from.clone()]);
                    scratch.routed_sin[to].copy_from_slice(&scratch.sin[from]);
                    n += 1;
                }
                scratch.gates[row] = if takes_part { gate } else { 0.0 };
            }
        }
        scratch.swap_angles();
        scratch.taking_part = Some(n);
        Ok(())
    }

    fn group(&self) -> Result<&dyn Collective> {
        if !cfg!(feature = "serving") {
            return Err(error!(Device { problem: "this build lacks the feature `serving`" }));
        }
        self.collective.ok_or(error!(Device { problem: "a split program needs the other ranks" }))
    }

    fn exchange(&self, exchange: Exchange, n: usize, scratch: &mut Scratch<'_>) -> Result<()> {
        let (program, group) = (self.weights.program(), self.group()?);
        match exchange {
            Exchange::Gather { x, to } | Exchange::GatherAdd { x, to } => {
                let (part, ranks) = (program.cols(x), group.ranks());
                let gathered = core::mem::take(&mut scratch.gathered);
                let all = &mut gathered[..ranks * n * part];
                let done = group.all_gather(scratch.buffer(x, n * part), all);
                // (ranks, rows, part) to (rows, ranks, part)
                let to = scratch.buffer_mut(to, n * ranks * part);
                for (i, from) in all.chunks_exact(part).enumerate() {
                    let at = (i % n * ranks + i / n) * part;
                    let to = &mut to[at..at + part];
                    match exchange {
                        Exchange::GatherAdd { .. } => to.iter_mut().zip(from).for_each(|(to, x)| *to += x),
                        _ => to.copy_from_slice(from),
                    }
                }
                scratch.gathered = gathered;
                done
            }
            Exchange::ReduceAdd { x, to } => {
                let len = n * program.cols(x);
                let gathered = core::mem::take(&mut scratch.gathered);
                let sums = scratch.lend(x);
                let done = group.all_reduce(&mut sums[..len], &mut gathered[..group.ranks() * len]);
                scratch.buffer_mut(to, len).iter_mut().zip(&sums[..len]).for_each(|(to, x)| *to += x);
                scratch.put_back(x, sums);
                scratch.gathered = gathered;
                done
            }
            Exchange::Send { x, rank } => group.send(rank, scratch.buffer(x, n * program.cols(x))),
            Exchange::Receive { x, rank } => group.receive(rank, scratch.buffer_mut(x, n * program.cols(x))),
        }
    }

    fn rmsnorm(
        &self,
        x: BufferId,
        weight: TensorId,
        eps: f32,
        out: BufferId,
        n: usize,
        scratch: &mut Scratch<'_>,
    ) {
        let weight = self.weights.vector(weight);
        let y = scratch.lend(out);
        let len = n * weight.len();
        rmsnorm(self.isa, RmsNorm { x: scratch.buffer(x, len), weight, eps, y: &mut y[..len] });
        scratch.put_back(out, y);
    }

    fn linear(
        &self,
        x: BufferId,
        outputs: &[(TensorId, BufferId)],
        n: usize,
        scratch: &mut Scratch<'_>,
    ) -> Result<()> {
        let mut lent: ArrayVec<_, MAX_PRODUCTS> = outputs.iter().map(|&(_, id)| scratch.lend(id)).collect();
        let done = (|| {
            if let Some(paging) = self.weights.paging() {
                let program = self.weights.program();
                let products = outputs.iter().zip(&mut lent).map(|(&(id, _), y)| {
                    let operand = Operand::whole(program, id);
                    (operand, &mut y[..n * operand.rows])
                });
                let mut products: ArrayVec<_, MAX_PRODUCTS> = products.collect();
                return self.products_paged(paging, x, n, &mut products, scratch);
            }
            let mut products: ArrayVec<_, MAX_PRODUCTS> = ArrayVec::new();
            let mut cols = 0;
            for (&(id, _), y) in outputs.iter().zip(&mut lent) {
                let weight = self.weights.matrix(id)?;
                cols = weight.cols();
                // As many as outputs.
                let _ = products.push((weight, &mut y[..n * weight.rows()]));
            }
            let input = self.input(x, n, cols, scratch)?;
            let pool = self.pool_for_products(n, products.iter().map(|product| product.0));
            matmul_each(self.isa, pool, &input, n, &mut products)
        })();
        for (&(_, id), y) in outputs.iter().zip(lent) {
            scratch.put_back(id, y);
        }
        done
    }

    fn linear_add(
        &self,
        x: BufferId,
        weight: TensorId,
        to: BufferId,
        n: usize,
        scratch: &mut Scratch<'_>,
    ) -> Result<()> {
        let weight = Operand::whole(self.weights.program(), weight);
        let len = n * weight.rows;
        self.product(x, weight, n, scratch)?;
        let delta = core::mem::take(&mut scratch.delta);
        for (x, d) in scratch.buffer_mut(to, len).iter_mut().zip(&delta[..len]) {
            *x += d;
        }
        scratch.delta = delta;
        Ok(())
    }

    /// `delta (n, outputs) = x W^T`
    fn product(&self, x: BufferId, weight: Operand, n: usize, scratch: &mut Scratch<'_>) -> Result<()> {
        let delta = core::mem::take(&mut scratch.delta);
        let done = self.multiply(x, weight, n, &mut delta[..n * weight.rows], scratch);
        scratch.delta = delta;
        done
    }

    /// `y (n, outputs) = x W^T`
    fn multiply(
        &self,
        x: BufferId,
        weight: Operand,
        n: usize,
        y: &mut [f32],
        scratch: &mut Scratch<'_>,
    ) -> Result<()> {
        if let Some(paging) = self.weights.paging() {
            return self.products_paged(paging, x, n, &mut [(weight, y)], scratch);
        }
        let weight = self.weights.rows(weight)?;
        let pool = self.pool_for_products(n, [weight]);
        let input = self.input(x, n, weight.cols(), scratch)?;
        matmul(self.isa, pool, &weight, &input, n, y)
    }

    fn linear_swiglu(
        &self,
        x: BufferId,
        gate: TensorId,
        up: TensorId,
        out: BufferId,
        n: usize,
        scratch: &mut Scratch<'_>,
    ) -> Result<()> {
        let program = self.weights.program();
        self.swiglu(x, [gate, up].map(|id| Operand::whole(program, id)), out, n, scratch)
    }

    fn swiglu(
        &self,
        x: BufferId,
        [gate, up]: [Operand; 2],
        out: BufferId,
        n: usize,
        scratch: &mut Scratch<'_>,
    ) -> Result<()> {
        let f = gate.rows;
        let out_rows = scratch.lend(out);
        let up_rows = core::mem::take(&mut scratch.up);
        let done = (|| {
            let [gate_rows, up_rows] = [&mut out_rows[..n * f], &mut up_rows[..n * f]];
            if let Some(paging) = self.weights.paging() {
                let mut products = [(gate, gate_rows), (up, up_rows)];
                return self.products_paged(paging, x, n, &mut products, scratch);
            }
            let [gate, up] = [self.weights.rows(gate)?, self.weights.rows(up)?];
            let input = self.input(x, n, gate.cols(), scratch)?;
            let mut products = [(gate, gate_rows), (up, up_rows)];
            matmul_each(self.isa, self.pool_for_products(n, [gate, up]), &input, n, &mut products)
        })();
        self.gated_product(&mut out_rows[..n * f], up_rows, f);
        scratch.put_back(out, out_rows);
        scratch.up = up_rows;
        done
    }

    /// `gate = silu(gate) * up`, both `(n, f)`.
    fn gated_product(&self, gate: &mut [f32], up: &[f32], f: usize) {
        let isa = self.isa;
        for_each_chunk(self.pool_for(gate.len()), gate, f, &|t, gate| {
            swiglu(isa, gate, &up[t * f..(t + 1) * f]);
        });
    }

    /// Each expert computes the rows that use it: its weights are read once a batch, or not at all.
    fn experts(
        &self,
        experts: &Experts,
        probabilities: &mut [f32],
        n: usize,
        scratch: &mut Scratch<'_>,
    ) -> Result<()> {
        let Experts { x, router, gate, up, down, used, normalize, routed, gated, to, .. } = *experts;
        let program = self.weights.program();
        let (router_spec, down_spec) = (program.tensor(router), program.tensor(down));
        let (count, cols) = (router_spec.rows, router_spec.cols);
        let (f, out) = (down_spec.cols, down_spec.rows_each());
        let probabilities = &mut probabilities[..n * count];
        self.multiply(x, Operand::whole(program, router), n, probabilities, scratch)?;
        for row in probabilities.chunks_exact_mut(count) {
            dispatch(self.isa, Route { row, used, normalize });
        }
        for expert in 0..count {
            let rows =
                || (0..n).map(|row| (row, probabilities[row * count + expert])).filter(|(_, p)| *p != 0.0);
            let inputs = scratch.lend(routed);
            let mut m = 0;
            for ((row, _), to) in rows().zip(inputs.chunks_exact_mut(cols)) {
                to.copy_from_slice(&scratch.buffer(x, (row + 1) * cols)[row * cols..]);
                m += 1;
            }
            scratch.put_back(routed, inputs);
            if m == 0 {
                continue;
            }
            let of_expert = |id| Operand { id, first: expert * f, rows: f };
            self.swiglu(routed, [of_expert(gate), of_expert(up)], gated, m, scratch)?;
            let down = Operand { id: down, first: expert * out, rows: out };
            self.product(gated, down, m, scratch)?;
            let delta = core::mem::take(&mut scratch.delta);
            for ((row, p), delta) in rows().zip(delta.chunks_exact(out)) {
                let to = &mut scratch.buffer_mut(to, (row + 1) * out)[row * out..];
                to.iter_mut().zip(delta).for_each(|(to, delta)| *to += p * delta);
            }
            scratch.delta = delta;
        }
        Ok(())
    }

    fn rope_store<C: FlashCodec>(
        &self,
        layer: usize,
        Part { rows, start, q, k, v }: Part<'_>,
        norm: Option<QkNorm>,
        eps: f32,
        cache: &mut CpuCache<'_>,
        scratch: &Scratch<'_>,
    ) -> Result<()> {
        let program = self.weights.program();
        let heads = program.heads;
        let range = |cols: usize| rows.start * cols..rows.end * cols;
        let (q_size, kv_size) = (heads.query * heads.dim, heads.kv * heads.dim);
        let angles = range(heads.dim / 2);
        let norms = norm.map(|norm| (self.weights.vector(norm.q), self.weights.vector(norm.k)));
        dispatch(
            self.isa,
            QkNormRopeStore::<C> {
                isa: self.isa,
                norms,
                eps,
                pairing: program.pairing,
                cos: &scratch.cos[angles.clone()],
                sin: &scratch.sin[angles],
                layer,
                start,
                head_dim: heads.dim,
                q_size,
                kv_size,
                q: &mut q[range(q_size)],
                k: &mut k[range(kv_size)],
                v: &scratch.buffer(v, range(kv_size).end)[range(kv_size)],
                storage: cache.storage()?,
            },
        );
        Ok(())
    }

    fn attention<C: FlashCodec>(
        &self,
        layer: usize,
        (rows, start): (Range<usize>, usize),
        q: BufferId,
        out: &mut [f32],
        cache: &mut CpuCache<'_>,
        scratch: &mut Scratch<'_>,
    ) -> Result<()> {
        let program = self.weights.program();
        let (heads, slopes) = (program.heads, &*program.alibi_slopes);
        let q_size = heads.query * heads.dim;
        let range = rows.start * q_size..rows.end * q_size;
        let pattern = cache.attention;
        let storage: KvStorage<'_, C> = cache.storage()?;
        let own = core::mem::take(&mut scratch.attention);
        let q = &scratch.buffer(q, range.end)[range.clone()];
        let group = heads.query / heads.kv;
        let attention = CausalAttention { cache: &storage, layer, start, group, pattern, slopes, q };
        attention.run(self.isa, self.pool, &mut out[range], own);
        scratch.attention = own;
        Ok(())
    }

    /// Quantizes the first `n` rows of `x`, of `cols` elements, for the products that share them.
    pub(super) fn input<'s>(
        &self,
        x: BufferId,
        n: usize,
        cols: usize,
        scratch: &'s mut Scratch<'_>,
    ) -> Result<Input<'s>> {
        let len = n * q8_blocks(cols);
        if scratch.q8.is_empty() {
            return Ok(Input { f32: scratch.buffer(x, n * cols), q8: None, luts: &[] });
        }
        let q8 = core::mem::take(&mut scratch.q8);
        let quantized = quantize(self.isa, scratch.buffer(x, n * cols), cols, &mut q8[..len]);
        scratch.q8 = q8;
        quantized?;
        let luts = if scratch.lookups.include(self.isa, n) { lut_len(self.isa, n, cols) } else { 0 };
        if luts > 0 {
            build_lut(self.isa, &scratch.q8[..len], cols, &mut scratch.luts[..luts])?;
        }
        let scratch = &*scratch;
        let f32 = scratch.buffer(x, n * cols);
        Ok(Input { f32, q8: Some(&scratch.q8[..len]), luts: &scratch.luts[..luts] })
    }

    /// Runs the head for the rows that are read out, and passes them to `sink`. Sets `last` to the row of the
    /// logits buffer that was read out last, if it is still there.
    pub(super) fn read_out(
        &self,
        rows: &Rows<'_>,
        scratch: &mut Scratch<'_>,
        sink: &mut Sink<'_>,
        last: &mut Option<usize>,
    ) -> Result<()> {
        let program = self.weights.program();
        let cols = program.cols(program.residual);
        let mut n = 0;
        for wanted in rows.wanted() {
            // Move to the front; rows come in order, so none is overwritten before it is moved.
            let x = scratch.buffer_mut(program.residual, (wanted.row + 1) * cols);
            x.copy_within(wanted.row * cols.., n * cols);
            n += 1;
        }
        if n == 0 {
            return Ok(());
        }
        if self.weights.paging().is_some() {
            scratch.window.ends();
        }
        for op in &program.head {
            let Op::RmsNorm { x, weight, eps, out } = *op else {
                let found = Name::new("head");
                return Err(error!(Unsupported { key: Name::new("operation"), found, expected: "a norm" }));
            };
            self.rmsnorm(x, weight, eps, out, n, scratch);
        }
        let mut wanted = rows.wanted().enumerate().peekable();
        while let Some((first, one)) = wanted.next() {
            // Rows of one kind are computed together, as far as their results fit.
            let most = match one.readout {
                Readout::Hidden => 1,
                Readout::Logits | Readout::Top(_) => scratch.logits.len() / program.vocab(),
                Readout::Best => scratch.logits.len() / PANEL_ROWS,
            };
            let most = most.clamp(1, MAX_ROWS);
            let mut group: ArrayVec<_, MAX_ROWS> = ArrayVec::new();
            let _ = group.push(one);
            while group.len() < most
                && let Some((_, next)) = wanted.next_if(|(_, next)| next.readout == one.readout)
            {
                // There is room for `most`.
                let _ = group.push(next);
            }
            let range = first..first + group.len();
            match one.readout {
                Readout::Hidden => {
                    *last = None;
                    let hidden = &scratch.buffer(program.hidden, range.end * cols)[range.start * cols..];
                    sink(one.sequence, one.run_row, Output::Hidden(hidden));
                }
                Readout::Logits | Readout::Top(_) => {
                    *last = Some(range.len() - 1);
                    self.all_logits(range, scratch)?;
                    for (one, logits) in group.iter().zip(scratch.logits.chunks_exact(program.vocab())) {
                        sink(one.sequence, one.run_row, Output::Logits(logits));
                    }
                }
                Readout::Best => {
                    *last = None;
                    let best = self.best(range, scratch)?;
                    for (one, best) in group.iter().zip(&best) {
                        sink(one.sequence, one.run_row, Output::Top(core::slice::from_ref(best)));
                    }
                }
            }
        }
        Ok(())
    }

    /// All logits after rows `rows` of the hidden states, `(rows, vocab)`.
    fn all_logits(&self, rows: Range<usize>, scratch: &mut Scratch<'_>) -> Result<()> {
        let program = self.weights.program();
        let (n, vocab) = (rows.len(), program.vocab());
        if !cfg!(feature = "serving") || program.divided_vocab.is_none() {
            return self.logits(rows, 0..vocab, scratch);
        }
        let group = self.group()?;
        let (mine, part) = (program.tensor(program.output).rows, vocab.div_ceil(group.ranks()));
        self.logits(rows, 0..mine, scratch)?;
        // The last rank's are fewer. From the last row on, as rows move back.
        for row in (0..n).rev() {
            scratch.logits.copy_within(row * mine..(row + 1) * mine, row * part);
        }
        let gathered = &mut scratch.gathered[..group.ranks() * n * part];
        group.all_gather(&scratch.logits[..n * part], gathered)?;
        for (i, from) in gathered.chunks_exact(part).enumerate() {
            let (rank, row) = (i / n, i % n);
            let len = part.min(vocab - rank * part);
            scratch.logits[row * vocab + rank * part..][..len].copy_from_slice(&from[..len]);
        }
        Ok(())
    }

    /// Logits of tokens `vocab` of this rank after rows `rows` of the hidden states, `(rows, tokens)`.
    fn logits(&self, rows: Range<usize>, vocab: Range<usize>, scratch: &mut Scratch<'_>) -> Result<()> {
        let program = self.weights.program();
        let output = Operand { id: program.output, first: vocab.start, rows: vocab.len() };
        let (n, cols) = (rows.len(), program.tensor(program.output).cols);
        if rows.start > 0 {
            // The product reads rows from the first one on.
            let hidden = scratch.buffer_mut(program.hidden, rows.end * cols);
            hidden.copy_within(rows.start * cols.., 0);
        }
        let logits = core::mem::take(&mut scratch.logits);
        let y = &mut logits[..n * output.rows];
        let done = self.multiply(program.hidden, output, n, y, scratch);
        scratch.logits = logits;
        done
    }

    /// The most likely token after each of `rows`, and its logit: one product per part of the vocabulary.
    fn best(&self, rows: Range<usize>, scratch: &mut Scratch<'_>) -> Result<ArrayVec<(u32, f32), MAX_ROWS>> {
        let program = self.weights.program();
        let (n, vocab) = (rows.len(), program.tensor(program.output).rows);
        let part = match n {
            1 => vocab,
            n => (scratch.logits.len() / n / PANEL_ROWS * PANEL_ROWS).clamp(1, vocab),
        };
        let mut best: ArrayVec<Option<(u32, f32)>, MAX_ROWS> = (0..n).map(|_| None).collect();
        let mut rows = rows;
        for first in (0..vocab).step_by(part) {
            let tokens = first..vocab.min(first + part);
            let len = tokens.len();
            self.logits(rows.clone(), tokens, scratch)?;
            // They are in front now.
            rows = 0..n;
            for (best, logits) in best.iter_mut().zip(scratch.logits.chunks_exact(len)) {
                let Ok(found) = argmax(logits) else { continue };
                let logit = logits[found as usize];
                if best.is_none_or(|(_, most)| logit > most) {
                    *best = Some((first as u32 + found, logit));
                }
            }
        }
        if cfg!(feature = "serving") && program.divided_vocab.is_some() {
            self.best_of_ranks(&mut best)?;
        }
        let none = error!(Logits { problem: "every logit is NaN or -inf" });
        best.into_iter().map(|best| best.ok_or(none)).collect()
    }
}

impl<B: ModelBytes> Forward<'_, B> {
    /// The best of what each rank found among its tokens.
    fn best_of_ranks(&self, best: &mut [Option<(u32, f32)>]) -> Result<()> {
        let (program, group) = (self.weights.program(), self.group()?);
        let first = program.vocab().div_ceil(group.ranks()) * group.rank();
        // A token's bits as a float, and its logit; NaN without one.
        let mut mine: ArrayVec<f32, { 2 * MAX_ROWS }> = ArrayVec::new();
        for found in &*best {
            let (token, logit) = found.unwrap_or((0, f32::NAN));
            // There is room for all rows.
            let _ = mine.extend_from_slice(&[f32::from_bits(token + first as u32), logit]);
        }
        let mut all = [0.0; 2 * MAX_ROWS * MAX_RANKS];
        let all = &mut all[..group.ranks() * mine.len()];
        group.all_gather(&mine, all)?;
        best.fill(None);
        // In the order of tokens, so that the first of equals wins.
        for rank in all.chunks_exact(mine.len()) {
            for (best, found) in best.iter_mut().zip(rank.as_chunks::<2>().0) {
                let [token, logit] = *found;
                if !logit.is_nan() && best.is_none_or(|(_, most)| logit > most) {
                    *best = Some((token.to_bits(), logit));
                }
            }
        }
        Ok(())
    }
}

/// The arguments of [`Op::RopeStore`]: the rows of a segment in whole buffers.
struct Part<'p> {
    rows: Range<usize>,
    /// Position of the first row in the layer's cache.
    start: usize,
    q: &'p mut [f32],
    k: &'p mut [f32],
    v: BufferId,
}

/// Normalizes and rotates the heads of `q` and `k`, stores `k` and `v`, and prepares `q` for the cache
/// format.
struct QkNormRopeStore<'a, C> {
    isa: Isa,
    /// Weights `(head_dim)` of the norms of queries and of keys.
    norms: Option<(&'a [f32], &'a [f32])>,
    eps: f32,
    pairing: RopePairing,
    /// `(tokens, head_dim / 2)`
    cos: &'a [f32],
    sin: &'a [f32],
    layer: usize,
    /// Position of the first token.
    start: usize,
    head_dim: usize,
    q_size: usize,
    kv_size: usize,
    /// `(tokens, q_size)`
    q: &'a mut [f32],
    /// `(tokens, kv_size)`
    k: &'a mut [f32],
    /// `(tokens, kv_size)`
    v: &'a [f32],
    storage: KvStorage<'a, C>,
}

impl<C: FlashCodec> SimdOp for QkNormRopeStore<'_, C> {
    type Output = ();

    #[inline(always)]
    fn run(mut self) {
        let d = self.head_dim;
        let angles = self.cos.chunks_exact(d / 2).zip(self.sin.chunks_exact(d / 2));
        let tokens = self.q.chunks_exact_mut(self.q_size).zip(self.k.chunks_exact_mut(self.kv_size));
        let tokens = tokens.zip(self.v.chunks_exact(self.kv_size)).zip(angles);
        for (t, (((q, k), v), (cos, sin))) in tokens.enumerate() {
            let norms = self.norms.map_or([None, None], |(q, k)| [Some(q), Some(k)]);
            for (heads, norm) in [&mut *q, &mut *k].into_iter().zip(norms) {
                for head in heads.chunks_exact_mut(d) {
                    if let Some(norm) = norm {
                        rmsnorm_in_place(head, norm, self.eps);
                    }
                    match self.pairing {
                        RopePairing::Neox => rotate(head, cos, sin),
                        RopePairing::Interleaved => rotate_interleaved(head, cos, sin),
                    }
                }
            }
            self.storage.write(self.layer, self.start + t, k, v);
            C::prepare(self.isa, q, d);
        }
    }
}
