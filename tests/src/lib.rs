//! skald-tests.
