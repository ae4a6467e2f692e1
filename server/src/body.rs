//! Bodies of answers that keep something until they end.

use axum::body::Body;
use std::pin::Pin;
use std::task::{Context, Poll};

/// A body with what is dropped with it.
pub(crate) struct Held<T> {
    pub(crate) body: Body,
    pub(crate) _held: T,
}

impl<T: Unpin> http_body::Body for Held<T> {
    type Data = <Body as http_body::Body>::Data;
    type Error = <Body as http_body::Body>::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}
