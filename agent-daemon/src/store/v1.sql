-- One row: whose database this is, where its devices come from, and the send counters' high-water mark.
CREATE TABLE meta (
    namespace BLOB NOT NULL DEFAULT x'',
    origin TEXT NOT NULL DEFAULT 'normal',
    high_water INTEGER NOT NULL DEFAULT 0,
    generation INTEGER NOT NULL DEFAULT 0
) STRICT;
INSERT INTO meta DEFAULT VALUES;

CREATE TABLE devices (
    ed25519 BLOB PRIMARY KEY,
    x25519 BLOB NOT NULL,
    state TEXT NOT NULL,
    platform INTEGER NOT NULL,
    info TEXT,
    paired_at INTEGER NOT NULL,
    last_seen INTEGER,
    reserved INTEGER NOT NULL,
    received INTEGER NOT NULL,
    stale INTEGER NOT NULL
) STRICT;

CREATE TABLE items (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    host TEXT NOT NULL,
    kind TEXT NOT NULL,
    request_id TEXT NOT NULL,
    json TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    arrived_at INTEGER NOT NULL,
    expires_at INTEGER,
    linger_secs INTEGER NOT NULL,
    leaves_at INTEGER
) STRICT;

-- What each device was sent of each pending item; shown: 0 partly, 1 wholly, 2 surely.
CREATE TABLE sights (
    device BLOB NOT NULL REFERENCES devices (ed25519) ON DELETE CASCADE,
    item TEXT NOT NULL REFERENCES items (id) ON DELETE CASCADE,
    shown INTEGER NOT NULL CHECK (shown BETWEEN 0 AND 2),
    rang INTEGER NOT NULL,
    PRIMARY KEY (device, item)
) STRICT, WITHOUT ROWID;

-- Answers that their hosts have not confirmed.
CREATE TABLE answers (
    item TEXT PRIMARY KEY REFERENCES items (id) ON DELETE CASCADE,
    answer_id TEXT NOT NULL,
    device BLOB NOT NULL,
    name TEXT NOT NULL,
    payload_id TEXT NOT NULL,
    at INTEGER NOT NULL,
    content TEXT NOT NULL
) STRICT;

-- Who answered first, without the answer.
CREATE TABLE decided (
    item TEXT PRIMARY KEY,
    device BLOB NOT NULL,
    name TEXT NOT NULL,
    payload_id TEXT NOT NULL,
    at INTEGER NOT NULL
) STRICT;

-- At most one row: the pairing window that is open and unused.
CREATE TABLE pairing_window (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    token_hash BLOB NOT NULL,
    expires_at INTEGER NOT NULL
) STRICT;
