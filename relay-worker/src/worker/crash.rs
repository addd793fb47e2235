//! Where a test may want the whole relay to die. An object cannot kill its runtime, so it says where it is and stands still,
//! with all that the turn has and has not done, until somebody kills the process. A panic it can have: the wasm instance is
//! rebuilt then, and the memory of every object in it is gone. Only builds with the feature `crash-points` have any of this:
//! `RELAY_CRASH_AT=POINT` or `RELAY_PANIC_AT=POINT`, or `POINT:N` for the N-th time.

#[cfg(feature = "crash-points")]
mod armed {
    use std::cell::RefCell;

    use skald_common::wire::{self, Frame};
    use worker::Env;

    use super::super::js;
    use crate::engine::Input;
    use crate::pipe;

    struct Armed {
        point: String,
        left: u32,
        panics: bool,
    }

    const CRASH: &str = "RELAY_CRASH_AT";
    const PANIC: &str = "RELAY_PANIC_AT";

    thread_local! {
        static ARMED: RefCell<Option<Armed>> = const { RefCell::new(None) };
    }

    pub(in super::super) fn arm(env: &Env) {
        let named = |name| js::variable(env, name).map(|text| (text, name == PANIC));
        let Some((text, panics)) = named(CRASH).or_else(|| named(PANIC)) else { return };
        let (point, left) = text.split_once(':').unwrap_or((&text, "1"));
        let fresh = Armed { point: point.to_owned(), left: left.parse().unwrap_or(1), panics };
        ARMED.with_borrow_mut(|armed| {
            armed.get_or_insert(fresh);
        });
    }

    /// The points of a turn are named after the frame that it is about.
    pub(in super::super) struct Turn(Option<&'static str>);

    impl Turn {
        pub(in super::super) fn of(input: &Input) -> Self {
            let bytes = match input {
                Input::Frame { bytes, .. } => bytes,
                Input::Pushed { .. } => return Self(Some("pushed")),
                _ => return Self(None),
            };
            Self(match wire::decode(bytes.clone()) {
                Ok(Some(Frame::Message(message))) if message.live => Some("live"),
                Ok(Some(Frame::Message(_))) => Some("message"),
                Ok(Some(Frame::Ack(_))) => Some("ack"),
                Ok(Some(Frame::Auth(_))) => Some("auth"),
                Ok(Some(Frame::Authorize(_))) => Some("authorize"),
                _ => None,
            })
        }

        /// An end of a pipe has a point where its client says what it may not say.
        pub(in super::super) fn of_pipe(input: &pipe::Input<'_>) -> Self {
            Self(matches!(input, pipe::Input::Text).then_some("pipe-text"))
        }

        pub(in super::super) fn point(&self, moment: &str) {
            let Some(kind) = self.0 else { return };
            let point = format!("{moment}-{kind}");
            let reached = ARMED.with_borrow_mut(|armed| match armed {
                Some(armed) if armed.point == point => {
                    armed.left = armed.left.saturating_sub(1);
                    (armed.left == 0).then_some(armed.panics)
                }
                _ => None,
            });
            if let Some(panics) = reached {
                worker::console_log!("crash point {point}");
                assert!(!panics, "as a test wants");
                loop {
                    std::hint::spin_loop();
                }
            }
        }
    }
}

#[cfg(feature = "crash-points")]
pub(super) use armed::{Turn, arm};

#[cfg(not(feature = "crash-points"))]
pub(super) use none::{Turn, arm};

#[cfg(not(feature = "crash-points"))]
mod none {
    use worker::Env;

    use crate::engine::Input;
    use crate::pipe;

    #[inline]
    pub(in super::super) fn arm(_env: &Env) {}

    pub(in super::super) struct Turn;

    impl Turn {
        #[inline]
        pub(in super::super) fn of(_input: &Input) -> Self {
            Self
        }

        #[inline]
        pub(in super::super) fn of_pipe(_input: &pipe::Input<'_>) -> Self {
            Self
        }

        #[expect(clippy::unused_self, reason = "the other build has points")]
        #[inline]
        pub(in super::super) fn point(&self, _moment: &str) {}
    }
}
