//! Sockets: a bounded number of connections, each of which must send the head of a request in time.

use super::app;
use super::state::ServiceState;
use super::worker::End;
use axum::extract::connect_info::{ConnectInfo, Connected};
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use axum::serve::{IncomingStream, Listener};
use parking_lot::Mutex;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep};

/// How long the listener rests after the system refused a connection.
const REST: Duration = Duration::from_millis(50);

/// What a connection is waiting for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Waiting {
    /// The head of a request.
    Head,
    /// A request is being answered: the head came, and nothing was written yet.
    Answer,
    /// Something was written: the answer goes on, or the next head begins with the next byte.
    Either,
}

/// Shared by a connection and its requests.
#[derive(Clone, Debug)]
pub(super) struct Watch {
    /// What is waited for, and until when.
    state: Arc<Mutex<(Waiting, Instant)>>,
    head_time: Duration,
    idle_time: Duration,
}

impl Watch {
    fn new(head_time: Duration, idle_time: Duration) -> Self {
        let state = Arc::new(Mutex::new((Waiting::Head, Instant::now() + head_time)));
        Self { state, head_time, idle_time }
    }

    fn set(&self, waiting: Waiting) {
        let time = if waiting == Waiting::Head { self.head_time } else { self.idle_time };
        *self.state.lock() = (waiting, Instant::now() + time);
    }

    /// A byte came: it begins a head, unless one has begun or is being answered.
    fn came(&self) {
        let waiting = self.state.lock().0;
        if waiting == Waiting::Either {
            self.set(Waiting::Head);
        }
    }

    fn deadline(&self) -> Instant {
        self.state.lock().1
    }
}

/// A connection that is closed when the head of a request does not come in time, or nothing happens for as long as a
/// request may take.
pub(super) struct Watched {
    stream: TcpStream,
    watch: Watch,
    timer: Pin<Box<Sleep>>,
    _permit: OwnedSemaphorePermit,
}

impl Watched {
    /// Errors if time is over; else the caller is woken then.
    fn check_time(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let deadline = self.watch.deadline();
        if self.timer.deadline() != deadline {
            self.timer.as_mut().reset(deadline);
        }
        match self.timer.as_mut().poll(context) {
            Poll::Ready(()) => Err(io::Error::new(io::ErrorKind::TimedOut, "nothing came in time")),
            Poll::Pending => Ok(()),
        }
    }
}

impl AsyncRead for Watched {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = into.filled().len();
        let polled = Pin::new(&mut this.stream).poll_read(context, into);
        match polled {
            Poll::Ready(Ok(())) if into.filled().len() > before => {
                this.watch.came();
                match this.check_time(context) {
                    Ok(()) => Poll::Ready(Ok(())),
                    Err(error) => Poll::Ready(Err(error)),
                }
            }
            Poll::Pending => match this.check_time(context) {
                Ok(()) => Poll::Pending,
                Err(error) => Poll::Ready(Err(error)),
            },
            other => other,
        }
    }
}

impl AsyncWrite for Watched {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.stream).poll_write(context, bytes);
        if let Poll::Ready(Ok(1..)) = polled {
            this.watch.set(Waiting::Either);
        }
        polled
    }
    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.stream).poll_write_vectored(context, bytes);
        if let Poll::Ready(Ok(1..)) = polled {
            this.watch.set(Waiting::Either);
        }
        polled
    }
    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }
    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}

/// A listener that accepts no more connections than may be open.
pub(super) struct Door {
    listener: TcpListener,
    permits: Arc<Semaphore>,
    head_time: Duration,
    idle_time: Duration,
}

impl Listener for Door {
    type Io = Watched;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Watched, SocketAddr) {
        loop {
            // The semaphore is never closed.
            let Ok(permit) = Arc::clone(&self.permits).acquire_owned().await else { continue };
            match self.listener.accept().await {
                Ok((stream, address)) => {
                    // Tokens are small and wanted at once; a system that refuses is slower, not wrong.
                    let _ = stream.set_nodelay(true);
                    let watch = Watch::new(self.head_time, self.idle_time);
                    let timer = Box::pin(tokio::time::sleep_until(watch.deadline()));
                    return (Watched { stream, watch, timer, _permit: permit }, address);
                }
                Err(_) => tokio::time::sleep(REST).await,
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

impl Connected<IncomingStream<'_, Door>> for Watch {
    fn connect_info(stream: IncomingStream<'_, Door>) -> Self {
        stream.io().watch.clone()
    }
}

/// The head of a request is there: its connection need not hurry any more. (Its body has a time of its own.)
pub(super) async fn note_request(State(_): State<Arc<ServiceState>>, request: Request, next: Next) -> Response {
    if let Some(ConnectInfo(watch)) = request.extensions().get::<ConnectInfo<Watch>>() {
        watch.set(Waiting::Answer);
    }
    next.run(request).await
}

/// Serves until `until`, then finishes what runs, for as long as the limits allow, and lets all models go.
///
/// Errors: those of the socket.
pub async fn serve(
    state: Arc<ServiceState>,
    listener: TcpListener,
    until: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let limits = &state.core.config.limits;
    let door = Door {
        listener,
        permits: Arc::new(Semaphore::new(limits.connections)),
        head_time: limits.header_time(),
        // Twice: what a request may take, and as long again between requests.
        idle_time: limits.request_time() * 2,
    };
    let patience = Duration::from_secs(limits.shutdown_seconds);
    let (told, mut hear) = tokio::sync::watch::channel(());
    let ending = Arc::clone(&state);
    let until = async move {
        until.await;
        ending.begin_end();
        drop(told);
    };
    let service = app(&state).into_make_service_with_connect_info::<Watch>();
    let serving = axum::serve(door, service).with_graceful_shutdown(until);
    let late = async move {
        // Ends with an error when the sender is dropped.
        while hear.changed().await.is_ok() {}
        tokio::time::sleep(patience).await;
    };
    let outcome = tokio::select! {
        served = serving.into_future() => served,
        () = late => Ok(()),
    };
    let _ = tokio::task::spawn_blocking(move || state.end(End::Now)).await;
    outcome
}
