//! skald-phone.
