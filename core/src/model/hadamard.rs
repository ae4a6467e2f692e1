//! Weights that are stored in a rotated basis, as those of Bonsai 2.
//!
//! ```text
//! y = W R x,   R x = H (s * x) / sqrt(n)   on blocks of n elements of x
//! ```
//! `H` is the Hadamard matrix of Sylvester, `H[r][c] = (-1)^popcount(r & c)`, and `s` are signs that depend on the width of `x` alone.
//! `R` is orthogonal: `W = W' R^T` of a model with the matrices `W'` computes the same, but its weights are easier to round. Rows of the embedding
//! are stored as `R e`, and rotated back after the lookup: `e = s * (H z) / sqrt(n)`. In metadata that are the keys `prism.hadamard.*`; a
//! key or value that is not known here is refused, since half-rotated arithmetic gives fluent nonsense.
#![forbid(unsafe_code)]

use alloc::string::String;
use alloc::vec::Vec;

use super::basis::{Basis, HeadOrder};
use super::program::{BufferId, Hadamard, MAX_OUTPUTS, Op, Program, TensorId};
use crate::error::{Error, Name, Result};
use crate::gguf::{Metadata, Value};
use heapless::Vec as ArrayVec;

/// What programs with weights in a rotated basis are called where they are refused.
pub const REFUSED: &str = "the number of rotations (prism.hadamard.*)";

const PREFIX: &str = "prism.hadamard.";
const EMBEDDING: &str = "token_embd.weight";
const OUTPUT: &str = "output.weight";
const KEYS: [&str; 11] = [
    "version",
    "block_size",
    "transform",
    "axis",
    "sign_mode",
    "sign_widths",
    "sign_values",
    "weight_names",
    "inverse_weight_names",
    "gdn_v_grouped",
    "tied_output",
];

/// What a file says of its rotated weights.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RotatedBasis {
    /// Elements that are rotated together (`block_size`), a power of two.
    pub block: usize,
    /// The signs for inputs of each width (`sign_widths`, `sign_values`), 1 or -1; none with the mode `identity`.
    pub signs: Vec<(usize, Vec<f32>)>,
    /// The matrices whose inputs are rotated (`weight_names`).
    pub weights: Vec<String>,
    /// Whether rows of the embedding are rotated (`inverse_weight_names`).
    pub embedding: bool,
    /// Whether the embedding, whose rows are rotated, is the output as well (`tied_output`, since version 2).
    pub tied_output: bool,
    /// Whether the rotated matrices `ssm_out` have the columns of a key head's value heads side by side (`gdn_v_grouped`); elsewhere
    /// value head `h` belongs to key head `h % key heads`.
    pub grouped: bool,
}

fn key(name: &str) -> Name {
    Name::new([PREFIX, name].concat())
}

fn unsupported(name: &str, found: &str, expected: &'static str) -> Error {
    error!(Unsupported { key: key(name), found: Name::new(found), expected })
}

fn bad(name: &str, found: f64, expected: &'static str) -> Error {
    error!(KeyValue { key: key(name), found, expected })
}

impl RotatedBasis {
    /// Reads the keys `prism.hadamard.*`; `None` if there are none.
    ///
    /// # Errors
    /// If one of them is not known, missing or invalid.
    pub(super) fn read(meta: &Metadata<'_>) -> Result<Option<Self>> {
        let mut found = meta.iter().filter_map(|(key, _)| key.strip_prefix(PREFIX)).peekable();
        if found.peek().is_none() {
            return Ok(None);
        }
        if let Some(unknown) = found.find(|name| !KEYS.contains(name)) {
            let expected = "a file without this key, which may change what its weights mean";
            return Err(unsupported(unknown, "a key that is not known", expected));
        }
        let text = |name: &str, expected: &[&str], all| -> Result<usize> {
            let key = [PREFIX, name].concat();
            let found = meta.need(&key, meta.str(&key)?)?;
            expected.iter().position(|text| *text == found).ok_or(unsupported(name, found, all))
        };
        let number = |name: &str| -> Result<u32> {
            let key = [PREFIX, name].concat();
            meta.need(&key, meta.u32(&key)?)
        };
        let flag = |name: &str| meta.bool(&[PREFIX, name].concat()).map(|flag| flag.unwrap_or(false));
        let version = number("version")?;
        if !(1..=2).contains(&version) {
            return Err(bad("version", f64::from(version), "1 or 2"));
        }
        let block = number("block_size")?;
        if !(block.is_power_of_two() && (16..=1 << 15).contains(&block)) {
            return Err(bad("block_size", f64::from(block), "a power of two, from 16 to 32768"));
        }
        let transform = "normalized-sylvester-walsh-hadamard";
        text("transform", &[transform], transform)?;
        text("axis", &["input-last-dimension"], "input-last-dimension")?;
        let explicit = text("sign_mode", &["identity", "explicit"], "identity or explicit")? == 1;
        let tied_output = flag("tied_output")?;
        if tied_output != (version == 2) {
            let expected = "true in version 2 and absent in version 1";
            return Err(bad("tied_output", f64::from(u8::from(tied_output)), expected));
        }
        let inverse = names(meta, "inverse_weight_names")?.unwrap_or_default();
        if let Some(other) = inverse.iter().find(|name| *name != EMBEDDING) {
            return Err(unsupported("inverse_weight_names", other, EMBEDDING));
        }
        let embedding = !inverse.is_empty();
        let weights = names(meta, "weight_names")?;
        let weights = meta.need(&[PREFIX, "weight_names"].concat(), weights)?;
        let (block, signs) = (block as usize, signs(meta, explicit)?);
        let grouped = flag("gdn_v_grouped")?;
        Ok(Some(RotatedBasis { block, signs, weights, embedding, tied_output, grouped }))
    }
}

fn names(meta: &Metadata<'_>, name: &str) -> Result<Option<Vec<String>>> {
    let Some(found) = meta.strings(&[PREFIX, name].concat())? else { return Ok(None) };
    let text = |bytes| {
        let text = core::str::from_utf8(bytes).map_err(|_| {
            error!(Unsupported { key: key(name), found: Name::new(bytes), expected: "UTF-8 text" })
        })?;
        Ok(String::from(text))
    };
    found.iter().map(text).collect::<Result<_>>().map(Some)
}

/// The signs of each width, which the file has one after another.
fn signs(meta: &Metadata<'_>, explicit: bool) -> Result<Vec<(usize, Vec<f32>)>> {
    let [widths, values] = ["sign_widths", "sign_values"];
    let array = |name: &str| meta.array(&[PREFIX, name].concat());
    if !explicit {
        for name in [widths, values] {
            if let Some(found) = array(name)?.filter(|found| !found.is_empty()) {
                return Err(bad(name, found.len() as f64, "no signs with the mode identity"));
            }
        }
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    let all = meta.need(&[PREFIX, values].concat(), array(values)?)?;
    let mut left = all.iter();
    for width in meta.need(&[PREFIX, widths].concat(), array(widths)?)?.iter() {
        let width = width.integer().and_then(|width| usize::try_from(width).ok()).unwrap_or(0);
        // So are the values, which the file has.
        if width == 0 || width > all.len() {
            return Err(bad(widths, width as f64, "at least 1 each, together as many as sign_values"));
        }
        if found.iter().any(|(of, _)| *of == width) {
            return Err(bad(widths, width as f64, "each width once"));
        }
        let mut signs = Vec::with_capacity(width);
        for value in left.by_ref().take(width) {
            signs.push(sign(value)?);
        }
        if signs.len() < width {
            return Err(bad(values, all.len() as f64, "as many as sign_widths together"));
        }
        found.push((width, signs));
    }
    match left.next() {
        Some(_) => Err(bad(values, all.len() as f64, "as many as sign_widths together")),
        None => Ok(found),
    }
}

fn sign(value: Value<'_>) -> Result<f32> {
    let found = match value {
        Value::F32(value) => f64::from(value),
        Value::F64(value) => value,
        other => other.integer().map_or(0.0, |value| value as f64),
    };
    match found {
        1.0 => Ok(1.0),
        -1.0 => Ok(-1.0),
        _ => Err(bad("sign_values", found, "1 or -1")),
    }
}

/// What the rotations depend on beside the program.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rotated {
    /// Width of the residual stream.
    pub(super) hidden: usize,
    /// Whether the embedding is the output.
    pub(super) tied: bool,
    /// The heads of linear attention, if there is any.
    pub(super) heads: Option<HeadOrder>,
}

impl RotatedBasis {
    /// Refuses what [`RotatedBasis::apply`] cannot compute with `program`, a forward pass without rotations.
    pub(super) fn check(&self, program: &Program, of: Rotated) -> Result<()> {
        let name = "weight_names";
        if self.embedding {
            self.check_width("inverse_weight_names", EMBEDDING, of.hidden)?;
        }
        let tied = of.tied;
        if self.tied_output && !(tied && self.embedding) {
            let expected = "false in a model with output.weight, or whose embedding is not rotated";
            return Err(bad("tied_output", 1.0, expected));
        }
        if tied && self.embedding && !self.tied_output {
            let expected = "2, with tied_output, in a model whose embedding is its output";
            return Err(bad("version", 1.0, expected));
        }
        if self.grouped && of.heads.is_none() {
            return Err(bad("gdn_v_grouped", 1.0, "false in a model without linear attention"));
        }
        for (i, weight) in self.weights.iter().enumerate() {
            if self.weights[..i].contains(weight) {
                return Err(unsupported(name, weight, "each name once"));
            }
            let found = program.tensor_ids().find(|id| program.tensor(*id).name == *weight);
            let operand = |op: &Op| match op {
                Op::Linear { outputs, .. } => outputs.iter().any(|(id, _)| Some(*id) == found),
                Op::LinearAdd { weight, .. } => Some(*weight) == found,
                Op::LinearSwiglu { gate, up, .. } => Some(*gate) == found || Some(*up) == found,
                _ => false,
            };
            let output = weight == OUTPUT && !tied;
            let Some(id) = found.filter(|_| output || program.body.iter().any(operand)) else {
                let expected = "a matrix of attention or of a feed-forward block, or output.weight; none of a mixture of experts";
                return Err(unsupported(name, weight, expected));
            };
            self.check_width(name, weight, program.tensor(id).cols)?;
        }
        for op in &program.body {
            if let Op::LinearSwiglu { gate, up, .. } = op
                && self.names(program, *gate) != self.names(program, *up)
            {
                return Err(unsupported(
                    name,
                    &program.tensor(*gate).name,
                    "ffn_gate and ffn_up of a block, or neither",
                ));
            }
        }
        Ok(())
    }

    fn check_width(&self, name: &str, weight: &str, cols: usize) -> Result<()> {
        if !cols.is_multiple_of(self.block) {
            return Err(unsupported(name, weight, "matrices whose width is a multiple of block_size"));
        }
        if !self.signs.is_empty() && self.signs_of(cols).is_empty() {
            return Err(unsupported(name, weight, "matrices of a width in sign_widths"));
        }
        Ok(())
    }

    fn signs_of(&self, cols: usize) -> &[f32] {
        self.signs.iter().find(|(width, _)| *width == cols).map_or(&[], |(_, signs)| signs)
    }

    fn names(&self, program: &Program, id: TensorId) -> bool {
        self.weights.contains(&program.tensor(id).name)
    }

    /// Adds the rotations to `program`, for which this was [checked](RotatedBasis::check).
    pub(super) fn apply(&self, mut program: Program, of: Rotated) -> Program {
        let old = core::mem::take(&mut program.body);
        let blocks = core::mem::take(&mut program.blocks);
        let mut pass = Pass { basis: self, heads: of.heads, program, body: Vec::with_capacity(old.len()) };
        for (i, op) in old.into_iter().enumerate() {
            if blocks.contains(&i) {
                pass.program.blocks.push(pass.body.len());
            }
            pass.op(op);
        }
        let output = pass.program.output;
        if self.tied_output || self.names(&pass.program, output) {
            let rotation = pass.rotation(pass.program.hidden, output);
            pass.program.before_output = Some(rotation);
        }
        pass.program.body = pass.body;
        pass.program
    }
}

/// The rewriting of a program.
struct Pass<'b> {
    basis: &'b RotatedBasis,
    heads: Option<HeadOrder>,
    program: Program,
    body: Vec<Op>,
}

impl Pass<'_> {
    fn op(&mut self, op: Op) {
        let is_rotated = |id| self.basis.names(&self.program, id);
        match op {
            Op::Embed { table, out } if self.basis.embedding => {
                let cols = self.program.tensor(table).cols;
                let basis = self.index(cols, None);
                self.body.push(op);
                self.body.push(Op::Hadamard(Hadamard { x: out, out, basis, inverse: true }));
            }
            Op::Linear { x, ref outputs } => {
                let part = |rotated| -> ArrayVec<_, MAX_OUTPUTS> {
                    outputs.iter().copied().filter(|(id, _)| is_rotated(*id) == rotated).collect()
                };
                let (plain, rotated) = (part(false), part(true));
                if !plain.is_empty() {
                    self.body.push(Op::Linear { x, outputs: plain });
                }
                if let Some((first, _)) = rotated.first() {
                    let x = self.rotate(x, *first);
                    self.body.push(Op::Linear { x, outputs: rotated });
                }
            }
            Op::LinearAdd { x, weight, to } if is_rotated(weight) => {
                let x = self.rotate(x, weight);
                self.body.push(Op::LinearAdd { x, weight, to });
            }
            Op::LinearSwiglu { x, gate, up, out } if is_rotated(gate) => {
                let x = self.rotate(x, gate);
                self.body.push(Op::LinearSwiglu { x, gate, up, out });
            }
            _ => self.body.push(op),
        }
    }

    /// Rotates `x` for the matrix `weight`; returns where.
    fn rotate(&mut self, x: BufferId, weight: TensorId) -> BufferId {
        let rotation = self.rotation(x, weight);
        self.body.push(Op::Hadamard(rotation));
        rotation.out
    }

    fn rotation(&mut self, x: BufferId, weight: TensorId) -> Hadamard {
        let spec = self.program.tensor(weight);
        let (cols, grouped) = (spec.cols, self.basis.grouped && spec.name.ends_with(".ssm_out.weight"));
        let heads = self.heads.filter(|_| grouped);
        let (basis, out) = (self.index(cols, heads), self.program.buffer("rotated", cols));
        Hadamard { x, out, basis, inverse: false }
    }

    /// The rotation of rows of `cols` elements in [`Program::bases`].
    fn index(&mut self, cols: usize, heads: Option<HeadOrder>) -> usize {
        let bases = &mut self.program.bases;
        bases.iter().position(|basis| basis.cols == cols && basis.heads == heads).unwrap_or_else(|| {
            let signs = self.basis.signs_of(cols).to_vec();
            bases.push(Basis { cols, block: self.basis.block, signs, heads });
            bases.len() - 1
        })
    }
}
