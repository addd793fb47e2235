//! skald-agentd.
