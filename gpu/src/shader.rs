//! Shaders assembled from parts: the constants of a model, the layout of its weights, the features of the
//! device.

use core::fmt::Write;

/// Features that the kernels may use beyond those of every WebGPU device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extensions {
    /// Reductions by subgroups.
    pub subgroups: bool,
    /// 16-bit floats.
    pub f16: bool,
    /// The packed 4x8-bit dot product in one instruction.
    pub packed_dot: bool,
}

/// A part of `src/shaders/`.
macro_rules! part {
    ($name:literal) => {
        include_str!(concat!("shaders/", $name, ".wgsl"))
    };
}
pub(crate) use part;

/// The beginning of every shader.
pub(crate) fn head(extensions: Extensions) -> String {
    let mut head = String::new();
    if extensions.f16 {
        head += "enable f16;\n";
    }
    // naga assumes subgroups; browsers require the directive.
    if cfg!(target_arch = "wasm32") && extensions.subgroups {
        head += "enable subgroups;\n";
    }
    head
}

/// Source text being assembled.
#[derive(Default)]
pub(crate) struct Source(String);

impl Source {
    pub(crate) fn bool(mut self, name: &str, value: bool) -> Self {
        let _ = writeln!(self.0, "const {name} = {value};");
        self
    }

    pub(crate) fn u32(mut self, name: &str, value: usize) -> Self {
        let _ = writeln!(self.0, "const {name} = {value}u;");
        self
    }

    pub(crate) fn i32(mut self, name: &str, value: i32) -> Self {
        let _ = writeln!(self.0, "const {name} = {value}i;");
        self
    }

    pub(crate) fn f32(mut self, name: &str, value: f32) -> Self {
        let _ = writeln!(self.0, "const {name}: f32 = {value:e};");
        self
    }

    /// A vector of four words, of bytes from the lowest.
    pub(crate) fn bytes(mut self, name: &str, bytes: [u8; 16]) -> Self {
        let [x, y, z, w]: [u32; 4] = bytemuck::cast(bytes);
        let _ = writeln!(self.0, "const {name} = vec4({x}u, {y}u, {z}u, {w}u);");
        self
    }

    pub(crate) fn part(mut self, text: &str) -> Self {
        self.0 += text;
        self
    }

    /// Reductions over a workgroup of `lanes` lanes.
    pub(crate) fn group(self, extensions: Extensions, lanes: usize) -> Self {
        let part = if extensions.subgroups { part!("group_subgroup") } else { part!("group_shared") };
        self.u32("WORKGROUP", lanes).part(part)
    }

    pub(crate) fn dot4(self, extensions: Extensions) -> Self {
        self.part(if extensions.packed_dot { part!("dot4_packed") } else { part!("dot4_plain") })
    }

    pub(crate) fn text(self) -> String {
        self.0
    }
}

#[cfg(test)]
mod tests {
    /// A variable without an initializer is zero each time its declaration is reached. Chromium's software
    /// adapter zeroes it only the first time, so in a loop it would keep the value of the previous iteration.
    #[test]
    fn every_variable_has_a_value() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/shaders");
        let mut seen = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let text = std::fs::read_to_string(&path).unwrap();
            for line in text.lines().map(str::trim).filter(|line| line.starts_with("var ")) {
                seen += 1;
                assert!(line.contains('='), "{}: {line}", path.display());
            }
        }
        assert!(seen > 10);
    }
}
