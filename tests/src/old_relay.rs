//! A proxy that makes a relay look like one without our features: it knows only `/v1/ws`, offers nothing in `AuthOk`, hides
//! what peers offer, and delivers `live` as false, as deployed relays do. It also watches the peers: whatever they send
//! beyond the deployed protocol is noted.

use std::sync::{Arc, Mutex};

use futures_util::{SinkExt, StreamExt};
use skald_common::wire::{self, Frame, Role};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::server::{ErrorResponse, Request, Response};
use tokio_tungstenite::tungstenite::http::StatusCode;
use tokio_tungstenite::{accept_hdr_async, connect_async};

/// The proxy; it ends when dropped.
#[derive(Debug)]
pub struct OldRelay {
    url: String,
    offences: Arc<Mutex<Vec<String>>>,
    task: tokio::task::JoinHandle<()>,
}

impl OldRelay {
    /// In front of the relay at `upstream`.
    pub async fn in_front_of(upstream: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("ws://{}/v1/ws", listener.local_addr().expect("it is bound"));
        let offences = Arc::new(Mutex::new(Vec::new()));
        let task = tokio::spawn(serve(listener, upstream.to_owned(), Arc::clone(&offences)));
        Self { url, offences, task }
    }

    /// Its control socket.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// What peers sent that the deployed protocol does not know.
    pub fn offences(&self) -> Vec<String> {
        self.offences.lock().expect("no panic").clone()
    }
}

impl Drop for OldRelay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(listener: TcpListener, upstream: String, offences: Arc<Mutex<Vec<String>>>) {
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        connections.spawn(splice(stream, upstream.clone(), Arc::clone(&offences)));
    }
}

/// Either side's end ends both.
async fn splice(stream: TcpStream, upstream: String, offences: Arc<Mutex<Vec<String>>>) {
    let Ok(mut peer) = accept_hdr_async(stream, only_common_path).await else { return };
    let Ok((mut relay, _)) = connect_async(&upstream).await else { return };
    loop {
        tokio::select! {
            message = peer.next() => {
                let Some(Ok(message)) = message else { break };
                let closing = message.is_close();
                let forwarded = from_peer(message, &mut |what| offences.lock().expect("no panic").push(what));
                if relay.send(forwarded).await.is_err() || closing {
                    break;
                }
            }
            message = relay.next() => {
                let Some(Ok(message)) = message else { break };
                let closing = message.is_close();
                if peer.send(to_peer(message)).await.is_err() || closing {
                    break;
                }
            }
        }
    }
    let _ = relay.flush().await;
    let _ = peer.flush().await;
}

#[expect(clippy::result_large_err, reason = "the signature is the library's")]
fn only_common_path(request: &Request, response: Response) -> Result<Response, ErrorResponse> {
    if request.uri().path() == wire::CONTROL_PATH {
        return Ok(response);
    }
    let mut refusal = ErrorResponse::new(None);
    *refusal.status_mut() = StatusCode::NOT_FOUND;
    Err(refusal)
}

fn from_peer(message: Message, offence: &mut dyn FnMut(String)) -> Message {
    let bytes = match message {
        Message::Binary(bytes) => bytes,
        Message::Text(text) => {
            offence(format!("the text {text:?}"));
            return Message::Text(text);
        }
        other => return other,
    };
    match wire::decode(bytes.clone()) {
        Ok(Some(Frame::Auth(mut auth))) => {
            // Offering is allowed: an old relay does not see the field.
            match &mut auth.role {
                Some(Role::Agent(agent)) => agent.features = 0,
                Some(Role::Client(client)) => client.features = 0,
                _ => {}
            }
            return Message::Binary(wire::encode(Frame::Auth(auth)).into());
        }
        Ok(Some(Frame::Message(sent)))
            if sent.r#ref != 0 || sent.delivery != 0 || !sent.collapse.is_empty() || sent.quiet =>
        {
            offence("a message with a number, a tag or quiet".to_owned());
        }
        Ok(Some(Frame::Ack(_) | Frame::Accepted(_))) => offence("a receipt".to_owned()),
        _ => {}
    }
    Message::Binary(bytes)
}

fn to_peer(message: Message) -> Message {
    let Message::Binary(bytes) = message else { return message };
    let rewritten = match wire::decode(bytes.clone()) {
        Ok(Some(Frame::AuthOk(mut ok))) => {
            ok.features = 0;
            Frame::AuthOk(ok)
        }
        Ok(Some(Frame::Message(mut delivered))) => {
            delivered.live = false;
            Frame::Message(delivered)
        }
        _ => return Message::Binary(bytes),
    };
    Message::Binary(wire::encode(rewritten).into())
}
