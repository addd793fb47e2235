//! The native baseline: a WebSocket server in Rust that sends back what it gets, on one thread as an object has one.

use futures_util::{SinkExt as _, StreamExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::accept_async;

/// Serves for ever, and says where.
pub(crate) async fn serve() -> anyhow::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("listening on http://{}", listener.local_addr()?);
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        tokio::spawn(async move {
            if let Err(error) = echo(stream).await {
                eprintln!("echo: {error:#}");
            }
        });
    }
}

async fn echo(stream: TcpStream) -> anyhow::Result<()> {
    let mut socket = accept_async(stream).await?;
    while let Some(message) = socket.next().await {
        let message = message?;
        if message.is_binary() {
            socket.send(message).await?;
        }
    }
    Ok(())
}
