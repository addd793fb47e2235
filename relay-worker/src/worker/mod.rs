//! The glue for Cloudflare Workers: sockets, clocks, randomness and HTTP around the parts that know none of them. The
//! Worker is the stateless [`front`]; a Durable Object, [`object::Namespace`], holds one namespace and hibernates; another
//! one, [`pipe_end::PipeEnd`], holds one end of a pipe; a third, [`push_log::PushLog`], counts pushes. Nothing here decides
//! anything about the protocol: that is `crate::front`, `crate::engine`, `crate::pipe` and `crate::push`.

mod crash;
mod front;
mod js;
mod object;
mod pipe_end;
mod push_log;
mod pushes;
mod session;
mod sql;
mod wires;

use worker::{Context, Env, Request, Response, Result, event};

/// Every request from outside.
#[event(fetch)]
async fn fetch(request: Request, env: Env, _context: Context) -> Result<Response> {
    front::serve(request, env).await
}
