-- Creating and appending: aaa/store/logic.py. Every function checks first and writes afterwards,
-- so that a refusal has changed nothing.

CREATE OR REPLACE FUNCTION fn_flag(r runs, flag text) RETURNS runs LANGUAGE plpgsql AS $$
BEGIN
    CASE flag
        WHEN 'cancel' THEN r.cancelling := true;
        WHEN 'suspend' THEN r.suspended := true;
        WHEN 'park' THEN r.parked := true;
        WHEN 'resume' THEN r.suspended := false; r.parked := false;
        ELSE NULL;
    END CASE;
    -- Ready calls of a stopped run leave their queue, so that they never stand before others.
    UPDATE calls SET shelved = fn_stopped(r)
        WHERE partition = r.partition AND run_id = r.run_id
            AND state = 'ready' AND shelved <> fn_stopped(r);
    RETURN r;
END $$;

CREATE OR REPLACE FUNCTION fn_open_call(r runs, request text, effect jsonb, now_ms bigint)
RETURNS runs LANGUAGE plpgsql AS $$
DECLARE
    waits boolean := (effect->>'approve')::boolean;
BEGIN
    INSERT INTO calls (
        partition, run_id, request_id, seq, app, queue, call_json, name_json, key_json,
        args_digest, state, due_ms, place, verify, shelved, approval
    ) VALUES (
        r.partition, r.run_id, request, r.seq, r.app, effect->>'queue', effect->>'call',
        effect->>'name', effect->>'key', effect->>'digest',
        CASE WHEN waits THEN 'waiting' ELSE 'ready' END, now_ms, nextval('places'),
        (effect->>'verify')::boolean, fn_stopped(r), CASE WHEN waits THEN 'needed' ELSE '' END
    );
    IF waits THEN r.awaiting := r.awaiting + 1; END IF;
    RETURN r;
END $$;

-- What an event does to the call that it names.
CREATE OR REPLACE FUNCTION fn_call_effect(r runs, effect jsonb, now_ms bigint) RETURNS runs
LANGUAGE plpgsql AS $$
DECLARE
    c calls;
BEGIN
    SELECT * INTO STRICT c FROM calls WHERE partition = r.partition AND run_id = r.run_id
        AND request_id = effect->>'request';
    CASE effect->>'kind'
        WHEN 'settle' THEN
            IF c.state = 'waiting' THEN r.awaiting := r.awaiting - 1; END IF;
            c.state := fn_transition(c.state, 'drop');
        WHEN 'grant' THEN
            c.state := fn_transition(c.state, 'grant');
            c.approval := 'granted';
            c.approval_until_ms := now_ms + (effect->>'for_ms')::bigint;
            c.due_ms := now_ms;
            c.place := nextval('places');
            c.shelved := fn_stopped(r);
            r.awaiting := r.awaiting - 1;
        WHEN 'hold' THEN
            c.state := fn_transition(c.state, 'hold');
            c.approval := 'needed';
            r.awaiting := r.awaiting + 1;
        WHEN 'resolve' THEN
            c.unknown := false;
            r.unknown := r.unknown - 1;
    END CASE;
    PERFORM fn_save_call(c);
    RETURN r;
END $$;

-- Append one event with what it causes on the bus. The caller saves the run.
CREATE OR REPLACE FUNCTION fn_write(r runs, entry jsonb, p_raws bytea[], now_ms bigint)
RETURNS runs LANGUAGE plpgsql AS $$
DECLARE
    effect jsonb := entry->'effect';
BEGIN
    r := fn_add_event(r, entry->>'id', entry->>'type', p_raws[(entry->>'raw')::int],
        entry->>'parent', now_ms);
    CASE coalesce(effect->>'kind', '')
        WHEN '' THEN NULL;
        WHEN 'open' THEN
            r := fn_open_call(r, entry->>'id', effect, now_ms);
        WHEN 'flag' THEN
            r := fn_flag(r, effect->>'name');
        WHEN 'close' THEN
            r.status := effect->>'status';
            r.closed_ms := now_ms;
        WHEN 'timer' THEN
            INSERT INTO timers VALUES (r.partition, r.run_id, entry->>'id', r.app,
                effect->>'name', now_ms + (effect->>'after_ms')::bigint);
        ELSE
            r := fn_call_effect(r, effect, now_ms);
    END CASE;
    RETURN r;
END $$;

-- Why an effect cannot be had, or NULL.
CREATE OR REPLACE FUNCTION fn_check_effect(r runs, effect jsonb) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    kind text := effect->>'kind';
    c calls;
BEGIN
    IF kind IS NULL THEN RETURN NULL; END IF;
    IF r.status <> 'open' AND kind <> 'resolve' THEN RETURN 'closed'; END IF;
    IF kind NOT IN ('settle', 'grant', 'hold', 'resolve') THEN RETURN NULL; END IF;
    SELECT * INTO c FROM calls WHERE partition = r.partition AND run_id = r.run_id
        AND request_id = effect->>'request';
    IF NOT FOUND THEN RETURN 'no_call'; END IF;
    RETURN CASE kind
        WHEN 'settle' THEN CASE WHEN c.state = 'settled' THEN 'settled'
            WHEN c.state NOT IN ('waiting', 'ready') THEN 'started' END
        WHEN 'grant' THEN CASE WHEN c.args_digest <> effect->>'digest' THEN 'digest'
            WHEN c.state <> 'waiting' THEN 'not_waiting' END
        WHEN 'hold' THEN CASE WHEN c.state <> 'ready' THEN 'started' END
        WHEN 'resolve' THEN CASE WHEN NOT c.unknown THEN 'not_waiting' END
    END;
END $$;

CREATE OR REPLACE FUNCTION fn_appended(
    r runs, shown jsonb, claimed jsonb
) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
    SELECT jsonb_build_object(
        'v', 'appended', 'events', shown, 'seq', r.seq, 'last', r.last_id, 'claimed', claimed)
$$;

CREATE OR REPLACE FUNCTION fn_create(
    p int, op jsonb, p_raws bytea[], now_ms bigint, OUT verdict jsonb, OUT raws bytea[]
) LANGUAGE plpgsql AS $$
DECLARE
    r runs;
    e events;
    entry jsonb;
    shown jsonb := '[]';
BEGIN
    raws := '{}';
    SELECT * INTO r FROM runs WHERE partition = p AND run_id = op->>'run';
    IF FOUND THEN
        IF r.deleted OR r.digest <> op->>'digest' THEN
            verdict := fn_refused(CASE WHEN r.deleted THEN 'deleted' ELSE 'exists' END, r.digest);
            RETURN;
        END IF;
        FOR entry IN SELECT value FROM jsonb_array_elements(op->'entries') LOOP
            SELECT * INTO e FROM events
                WHERE partition = p AND run_id = r.run_id AND id = entry->>'id';
            CONTINUE WHEN NOT FOUND;
            shown := shown || jsonb_build_array(fn_show(e));
            raws := raws || e.raw;
        END LOOP;
        verdict := fn_appended(r, shown, '[]') || '{"again": true}';
        RETURN;
    END IF;
    r := ROW(p, op->>'run', op->>'app', op->>'digest', 'open', 0, '', 0, nextval('places'),
        false, false, false, 0, 0, now_ms, NULL, false);
    INSERT INTO runs VALUES (r.*);
    FOR entry IN SELECT value FROM jsonb_array_elements(op->'entries') LOOP
        r := fn_write(r, entry, p_raws, now_ms);
        shown := shown || jsonb_build_array(jsonb_build_array(r.seq, now_ms));
    END LOOP;
    PERFORM fn_save_run(r);
    verdict := fn_appended(r, shown, '[]');
END $$;

-- The same append after a lost reply: the same answer, the same claims, nothing changed.
CREATE OR REPLACE FUNCTION fn_append_again(
    r runs, op jsonb, OUT verdict jsonb, OUT raws bytea[]
) LANGUAGE plpgsql AS $$
DECLARE
    e events;
    entry jsonb;
    one record;
    shown jsonb := '[]';
    claimed jsonb := '[]';
    claimed_raws bytea[] := '{}';
BEGIN
    raws := '{}';
    FOR entry IN SELECT value FROM jsonb_array_elements(op->'entries') LOOP
        SELECT * INTO e FROM events
            WHERE partition = r.partition AND run_id = r.run_id AND id = entry->>'id';
        shown := shown || jsonb_build_array(fn_show(e));
        raws := raws || e.raw;
        CONTINUE WHEN op->'offer' IS NULL
            OR entry->'effect'->>'kind' IS DISTINCT FROM 'open';
        SELECT * INTO one FROM fn_hold_again(r.partition, r.run_id, e.id, op->'offer');
        CONTINUE WHEN one.claimed IS NULL;
        claimed := claimed || jsonb_build_array(one.claimed);
        claimed_raws := claimed_raws || one.raws;
    END LOOP;
    raws := raws || claimed_raws;
    verdict := fn_appended(r, shown, claimed);
END $$;

CREATE OR REPLACE FUNCTION fn_append(
    p int, op jsonb, p_raws bytea[], now_ms bigint, OUT verdict jsonb, OUT raws bytea[]
) LANGUAGE plpgsql AS $$
DECLARE
    decision boolean := op->'term' IS NOT NULL;
    r runs;
    e events;
    entry jsonb;
    known boolean[] := '{}';
    why text;
    opened text[] := '{}';
    shown jsonb := '[]';
    claimed jsonb := '[]';
    one record;
BEGIN
    raws := '{}';
    SELECT * INTO r FROM runs WHERE partition = p AND run_id = op->>'run';
    IF NOT FOUND OR r.deleted THEN
        verdict := fn_refused(CASE WHEN FOUND THEN 'deleted' ELSE 'no_run' END);
        RETURN;
    END IF;
    FOR entry IN SELECT value FROM jsonb_array_elements(op->'entries') LOOP
        known := known || EXISTS (SELECT 1 FROM events
            WHERE partition = p AND run_id = r.run_id AND id = entry->>'id');
    END LOOP;
    IF known <> '{}' AND NOT false = ANY (known) THEN
        SELECT f.verdict, f.raws INTO verdict, raws FROM fn_append_again(r, op) f;
        RETURN;
    END IF;
    IF decision AND NOT EXISTS (SELECT 1 FROM owners
            WHERE partition = p AND app = r.app
                AND term = (op->>'term')::bigint AND worker = op->>'worker') THEN
        verdict := fn_refused('term');
        RETURN;
    END IF;
    IF op->'at' IS NOT NULL AND (
            (op->'at'->>0)::bigint <> r.seq OR op->'at'->>1 <> r.last_id) THEN
        verdict := fn_refused('moved');
        RETURN;
    END IF;
    IF decision AND r.status <> 'open' THEN
        verdict := fn_refused('closed');
        RETURN;
    END IF;
    FOR i IN 1 .. cardinality(known) LOOP
        CONTINUE WHEN known[i];
        why := fn_check_effect(r, op->'entries'->(i - 1)->'effect');
        IF why IS NOT NULL THEN
            verdict := fn_refused(why);
            RETURN;
        END IF;
    END LOOP;
    FOR i IN 1 .. cardinality(known) LOOP
        entry := op->'entries'->(i - 1);
        IF known[i] THEN
            SELECT * INTO e FROM events
                WHERE partition = p AND run_id = r.run_id AND id = entry->>'id';
            shown := shown || jsonb_build_array(fn_show(e));
            raws := raws || e.raw;
        ELSE
            r := fn_write(r, entry, p_raws, now_ms);
            shown := shown || jsonb_build_array(jsonb_build_array(r.seq, now_ms));
            IF entry->'effect'->>'kind' = 'open' THEN opened := opened || (entry->>'id'); END IF;
        END IF;
    END LOOP;
    -- A call that is opened and settled by the same decision is nobody's to claim.
    IF op->'offer' IS NOT NULL AND opened <> '{}' THEN
        SELECT * INTO one FROM fn_claim_opened(r, opened, op->'offer', now_ms);
        r := one.r;
        claimed := one.claimed;
        raws := raws || one.raws;
    END IF;
    IF decision THEN
        r.cursor := r.seq;
        r.dirty := 0;
    ELSE
        r := fn_mark_dirty(r);
    END IF;
    PERFORM fn_save_run(r);
    verdict := fn_appended(r, shown, claimed);
END $$;
