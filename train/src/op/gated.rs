//! `y = f(g) u`
//!
//! ```text
//! du = dy f(g)        dg = dy u f'(g)        y' = g' u f'(g) + u' f(g)
//!
//! SiLU:  f = g s              f' = s (1 + g (1 - s))                      s = 1 / (1 + e^-g)
//! GELU:  f = g s              f' = s (1 + g (1 - s) z')                   s = 1 / (1 + e^-z),  z = 2 sqrt(2 / pi) (g + 0.044715 g^3)
//! ReLU^2:  f = max(g, 0)^2    f' = 2 max(g, 0)
//! sigmoid: f = s              f' = s (1 - s)                              s = 1 / (1 + e^-g)
//! ```
#![forbid(unsafe_code)]

use shohin_core::cpu::Isa;
use shohin_core::cpu::op::exp::exp;
use shohin_core::cpu::parallel::for_each_chunk;
use shohin_core::cpu::simd::{SimdOp, dispatch};
use shohin_core::model::program::Activation;
use shohin_core::pool::Pool;

use super::{Gradient, for_each_pair};

/// An activation and its derivative.
trait Function {
    /// `f(x)`
    fn of(x: f32) -> f32;

    /// `a f(x)` and `b f'(x)`
    fn products(x: f32, a: f32, b: f32) -> [f32; 2];
}

struct Silu;

impl Function for Silu {
    #[inline(always)]
    fn of(x: f32) -> f32 {
        x / (1.0 + exp(-x))
    }

    #[inline(always)]
    fn products(x: f32, a: f32, b: f32) -> [f32; 2] {
        let s = 1.0 / (1.0 + exp(-x));
        [a * x * s, b * s * (1.0 + x * (1.0 - s))]
    }
}

struct GeluTanh;

impl GeluTanh {
    /// `2 sqrt(2 / pi)`
    const FACTOR: f32 = 1.595_769_2;
    const CUBIC: f32 = 0.044_715;

    /// `z`
    #[inline(always)]
    fn inner(x: f32) -> f32 {
        Self::FACTOR * (x + Self::CUBIC * x * x * x)
    }
}

impl Function for GeluTanh {
    #[inline(always)]
    fn of(x: f32) -> f32 {
        x / (1.0 + exp(-Self::inner(x)))
    }

    #[inline(always)]
    fn products(x: f32, a: f32, b: f32) -> [f32; 2] {
        let s = 1.0 / (1.0 + exp(-Self::inner(x)));
        let slope = Self::FACTOR * (1.0 + 3.0 * Self::CUBIC * x * x);
        [a * x * s, b * s * (1.0 + x * (1.0 - s) * slope)]
    }
}

struct Relu2;

impl Function for Relu2 {
    #[inline(always)]
    fn of(x: f32) -> f32 {
        let x = if x < 0.0 { 0.0 } else { x };
        x * x
    }

    #[inline(always)]
    fn products(x: f32, a: f32, b: f32) -> [f32; 2] {
        let x = if x < 0.0 { 0.0 } else { x };
        [a * (x * x), b * (2.0 * x)]
    }
}

struct Sigmoid;

impl Function for Sigmoid {
    #[inline(always)]
    fn of(x: f32) -> f32 {
        1.0 / (1.0 + exp(-x))
    }

    #[inline(always)]
    fn products(x: f32, a: f32, b: f32) -> [f32; 2] {
        let s = 1.0 / (1.0 + exp(-x));
        [a * s, b * s * (1.0 - s)]
    }
}

/// Some elements, of any of the activations.
struct Activated<T> {
    activation: Activation,
    of: T,
}

/// What is computed with an activation.
trait Apply {
    fn apply<F: Function>(self);
}

impl<T: Apply> SimdOp for Activated<T> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        match self.activation {
            Activation::Silu => self.of.apply::<Silu>(),
            Activation::GeluTanh => self.of.apply::<GeluTanh>(),
            Activation::Relu2 => self.of.apply::<Relu2>(),
            Activation::Sigmoid => self.of.apply::<Sigmoid>(),
        }
    }
}

struct Forward<'a> {
    gate: &'a [f32],
    up: &'a [f32],
    out: &'a mut [f32],
}

impl Apply for Forward<'_> {
    #[inline(always)]
    fn apply<F: Function>(self) {
        for ((y, g), u) in self.out.iter_mut().zip(self.gate).zip(self.up) {
            *y = F::of(*g) * u;
        }
    }
}

/// `out = f(gate) * up`, all `(rows, cols)`.
pub(crate) fn forward(
    pool: &dyn Pool,
    isa: Isa,
    activation: Activation,
    [gate, up]: [&[f32]; 2],
    out: &mut [f32],
) {
    const LEN: usize = 1 << 14;
    for_each_chunk(pool, out, LEN, &|i, out| {
        let part = i * LEN..i * LEN + out.len();
        let of = Forward { gate: &gate[part.clone()], up: &up[part], out };
        dispatch(isa, Activated { activation, of });
    });
}

struct Tangent<'a> {
    gate: &'a [f32],
    up: &'a [f32],
    dgate: Option<&'a [f32]>,
    dup: Option<&'a [f32]>,
    out: &'a mut [f32],
}

impl Apply for Tangent<'_> {
    #[inline(always)]
    fn apply<F: Function>(self) {
        let n = self.out.len();
        let (gate, up) = (&self.gate[..n], &self.up[..n]);
        self.out.fill(0.0);
        if let Some(dgate) = self.dgate {
            for i in 0..n {
                let [_, along] = F::products(gate[i], 0.0, dgate[i] * up[i]);
                self.out[i] = along;
            }
        }
        if let Some(dup) = self.dup {
            for i in 0..n {
                self.out[i] += dup[i] * F::of(gate[i]);
            }
        }
    }
}

/// The tangent of the result from those of `gate` and `up`, all `(rows, cols)`; a tangent that is not there is 0.
pub(crate) fn tangent(
    pool: &dyn Pool,
    isa: Isa,
    activation: Activation,
    [gate, up]: [&[f32]; 2],
    [dgate, dup]: [Option<&[f32]>; 2],
    out: &mut [f32],
) {
    const LEN: usize = 1 << 14;
    for_each_chunk(pool, out, LEN, &|i, out| {
        let part = i * LEN..i * LEN + out.len();
        let [dgate, dup] = [dgate, dup].map(|d| d.map(|d| &d[part.clone()]));
        let of = Tangent { gate: &gate[part.clone()], up: &up[part.clone()], dgate, dup, out };
        dispatch(isa, Activated { activation, of });
    });
}

struct Backward<'a, const ADD: bool> {
    gate: &'a [f32],
    up: &'a [f32],
    dy: &'a [f32],
    dgate: &'a mut [f32],
    dup: &'a mut [f32],
}

impl<const ADD: bool> Apply for Backward<'_, ADD> {
    #[inline(always)]
    fn apply<F: Function>(self) {
        let n = self.dy.len();
        let (gate, up) = (&self.gate[..n], &self.up[..n]);
        let (dgate, dup) = (&mut self.dgate[..n], &mut self.dup[..n]);
        for i in 0..n {
            let [du, dg] = F::products(gate[i], self.dy[i], self.dy[i] * up[i]);
            dgate[i] = if ADD { dgate[i] + dg } else { dg };
            dup[i] = if ADD { dup[i] + du } else { du };
        }
    }
}

/// The gradient of `up` alone, or of `gate`.
struct Half<'a, const UP: bool, const ADD: bool> {
    gate: &'a [f32],
    up: &'a [f32],
    dy: &'a [f32],
    to: &'a mut [f32],
}

impl<const UP: bool, const ADD: bool> Apply for Half<'_, UP, ADD> {
    #[inline(always)]
    fn apply<F: Function>(self) {
        let n = self.to.len();
        let (gate, up, dy) = (&self.gate[..n], &self.up[..n], &self.dy[..n]);
        for i in 0..n {
            let [du, dg] = F::products(gate[i], dy[i], dy[i] * up[i]);
            let d = if UP { du } else { dg };
            self.to[i] = if ADD { self.to[i] + d } else { d };
        }
    }
}

fn half<const UP: bool>(
    pool: &dyn Pool,
    isa: Isa,
    activation: Activation,
    [gate, up, dy]: [&[f32]; 3],
    to: Gradient<'_>,
) {
    const LEN: usize = 1 << 14;
    let add = to.add;
    for_each_chunk(pool, to.data, LEN, &|i, to| {
        let part = i * LEN..i * LEN + to.len();
        let [gate, up, dy] = [gate, up, dy].map(|x| &x[part.clone()]);
        match add {
            true => dispatch(isa, Activated { activation, of: Half::<UP, true> { gate, up, dy, to } }),
            false => dispatch(isa, Activated { activation, of: Half::<UP, false> { gate, up, dy, to } }),
        }
    });
}

/// The gradients of `gate` and `up`, of rows of `cols`, of which only one may be wanted.
pub(crate) fn backward(
    pool: &dyn Pool,
    isa: Isa,
    activation: Activation,
    [gate, up, dy]: [&[f32]; 3],
    cols: usize,
    to: [Option<Gradient<'_>>; 2],
) {
    let (dgate, dup) = match to {
        [Some(dgate), Some(dup)] => (dgate, dup),
        [Some(dgate), None] => return half::<false>(pool, isa, activation, [gate, up, dy], dgate),
        [None, Some(dup)] => return half::<true>(pool, isa, activation, [gate, up, dy], dup),
        [None, None] => return,
    };
    let (add_gate, add_up) = (dgate.add, dup.add);
    let (dgate, dup) = (dgate.data, dup.data);
    if add_gate != add_up {
        // One of them then begins with zeros.
        if !add_gate {
            dgate.fill(0.0);
        }
        if !add_up {
            dup.fill(0.0);
        }
    }
    let add = add_gate || add_up;
    for_each_pair(pool, (dgate, cols), (dup, cols), &|row, dgate, dup| {
        let part = row * cols..row * cols + dgate.len();
        let (gate, up, dy) = (&gate[part.clone()], &up[part.clone()], &dy[part]);
        match add {
            true => {
                let of = Backward::<true> { gate, up, dy, dgate, dup };
                dispatch(isa, Activated { activation, of });
            }
            false => {
                let of = Backward::<false> { gate, up, dy, dgate, dup };
                dispatch(isa, Activated { activation, of });
            }
        }
    });
}
