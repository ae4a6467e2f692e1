//! Connections: at most so many, none of which is silent for long before a request.

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How long a connection may take until the header of a request is there.
const HEADER: Duration = Duration::from_secs(30);

/// Answers what comes in at `listener` until `stop` is done, then waits for the answers that have begun.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    most: usize,
    stop: impl Future<Output = ()>,
) {
    let places = Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS)));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEADER);
    let open = GracefulShutdown::new();
    let mut stop = pin!(stop);
    loop {
        let (place, stream) = tokio::select! {
            next = accept(&listener, &places) => next,
            () = &mut stop => break,
        };
        let service = TowerToHyperService::new(router.clone());
        let connection = open.watch(http.serve_connection(TokioIo::new(stream), service));
        tokio::spawn(async move {
            let _place = place;
            // An error is one of the client's.
            let _ = connection.await;
        });
    }
    drop(listener);
    open.shutdown().await;
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
