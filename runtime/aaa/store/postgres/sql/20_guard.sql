-- The guard's state machine: aaa/store/guard.py, function by function.

CREATE OR REPLACE FUNCTION fn_transition(p_state text, p_step text) RETURNS text
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    next_state text := CASE p_state || ' ' || p_step
        WHEN 'waiting grant'    THEN 'ready'
        WHEN 'waiting drop'     THEN 'settled'
        WHEN 'ready hold'       THEN 'waiting'
        WHEN 'ready start'      THEN 'leased'
        WHEN 'ready drop'       THEN 'settled'
        WHEN 'leased start'     THEN 'leased'
        WHEN 'leased verify'    THEN 'verifying'
        WHEN 'leased settle'    THEN 'settled'
        WHEN 'leased drop'      THEN 'settled'
        WHEN 'verifying verify' THEN 'verifying'
        WHEN 'verifying settle' THEN 'settled'
    END;
BEGIN
    IF next_state IS NULL THEN
        RAISE EXCEPTION 'aaa: no step % from state %', p_step, p_state;
    END IF;
    RETURN next_state;
END $$;

-- Delivery and cap: what the call was first claimed with, tightened by later terms (G22).
CREATE OR REPLACE FUNCTION fn_in_force(
    c calls, terms jsonb, OUT delivery text, OUT cap int
) LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    delivery := c.delivery;
    cap := c.cap;
    IF terms IS NULL THEN RETURN; END IF;
    IF c.attempt = 0 THEN
        delivery := terms->>'delivery';
        cap := (terms->>'max')::int;
        RETURN;
    END IF;
    delivery := CASE WHEN 'at_most_once' IN (c.delivery, terms->>'delivery')
        THEN 'at_most_once' ELSE 'at_least_once' END;
    cap := least(c.cap, (terms->>'max')::int);
END $$;

CREATE OR REPLACE FUNCTION fn_judge_ready(
    c calls, terms jsonb, now_ms bigint, stopped boolean
) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF terms IS NULL OR stopped THEN RETURN 'skip'; END IF;
    IF (terms->>'approve')::boolean AND c.approval = '' THEN RETURN 'hold'; END IF;
    IF c.approval = 'granted' AND c.approval_until_ms <= now_ms THEN RETURN 'hold'; END IF;
    RETURN 'start';
END $$;

-- What becomes of a call whose lease has ended.
CREATE OR REPLACE FUNCTION fn_judge_lost(
    c calls, terms jsonb, now_ms bigint, cancelled boolean, paused boolean
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    again text := CASE WHEN terms IS NOT NULL AND NOT paused THEN 'start' ELSE 'skip' END;
    once boolean;
    spent boolean;
    verdict text;
    ended_ms bigint;
BEGIN
    -- Guarded by what it began with or by the terms now: tightened, never loosened.
    IF NOT (c.guarded OR coalesce((terms->>'guarded')::boolean, false)) AND NOT cancelled THEN
        RETURN again;
    END IF;
    SELECT f.delivery = 'at_most_once', c.attempt >= f.cap INTO once, spent
        FROM fn_in_force(c, terms) f;
    IF NOT (once OR spent OR cancelled) THEN RETURN again; END IF;
    verdict := CASE WHEN once OR (cancelled AND NOT spent) THEN 'lost' ELSE 'abandon' END;
    IF NOT c.verify OR c.verifies >= @@max_verifies@@ THEN RETURN verdict; END IF;
    IF terms IS NOT NULL THEN RETURN 'verify'; END IF;
    -- Wait for a worker that has the tool's code, but not for ever. When a session ended is not
    -- known: count from its last sign of life.
    ended_ms := CASE WHEN c.session = 0 THEN c.due_ms
        ELSE greatest(c.due_ms - c.lease_ttl_ms, coalesce(
            (SELECT beat_ms FROM sessions WHERE session = c.session), 0)) END;
    RETURN CASE WHEN now_ms - ended_ms > @@verify_grace_ttls@@ * c.lease_ttl_ms
        THEN verdict ELSE 'skip' END;
END $$;
