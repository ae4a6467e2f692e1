//! Statistics of what a model's matrices are multiplied with, over a text.

use crate::error::Result;
use crate::model::Model;
use shohin_convert::{Calibration, CalibrationText, ConvertError, Error, InputStatistics};
use shohin_core::cpu::{Product, Tap};
use shohin_core::{CpuOptions, KvFormat, Session, SessionOptions};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// Collects the inputs of a model's products.
struct Collector {
    /// Matrices of each tensor that is observed, and rows of each.
    tensors: BTreeMap<String, [usize; 2]>,
    inputs: Mutex<BTreeMap<String, InputStatistics>>,
}

impl Tap for Collector {
    fn product(&self, product: &Product<'_>) {
        let Some([matrices, rows]) = self.tensors.get(product.name) else { return };
        let mut inputs = self.inputs.lock().unwrap_or_else(PoisonError::into_inner);
        if !inputs.contains_key(product.name) {
            inputs.insert(product.name.into(), InputStatistics::new(*matrices, product.cols));
        }
        if let Some(inputs) = inputs.get_mut(product.name) {
            inputs.add(product.first / rows.max(&1), product.x);
        }
    }
}

impl Model {
    /// A calibration of this model, of no text yet.
    pub fn calibration(&self) -> Calibration {
        Calibration::new(
            self.file().fingerprint().iter().map(|byte| format!("{byte:02x}")).collect::<String>(),
        )
    }

    /// Runs `tokens` in windows of `window` tokens, one after another, and adds to `calibration` statistics of what the matrices of
    /// all layers are multiplied with, on the CPU, with keys and values in f32. Only full windows count. The head is no layer's.
    /// Computed as the model was loaded: [`Builder::activations`](crate::Builder::activations) with f32 for numbers that do not depend on the rounding of
    /// activations. `progress` is called with the windows that were run.
    ///
    /// # Errors
    /// If no window is full; if `window` is 0 or longer than the model's context; if `calibration` is of another model.
    pub fn calibrate(
        &self,
        calibration: &mut Calibration,
        name: &str,
        tokens: &[u32],
        window: usize,
        mut progress: impl FnMut(usize),
    ) -> Result<()> {
        let refused = |source: ConvertError| {
            crate::Error::from(Error::Convert { path: Path::new(name).into(), source: Box::new(source) })
        };
        let wrong = |key: &str, found: String, expected| {
            Err(refused(ConvertError::Value { key: key.into(), found, expected }))
        };
        let longest = self.config().max_context_length;
        if window == 0 || window > longest {
            return wrong(
                "the window",
                format!("{window} tokens"),
                "at least 1, and at most the model's context",
            );
        }
        if tokens.len() < window {
            let found = format!("{} for windows of {window}", tokens.len());
            return wrong("the number of tokens", found, "at least one full window");
        }
        let program = self.config().program();
        let observed = program.tensors.iter().filter(|spec| spec.name.starts_with("blk."));
        let tensors = observed
            .map(|spec| (spec.name.clone(), [spec.matrices, spec.rows / spec.matrices.max(1)]))
            .collect();
        let collector = Arc::new(Collector { tensors, inputs: Mutex::default() });
        let options = CpuOptions { context: window, ..self.0.options };
        let mut device = self.0.cpu.device(&options)?;
        device.set_tap(Arc::clone(&collector) as Arc<dyn Tap>);
        let exact = SessionOptions { kv: KvFormat::F32, ..self.session_options(window) };
        let mut session = Session::new(&mut device, &exact)?;
        let mut windows = 0;
        for part in tokens.chunks_exact(window) {
            session.truncate(0)?;
            session.forward_hidden(&mut device, part, &mut |_, _| ())?;
            windows += 1;
            progress(windows);
        }
        let mut new = Calibration::new(calibration.model.clone());
        new.inputs = std::mem::take(&mut *collector.inputs.lock().unwrap_or_else(PoisonError::into_inner));
        new.texts.push(CalibrationText::new(name, windows, window));
        if calibration.model != self.calibration().model {
            return wrong("the model of the calibration", calibration.model.clone(), "this model");
        }
        calibration.merge(new).map_err(refused)
    }
}
