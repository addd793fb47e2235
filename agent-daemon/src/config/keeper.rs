//! The task that owns the settings while the daemon runs: one change at a time, each checked, written, then applied.

use std::collections::BTreeMap;

use tokio::sync::{mpsc, oneshot};

use super::{Config, ConfigError, ConfigStore, Value};
use crate::hub::api::{ApiError, HubHandle};

/// Requests that may wait.
const QUEUE: usize = 16;

/// Why a change was not made, or not applied.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// Not read, not valid, or not written; the settings are as before.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Written, but the daemon is stopping: it holds from the next start.
    #[error(transparent)]
    Hub(#[from] ApiError),
}

type Responder = oneshot::Sender<Result<Config, ChangeError>>;

#[derive(Debug)]
enum Request {
    Get(Responder),
    Set(BTreeMap<String, Value>, Responder),
    Reload(Responder),
}

/// Owns the settings; see [`Keeper::run`].
#[derive(Debug)]
pub struct Keeper {
    store: ConfigStore,
    hub: HubHandle,
    requests: mpsc::Receiver<Request>,
}

/// Asks the [`Keeper`]. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ConfigHandle {
    requests: mpsc::Sender<Request>,
}

impl Keeper {
    /// The task's state and its handle. The hub must have been started with the store's current settings.
    pub fn new(store: ConfigStore, hub: HubHandle) -> (Self, ConfigHandle) {
        let (sender, requests) = mpsc::channel(QUEUE);
        (Self { store, hub, requests }, ConfigHandle { requests: sender })
    }

    /// Serves until all handles are gone. Reads and writes of the small file are done in place: they are rare.
    pub async fn run(mut self) {
        while let Some(request) = self.requests.recv().await {
            let (outcome, responder) = match request {
                Request::Get(responder) => (Ok(self.store.current().clone()), responder),
                Request::Set(changes, responder) => {
                    (self.change(|store| store.set(&changes).cloned()).await, responder)
                }
                Request::Reload(responder) => (self.change(|store| store.reload().cloned()).await, responder),
            };
            // Whoever asked may be gone; what was done stays done.
            let _ = responder.send(outcome);
        }
    }

    async fn change(
        &mut self,
        change: impl FnOnce(&mut ConfigStore) -> Result<Config, ConfigError>,
    ) -> Result<Config, ChangeError> {
        let before = self.store.current().clone();
        let after = change(&mut self.store)?;
        if after != before {
            tracing::info!("settings changed");
            self.hub.apply_settings((&after).into()).await?;
        }
        Ok(after)
    }
}

impl ConfigHandle {
    /// The settings in force.
    pub async fn get(&self) -> Result<Config, ChangeError> {
        self.ask(Request::Get).await
    }

    /// Changes settings by name, all or none; the result is all settings.
    pub async fn set(&self, changes: BTreeMap<String, Value>) -> Result<Config, ChangeError> {
        self.ask(|responder| Request::Set(changes, responder)).await
    }

    /// Reads the file again and applies what changed.
    pub async fn reload(&self) -> Result<Config, ChangeError> {
        self.ask(Request::Reload).await
    }

    async fn ask(&self, request: impl FnOnce(Responder) -> Request) -> Result<Config, ChangeError> {
        let (sender, receiver) = oneshot::channel();
        self.requests.send(request(sender)).await.map_err(|_| ApiError::Stopping)?;
        receiver.await.map_err(|_| ApiError::Stopping)?
    }
}
