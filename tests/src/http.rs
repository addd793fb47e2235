//! A web client of the tests' own: one TCP connection, kept as long as both sides keep it.

use std::net::SocketAddr;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::HOST;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::web::{Body, full};
use crate::within;

/// One connection; it ends when dropped.
#[derive(Debug)]
pub struct Http {
    host: String,
    sender: SendRequest<Body>,
    task: JoinHandle<Result<(), hyper::Error>>,
}

impl Http {
    /// Connects; says nothing yet.
    pub async fn connect(address: SocketAddr) -> Self {
        let stream = within("a connection", TcpStream::connect(address)).await.expect("somebody listens");
        let (sender, connection) = handshake(TokioIo::new(stream)).await.expect("nothing is said yet");
        Self { host: address.to_string(), sender, task: tokio::spawn(connection) }
    }

    /// A request without a body; the response's head.
    pub async fn get(&mut self, path: &str) -> Result<Response<Incoming>, hyper::Error> {
        self.ask(Method::GET, path, full("")).await
    }

    /// A request with a body; the response's head.
    pub async fn post(&mut self, path: &str, body: Body) -> Result<Response<Incoming>, hyper::Error> {
        self.ask(Method::POST, path, body).await
    }

    async fn ask(&mut self, method: Method, path: &str, body: Body) -> Result<Response<Incoming>, hyper::Error> {
        let request = Request::builder().method(method).uri(path).header(HOST, &self.host).body(body);
        let request = request.expect("a valid request");
        within(&format!("the answer to {path}"), async {
            self.sender.ready().await?;
            self.sender.send_request(request).await
        })
        .await
    }

    /// Waits until the connection has ended.
    pub async fn ended(&mut self) {
        let _ = within("the end of the connection", &mut self.task).await;
    }
}

impl Drop for Http {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The next piece of a response as it arrives; `None` at its end.
pub async fn next_piece(response: &mut Response<Incoming>) -> Result<Option<Bytes>, hyper::Error> {
    let frame = within("a piece of the response", response.body_mut().frame()).await.transpose()?;
    Ok(frame.map(|frame| frame.into_data().expect("no trailers")))
}

/// The whole of a response, as text.
pub async fn text(mut response: Response<Incoming>) -> Result<String, hyper::Error> {
    let mut text = Vec::new();
    while let Some(piece) = next_piece(&mut response).await? {
        text.extend_from_slice(&piece);
    }
    Ok(String::from_utf8(text).expect("the site writes text"))
}
