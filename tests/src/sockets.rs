//! Clients of the daemon's two sockets: a host that asks, and the owner who controls.

use std::path::Path;

use serde_json::{Value, json};

use crate::rpc::{Rpc, RpcFailure, write};
use crate::within;

/// A host, as Skald is one.
#[derive(Debug)]
pub struct Host {
    rpc: Rpc,
}

/// A call of the daemon that waits for the host's answer.
#[derive(Debug)]
pub struct Call {
    /// Parameters of `inbox.resolve`.
    pub params: Value,
    id: Value,
    writer: std::sync::Arc<tokio::sync::Mutex<tokio::net::unix::OwnedWriteHalf>>,
}

impl Call {
    /// Answers it: whether the item was still pending.
    pub async fn answer(self, resolved: bool) -> Value {
        self.reply(json!({"result": {"resolved": resolved}})).await
    }

    /// Answers it with an error.
    pub async fn fail(self) -> Value {
        self.reply(json!({"error": {"code": -32603, "message": "the host is in trouble"}})).await
    }

    async fn reply(self, mut message: Value) -> Value {
        message["jsonrpc"] = "2.0".into();
        message["id"] = self.id;
        write(&self.writer, &message.to_string()).await;
        self.params
    }
}

impl Host {
    /// Connects and greets.
    pub async fn connect(socket: &Path, name: &str) -> Self {
        let hello = json!({"protocol": 1, "name": name, "version": "1.0", "label": format!("{name} of the tests")});
        let (host, greeted) = Self::connect_with(socket, hello).await;
        greeted.unwrap_or_else(|failure| panic!("hello of {name}: {failure:?}"));
        host
    }

    /// Connects and greets with these parameters; gives the daemon's answer too.
    pub async fn connect_with(socket: &Path, hello: Value) -> (Self, Result<Value, RpcFailure>) {
        let rpc = Rpc::connect(socket).await;
        let greeted = rpc.call("hello", hello).await;
        (Self { rpc }, greeted)
    }

    /// The connection.
    pub fn rpc(&mut self) -> &mut Rpc {
        &mut self.rpc
    }

    /// `inbox.sync`.
    pub async fn sync(&self, approvals: &[Value], clarifications: &[Value], elicitations: &[Value]) {
        let set = json!({"approvals": approvals, "clarifications": clarifications, "elicitations": elicitations});
        self.call("inbox.sync", set).await;
    }

    /// `inbox.requested`.
    pub async fn request(&self, kind: &str, item: &Value) {
        self.call("inbox.requested", json!({"kind": kind, "item": item})).await;
    }

    /// `inbox.resolved`.
    pub async fn resolved(&self, kind: &str, request_id: impl Into<Value>) {
        self.call("inbox.resolved", json!({"kind": kind, "request_id": request_id.into()})).await;
    }

    /// Calls any method, which must succeed.
    pub async fn call(&self, method: &str, params: Value) -> Value {
        self.try_call(method, params).await.unwrap_or_else(|failure| panic!("{method}: {failure:?}"))
    }

    /// Calls any method.
    pub async fn try_call(&self, method: &str, params: Value) -> Result<Value, RpcFailure> {
        self.rpc.call(method, params).await
    }

    /// The next call of the daemon, to be answered or not.
    pub async fn next_call(&mut self) -> Call {
        let mut message = self.rpc.next().await.expect("the daemon keeps the connection");
        assert_eq!(message["method"], "inbox.resolve", "{message}");
        Call { params: message["params"].take(), id: message["id"].take(), writer: self.rpc.writer() }
    }

    /// The next answer, which this host takes.
    pub async fn answered(&mut self) -> Value {
        self.next_call().await.answer(true).await
    }

    /// An approval as a host raises it.
    pub fn approval(request_id: impl Into<Value>, summary: &str, arguments: &Value) -> Value {
        json!({"request_id": request_id.into(), "tool_name": "deploy", "summary": summary, "arguments": arguments})
    }

    /// A question as a host raises it.
    pub fn question(request_id: impl Into<Value>, question: &str, suggested: &[&str]) -> Value {
        json!({"request_id": request_id.into(), "question": question, "suggested_answers": suggested})
    }

    /// A prompt for a secret as a host raises it.
    pub fn secret(request_id: impl Into<Value>, message: &str, field: &str) -> Value {
        json!({
            "request_id": request_id.into(), "server_name": "ssh", "message": message, "field_name": field,
            "sensitive": true, "is_confirmation": false,
        })
    }
}

/// The owner's connection, subscribed to events.
#[derive(Debug)]
pub struct Control {
    rpc: Rpc,
}

impl Control {
    /// Connects, greets and subscribes.
    pub async fn connect(socket: &Path) -> Self {
        let rpc = Rpc::connect(socket).await;
        let control = Self { rpc };
        control.call("hello", json!({"protocol": 1, "name": "tests", "version": "1.0"})).await;
        control.call("events.subscribe", json!({})).await;
        control
    }

    /// The connection.
    pub fn rpc(&mut self) -> &mut Rpc {
        &mut self.rpc
    }

    /// Calls a method, which must succeed.
    pub async fn call(&self, method: &str, params: Value) -> Value {
        self.try_call(method, params).await.unwrap_or_else(|failure| panic!("{method}: {failure:?}"))
    }

    /// Calls a method.
    pub async fn try_call(&self, method: &str, params: Value) -> Result<Value, RpcFailure> {
        self.rpc.call(method, params).await
    }

    /// The next event of this type, skipping others.
    pub async fn event(&mut self, kind: &str) -> Value {
        self.event_where(kind, |_| true).await
    }

    /// The next event of this type that fits, skipping others.
    pub async fn event_where(&mut self, kind: &str, fits: impl Fn(&Value) -> bool) -> Value {
        let search = async {
            loop {
                let event = self.any_event().await;
                if event["type"] == kind && fits(&event) {
                    return event;
                }
            }
        };
        within(&format!("the event {kind}"), search).await
    }

    async fn any_event(&mut self) -> Value {
        let mut message = self.rpc.next().await.expect("the daemon keeps the connection");
        assert_eq!(message["method"], "event", "{message}");
        message["params"].take()
    }

    /// Asks for a state again after each event until it fits.
    pub async fn until(&mut self, what: &str, method: &str, fits: impl Fn(&Value) -> bool) -> Value {
        let search = async {
            loop {
                let state = self.call(method, json!({})).await;
                if fits(&state) {
                    return state;
                }
                self.any_event().await;
            }
        };
        within(what, search).await
    }

    /// Waits until the daemon is connected to its relay.
    pub async fn connected(&mut self) -> Value {
        self.until("the daemon to reach its relay", "status", |status| status["relay"]["connected"] == true).await
    }

    /// Opens a pairing window; gives the content of its QR code.
    pub async fn pairing_code(&mut self) -> String {
        self.connected().await;
        let started = self.call("pairing.start", json!({})).await;
        self.qr(&started["code"]).await
    }

    /// The content of the QR code of an open window.
    pub async fn qr(&self, code: &Value) -> String {
        let qr = self.call("pairing.qr", json!({"code": code, "format": "json"})).await;
        assert_eq!(qr["state"], "active", "{qr}");
        // A string that holds JSON, so that its bytes can be shown as they are.
        match &qr["data"] {
            Value::String(text) => text.clone(),
            other => panic!("the code's content is text, not {other}"),
        }
    }

    /// `devices.list`.
    pub async fn devices(&self) -> Vec<Value> {
        match self.call("devices.list", json!({})).await {
            Value::Array(devices) => devices,
            other => panic!("devices.list: {other}"),
        }
    }

    /// `status`.
    pub async fn status(&self) -> Value {
        self.call("status", json!({})).await
    }

    /// `inbox.list`.
    pub async fn inbox(&self) -> Vec<Value> {
        match self.call("inbox.list", json!({})).await {
            Value::Array(items) => items,
            other => panic!("inbox.list: {other}"),
        }
    }
}
