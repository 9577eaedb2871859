-- Ownership, timers, deleting and accepted losses: aaa/store/logic.py.

CREATE OR REPLACE FUNCTION fn_own(p int, op jsonb, now_ms bigint) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    o owners;
    known boolean;
    lives boolean;
BEGIN
    SELECT * INTO o FROM owners WHERE partition = p AND app = op->>'app';
    known := FOUND;
    lives := known AND NOT fn_ended(o.session, o.until_ms, o.ttl_ms, 0, now_ms);
    IF lives AND o.worker <> op->>'worker' THEN
        -- A session has no term: look again after the time that a heartbeat would have bought.
        RETURN jsonb_build_object(
            'v', 'busy', 'owner', o.worker, 'for', greatest(o.until_ms - now_ms, o.ttl_ms));
    END IF;
    -- An ownership that ended is gone even for its old holder: a new one has a new term.
    o.term := CASE WHEN lives THEN o.term ELSE coalesce(o.term, 0) + 1 END;
    INSERT INTO owners VALUES (p, op->>'app', op->>'worker', o.term, (op->>'session')::int,
            (op->>'ttl')::bigint, now_ms + (op->>'ttl')::bigint)
        ON CONFLICT (partition, app) DO UPDATE SET worker = excluded.worker,
            term = excluded.term, session = excluded.session, ttl_ms = excluded.ttl_ms,
            until_ms = excluded.until_ms;
    RETURN jsonb_build_object('v', 'owned', 'term', o.term);
END $$;

CREATE OR REPLACE FUNCTION fn_disown(p int, op jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
    UPDATE owners SET session = 0, until_ms = 0
        WHERE partition = p AND app = op->>'app' AND worker = op->>'worker';
    RETURN jsonb_build_object('v', 'done', 'count', FOUND::int);
END $$;

CREATE OR REPLACE FUNCTION fn_fire(t timers, now_ms bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    r runs;
BEGIN
    DELETE FROM timers
        WHERE partition = t.partition AND run_id = t.run_id AND set_id = t.set_id;
    SELECT * INTO r FROM runs WHERE partition = t.partition AND run_id = t.run_id;
    IF NOT FOUND OR r.status <> 'open' THEN RETURN; END IF;
    r := fn_add_event(r, t.set_id || ':fired', 'aaa.timer.fired',
        convert_to('{"name":' || t.name_json || '}', 'UTF8'), t.set_id, now_ms);
    PERFORM fn_save_run(fn_mark_dirty(r));
END $$;

CREATE OR REPLACE FUNCTION fn_take(p int, op jsonb, now_ms bigint) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    most int := (op->>'limit')::int;
    o owners;
    t timers;
    found_runs jsonb;
    next_ms bigint;
BEGIN
    SELECT * INTO o FROM owners WHERE partition = p AND app = op->>'app';
    IF NOT FOUND OR o.worker <> op->>'worker'
            OR fn_ended(o.session, o.until_ms, o.ttl_ms, 0, now_ms)
            OR (op->>'term')::bigint NOT IN (0, o.term) THEN
        RETURN fn_refused('term');
    END IF;
    FOR t IN SELECT * FROM timers
        WHERE partition = p AND app = op->>'app' AND due_ms <= now_ms
        ORDER BY due_ms, set_id LIMIT most
    LOOP
        PERFORM fn_fire(t, now_ms);
    END LOOP;
    SELECT coalesce(jsonb_agg(jsonb_build_array(w.run_id, w.seq, w.last_id) ORDER BY w.dirty), '[]')
        INTO found_runs FROM (
            SELECT * FROM runs WHERE partition = p AND app = op->>'app' AND dirty > 0
                ORDER BY dirty LIMIT most + 1) w;
    SELECT greatest(due_ms - now_ms, 0) INTO next_ms FROM timers
        WHERE partition = p AND app = op->>'app' ORDER BY due_ms LIMIT 1;
    RETURN jsonb_build_object('v', 'taken', 'more', jsonb_array_length(found_runs) > most,
        'runs', CASE WHEN jsonb_array_length(found_runs) > most
            THEN found_runs - most ELSE found_runs END,
        'next', next_ms);
END $$;

CREATE OR REPLACE FUNCTION fn_delete(p int, op jsonb, now_ms bigint) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    r runs;
BEGIN
    SELECT * INTO r FROM runs WHERE partition = p AND run_id = op->>'run';
    IF NOT FOUND THEN RETURN fn_refused('no_run'); END IF;
    IF r.deleted THEN RETURN '{"v": "done", "count": 0}'; END IF;
    IF r.status = 'open' AND NOT (op->>'force')::boolean THEN RETURN fn_refused('open'); END IF;
    DELETE FROM events WHERE partition = p AND run_id = r.run_id;
    DELETE FROM calls WHERE partition = p AND run_id = r.run_id;
    DELETE FROM timers WHERE partition = p AND run_id = r.run_id;
    r.deleted := true;
    r.dirty := 0;
    r.awaiting := 0;
    r.unknown := 0;
    IF r.status = 'open' THEN
        r.status := 'cancelled';
        r.closed_ms := now_ms;
    END IF;
    PERFORM fn_save_run(r);
    RETURN '{"v": "done", "count": 1}';
END $$;

-- Every tool call that may have been lost has an unknown outcome from now on (G23).
CREATE OR REPLACE FUNCTION fn_accept_loss(p int, op jsonb, now_ms bigint) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    c calls;
    r runs;
    lost int := 0;
BEGIN
    IF (SELECT behind FROM partitions WHERE partition = p) = 0 AND NOT (op->>'force')::boolean THEN
        RETURN '{"v": "done", "count": 0}';
    END IF;
    FOR c IN SELECT * FROM calls
        WHERE partition = p AND state <> 'settled'
            AND starts_with(queue, 'tool/')
        ORDER BY run_id, seq
    LOOP
        SELECT * INTO r FROM runs WHERE partition = p AND run_id = c.run_id;
        CONTINUE WHEN NOT FOUND;
        PERFORM fn_lose(r, c, 'lost', now_ms, op->>'by_json');
        lost := lost + 1;
    END LOOP;
    UPDATE partitions SET mark = greatest(mark, behind) + 1, behind = 0 WHERE partition = p;
    RETURN jsonb_build_object('v', 'done', 'count', lost);
END $$;
