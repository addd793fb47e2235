//! What a person can do about a disk that refuses, in words that follow the error's own.

use std::io::ErrorKind;

use rusqlite::ErrorCode;

const FULL: &str = ": make room on that disk";
const READ_ONLY: &str = ": it must be writable; remount that disk, or set SKALD_AGENTD_STATE_DIR to another folder";
const DENIED: &str = ": give the folder to the daemon's user, or set SKALD_AGENTD_STATE_DIR to another one";
const FAILING: &str = ": look into the system's log for what is wrong with that disk";

/// For a file; empty where the error speaks for itself.
pub(crate) fn for_file(error: &std::io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => FULL,
        ErrorKind::ReadOnlyFilesystem => READ_ONLY,
        ErrorKind::PermissionDenied => DENIED,
        ErrorKind::NotADirectory | ErrorKind::AlreadyExists => ": move that file away",
        _ => "",
    }
}

/// For the database.
pub(crate) fn for_database(error: &rusqlite::Error) -> &'static str {
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => FULL,
        Some(ErrorCode::ReadOnly) => READ_ONLY,
        Some(ErrorCode::PermissionDenied | ErrorCode::CannotOpen) => DENIED,
        Some(ErrorCode::SystemIoFailure) => FAILING,
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            ": another program holds it; end that one (`fuser -v agentd.db` in the state folder names it)"
        }
        _ => "",
    }
}
