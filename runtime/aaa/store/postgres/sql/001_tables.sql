-- Migration 1: the tables. Run inside one transaction, with search_path set to the store's schema.
--
-- Everything that a commit touches begins with `partition`, so that one commit reads one short
-- range of each index. Text is compared as bytes (COLLATE "C"): ids are not language.
-- Payloads are bytea, as they were encoded; nothing here ever looks into them.
-- fillfactor leaves room on the page for the rows that change at every step, so that most of
-- their updates touch no index and autovacuum has little to do.

CREATE TABLE store (
    one         boolean PRIMARY KEY DEFAULT true CHECK (one),
    identity    text   NOT NULL,   -- a random name: a restored or swapped database is noticed
    partitions  int    NOT NULL,
    hash        text   NOT NULL,   -- which function spreads runs over partitions
    version     int    NOT NULL,   -- number of the last migration
    min_reader  int    NOT NULL,   -- the oldest code that may still use these tables
    created_ms  bigint NOT NULL
);

-- One row a partition: locking it serialises the partition's commits.
CREATE TABLE partitions (
    partition  int    PRIMARY KEY,
    mark       bigint NOT NULL DEFAULT 0,  -- high-water mark, one more at every commit
    behind     bigint NOT NULL DEFAULT 0,  -- the highest mark that a worker missed, 0: none
    woken      bigint NOT NULL DEFAULT 0   -- the mark of the last commit that others may act on
) WITH (fillfactor = 10);

CREATE TABLE runs (
    partition   int    NOT NULL,
    run_id      text   COLLATE "C" NOT NULL,
    app         text   COLLATE "C" NOT NULL,
    digest      text   NOT NULL,
    status      text   NOT NULL,
    seq         bigint NOT NULL,
    last_id     text   NOT NULL,
    cursor      bigint NOT NULL,
    dirty       bigint NOT NULL,  -- 0: folded up to its head; else its place among the waiting
    cancelling  boolean NOT NULL,
    suspended   boolean NOT NULL,
    parked      boolean NOT NULL,
    awaiting    int    NOT NULL,
    unknown     int    NOT NULL,
    created_ms  bigint NOT NULL,
    closed_ms   bigint,
    deleted     boolean NOT NULL DEFAULT false,
    PRIMARY KEY (partition, run_id)
) WITH (fillfactor = 70);
CREATE INDEX runs_dirty ON runs (partition, app, dirty) WHERE dirty > 0;
CREATE INDEX runs_newest ON runs (created_ms, run_id) WHERE NOT deleted;
CREATE INDEX runs_awaiting ON runs (created_ms, run_id) WHERE awaiting > 0;
CREATE INDEX runs_unknown ON runs (created_ms, run_id) WHERE unknown > 0;

CREATE TABLE events (
    partition  int    NOT NULL,
    run_id     text   COLLATE "C" NOT NULL,
    seq        bigint NOT NULL,
    id         text   COLLATE "C" NOT NULL,
    type       text   NOT NULL,
    parent     text,
    time_ms    bigint NOT NULL,
    raw        bytea  NOT NULL,
    PRIMARY KEY (partition, run_id, seq)
);
CREATE UNIQUE INDEX events_id ON events (partition, run_id, id);

CREATE TABLE calls (
    partition    int    NOT NULL,
    run_id       text   COLLATE "C" NOT NULL,
    request_id   text   COLLATE "C" NOT NULL,
    seq          bigint NOT NULL,
    app          text   COLLATE "C" NOT NULL,
    queue        text   COLLATE "C" NOT NULL,
    call_json    text   NOT NULL,
    name_json    text   NOT NULL,
    key_json     text   NOT NULL,
    args_digest  text   NOT NULL,
    state        text   NOT NULL,  -- as aaa.store.guard.State
    due_ms       bigint NOT NULL,  -- ready since, or the lease's end had nobody renewed it
    verify       boolean NOT NULL,
    shelved      boolean NOT NULL DEFAULT false,
    attempt      int    NOT NULL DEFAULT 0,
    holder       text   NOT NULL DEFAULT '',
    session      int    NOT NULL DEFAULT 0,  -- whose lock holds the lease, 0: nobody's
    nonce        text   NOT NULL DEFAULT '',
    lease_ttl_ms bigint NOT NULL DEFAULT 0,
    delivery     text   NOT NULL DEFAULT '',
    cap          int    NOT NULL DEFAULT 0,
    guarded      boolean NOT NULL DEFAULT true,
    verifies     int    NOT NULL DEFAULT 0,
    approval     text   NOT NULL DEFAULT '',
    approval_until_ms bigint NOT NULL DEFAULT 0,
    unknown      boolean NOT NULL DEFAULT false,
    PRIMARY KEY (partition, run_id, request_id)
) WITH (fillfactor = 70);
CREATE INDEX calls_ready ON calls (partition, app, queue, due_ms, seq, run_id, request_id)
    WHERE state = 'ready' AND NOT shelved;
CREATE INDEX calls_leased ON calls (partition, app, session)
    WHERE state IN ('leased', 'verifying');
CREATE INDEX calls_session ON calls (session) WHERE state IN ('leased', 'verifying');

CREATE TABLE timers (
    partition  int    NOT NULL,
    run_id     text   COLLATE "C" NOT NULL,
    set_id     text   COLLATE "C" NOT NULL,
    app        text   COLLATE "C" NOT NULL,
    name_json  text   NOT NULL,
    due_ms     bigint NOT NULL,
    PRIMARY KEY (partition, run_id, set_id)
);
CREATE INDEX timers_due ON timers (partition, app, due_ms, set_id);

CREATE TABLE owners (
    partition  int    NOT NULL,
    app        text   COLLATE "C" NOT NULL,
    worker     text   NOT NULL,
    term       bigint NOT NULL,
    session    int    NOT NULL,
    ttl_ms     bigint NOT NULL,
    until_ms   bigint NOT NULL,
    PRIMARY KEY (partition, app)
) WITH (fillfactor = 50);

-- What each worker's newest offer got in a partition: the same offer again gets the same.
CREATE TABLE offers (
    partition  int    NOT NULL,
    worker     text   COLLATE "C" NOT NULL,
    nonce      text   NOT NULL,
    got        jsonb  NOT NULL,
    PRIMARY KEY (partition, worker)
) WITH (fillfactor = 50);
CREATE INDEX offers_worker ON offers (worker);

-- One row a lease session: the advisory lock (class of this schema, session) is held as long as
-- the database session lives. `boot` tells a session that ended from a server that was restarted.
CREATE TABLE sessions (
    session  int    PRIMARY KEY,
    worker   text   COLLATE "C" NOT NULL,
    boot     bigint NOT NULL,
    beat_ms  bigint NOT NULL
) WITH (fillfactor = 50);
CREATE SEQUENCE session_numbers AS int CYCLE;

CREATE TABLE workers (
    worker    text   COLLATE "C" PRIMARY KEY,
    session   int    NOT NULL,
    apps      text[] NOT NULL,
    until_ms  bigint NOT NULL,
    info      bytea  NOT NULL
) WITH (fillfactor = 50);

-- Who wants to be told, and whether it sleeps (see 80_commit.sql).
CREATE TABLE listeners (
    session  int     PRIMARY KEY,
    asleep   boolean NOT NULL
) WITH (fillfactor = 10);

-- Order of becoming dirty. No cache: the order holds across sessions.
CREATE SEQUENCE places;
