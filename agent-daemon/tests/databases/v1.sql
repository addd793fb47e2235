-- A database of format 1 as a daemon left it, with something in every table. It stays as it is: whatever the format becomes,
-- this one must still be read. The seed is 32 bytes of 7; the test moves the times to today.
PRAGMA journal_mode = wal;
CREATE TABLE meta (
    namespace BLOB NOT NULL DEFAULT x'',
    origin TEXT NOT NULL DEFAULT 'normal',
    high_water INTEGER NOT NULL DEFAULT 0,
    generation INTEGER NOT NULL DEFAULT 0
) STRICT;
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
CREATE TABLE sights (
    device BLOB NOT NULL REFERENCES devices (ed25519) ON DELETE CASCADE,
    item TEXT NOT NULL REFERENCES items (id) ON DELETE CASCADE,
    shown INTEGER NOT NULL CHECK (shown BETWEEN 0 AND 2),
    rang INTEGER NOT NULL,
    PRIMARY KEY (device, item)
) STRICT, WITHOUT ROWID;
CREATE TABLE answers (
    item TEXT PRIMARY KEY REFERENCES items (id) ON DELETE CASCADE,
    answer_id TEXT NOT NULL,
    device BLOB NOT NULL,
    name TEXT NOT NULL,
    payload_id TEXT NOT NULL,
    at INTEGER NOT NULL,
    content TEXT NOT NULL
) STRICT;
CREATE TABLE decided (
    item TEXT PRIMARY KEY,
    device BLOB NOT NULL,
    name TEXT NOT NULL,
    payload_id TEXT NOT NULL,
    at INTEGER NOT NULL
) STRICT;
CREATE TABLE pairing_window (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    token_hash BLOB NOT NULL,
    expires_at INTEGER NOT NULL
) STRICT;
INSERT INTO meta VALUES (x'64d4d4d2e0318ba8846099c614a76fe13d3b3daf820c14ab8cd0e3a564aa0ab1', 'normal', 7351000000001024, 3);
INSERT INTO devices VALUES (x'0101010101010101010101010101010101010101010101010101010101010101', x'1111111111111111111111111111111111111111111111111111111111111111', 'authorized', 101, '{"platform":"web","device_name":"Desk"}', 1796000000000, 1796000000000, 7351000000001024, 7351000000000001, 0);
INSERT INTO devices VALUES (x'0202020202020202020202020202020202020202020202020202020202020202', x'2222222222222222222222222222222222222222222222222222222222222222', 'pending', 2, NULL, 1796000000000, NULL, 0, 0, 0);
INSERT INTO items VALUES (1, '1.4cd2d1505bf1dc33', 'skald', 'approval', '1', '{"agent_label":"Skald","arguments":{"target":"prod"},"created_at":1796000000000,"request_id":"1.4cd2d1505bf1dc33","summary":"Deploy?","tool_name":"deploy"}', 1796000000000, 1796000000000, NULL, 86400, 1796000000000);
INSERT INTO items VALUES (2, 'c.e39e30d59e66e0d3', 'skald', 'clarification', '"c"', '{"agent_label":"Skald","created_at":1796000000000,"question":"Which branch?","request_id":"c.e39e30d59e66e0d3","suggested_answers":["main"]}', 1796000000000, 1796000000000, NULL, 86400, NULL);
INSERT INTO sights VALUES (x'0101010101010101010101010101010101010101010101010101010101010101', 'c.e39e30d59e66e0d3', 2, 1);
INSERT INTO answers VALUES ('1.4cd2d1505bf1dc33', '50e79ca8-1cf7-4a99-99d4-2851f79db563', x'0101010101010101010101010101010101010101010101010101010101010101', 'Desk', 'p1', 1796000000000, '{"kind":"approval","decision":"approved","reason":"go","bypass_secs":null}');
INSERT INTO decided VALUES ('1.4cd2d1505bf1dc33', x'0101010101010101010101010101010101010101010101010101010101010101', 'Desk', 'p1', 1796000000000);
INSERT INTO pairing_window VALUES (1, x'3333333333333333333333333333333333333333333333333333333333333333', 1796000000000);
PRAGMA user_version = 1;
