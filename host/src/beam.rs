//! Beam search over a model.

use crate::device::HostDevice;
use crate::error::{Error, Result};
use crate::model::Model;
use shohin_core::beam::{self, Beam, BeamOptions};
use shohin_core::device::BlockingDevice;
use shohin_core::{CpuOptions, Session};
use std::ops::ControlFlow;

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
        let device = CpuOptions { logit_rows: options.beams.min(8), ..self.0.options };
        let mut device = match self.split() {
            None => self.0.device.open(&device)?,
            Some(_) if self.is_distributed() => {
                return Err(Error::Option {
                    name: "beams",
                    found: options.beams.to_string(),
                    expected: "none over MPI: beam search runs on one device".into(),
                });
            }
            // On the whole, as the ranks have parts of the weights.
            Some(_) => HostDevice::Cpu(self.0.cpu.device(&device)?),
        };
        let beams = async {
            let session = Session::open_paged(&mut device, &self.session_options(self.context())).await?;
            beam::search(&mut device, session, prompt, options, self.tokenizer(), progress).await
        };
        Ok(HostDevice::wait(beams)?)
    }
}
