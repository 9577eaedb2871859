-- Who lives. A lease belongs to a database session, which holds an advisory lock as long as it
-- lasts. Whoever gets that lock, shared and for one transaction, knows that the session is gone.
--
-- The one exception is a server that was restarted meanwhile: then every lock is free, which says
-- nothing about the workers. Their leases last on for their TTL, counted from the last heartbeat
-- that the store accepted, and whoever comes back in time keeps them.

CREATE OR REPLACE FUNCTION fn_now_ms() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint
$$;

CREATE OR REPLACE FUNCTION fn_boot() RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT floor(extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint
$$;

-- NULL: the session lives. -1: it has ended. Else the server was restarted since, and this is the
-- time of the session's last heartbeat. `mine` is the caller's own session: it lives, and it must
-- not be asked, since one's own lock is never in one's way.
CREATE OR REPLACE FUNCTION fn_silent_since(p_session int, mine int) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    s sessions;
BEGIN
    IF p_session = 0 THEN RETURN -1; END IF;
    IF p_session = mine THEN RETURN NULL; END IF;
    SELECT * INTO s FROM sessions WHERE session = p_session;
    IF FOUND AND s.boot <> fn_boot() THEN RETURN s.beat_ms; END IF;
    IF pg_try_advisory_xact_lock_shared(@@lock_class@@, p_session) THEN RETURN -1; END IF;
    RETURN NULL;
END $$;

-- Whether a lease that began with `due_ms` and is renewed by its session's heartbeat has ended.
CREATE OR REPLACE FUNCTION fn_ended(
    p_session int, p_due_ms bigint, p_ttl_ms bigint, mine int, now_ms bigint
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    silent bigint := fn_silent_since(p_session, mine);
BEGIN
    IF silent IS NULL THEN RETURN false; END IF;
    RETURN silent = -1 OR greatest(p_due_ms, silent + p_ttl_ms) <= now_ms;
END $$;

-- Begin a lease session on this connection. The number is never used twice, so that nothing that
-- an earlier session of the same worker held can become this one's by accident.
CREATE OR REPLACE FUNCTION fn_open_session(p_worker text) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    number int;
BEGIN
    LOOP
        number := nextval('session_numbers');
        CONTINUE WHEN EXISTS (SELECT 1 FROM sessions WHERE session = number);
        EXIT WHEN pg_try_advisory_lock(@@lock_class@@, number);
    END LOOP;
    -- First, so that the worker is not gone: its newest offer is remembered beyond its session.
    INSERT INTO sessions VALUES (number, p_worker, fn_boot(), fn_now_ms());
    PERFORM fn_forget_the_gone(number);
    RETURN number;
END $$;

-- Rows of workers that are gone and hold nothing any more. Cheap, so every new worker does it.
CREATE OR REPLACE FUNCTION fn_forget_the_gone(mine int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    s sessions;
BEGIN
    FOR s IN SELECT * FROM sessions ORDER BY session LIMIT 256 FOR UPDATE SKIP LOCKED LOOP
        CONTINUE WHEN NOT fn_ended(s.session, 0, 600000, mine, fn_now_ms());
        CONTINUE WHEN EXISTS (
            SELECT 1 FROM calls WHERE session = s.session AND state IN ('leased', 'verifying'));
        CONTINUE WHEN EXISTS (SELECT 1 FROM owners WHERE session = s.session);
        DELETE FROM sessions WHERE session = s.session;
        DELETE FROM listeners WHERE session = s.session;
        DELETE FROM workers WHERE worker = s.worker AND session = s.session;
        IF NOT EXISTS (SELECT 1 FROM sessions WHERE worker = s.worker) THEN
            DELETE FROM offers WHERE worker = s.worker;
        END IF;
    END LOOP;
END $$;
