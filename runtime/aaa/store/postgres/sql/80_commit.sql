-- The one entry point for changes: a batch of operations on one partition, in one transaction.

-- Whether anything in the partition waits for somebody.
CREATE OR REPLACE FUNCTION fn_waiting(p int) RETURNS boolean LANGUAGE sql AS $$
    SELECT EXISTS (SELECT 1 FROM runs WHERE partition = p AND dirty > 0)
        OR EXISTS (SELECT 1 FROM calls WHERE partition = p AND state = 'ready' AND NOT shelved)
$$;

-- Returns a row for each operation, its payloads beside it, and a last row with the mark.
-- If a session that an operation rests on has ended, nothing is applied: one row says which.
CREATE OR REPLACE FUNCTION fn_commit(
    p int, seen bigint, ops jsonb, p_raws bytea[], p_sessions int[], p_listener int
) RETURNS TABLE (verdict jsonb, raws bytea[], mark bigint) LANGUAGE plpgsql AS $$
DECLARE
    op jsonb;
    now_ms bigint;
    number int;
    others boolean := EXISTS (SELECT 1 FROM listeners WHERE session <> p_listener);
    waited boolean := true;
BEGIN
    UPDATE partitions SET mark = partitions.mark + 1,
            behind = CASE WHEN partitions.mark < seen THEN greatest(behind, seen) ELSE behind END
        WHERE partition = p;
    IF NOT FOUND THEN RAISE EXCEPTION 'aaa: no partition %', p; END IF;
    -- After the lock, which may have taken its time.
    FOREACH number IN ARRAY p_sessions LOOP
        IF fn_silent_since(number, 0) IS NOT NULL THEN
            UPDATE partitions SET mark = partitions.mark - 1 WHERE partition = p;
            verdict := jsonb_build_object('v', 'gone', 'session', number);
            RETURN NEXT;
            RETURN;
        END IF;
    END LOOP;
    IF others THEN waited := fn_waiting(p); END IF;
    FOR op IN SELECT value FROM jsonb_array_elements(ops) LOOP
        now_ms := fn_now_ms();
        raws := '{}';
        CASE op->>'op'
            WHEN 'append' THEN
                SELECT f.verdict, f.raws INTO verdict, raws FROM fn_append(p, op, p_raws, now_ms) f;
            WHEN 'settle' THEN
                SELECT f.verdict, f.raws INTO verdict, raws FROM fn_settle(p, op, p_raws, now_ms) f;
            WHEN 'claim' THEN
                SELECT f.verdict, f.raws INTO verdict, raws FROM fn_claim(p, op, now_ms) f;
            WHEN 'take' THEN verdict := fn_take(p, op, now_ms);
            WHEN 'own' THEN verdict := fn_own(p, op, now_ms);
            WHEN 'create' THEN
                SELECT f.verdict, f.raws INTO verdict, raws FROM fn_create(p, op, p_raws, now_ms) f;
            WHEN 'release' THEN verdict := fn_release(p, op, now_ms);
            WHEN 'disown' THEN verdict := fn_disown(p, op);
            WHEN 'delete' THEN verdict := fn_delete(p, op, now_ms);
            WHEN 'accept_loss' THEN verdict := fn_accept_loss(p, now_ms);
        END CASE;
        RETURN NEXT;
    END LOOP;
    -- A commit with NOTIFY waits for every other one in the database. So it is sent only when
    -- somebody else listens, and only when a partition in which nothing waited gets something.
    IF NOT waited AND fn_waiting(p) THEN
        PERFORM pg_notify(@@channel@@, p::text);
    END IF;
    verdict := NULL;
    raws := NULL;
    SELECT partitions.mark INTO mark FROM partitions WHERE partition = p;
    RETURN NEXT;
END $$;
