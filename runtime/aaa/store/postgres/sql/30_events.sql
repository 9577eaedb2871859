-- Rows: writing events, runs and calls, and showing events to the client.
--
-- A reply names events inside jsonb but never carries payloads there: they stand beside it in a
-- bytea[], in the order in which the reply names them. [seq, time] stands for an event that this
-- operation has just written, whose payload the client still has.

CREATE OR REPLACE FUNCTION fn_add_event(
    r runs, p_id text, p_type text, p_raw bytea, p_parent text, now_ms bigint
) RETURNS runs LANGUAGE plpgsql AS $$
BEGIN
    r.seq := r.seq + 1;
    r.last_id := p_id;
    INSERT INTO events VALUES
        (r.partition, r.run_id, r.seq, p_id, p_type, p_parent, now_ms, p_raw);
    RETURN r;
END $$;

CREATE OR REPLACE FUNCTION fn_show(e events) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
    SELECT jsonb_build_array(e.seq, e.time_ms, e.id, e.type, e.parent)
$$;

CREATE OR REPLACE FUNCTION fn_refused(why text, detail text DEFAULT '') RETURNS jsonb
LANGUAGE sql IMMUTABLE AS $$
    SELECT jsonb_build_object('v', 'refused', 'why', why, 'detail', detail)
$$;

CREATE OR REPLACE FUNCTION fn_stopped(r runs) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT r.cancelling OR r.suspended OR r.parked OR r.status <> 'open'
$$;

-- A run waits for its owner from now on, unless it waits already or has ended.
CREATE OR REPLACE FUNCTION fn_mark_dirty(r runs) RETURNS runs LANGUAGE plpgsql AS $$
BEGIN
    IF r.status = 'open' AND r.dirty = 0 THEN
        r.dirty := nextval('places');
    END IF;
    RETURN r;
END $$;

CREATE OR REPLACE FUNCTION fn_save_run(r runs) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE runs SET
        status = r.status, seq = r.seq, last_id = r.last_id, cursor = r.cursor,
        dirty = CASE WHEN r.status = 'open' THEN r.dirty ELSE 0 END,
        cancelling = r.cancelling, suspended = r.suspended, parked = r.parked,
        awaiting = r.awaiting, unknown = r.unknown, closed_ms = r.closed_ms, deleted = r.deleted
    WHERE partition = r.partition AND run_id = r.run_id;
END $$;

CREATE OR REPLACE FUNCTION fn_save_call(c calls) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE calls SET
        state = c.state, due_ms = c.due_ms, shelved = c.shelved,
        attempt = c.attempt, holder = c.holder, session = c.session, nonce = c.nonce,
        lease_ttl_ms = c.lease_ttl_ms, delivery = c.delivery, cap = c.cap, guarded = c.guarded,
        verifies = c.verifies, approval = c.approval, approval_until_ms = c.approval_until_ms,
        unknown = c.unknown
    WHERE partition = c.partition AND run_id = c.run_id AND request_id = c.request_id;
END $$;
