//! Beam search over a model.

use crate::error::Result;
use crate::model::{Machine, Model};
use shohin_core::beam::{self, Beam, BeamOptions};
use shohin_core::device::BlockingDevice;
use shohin_core::generate::Detokenizer;
use shohin_core::{Cpu, CpuOptions, Error, Session, SessionOptions};
use std::ops::ControlFlow;
use std::sync::Arc;

impl Model {
    /// The likeliest continuations of the tokens of a prompt, best first. `progress` is called with the number of tokens so
    /// far, and may end the search. See [`shohin_core::beam`].
    ///
    /// ```
    /// use shohin::Model;
    /// use shohin::core::beam::BeamOptions;
    /// use std::ops::ControlFlow;
    ///
    /// let model = Model::builder().load_built_in()?;
    /// let options = BeamOptions { beams: 3, max_tokens: 8, ..BeamOptions::default() };
    /// let beams = model.beam_search(&model.tokenize("Once upon a"), &options, &mut |_| ControlFlow::Continue(()))?;
    /// assert_eq!(beams.len(), 3);
    /// println!("{} ({})", model.detokenize(&beams[0].tokens)?, beams[0].score);
    /// # Ok::<(), shohin::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the prompt is empty or does not fit the context, an option is invalid, or there is no memory.
    pub fn beam_search(
        &self,
        prompt: &[u32],
        options: &BeamOptions,
        progress: &mut dyn FnMut(usize) -> ControlFlow<()>,
    ) -> Result<Vec<Beam>> {
        options.check()?;
        let session = self.session_options(self.context());
        let search = Search { session, prompt, options, detokenizer: self.tokenizer(), progress };
        match &self.0.machine {
            Machine::Split(split) if split.is_distributed() => Err(crate::Error::Option {
                name: "beams",
                found: options.beams.to_string(),
                expected: "none over MPI: beam search runs on one device".into(),
            }),
            // A split model has its weights in parts; the search runs on the whole.
            Machine::Cpu | Machine::Split(_) => {
                let logit_rows = options.beams.min(8);
                let cpu = CpuOptions { context: self.context(), logit_rows, ..self.0.options };
                let device = Cpu::with_weights(Arc::clone(&self.0.weights), &cpu, Arc::clone(&self.0.pool))?;
                search.on(device)
            }
            #[cfg(feature = "gpu")]
            Machine::Gpu(gpu) => {
                search.on(gpu.device(session.context, self.0.options.activations, self.0.options.batch)?)
            }
            #[cfg(all(feature = "metal", target_os = "macos"))]
            Machine::Metal(metal) => {
                search.on(metal.device(session.context, self.0.options.activations, self.0.options.batch)?)
            }
            #[cfg(feature = "cuda")]
            Machine::Cuda(gpu) => {
                search.on(gpu.device(session.context, self.0.options.activations, self.0.options.batch)?)
            }
            #[cfg(feature = "cuda")]
            Machine::SplitCuda(gpus) => {
                search.on(gpus.device(session.context, self.0.options.activations, self.0.options.batch)?)
            }
        }
    }
}

/// The arguments of a search.
struct Search<'s> {
    session: SessionOptions,
    prompt: &'s [u32],
    options: &'s BeamOptions,
    detokenizer: &'s dyn Detokenizer,
    progress: &'s mut dyn FnMut(usize) -> ControlFlow<()>,
}

impl Search<'_> {
    fn on<D: BlockingDevice<Error: Into<Error>>>(self, mut device: D) -> Result<Vec<Beam>> {
        let Search { session, prompt, options, detokenizer, progress } = self;
        let beams = async {
            let session = Session::open_paged(&mut device, &session).await?;
            beam::search(&mut device, session, prompt, options, detokenizer, progress).await
        };
        D::wait(beams).map_err(|error| error.into().into())
    }
}
