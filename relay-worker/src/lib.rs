//! skald-relay-worker.
