-- Settling and giving back: aaa/store/logic.py.

CREATE OR REPLACE FUNCTION fn_settled(what text, event jsonb, r runs) RETURNS jsonb
LANGUAGE sql IMMUTABLE AS $$
    SELECT jsonb_build_object(
        'v', 'settled', 'verdict', what, 'event', event, 'seq', r.seq, 'last', r.last_id)
$$;

-- Keep an outcome that came too late for audit; models and unguarded calls keep none.
CREATE OR REPLACE FUNCTION fn_keep_stale(
    r runs, c calls, op jsonb, p_raws bytea[], now_ms bigint, OUT verdict jsonb, OUT raws bytea[]
) LANGUAGE plpgsql AS $$
DECLARE
    stem text := c.request_id || ':attempt:' || (op->>'attempt') || ':stale';
    stale_id text := stem;
    number int := 1;
    stale_raw bytea;
    e events;
BEGIN
    raws := '{}';
    IF NOT (c.guarded AND starts_with(c.queue, 'tool/')) THEN
        verdict := fn_settled('dropped', NULL, r);
        RETURN;
    END IF;
    stale_raw := convert_to('{"attempt":' || (op->>'attempt') || ',"call_id":' || c.call_json
            || ',"name":' || c.name_json || ',"outcome":', 'UTF8')
        || p_raws[(op->>'raw')::int]
        || convert_to(',"type":"' || (op->>'type') || '"}', 'UTF8');
    -- What verify= said of an attempt must not stand in the way of what the attempt itself says.
    LOOP
        SELECT * INTO e FROM events
            WHERE partition = r.partition AND run_id = r.run_id AND id = stale_id;
        EXIT WHEN NOT FOUND OR e.raw = stale_raw;
        number := number + 1;
        stale_id := stem || ':' || number;
    END LOOP;
    IF e.id IS NULL THEN
        r := fn_add_event(r, stale_id, 'aaa.tool.stale_result', stale_raw, c.request_id, now_ms);
        PERFORM fn_save_run(r);
        SELECT * INTO e FROM events
            WHERE partition = r.partition AND run_id = r.run_id AND id = stale_id;
    END IF;
    raws := ARRAY[e.raw];
    verdict := fn_settled('stale', fn_show(e), r);
END $$;

CREATE OR REPLACE FUNCTION fn_settle(
    p int, op jsonb, p_raws bytea[], now_ms bigint, OUT verdict jsonb, OUT raws bytea[]
) LANGUAGE plpgsql AS $$
DECLARE
    this int := (op->>'attempt')::int;
    r runs;
    c calls;
    e events;
BEGIN
    raws := '{}';
    SELECT * INTO r FROM runs WHERE partition = p AND run_id = op->>'run';
    IF NOT FOUND OR r.deleted THEN
        verdict := fn_refused(CASE WHEN FOUND THEN 'deleted' ELSE 'no_run' END);
        RETURN;
    END IF;
    SELECT * INTO c FROM calls
        WHERE partition = p AND run_id = r.run_id AND request_id = op->>'request';
    IF NOT FOUND OR this NOT BETWEEN 1 AND c.attempt THEN
        verdict := fn_refused('no_call');
        RETURN;
    END IF;
    IF c.state = 'settled' AND c.holder = op->>'worker'
            AND (c.attempt = this OR NOT (op->>'fence')::boolean) THEN
        SELECT * INTO e FROM events
            WHERE partition = p AND run_id = r.run_id AND id = c.request_id || ':result';
        IF FOUND AND e.raw = p_raws[(op->>'raw')::int] THEN
            raws := ARRAY[e.raw];
            verdict := fn_settled('dup', fn_show(e), r);
            RETURN;
        END IF;
    END IF;
    IF c.state = 'settled' OR (this < c.attempt AND (op->>'fence')::boolean) THEN
        SELECT f.verdict, f.raws INTO verdict, raws
            FROM fn_keep_stale(r, c, op, p_raws, now_ms) f;
        RETURN;
    END IF;
    IF this = c.attempt AND c.state = 'leased' AND c.holder <> op->>'worker' THEN
        verdict := fn_refused('stranger');
        RETURN;
    END IF;
    c.state := fn_transition(c.state, 'settle');
    r := fn_add_event(r, op->>'id', op->>'type', p_raws[(op->>'raw')::int], op->>'parent', now_ms);
    -- The first finisher wins when results are not fenced: a repeat of its settle is then a dup.
    c.holder := op->>'worker';
    c.unknown := (op->>'unknown')::boolean;
    IF c.unknown THEN r.unknown := r.unknown + 1; END IF;
    PERFORM fn_save_call(c);
    r := fn_mark_dirty(r);
    PERFORM fn_save_run(r);
    verdict := fn_settled('applied', jsonb_build_array(r.seq, now_ms), r);
END $$;

-- The lease is nobody's from now on; the attempt counts as lost.
CREATE OR REPLACE FUNCTION fn_release(p int, op jsonb, now_ms bigint) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    c calls;
BEGIN
    SELECT * INTO c FROM calls
        WHERE partition = p AND run_id = op->>'run' AND request_id = op->>'request';
    IF NOT FOUND THEN RETURN fn_refused('no_call'); END IF;
    IF c.holder <> op->>'worker' OR c.attempt <> (op->>'attempt')::int
            OR c.state NOT IN ('leased', 'verifying') THEN
        RETURN '{"v": "done", "count": 0}';
    END IF;
    c.session := 0;
    c.due_ms := least(c.due_ms, now_ms);
    PERFORM fn_save_call(c);
    RETURN '{"v": "done", "count": 1}';
END $$;
