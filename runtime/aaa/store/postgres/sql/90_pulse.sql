-- The heartbeat: aaa/store/renewal.py. It runs on the lease session itself, so that an answer shows
-- that the session lives, and so that a server's idle_session_timeout ends frozen workers only.
-- A heartbeat writes two rows, however many leases it renews.

-- Lock the partitions in which the worker holds something under another session of its own, in
-- order, so that no takeover and no other heartbeat comes in between while it is moved.
CREATE OR REPLACE FUNCTION fn_lock_strays(p_worker text, mine int, owned jsonb, held jsonb)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    strays int[] := '{}';
    one jsonb;
BEGIN
    FOR one IN SELECT value FROM jsonb_array_elements(owned) LOOP
        IF EXISTS (SELECT 1 FROM owners WHERE partition = (one->>0)::int AND app = one->>1
                AND worker = p_worker AND session <> mine) THEN
            strays := strays || (one->>0)::int;
        END IF;
    END LOOP;
    FOR one IN SELECT value FROM jsonb_array_elements(held) LOOP
        IF EXISTS (SELECT 1 FROM calls WHERE partition = (one->>0)::int
                AND run_id = one->>1 AND request_id = one->>2
                AND holder = p_worker AND session <> mine) THEN
            strays := strays || (one->>0)::int;
        END IF;
    END LOOP;
    PERFORM 1 FROM partitions WHERE partition = ANY (strays) ORDER BY partition FOR UPDATE;
END $$;

-- A lease that the worker held under another session of its own, moved to this one: it is still
-- the worker's if it has not ended (the server was restarted, or has not noticed a broken line).
CREATE OR REPLACE FUNCTION fn_move_call(
    p int, p_run text, p_request text, p_worker text, mine int, now_ms bigint
) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    UPDATE calls SET session = mine
        WHERE partition = p AND run_id = p_run AND request_id = p_request
            AND state IN ('leased', 'verifying') AND holder = p_worker
            AND NOT fn_ended(session, due_ms, lease_ttl_ms, mine, now_ms);
    RETURN FOUND;
END $$;

CREATE OR REPLACE FUNCTION fn_move_owner(
    p int, p_app text, p_worker text, mine int, now_ms bigint
) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    UPDATE owners SET session = mine
        WHERE partition = p AND app = p_app AND worker = p_worker
            AND NOT fn_ended(session, until_ms, ttl_ms, mine, now_ms);
    RETURN FOUND;
END $$;

-- Positions in `held` of the calls that are lost, and of those whose run is being cancelled.
-- `held`: [partition, run, request, attempt], in the order of partitions.
CREATE OR REPLACE FUNCTION fn_renew_calls(
    held jsonb, p_worker text, mine int, now_ms bigint, OUT lost jsonb, OUT cancelled jsonb
) LANGUAGE plpgsql AS $$
DECLARE
    one jsonb;
    place int := -1;
    c calls;
BEGIN
    lost := '[]';
    cancelled := '[]';
    FOR one IN SELECT value FROM jsonb_array_elements(held) LOOP
        place := place + 1;
        SELECT * INTO c FROM calls
            WHERE partition = (one->>0)::int AND run_id = one->>1 AND request_id = one->>2;
        IF NOT FOUND OR c.state NOT IN ('leased', 'verifying') OR c.holder <> p_worker
                OR c.attempt <> (one->>3)::int
                OR (c.session <> mine AND NOT fn_move_call(
                    c.partition, c.run_id, c.request_id, p_worker, mine, now_ms)) THEN
            lost := lost || to_jsonb(place);
        ELSIF (SELECT cancelling FROM runs
                WHERE partition = c.partition AND run_id = c.run_id) THEN
            cancelled := cancelled || to_jsonb(place);
        END IF;
    END LOOP;
    -- A lease that this session took and no longer names was never heard of or has been
    -- forgotten: after its TTL it is given up, as if it had not been renewed.
    UPDATE calls SET session = 0
        WHERE session = mine AND state IN ('leased', 'verifying') AND due_ms <= now_ms
            AND NOT jsonb_build_array(partition, run_id, request_id, attempt)
                IN (SELECT value FROM jsonb_array_elements(held));
END $$;

-- Partitions in which something of these apps waits for a visit: unfolded, ready, due or lost.
CREATE OR REPLACE FUNCTION fn_hot(p_apps text[], mine int, now_ms bigint) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    dead int[] := '{}';
    number int;
BEGIN
    FOR number IN
        SELECT DISTINCT session FROM calls
            WHERE state IN ('leased', 'verifying') AND session <> mine
    LOOP
        IF fn_silent_since(number, mine) IS NOT NULL THEN dead := dead || number; END IF;
    END LOOP;
    RETURN (SELECT coalesce(jsonb_agg(p.partition), '[]') FROM partitions p WHERE EXISTS (
        SELECT 1 FROM unnest(p_apps) a(name) WHERE
            EXISTS (SELECT 1 FROM runs
                WHERE partition = p.partition AND app = a.name AND dirty > 0)
            OR EXISTS (SELECT 1 FROM calls
                WHERE partition = p.partition AND app = a.name
                    AND state = 'ready' AND NOT shelved)
            OR EXISTS (SELECT 1 FROM timers
                WHERE partition = p.partition AND app = a.name AND due_ms <= now_ms)
            OR (dead <> '{}' AND EXISTS (SELECT 1 FROM calls
                WHERE partition = p.partition AND app = a.name
                    AND state IN ('leased', 'verifying') AND session = ANY (dead)
                    AND fn_ended(session, due_ms, lease_ttl_ms, mine, now_ms)))));
END $$;

CREATE OR REPLACE FUNCTION fn_members(p_apps text[], mine int, now_ms bigint) RETURNS jsonb
LANGUAGE sql AS $$
    SELECT coalesce(jsonb_agg(jsonb_build_array(w.worker, w.apps)), '[]') FROM workers w
        WHERE w.until_ms > now_ms AND w.apps && p_apps
            AND NOT fn_ended(w.session, w.until_ms, 0, mine, now_ms)
$$;

CREATE OR REPLACE FUNCTION fn_pulse(
    mine int, p_worker text, p_apps text[], p_ttl_ms bigint, owned jsonb, held jsonb, p_info bytea
) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    now_ms bigint := fn_now_ms();
    one jsonb;
    calls_now record;
    lost_owned jsonb := '[]';
    expiries jsonb := '{}';
BEGIN
    UPDATE sessions SET beat_ms = now_ms WHERE session = mine;
    IF NOT FOUND THEN
        INSERT INTO sessions VALUES (mine, p_worker, fn_boot(), now_ms);
    END IF;
    -- Without an info, what the worker said last stands.
    INSERT INTO workers AS w
        VALUES (p_worker, mine, p_apps, now_ms + p_ttl_ms, coalesce(p_info, '{}'))
        ON CONFLICT (worker) DO UPDATE SET session = excluded.session, apps = excluded.apps,
            until_ms = excluded.until_ms, info = coalesce(p_info, w.info);
    PERFORM fn_lock_strays(p_worker, mine, owned, held);
    FOR one IN SELECT value FROM jsonb_array_elements(owned) LOOP
        IF NOT EXISTS (SELECT 1 FROM owners WHERE partition = (one->>0)::int
                AND app = one->>1 AND worker = p_worker AND session = mine)
            AND NOT fn_move_owner((one->>0)::int, one->>1, p_worker, mine, now_ms) THEN
            lost_owned := lost_owned || jsonb_build_array(one);
        END IF;
    END LOOP;
    SELECT * INTO calls_now FROM fn_renew_calls(held, p_worker, mine, now_ms);
    -- Only leases that a restarted server has left behind can end by time.
    IF EXISTS (SELECT 1 FROM sessions WHERE boot <> fn_boot()) THEN
        SELECT coalesce(jsonb_object_agg(e.partition, e.next_ms), '{}') INTO expiries FROM (
            SELECT p.partition, min(fn_next_expiry(p.partition, a.name, mine, now_ms)) AS next_ms
                FROM partitions p, unnest(p_apps) a(name) GROUP BY p.partition
        ) e WHERE e.next_ms IS NOT NULL;
    END IF;
    RETURN jsonb_build_object(
        'lost_owned', lost_owned, 'lost', calls_now.lost, 'cancelled', calls_now.cancelled,
        'members', fn_members(p_apps, mine, now_ms), 'hot', fn_hot(p_apps, mine, now_ms),
        'expiries', expiries);
END $$;
