//! A phone of Skald Remote.
//!
//! * [`model`]: what a phone knows and how messages change it, without I/O; compiles to wasm.
//! * `store`: the folder of one pairing: seed, state, locks (feature `native`).
//! * `registration`, `webpush`: how the relay wakes a phone, and what opens a Web Push (feature `native`).
//! * `client`: a paired phone on its relay connection, over tokio (feature `native`).
//! * `cli`: the commands of `skald-phone` (feature `cli`).
//!
//! ```no_run
//! # #[cfg(feature = "native")]
//! # async fn example() -> Result<(), skald_phone::client::PhoneError> {
//! use skald_common::pairing::PairingQr;
//! use skald_phone::client::{Pairing, Phone, Until};
//! use skald_phone::model::answer::Answer;
//! use skald_phone::store::Store;
//!
//! let qr = PairingQr::parse("…the text of the code…")?;
//! let store = Store::open("/home/me/.local/state/skald-phone".as_ref(), "default")?;
//! let pairing = Pairing { name: "Laptop".into(), again: false };
//! let mut phone = Phone::pair(store, &qr, pairing, Until::secs(20)).await?;
//! println!("compare: {}", phone.fingerprint());
//! phone.connect(Until::NEVER).await?; // until the agent's owner has authorized this phone
//! phone.refresh(Until::secs(10)).await?;
//! let id = phone.inbox().pending().next().map(|entry| entry.id().to_owned());
//! if let Some(id) = id {
//!     let sent = phone.answer(&id, Answer::Approve { bypass_secs: None })?;
//!     println!("{:?}", phone.settle(&sent, Until::secs(20)).await?);
//! }
//! phone.close().await;
//! # Ok(())
//! # }
//! ```

#[cfg(feature = "cli")]
pub mod cli;
#[cfg(feature = "native")]
pub mod client;
pub mod model;
#[cfg(feature = "native")]
pub mod registration;
#[cfg(feature = "native")]
pub mod store;
#[cfg(feature = "native")]
pub mod webpush;
