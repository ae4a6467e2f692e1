//! Shaders put together from their parts: the constants of a model, the layout of its weights, what the device can do.

use core::fmt::Write;

/// What the kernels may use beyond what every WebGPU device has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extensions {
    /// Reductions by subgroups.
    pub subgroups: bool,
    /// 16-bit floats.
    pub f16: bool,
    /// Four products of bytes in one instruction.
    pub packed_dot: bool,
}

/// A part of `src/shaders/`.
macro_rules! part {
    ($name:literal) => {
        include_str!(concat!("shaders/", $name, ".wgsl"))
    };
}
pub(crate) use part;

/// What comes first in every shader.
pub(crate) fn head(extensions: Extensions) -> String {
    let mut head = String::new();
    if extensions.f16 {
        head += "enable f16;\n";
    }
    // naga takes subgroups as given; browsers want to be asked.
    if cfg!(target_arch = "wasm32") && extensions.subgroups {
        head += "enable subgroups;\n";
    }
    head
}

/// Source text in the making.
#[derive(Default)]
pub(crate) struct Source(String);

impl Source {
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

    pub(crate) fn part(mut self, text: &str) -> Self {
        self.0 += text;
        self
    }

    /// Reductions over a workgroup of so many lanes.
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
    /// A variable without a value is zero each time its declaration is reached. Chromium's adapter in software takes that
    /// for the first time only, so in a loop it still has what the round before left.
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
