//! skald-link.
