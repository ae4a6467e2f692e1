//! Beam search over a model.

use crate::any_device::Search;
use crate::error::Result;
use crate::model::Model;
use shohin_core::CpuOptions;
use shohin_core::beam::{Beam, BeamOptions};
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
        let session = self.session_options(self.context());
        let search = Search { session, prompt, options, detokenizer: self.tokenizer(), progress };
        let device = CpuOptions { logit_rows: options.beams.min(8), ..self.0.options };
        self.0.device.beam_search(&device, search, &self.0.cpu)
    }
}
