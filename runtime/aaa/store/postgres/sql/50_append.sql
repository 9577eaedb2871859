-- Creating and appending: aaa/store/logic.py. Every function checks first and writes afterwards,
-- so that a refusal has changed nothing.

-- Ready calls of a stopped run leave their queue, so that they never stand before others.
CREATE OR REPLACE FUNCTION fn_shelve(r runs) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE calls SET shelved = fn_stopped(r)
        WHERE partition = r.partition AND run_id = r.run_id
            AND state = 'ready' AND shelved <> fn_stopped(r);
END $$;

CREATE OR REPLACE FUNCTION fn_flag(r runs, flag text) RETURNS runs LANGUAGE plpgsql AS $$
BEGIN
    CASE flag
        WHEN 'cancel' THEN r.cancelling := true;
        WHEN 'suspend' THEN r.suspended := true;
        WHEN 'park' THEN r.parked := true;
        WHEN 'resume' THEN r.suspended := false; r.parked := false;
        ELSE NULL;
    END CASE;
    PERFORM fn_shelve(r);
    RETURN r;
END $$;

CREATE OR REPLACE FUNCTION fn_open_call(r runs, request text, effect jsonb, now_ms bigint)
RETURNS runs LANGUAGE plpgsql AS $$
DECLARE
    waits boolean := (effect->>'approve')::boolean;
BEGIN
    INSERT INTO calls (
        partition, run_id, request_id, seq, app, queue, call_json, name_json, key_json,
        args_digest, state, due_ms, verify, shelved, approval
    ) VALUES (
        r.partition, r.run_id, request, r.seq, r.app, effect->>'queue', effect->>'call',
        effect->>'name', effect->>'key', effect->>'digest',
        CASE WHEN waits THEN 'waiting' ELSE 'ready' END, now_ms,
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
            c.holder := '';  -- no attempt's: nobody's outcome is the result
        WHEN 'grant' THEN
            c.state := fn_transition(c.state, 'grant');
            c.approval := 'granted';
            c.approval_until_ms := now_ms + (effect->>'for_ms')::bigint;
            c.due_ms := now_ms;
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
        WHEN 'require' THEN
            UPDATE calls SET queue = split_part(queue, '#', 1)
                    || CASE WHEN effect->>'policy' = '' THEN '' ELSE '#' || (effect->>'policy') END
                WHERE partition = r.partition AND run_id = r.run_id AND state <> 'settled'
                    AND starts_with(queue, 'tool/');
        WHEN 'close' THEN
            r.status := effect->>'status';
            r.closed_ms := now_ms;
            PERFORM fn_shelve(r);
        WHEN 'timer' THEN
            INSERT INTO timers VALUES (r.partition, r.run_id, entry->>'id', r.app,
                effect->>'name', now_ms + (effect->>'after_ms')::bigint);
        ELSE
            r := fn_call_effect(r, effect, now_ms);
    END CASE;
    RETURN r;
END $$;

-- Why the effects of an append cannot be had, or NULL. `known`: which entries stand already.
-- `drafts` holds the calls as the earlier entries leave them, before any is written: a decision may
-- open a call and settle it at once (aaa/store/drafts.py).
CREATE OR REPLACE FUNCTION fn_check_effects(r runs, entries jsonb, known boolean[]) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    is_open boolean := r.status = 'open';
    drafts jsonb := '{}';
    seen text[] := '{}';
    effect jsonb;
    kind text;
    why text;
BEGIN
    FOR i IN 1 .. cardinality(known) LOOP
        effect := entries->(i - 1)->'effect';
        kind := effect->>'kind';
        CONTINUE WHEN known[i] OR kind IS NULL OR entries->(i - 1)->>'id' = ANY (seen);
        seen := seen || (entries->(i - 1)->>'id');
        IF NOT is_open AND kind <> 'resolve' THEN RETURN 'closed'; END IF;
        IF kind = 'open' THEN
            drafts := drafts || jsonb_build_object(entries->(i - 1)->>'id', jsonb_build_object(
                'state', CASE WHEN (effect->>'approve')::boolean THEN 'waiting' ELSE 'ready' END,
                'digest', effect->>'digest', 'unknown', false,
                'model', starts_with(effect->>'queue', 'llm/')));
        ELSIF kind IN ('settle', 'grant', 'hold', 'resolve') THEN
            SELECT f.why, f.drafts INTO why, drafts FROM fn_check_call(r, effect, drafts) f;
            IF why IS NOT NULL THEN RETURN why; END IF;
        ELSIF kind = 'close' THEN
            is_open := false;
        END IF;
    END LOOP;
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION fn_check_call(
    r runs, effect jsonb, INOUT drafts jsonb, OUT why text
) LANGUAGE plpgsql AS $$
DECLARE
    request text := effect->>'request';
    draft jsonb := drafts->request;
    state text;
BEGIN
    IF draft IS NULL THEN
        SELECT jsonb_build_object('state', c.state, 'digest', c.args_digest, 'unknown', c.unknown,
                'model', starts_with(c.queue, 'llm/'))
            INTO draft FROM calls c
            WHERE c.partition = r.partition AND c.run_id = r.run_id AND c.request_id = request;
        IF NOT FOUND THEN
            why := 'no_call';
            RETURN;
        END IF;
    END IF;
    state := draft->>'state';
    CASE effect->>'kind'
        WHEN 'settle' THEN
            why := CASE WHEN state = 'settled' THEN 'settled'
                WHEN state NOT IN ('waiting', 'ready') AND NOT (draft->>'model')::boolean
                    THEN 'started' END;
            draft := draft || '{"state": "settled"}';
        WHEN 'grant' THEN
            why := CASE WHEN draft->>'digest' <> effect->>'digest' THEN 'digest'
                WHEN state <> 'waiting' THEN 'not_waiting' END;
            draft := draft || '{"state": "ready"}';
        WHEN 'hold' THEN
            why := CASE WHEN state <> 'ready' THEN 'started' END;
            draft := draft || '{"state": "waiting"}';
        WHEN 'resolve' THEN
            why := CASE WHEN NOT (draft->>'unknown')::boolean THEN 'not_waiting' END;
            draft := draft || '{"unknown": false}';
    END CASE;
    drafts := drafts || jsonb_build_object(request, draft);
END $$;

-- Write the entries that are not there yet; an id that comes twice in one operation stands once.
CREATE OR REPLACE FUNCTION fn_write_all(
    INOUT r runs, entries jsonb, p_raws bytea[], now_ms bigint,
    OUT shown jsonb, OUT opened text[], OUT raws bytea[]
) LANGUAGE plpgsql AS $$
DECLARE
    entry jsonb;
    e events;
BEGIN
    shown := '[]';
    opened := '{}';
    raws := '{}';
    FOR entry IN SELECT value FROM jsonb_array_elements(entries) LOOP
        SELECT * INTO e FROM events
            WHERE partition = r.partition AND run_id = r.run_id AND id = entry->>'id';
        IF FOUND THEN
            shown := shown || jsonb_build_array(fn_show(e));
            raws := raws || e.raw;
            CONTINUE;
        END IF;
        r := fn_write(r, entry, p_raws, now_ms);
        shown := shown || jsonb_build_array(jsonb_build_array(r.seq, now_ms));
        IF entry->'effect'->>'kind' = 'open' THEN opened := opened || (entry->>'id'); END IF;
    END LOOP;
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
    one record;
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
    SELECT * INTO one FROM fn_write_all(r, op->'entries', p_raws, now_ms);
    raws := one.raws;
    PERFORM fn_save_run(one.r);
    verdict := fn_appended(one.r, one.shown, '[]');
END $$;

-- The same append after a lost reply: the same answer, the same claims, nothing changed.
CREATE OR REPLACE FUNCTION fn_append_again(
    r runs, op jsonb, now_ms bigint, OUT verdict jsonb, OUT raws bytea[]
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
        SELECT * INTO one FROM fn_hold_again(r.partition, r.run_id, e.id, op->'offer', now_ms);
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
    entry jsonb;
    known boolean[] := '{}';
    why text;
    written record;
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
        SELECT f.verdict, f.raws INTO verdict, raws FROM fn_append_again(r, op, now_ms) f;
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
    IF EXISTS (SELECT 1 FROM jsonb_array_elements(op->'rests_on') rest WHERE NOT EXISTS (
            SELECT 1 FROM calls c WHERE c.partition = r.partition AND c.run_id = r.run_id
                AND c.request_id = rest.value->>0 AND c.state = 'settled'
                AND c.holder = op->>'worker' AND c.attempt = (rest.value->>1)::int)) THEN
        verdict := fn_refused('moved');
        RETURN;
    END IF;
    IF decision AND r.status <> 'open' THEN
        verdict := fn_refused('closed');
        RETURN;
    END IF;
    why := fn_check_effects(r, op->'entries', known);
    IF why IS NOT NULL THEN
        verdict := fn_refused(why);
        RETURN;
    END IF;
    SELECT * INTO written FROM fn_write_all(r, op->'entries', p_raws, now_ms);
    r := written.r;
    raws := written.raws;
    -- A call that is opened and settled by the same decision is nobody's to claim.
    IF op->'offer' IS NOT NULL AND written.opened <> '{}' THEN
        SELECT * INTO one FROM fn_claim_opened(r, written.opened, op->'offer', now_ms);
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
    verdict := fn_appended(r, written.shown, claimed);
END $$;
