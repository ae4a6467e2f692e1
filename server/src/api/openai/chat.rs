//! Chat completions, whose form core shares with the npm package.

use super::{CHAT, DONE, OpenAi, extras};
use crate::api::dialect::{Begun, Dialect, Event, PromptInput, ReplyRequest, ReplyWriter};
use crate::error::ApiError;
use shohin::Model;
use shohin::core::Result;
use shohin::core::chat::fields::{Object, Reading};
use shohin::core::chat::openai::request::FIELDS;
use shohin::core::chat::openai::{ChatCompletionRequest, ChunkWriter, CompletionId, completion_of};
use shohin::core::chat::{Chunk, Finish, TokenLogprob, Usage};

pub(super) fn read(text: &str, reading: &Reading) -> Result<ReplyRequest> {
    let known = [FIELDS, extras::EXTRAS, extras::CHAT_EXTRAS].concat();
    let given = Object::request_with(text, &known, Some(reading))?;
    let mut request = ChatCompletionRequest::read(&given)?;
    let mut fields = CHAT;
    extras::read(&given, &mut request.options, &mut fields)?;
    extras::read_chat(&given, &mut request.options)?;
    let n = extras::replies(&given)?;
    Ok(ReplyRequest {
        prompts: Vec::from([PromptInput::Messages(std::mem::take(&mut request.messages))]),
        n,
        options: request.options.clone(),
        score: None,
        seed: request.seed,
        model: request.model.clone(),
        stream: request.stream,
        lines: false,
        fields,
        writer: Box::new(move |Begun { id, model, .. }| {
            let chunks = (0..n).map(|index| ChunkWriter::new(id.clone(), &request).at(index)).collect();
            let logprobs = vec![request.options.logprobs.map(|_| Vec::new()); n];
            Box::new(ChatWriter { id, model, chunks, logprobs, ended: Vec::new() })
        }),
    })
}

struct ChatWriter {
    id: CompletionId,
    model: Model,
    /// Of each reply.
    chunks: Vec<ChunkWriter>,
    /// Those of each reply of a whole answer, if they were asked for.
    logprobs: Vec<Option<Vec<TokenLogprob>>>,
    /// What the replies took that have ended.
    ended: Vec<Usage>,
}

impl ReplyWriter for ChatWriter {
    fn chunk(&mut self, reply: usize, chunk: &Chunk) -> Vec<Event> {
        let writer = self.chunks.get_mut(reply);
        let data = writer.and_then(|writer| writer.chunk(chunk, self.model.tokenizer()));
        data.map(Event::plain).into_iter().collect()
    }

    fn finish(&mut self, reply: usize, finish: &Finish) -> Vec<Event> {
        self.ended.push(finish.usage);
        self.chunks.get(reply).map(|writer| Event::plain(writer.end(finish))).into_iter().collect()
    }

    fn end(&mut self) -> Vec<Event> {
        let usage = Usage::sum(self.ended.iter().copied());
        let usage = self.chunks.first().and_then(|writer| writer.usage(&usage));
        usage.into_iter().chain([DONE.into()]).map(Event::plain).collect()
    }

    fn error(&mut self, error: &ApiError) -> Event {
        Event::plain(OpenAi.error(error).to_string())
    }

    // The whole has the text, too.
    fn collect(&mut self, reply: usize, chunk: Chunk) {
        if let Some(Some(logprobs)) = self.logprobs.get_mut(reply) {
            logprobs.extend(chunk.logprobs);
        }
    }

    fn whole(&mut self, replies: &[Finish]) -> String {
        let choices: Vec<_> =
            replies.iter().zip(self.logprobs.iter().map(|logprobs| logprobs.as_deref())).collect();
        completion_of(&self.id, &choices, self.model.tokenizer())
    }
}
