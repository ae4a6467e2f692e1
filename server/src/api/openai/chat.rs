//! Chat completions, whose form core shares with the npm package.

use super::{CHAT, DONE, OpenAi};
use crate::api::dialect::{Begun, Dialect, Event, PromptInput, ReplyRequest, ReplyWriter};
use crate::error::ApiError;
use shohin::Model;
use shohin::core::Result;
use shohin::core::chat::openai::{ChatCompletionRequest, ChunkWriter, CompletionId, completion};
use shohin::core::chat::{Chunk, Finish, TokenLogprob};

pub(super) fn read(text: &str) -> Result<ReplyRequest> {
    let mut request = ChatCompletionRequest::parse(text)?;
    Ok(ReplyRequest {
        prompt: PromptInput::Messages(std::mem::take(&mut request.messages)),
        options: request.options.clone(),
        seed: request.seed,
        model: request.model.clone(),
        stream: request.stream,
        fields: &CHAT,
        writer: Box::new(move |Begun { id, model, .. }| {
            let chunks = ChunkWriter::new(id.clone(), &request);
            let logprobs = request.options.logprobs.map(|_| Vec::new());
            Box::new(ChatWriter { id, model, chunks, logprobs })
        }),
    })
}

struct ChatWriter {
    id: CompletionId,
    model: Model,
    chunks: ChunkWriter,
    /// Those of a whole answer, if they were asked for.
    logprobs: Option<Vec<TokenLogprob>>,
}

impl ReplyWriter for ChatWriter {
    fn chunk(&mut self, chunk: &Chunk) -> Vec<Event> {
        self.chunks.chunk(chunk, self.model.tokenizer()).map(Event::plain).into_iter().collect()
    }

    fn finish(&mut self, finish: &Finish) -> Vec<Event> {
        let chunks = self.chunks.finish(finish).into_iter();
        chunks.chain([DONE.into()]).map(Event::plain).collect()
    }

    fn error(&mut self, error: &ApiError) -> Event {
        Event::plain(OpenAi.error(error).to_string())
    }

    // The whole has the text, too.
    fn collect(&mut self, chunk: Chunk) {
        if let Some(logprobs) = &mut self.logprobs {
            logprobs.extend(chunk.logprobs);
        }
    }

    fn whole(&mut self, finish: &Finish) -> String {
        completion(&self.id, finish, self.logprobs.as_deref(), self.model.tokenizer())
    }
}
