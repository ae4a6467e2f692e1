//! Connections: at most so many, none of which is silent for long before a request, or while an answer is written.

use crate::body::Held;
use axum::Router;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tokio::time::Sleep;
use tower_service::Service;

/// How long a connection may take until the header of a request is there.
const HEADER: Duration = Duration::from_secs(30);

/// How long nothing can be written to a client: otherwise one that does not read would occupy a connection indefinitely.
const WRITE_PAUSE: Duration = Duration::from_secs(30);

/// How long after the grace clients may take to read how their answers end.
const FAREWELL: Duration = Duration::from_secs(2);

/// Bytes that the system holds of an answer. It says that more can be written only once a part of them, up to a third, was read: of what it
/// holds by itself, a megabyte and more, a slow client reads that too rarely for [`WRITE_PAUSE`].
const SEND_BUFFER: u32 = 128 << 10;

/// Listens at an address.
pub(crate) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // On Windows another program could then listen there, too.
    if cfg!(not(windows)) {
        socket.set_reuseaddr(true)?;
    }
    socket.set_send_buffer_size(SEND_BUFFER)?;
    socket.bind(address)?;
    socket.listen(1024)
}

/// Answers what comes in at `listener` until `stop` is done. The answers that have begun then have `grace` to end, and what is
/// left soon after that is closed. Meanwhile `router` answers new requests, too, each on a connection of its own: it says that
/// the server is shutting down, where a closed port would say that there is none.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    most: usize,
    stop: impl Future<Output = ()>,
    grace: Duration,
) {
    let places = Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS)));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEADER);
    let open = GracefulShutdown::new();
    let (alive, closed) = watch::channel(());
    let begin = |(place, stream), http: &http1::Builder, open: &GracefulShutdown| {
        let (client, has_ended) = Client::new();
        let stream = HalfClosing { stream, client: client.clone(), answering: false };
        let service = service_fn({
            let router = router.clone();
            move |request: Request<Incoming>| {
                client.lock().answers = cfg!(unix);
                let (answer, held) = (router.clone().call(request), Answering(client.clone()));
                async move { answer.await.map(|answer| answer.map(|body| Held { body, _held: held })) }
            }
        });
        let stream = TokioIo::new(Patient { stream, stalled: None });
        let connection = open.watch(http.serve_connection(stream, service));
        let mut closed = closed.clone();
        tokio::spawn(async move {
            let _place: Option<OwnedSemaphorePermit> = place;
            tokio::select! {
                // An error is one of the client's.
                _ = connection => {}
                _ = closed.changed() => {}
                () = left(has_ended) => {}
            }
        });
    };
    let mut stop = pin!(stop);
    loop {
        tokio::select! {
            next = accept(&listener, &places) => begin(next, &http, &open),
            () = &mut stop => break,
        }
    }
    let farewell = async {
        let late = GracefulShutdown::new();
        http.keep_alive(false);
        let mut ended = pin!(open.shutdown());
        loop {
            tokio::select! {
                next = accept(&listener, &places) => begin(next, &http, &late),
                () = &mut ended => break,
            }
        }
        drop(listener);
        let _ = tokio::time::timeout(FAREWELL, late.shutdown()).await;
    };
    let _ = tokio::time::timeout(grace.saturating_add(FAREWELL), farewell).await;
    drop(alive);
}

/// Sent to a client that has ended its side of the connection and waits for an answer, or has left. One that has left refuses it.
const PROCESSING: &[u8] = b"HTTP/1.1 102 Processing\r\n\r\n";

/// What is known of the client of a connection, who may end its side before it has the answer.
#[derive(Clone)]
struct Client(Arc<Mutex<Waiting>>);

struct Waiting {
    /// Whether there is a request whose answer has not ended.
    answers: bool,
    /// Woken when the answer has ended.
    reader: Option<Waker>,
    /// Told when the client's side has ended.
    ended: Option<oneshot::Sender<TcpStream>>,
}

impl Client {
    fn new() -> (Client, oneshot::Receiver<TcpStream>) {
        let (ended, has_ended) = oneshot::channel();
        let waiting = Waiting { answers: false, reader: None, ended: Some(ended) };
        (Client(Arc::new(Mutex::new(waiting))), has_ended)
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Says when it is dropped that an answer has ended.
struct Answering(Client);

impl Drop for Answering {
    fn drop(&mut self) {
        let mut waiting = self.0.lock();
        waiting.answers = false;
        if let Some(reader) = waiting.reader.take() {
            reader.wake();
        }
    }
}

/// A connection whose end is not told while a request is answered.
struct HalfClosing {
    stream: TcpStream,
    client: Client,
    /// Whether an answer has begun since a request came.
    answering: bool,
}

impl AsyncRead for HalfClosing {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = out.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, out);
        if !matches!(read, Poll::Ready(Ok(()))) || out.remaining() == 0 {
            return read;
        }
        if out.filled().len() > before {
            self.answering = false;
            return read;
        }
        let mut waiting = self.client.lock();
        if !waiting.answers {
            return read;
        }
        waiting.reader = Some(cx.waker().clone());
        if let Some(ended) = waiting.ended.take()
            && let Some(copy) = copy(&self.stream)
        {
            if !self.answering {
                let _ = self.stream.try_write(PROCESSING);
            }
            let _ = ended.send(copy);
        }
        Poll::Pending
    }
}

impl AsyncWrite for HalfClosing {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.answering = true;
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.answering = true;
        Pin::new(&mut self.stream).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Another handle of a connection.
#[cfg(unix)]
fn copy(stream: &TcpStream) -> Option<TcpStream> {
    use std::os::fd::AsFd;
    TcpStream::from_std(stream.as_fd().try_clone_to_owned().ok()?.into()).ok()
}

#[cfg(not(unix))]
fn copy(_: &TcpStream) -> Option<TcpStream> {
    None
}

/// Waits until a client has left that had ended its side of the connection.
async fn left(has_ended: oneshot::Receiver<TcpStream>) {
    let Ok(stream) = has_ended.await else { return std::future::pending().await };
    if stream.ready(Interest::ERROR).await.is_err() {
        std::future::pending().await
    }
}

/// A connection that fails when nothing could be written to it for [`WRITE_PAUSE`].
struct Patient<S> {
    stream: S,
    /// The end of its patience, while it waits for the client.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<S: Unpin> Patient<S> {
    fn limited<T>(
        &mut self,
        cx: &mut Context<'_>,
        write: impl FnOnce(Pin<&mut S>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        let written = write(Pin::new(&mut self.stream), cx);
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep(WRITE_PAUSE)));
        stalled.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, out)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.limited(cx, |stream, cx| stream.poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.limited(cx, |stream, cx| stream.poll_write_vectored(cx, bytes))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// The next connection, when there is a place for it; others wait in the system's queue.
async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> (Option<OwnedSemaphorePermit>, TcpStream) {
    // It is never closed.
    let place = Arc::clone(places).acquire_owned().await.ok();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                // Tokens are small: they would be held back for the next one.
                let _ = stream.set_nodelay(true);
                return (place, stream);
            }
            // Of one connection, or there are too many open files: some are closed meanwhile.
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::time::{Instant, sleep};

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_nothing_for_long_is_left() {
        let (mut client, stream) = tokio::io::duplex(8);
        let mut stream = Patient { stream, stalled: None };
        let start = Instant::now();
        let reads = async {
            for _ in 0..10 {
                sleep(WRITE_PAUSE - Duration::from_secs(1)).await;
                client.read_exact(&mut [0]).await.unwrap();
            }
            sleep(2 * WRITE_PAUSE).await;
        };
        let writes = async {
            loop {
                if let Err(error) = stream.write(&[0; 64]).await {
                    return error;
                }
            }
        };
        let error = tokio::select! {
            () = reads => panic!("the server waits"),
            error = writes => error,
        };
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(start.elapsed().as_secs(), 10 * 29 + 30);
    }
}
