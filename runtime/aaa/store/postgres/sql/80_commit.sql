-- The one entry point for changes: a batch of operations on one partition, in one transaction.

-- Telling sleepers. A commit with NOTIFY waits for every other one in the database, so one is sent
-- only to a listener that sleeps. It is told once; then it marks itself asleep again, and asks
-- afterwards which partitions have news. The lock makes that order certain: whoever commits holds
-- it shared until the commit is done, whoever falls asleep holds it alone. So a commit either is
-- seen by the question or finds the sleeper.
CREATE OR REPLACE FUNCTION fn_tell(me int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(@@sleep_class@@, 0);
    IF NOT EXISTS (SELECT 1 FROM listeners WHERE asleep AND session <> me) THEN RETURN; END IF;
    PERFORM 1 FROM listeners WHERE asleep AND session <> me ORDER BY session FOR UPDATE;
    UPDATE listeners SET asleep = false WHERE asleep AND session <> me;
    IF FOUND THEN PERFORM pg_notify(@@channel@@, ''); END IF;
END $$;

CREATE OR REPLACE FUNCTION fn_sleep(me int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(@@sleep_class@@, 0);
    INSERT INTO listeners VALUES (me, true)
        ON CONFLICT (session) DO UPDATE SET asleep = true;
END $$;

-- Whether unfolded runs or ready calls are left in the partition.
CREATE OR REPLACE FUNCTION fn_left(p int) RETURNS boolean LANGUAGE sql AS $$
    SELECT EXISTS (SELECT 1 FROM runs WHERE partition = p AND dirty > 0)
        OR EXISTS (SELECT 1 FROM calls WHERE partition = p AND state = 'ready' AND NOT shelved)
$$;

-- Returns a row for each operation, its payloads beside it, and a last row with the mark and
-- whether anything is left to do.
-- If a session that an operation rests on has ended, nothing is applied: the error names it.
CREATE OR REPLACE FUNCTION fn_commit(
    p int, seen bigint, ops jsonb, p_raws bytea[], p_sessions int[], me int
) RETURNS TABLE (verdict jsonb, raws bytea[], mark bigint) LANGUAGE plpgsql AS $$
DECLARE
    op jsonb;
    now_ms bigint;
    number int;
    is_left boolean;
    stirred boolean := false;
BEGIN
    UPDATE partitions SET mark = partitions.mark + 1,
            behind = CASE WHEN partitions.mark < seen THEN greatest(behind, seen) ELSE behind END
        WHERE partition = p;
    IF NOT FOUND THEN RAISE EXCEPTION 'aaa: no partition %', p; END IF;
    -- After the lock, which may have taken its time.
    FOREACH number IN ARRAY p_sessions LOOP
        IF fn_silent_since(number, 0) IS NOT NULL THEN
            RAISE EXCEPTION 'aaa: lease session % has ended', number
                USING ERRCODE = '@@gone_code@@', DETAIL = number::text;
        END IF;
    END LOOP;
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
            WHEN 'accept_loss' THEN verdict := fn_accept_loss(p, op, now_ms);
        END CASE;
        -- As aaa.store.port.stirs: looking for work is no news of work.
        stirred := stirred OR op->>'op' NOT IN ('claim', 'own', 'take')
            OR (op->>'op' = 'claim' AND jsonb_array_length(coalesce(verdict->'settled', '[]')) > 0);
        RETURN NEXT;
    END LOOP;
    is_left := stirred AND fn_left(p);
    IF is_left THEN
        UPDATE partitions SET woken = partitions.mark WHERE partition = p;
        PERFORM fn_tell(me);
    END IF;
    verdict := to_jsonb(is_left);
    raws := NULL;
    SELECT partitions.mark INTO mark FROM partitions WHERE partition = p;
    RETURN NEXT;
END $$;
