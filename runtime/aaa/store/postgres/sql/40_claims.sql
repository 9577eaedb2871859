-- Claiming: aaa/store/claims.py. The events that the store writes itself are spliced from the JSON
-- texts that came with the request, in canonical key order: the very bytes of every other store.

-- The reply for a call that is held: request, then `started` if there is one.
CREATE OR REPLACE FUNCTION fn_as_claimed(
    p int, p_run text, p_request text, OUT claimed jsonb, OUT raws bytea[]
) LANGUAGE plpgsql AS $$
DECLARE
    c calls;
    request events;
    started events;
BEGIN
    SELECT * INTO c FROM calls
        WHERE partition = p AND run_id = p_run AND request_id = p_request;
    SELECT * INTO request FROM events
        WHERE partition = p AND run_id = p_run AND id = p_request;
    raws := ARRAY[request.raw];
    claimed := jsonb_build_object(
        'run', p_run, 'request', fn_show(request), 'attempt', c.attempt,
        'job', CASE WHEN c.state = 'verifying' THEN 'verify' ELSE 'run' END,
        'ttl', c.lease_ttl_ms, 'delivery', c.delivery, 'started', NULL, 'queue', c.queue);
    IF c.state = 'verifying' THEN RETURN; END IF;
    SELECT * INTO started FROM events
        WHERE partition = p AND run_id = p_run AND id = p_request || ':attempt:' || c.attempt;
    IF FOUND THEN
        raws := raws || started.raw;
        claimed := jsonb_set(claimed, '{started}', fn_show(started));
    END IF;
END $$;

-- Lease the call and begin an attempt, or ask verify=. The caller saves the run.
CREATE OR REPLACE FUNCTION fn_begin(
    r runs, c calls, terms jsonb, offer jsonb, verify boolean, now_ms bigint
) RETURNS runs LANGUAGE plpgsql AS $$
BEGIN
    SELECT f.delivery, f.cap INTO c.delivery, c.cap FROM fn_in_force(c, terms) f;
    c.state := fn_transition(c.state, CASE WHEN verify THEN 'verify' ELSE 'start' END);
    c.holder := offer->>'worker';
    c.session := (offer->>'session')::int;
    c.nonce := offer->>'nonce';
    c.lease_ttl_ms := (terms->>'ttl')::bigint;
    c.due_ms := now_ms + c.lease_ttl_ms;
    IF verify THEN
        c.verifies := c.verifies + 1;
    ELSE
        IF c.attempt = 0 THEN  -- as it began it goes on: its records have no gap (G3, G18)
            c.guarded := (terms->>'guarded')::boolean;
        END IF;
        c.attempt := c.attempt + 1;
        IF c.approval = 'granted' THEN c.approval := 'used'; END IF;
        IF c.guarded AND starts_with(c.queue, 'tool/') THEN
            r := fn_add_event(r, c.request_id || ':attempt:' || c.attempt, 'aaa.tool.started',
                convert_to('{"attempt":' || c.attempt || ',"call_id":' || c.call_json
                    || ',"idempotency_key":' || c.key_json || ',"name":' || c.name_json
                    || ',"policy":' || (terms->>'policy') || ',"worker":'
                    || (offer->>'worker_json') || '}', 'UTF8'),
                c.request_id, now_ms);
        END IF;
    END IF;
    PERFORM fn_save_call(c);
    RETURN r;
END $$;

-- Write the one result of a call whose attempt was lost (G4, G5). Saves call and run.
-- `by_json`: the person who accepted that the store lost writes, or NULL (G23).
CREATE OR REPLACE FUNCTION fn_lose(
    r runs, c calls, step text, now_ms bigint, by_json text DEFAULT NULL
) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    tool boolean := starts_with(c.queue, 'tool/');
BEGIN
    r := fn_add_event(r, c.request_id || ':result',
        CASE WHEN tool THEN 'aaa.tool.failed' ELSE 'aaa.llm.failed' END,
        convert_to('{' || coalesce('"accepted_by":' || by_json || ',', '')
            || '"attempt":' || c.attempt || ',"call_id":' || c.call_json
            || ',"effect":"unknown","error":"'
            || CASE WHEN step = 'lost' THEN 'OutcomeUnknown' ELSE 'ExecutionAbandoned' END
            || '","message":'
            || CASE WHEN step = 'lost' THEN @@unknown_text@@ ELSE @@abandoned_text@@ END
            || ',"name":' || c.name_json || '}', 'UTF8'),
        c.request_id, now_ms);
    IF c.state = 'waiting' THEN r.awaiting := r.awaiting - 1; END IF;
    c.state := 'settled';  -- from any state, when a person accepts a loss
    c.holder := '';  -- no attempt's: nobody's outcome is the result
    c.unknown := tool;
    IF tool THEN r.unknown := r.unknown + 1; END IF;
    PERFORM fn_save_call(c);
    PERFORM fn_save_run(fn_mark_dirty(r));
END $$;

-- Claim what a decision has just opened, as far as the offer goes. `opened`: request ids.
-- The run's row comes back in `r`, for the caller to save.
CREATE OR REPLACE FUNCTION fn_claim_opened(
    INOUT r runs, opened text[], offer jsonb, now_ms bigint, OUT claimed jsonb, OUT raws bytea[]
) LANGUAGE plpgsql AS $$
DECLARE
    c calls;
    one record;
    request text;
    terms jsonb;
BEGIN
    claimed := '[]';
    raws := '{}';
    IF (SELECT behind FROM partitions WHERE partition = r.partition) > 0 THEN RETURN; END IF;
    FOREACH request IN ARRAY opened LOOP
        SELECT * INTO c FROM calls
            WHERE partition = r.partition AND run_id = r.run_id AND request_id = request;
        terms := offer->'queues'->c.queue;
        CONTINUE WHEN terms IS NULL OR c.state <> 'ready'
            OR jsonb_array_length(claimed) >= (offer->>'limit')::int;
        CONTINUE WHEN fn_judge_ready(c, terms, now_ms, fn_stopped(r)) <> 'start';
        r := fn_begin(r, c, terms, offer, false, now_ms);
        SELECT * INTO one FROM fn_as_claimed(r.partition, r.run_id, request);
        claimed := claimed || jsonb_build_array(one.claimed);
        raws := raws || one.raws;
    END LOOP;
END $$;

-- The same offer again gets what it got, as long as nobody has taken it over. A lease that has not
-- ended (the server was restarted, or has not noticed a broken line) moves to the worker's new
-- session; one that has ended is not revived: the next heartbeat says that it is lost.
CREATE OR REPLACE FUNCTION fn_hold_again(
    p int, p_run text, p_request text, offer jsonb, now_ms bigint,
    OUT claimed jsonb, OUT raws bytea[]
) LANGUAGE plpgsql AS $$
DECLARE
    mine int := (offer->>'session')::int;
    c calls;
BEGIN
    SELECT * INTO c FROM calls
        WHERE partition = p AND run_id = p_run AND request_id = p_request
            AND state IN ('leased', 'verifying')
            AND holder = offer->>'worker' AND nonce = offer->>'nonce';
    IF NOT FOUND THEN RETURN; END IF;
    IF c.session <> mine AND NOT fn_ended(c.session, c.due_ms, c.lease_ttl_ms, mine, now_ms) THEN
        c.session := mine;
        PERFORM fn_save_call(c);
    END IF;
    SELECT f.claimed, f.raws INTO claimed, raws FROM fn_as_claimed(p, p_run, p_request) f;
END $$;

-- Calls whose lease has ended, longest ended first. It asks for each session once.
CREATE OR REPLACE FUNCTION fn_expired(p int, p_app text, most int, mine int, now_ms bigint)
RETURNS SETOF calls LANGUAGE plpgsql AS $$
DECLARE
    gone int[] := '{}';
    one record;
BEGIN
    FOR one IN
        SELECT DISTINCT session FROM calls
            WHERE partition = p AND app = p_app AND state IN ('leased', 'verifying')
    LOOP
        IF fn_silent_since(one.session, mine) IS NOT NULL THEN
            gone := gone || one.session;
        END IF;
    END LOOP;
    IF gone = '{}' THEN RETURN; END IF;
    RETURN QUERY
        SELECT * FROM calls c
            WHERE partition = p AND app = p_app AND state IN ('leased', 'verifying')
                AND session = ANY (gone)
                AND fn_ended(session, due_ms, lease_ttl_ms, mine, now_ms)
            ORDER BY due_ms, run_id, request_id LIMIT most;
END $$;

-- When the next lease can end by itself, from now: only after a restart of the server, since a
-- session that lives has no term and one that ended has ended.
CREATE OR REPLACE FUNCTION fn_next_expiry(p int, p_app text, mine int, now_ms bigint)
RETURNS bigint LANGUAGE sql AS $$
    SELECT min(end_ms) - now_ms FROM (
        SELECT greatest(c.due_ms, s.beat_ms + c.lease_ttl_ms) AS end_ms
            FROM calls c JOIN sessions s ON s.session = c.session
            WHERE c.partition = p AND c.app = p_app AND c.state IN ('leased', 'verifying')
                AND c.session <> mine AND s.boot <> fn_boot()
    ) ends WHERE end_ms > now_ms
$$;

-- What an offer that comes again got the first time. `got`: pairs of run and request.
CREATE OR REPLACE FUNCTION fn_claim_again(
    p int, got jsonb, offer jsonb, now_ms bigint, OUT claimed jsonb, OUT raws bytea[]
) LANGUAGE plpgsql AS $$
DECLARE
    pair jsonb;
    one record;
BEGIN
    claimed := '[]';
    raws := '{}';
    FOR pair IN SELECT value FROM jsonb_array_elements(got) LOOP
        SELECT * INTO one FROM fn_hold_again(p, pair->>0, pair->>1, offer, now_ms);
        CONTINUE WHEN one.claimed IS NULL;
        claimed := claimed || jsonb_build_array(one.claimed);
        raws := raws || one.raws;
    END LOOP;
END $$;

-- Calls whose lease has ended: the next attempt, verify=, or their one result.
CREATE OR REPLACE FUNCTION fn_take_over(
    p int, p_app text, offer jsonb, now_ms bigint,
    OUT claimed jsonb, OUT raws bytea[], OUT settled jsonb
) LANGUAGE plpgsql AS $$
DECLARE
    room int := (offer->>'limit')::int;
    terms jsonb;
    step text;
    one record;
    c calls;
    r runs;
BEGIN
    claimed := '[]';
    raws := '{}';
    settled := '[]';
    FOR c IN SELECT * FROM fn_expired(p, p_app, @@scan_limit@@, 0, now_ms) LOOP
        SELECT * INTO r FROM runs WHERE partition = p AND run_id = c.run_id;
        CONTINUE WHEN NOT FOUND OR r.deleted;
        terms := offer->'queues'->c.queue;
        step := fn_judge_lost(c, terms, now_ms,
            r.cancelling OR r.status <> 'open', r.suspended OR r.parked);
        IF step IN ('lost', 'abandon') THEN
            PERFORM fn_lose(r, c, step, now_ms);
            settled := settled || to_jsonb(r.run_id);
        ELSIF terms IS NOT NULL AND step <> 'skip' AND jsonb_array_length(claimed) < room THEN
            PERFORM fn_save_run(fn_begin(r, c, terms, offer, step = 'verify', now_ms));
            SELECT * INTO one FROM fn_as_claimed(p, c.run_id, c.request_id);
            claimed := claimed || jsonb_build_array(one.claimed);
            raws := raws || one.raws;
        END IF;
    END LOOP;
END $$;

-- Ready calls, longest waiting first, as many as there is `room` for; `held` need an approval.
CREATE OR REPLACE FUNCTION fn_take_ready(
    p int, p_app text, offer jsonb, room int, now_ms bigint,
    OUT claimed jsonb, OUT raws bytea[], OUT held jsonb, OUT held_raws bytea[], OUT more boolean
) LANGUAGE plpgsql AS $$
DECLARE
    terms jsonb;
    step text;
    one record;
    c calls;
    r runs;
BEGIN
    claimed := '[]';
    raws := '{}';
    held := '[]';
    held_raws := '{}';
    more := false;
    FOR c IN
        SELECT w.* FROM jsonb_object_keys(offer->'queues') q, LATERAL (
            SELECT * FROM calls
                WHERE partition = p AND app = p_app AND queue = q
                    AND state = 'ready' AND NOT shelved
                ORDER BY due_ms, seq, run_id, request_id LIMIT room + 1
        ) w ORDER BY w.due_ms, w.seq, w.run_id, w.request_id
    LOOP
        SELECT * INTO r FROM runs WHERE partition = p AND run_id = c.run_id;
        CONTINUE WHEN NOT FOUND;
        terms := offer->'queues'->c.queue;
        step := fn_judge_ready(c, terms, now_ms, fn_stopped(r));
        IF step = 'hold' THEN
            SELECT * INTO one FROM fn_as_claimed(p, c.run_id, c.request_id);
            held := held || jsonb_build_array(one.claimed);
            held_raws := held_raws || one.raws;
        ELSIF step = 'start' THEN
            more := jsonb_array_length(claimed) >= room;
            EXIT WHEN more;
            PERFORM fn_save_run(fn_begin(r, c, terms, offer, false, now_ms));
            SELECT * INTO one FROM fn_as_claimed(p, c.run_id, c.request_id);
            claimed := claimed || jsonb_build_array(one.claimed);
            raws := raws || one.raws;
        END IF;
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION fn_save_offer(p int, offer jsonb, claimed jsonb) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO offers VALUES (p, offer->>'worker', offer->>'nonce', (
            SELECT jsonb_agg(jsonb_build_array(value->'run', value->'request'->2))
                FROM jsonb_array_elements(claimed)))
        ON CONFLICT (partition, worker) DO UPDATE SET nonce = excluded.nonce, got = excluded.got
$$;

-- Take over lost calls, then take ready ones.
CREATE OR REPLACE FUNCTION fn_claim(
    p int, op jsonb, now_ms bigint, OUT verdict jsonb, OUT raws bytea[]
) LANGUAGE plpgsql AS $$
DECLARE
    offer jsonb := op->'offer';
    last_offer offers;
    over record;
    ready record;
    claimed jsonb;
BEGIN
    raws := '{}';
    IF (SELECT behind FROM partitions WHERE partition = p) > 0 THEN
        verdict := fn_refused('behind');
        RETURN;
    END IF;
    SELECT * INTO last_offer FROM offers WHERE partition = p AND worker = offer->>'worker';
    IF FOUND AND last_offer.nonce = offer->>'nonce' THEN
        SELECT f.claimed, f.raws INTO claimed, raws
            FROM fn_claim_again(p, last_offer.got, offer, now_ms) f;
        verdict := jsonb_build_object('v', 'claims', 'claimed', claimed, 'settled', '[]'::jsonb,
            'held', '[]'::jsonb, 'more', false,
            'next', fn_next_expiry(p, op->>'app', 0, now_ms));
        RETURN;
    END IF;
    SELECT * INTO over FROM fn_take_over(p, op->>'app', offer, now_ms);
    SELECT * INTO ready FROM fn_take_ready(p, op->>'app', offer,
        (offer->>'limit')::int - jsonb_array_length(over.claimed), now_ms);
    claimed := over.claimed || ready.claimed;
    IF claimed <> '[]' THEN PERFORM fn_save_offer(p, offer, claimed); END IF;
    raws := over.raws || ready.raws || ready.held_raws;
    verdict := jsonb_build_object('v', 'claims', 'claimed', claimed, 'settled', over.settled,
        'held', ready.held, 'more', ready.more,
        'next', fn_next_expiry(p, op->>'app', 0, now_ms));
END $$;
