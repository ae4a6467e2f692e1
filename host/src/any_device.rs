//! A device of any kind, and what runs on it.

use crate::error::{Error, Result};
use crate::sequence::{OnDevice, Sequence};
use shohin_core::beam::{self, Beam, BeamOptions};
use shohin_core::chat::{
    ChatModel, Encoded, Event, Finish, Prompt, ReplyId, Scheduler as CoreScheduler, SchedulerOptions,
    TurnOptions, Usage,
};
use shohin_core::device::BlockingDevice;
use shohin_core::generate::Detokenizer;
use shohin_core::{Error as CoreError, Session, SessionOptions};
use std::any::Any;
use std::fmt::Debug;
use std::ops::ControlFlow;

/// The arguments of a beam search.
pub(crate) struct Search<'s> {
    pub(crate) session: SessionOptions,
    pub(crate) prompt: &'s [u32],
    pub(crate) options: &'s BeamOptions,
    pub(crate) detokenizer: &'s dyn Detokenizer,
    pub(crate) progress: &'s mut dyn FnMut(usize) -> ControlFlow<()>,
}

/// A device of any kind, for one use.
pub(crate) trait AnyDevice: Any {
    /// An empty sequence; `remote` as in [`OnDevice::new`].
    fn sequence(self: Box<Self>, session: &SessionOptions, remote: bool) -> Result<Box<dyn Sequence>>;

    /// A scheduler without replies.
    fn scheduler(self: Box<Self>, options: SchedulerOptions) -> Result<Box<dyn AnyScheduler>>;

    /// The result of a beam search.
    fn beam_search(self: Box<Self>, search: Search<'_>) -> Result<Vec<Beam>>;
}

impl<D> AnyDevice for D
where
    D: BlockingDevice<Cache: Send, Error: Into<CoreError> + Into<Error>> + Send + 'static,
{
    fn sequence(mut self: Box<Self>, session: &SessionOptions, remote: bool) -> Result<Box<dyn Sequence>> {
        let session = Session::new(&mut *self, session).map_err(Into::<Error>::into)?;
        Ok(Box::new(OnDevice::new(*self, session, remote)))
    }

    fn scheduler(self: Box<Self>, options: SchedulerOptions) -> Result<Box<dyn AnyScheduler>> {
        Ok(Box::new(CoreScheduler::new(*self, options)?))
    }

    fn beam_search(mut self: Box<Self>, search: Search<'_>) -> Result<Vec<Beam>> {
        let Search { session, prompt, options, detokenizer, progress } = search;
        let beams = async {
            let session = Session::open_paged(&mut *self, &session).await?;
            beam::search(&mut *self, session, prompt, options, detokenizer, progress).await
        };
        D::wait(beams).map_err(|error| Error::Engine(error.into()))
    }
}

/// A [`CoreScheduler`] over a device of any kind: its methods are described there.
pub(crate) trait AnyScheduler: Debug + Send {
    fn replies(&self) -> Vec<ReplyId>;
    fn is_full(&self) -> bool;
    fn held_tokens(&self) -> usize;
    fn cache_bytes(&self) -> usize;
    fn set_cache_bytes(&mut self, bytes: Option<usize>);
    fn usage(&self, id: ReplyId) -> Option<Usage>;
    fn comes_soon(&self, prompt: &Encoded) -> bool;
    fn begin(&mut self, model: &ChatModel<'_>, prompt: Prompt, options: &TurnOptions) -> Result<ReplyId>;
    fn step(
        &mut self,
        detokenizer: &dyn Detokenizer,
        ready: &mut dyn FnMut(ReplyId) -> bool,
        events: &mut dyn FnMut(ReplyId, Event<'_>),
    ) -> Result<bool>;
    fn cancel(&mut self, id: ReplyId) -> Option<Finish>;

    /// Goes on over a device of the same kind.
    fn renew(&mut self, device: Box<dyn AnyDevice>);
}

impl<D> AnyScheduler for CoreScheduler<D>
where
    D: BlockingDevice<Cache: Send, Error: Into<CoreError>> + Send + 'static,
{
    fn replies(&self) -> Vec<ReplyId> {
        self.replies().collect()
    }

    fn is_full(&self) -> bool {
        self.is_full()
    }

    fn held_tokens(&self) -> usize {
        self.held_tokens()
    }

    fn cache_bytes(&self) -> usize {
        self.cache_bytes()
    }

    fn set_cache_bytes(&mut self, bytes: Option<usize>) {
        self.set_cache_bytes(bytes);
    }

    fn usage(&self, id: ReplyId) -> Option<Usage> {
        self.usage(id)
    }

    fn comes_soon(&self, prompt: &Encoded) -> bool {
        self.comes_soon(prompt)
    }

    fn begin(&mut self, model: &ChatModel<'_>, prompt: Prompt, options: &TurnOptions) -> Result<ReplyId> {
        D::wait(self.begin(model, prompt, options)).map_err(|error| Error::Engine(error.into()))
    }

    fn step(
        &mut self,
        detokenizer: &dyn Detokenizer,
        ready: &mut dyn FnMut(ReplyId) -> bool,
        events: &mut dyn FnMut(ReplyId, Event<'_>),
    ) -> Result<bool> {
        D::wait(self.step(detokenizer, ready, events)).map_err(|error| Error::Engine(error.into()))
    }

    fn cancel(&mut self, id: ReplyId) -> Option<Finish> {
        self.cancel(id)
    }

    fn renew(&mut self, device: Box<dyn AnyDevice>) {
        let device: Box<dyn Any> = device;
        if let Ok(device) = device.downcast() {
            self.renew(*device);
        }
    }
}
