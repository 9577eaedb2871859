-- Writing what an operation has changed: rows, and the indexes that they stand in.

local STATE_READY, STATE_LEASED, STATE_VERIFYING = 'r', 'l', 'v'

-- One command takes no more values than Lua can unpack at once.
local function chunked(command, name, values)
  for from = 1, #values, 1000 do
    redis.call(command, name, unpack(values, from, math.min(from + 999, #values)))
  end
end

-- Flags as a sum of powers of two.
local function sum(...)
  local flags, power = 0, 1
  for i = 1, select('#', ...) do
    if select(i, ...) then flags = flags + power end
    power = power * 2
  end
  return flags
end

local function pack_run(run)
  return cmsgpack.pack({
    run.app, run.digest, run.status, run.seq, run.last_id, run.cursor,
    sum(run.dirty, run.cancelling, run.suspended, run.parked, run.deleted),
    run.awaiting, run.unknown, run.ready, run.created_ms, run.closed_ms or 0,
  })
end

-- A settled call keeps what a late outcome or a person may still ask for, and nothing else.
local function pack_call(call)
  if call.state == 's' then
    return cmsgpack.pack({
      call.seq, call.queue, call.call_json, call.name_json, '', call.args_digest, 's', 0,
      sum(false, false, call.guarded, call.unknown), call.attempt, call.holder,
    })
  end
  return cmsgpack.pack({
    call.seq, call.queue, call.call_json, call.name_json, call.key_json, call.args_digest,
    call.state, call.due_ms, sum(call.verify, call.shelved, call.guarded, call.unknown),
    call.attempt, call.holder, call.nonce, call.lease_ttl_ms, call.delivery, call.cap,
    call.verifies, call.approval, call.approval_until_ms,
  })
end

-- A worker is an incarnation of a process, so offers of those that are gone have to be dropped.
local function prune_offers(tx)
  local offers = redis.call('HGETALL', tx.base .. 'f')
  for i = 1, #offers, 2 do
    if cmsgpack.unpack(offers[i + 1])[2] < tx.now - 86400000 then
      redis.call('HDEL', tx.base .. 'f', offers[i])
    end
  end
end

-- A hint for other processes; the process that sent the batch wakes itself.
local function wake_owner(tx, app)
  local owner = rows.owner(tx, app)
  local here = owner and owner.until_ms > tx.now and owner.worker == tx.origin
  if not here then tx.wake = true end
end

local function join_queue(tx, call)
  local app, meta = call.run.app, rows.meta(tx)
  meta.ready = meta.ready
    + redis.call('ZADD', rows.queue_key(tx, app, call.queue), call.due_ms, rows.ready_member(call))
  redis.call('SADD', key(tx, 'Q', app), call.queue)
  tx.wake = true
end

-- The queue that it stands in, which may be another than the one that it belongs to now.
local function leave_queue(tx, call)
  local meta, queue = rows.meta(tx), rows.queue_key(tx, call.run.app, call.stored_queue)
  meta.ready = meta.ready - redis.call('ZREM', queue, rows.ready_member(call))
end

local function flush_erased(tx)
  local run = tx.erased.run
  local run_id, app = run.run_id, run.app
  for _, call in ipairs(tx.erased.calls) do
    if call.in_ready then leave_queue(tx, call) end
    if call.in_leases then redis.call('ZREM', key(tx, 'l', app), rows.lease_member(call)) end
  end
  for _, member in ipairs(tx.erased.timers) do redis.call('ZREM', key(tx, 't', app), member) end
  redis.call('DEL', key(tx, 'e', run_id), key(tx, 'i', run_id), key(tx, 'r', run_id))
  tx.calls[run_id], tx.seqs[run_id], tx.blobs[run_id] = nil, nil, nil
end

local function flush_events(tx)
  for run_id, new in pairs(tx.new_events) do
    chunked('RPUSH', key(tx, 'e', run_id), new.blobs)
    chunked('HSET', key(tx, 'i', run_id), new.index)
  end
end

-- Every operation that makes a call ready, or not ready any more, saves its run as well.
local function count_ready(call)
  local run, is_ready = call.run, call.state == STATE_READY
  if is_ready and not call.was_ready then run.ready = run.ready + 1 end
  if call.was_ready and not is_ready then run.ready = run.ready - 1 end
  call.was_ready = is_ready
end

local function place_call(tx, call)
  local app = call.run.app
  local ready = call.state == STATE_READY and not call.shelved
  local leased = call.state == STATE_LEASED or call.state == STATE_VERIFYING
  local moved = call.stored_queue ~= call.queue
  if call.in_ready and (moved or not ready) then leave_queue(tx, call) end
  if ready and (moved or not call.in_ready) then join_queue(tx, call) end
  if leased and not (call.in_leases and call.stored_due_ms == call.due_ms) then
    redis.call('ZADD', key(tx, 'l', app), call.due_ms, rows.lease_member(call))
  elseif call.in_leases and not leased then
    redis.call('ZREM', key(tx, 'l', app), rows.lease_member(call))
  end
  call.in_ready, call.in_leases, call.stored_due_ms = ready, leased, call.due_ms
  call.stored_queue = call.queue
end

local function place_in(tx, run, list, was, is)
  if is and not was then
    redis.call('ZADD', tx.base .. list, run.created_ms, run.run_id)
  elseif was and not is then
    redis.call('ZREM', tx.base .. list, run.run_id)
  end
end

local function place_run(tx, run)
  local all, open, waiting, unknown, dirty =
    run.in_all, run.in_open, run.in_waiting, run.in_unknown, run.in_dirty
  rows.note_places(run)
  place_in(tx, run, 'x:all', all, run.in_all)
  place_in(tx, run, 'x:open', open, run.in_open)
  place_in(tx, run, 'x:waiting', waiting, run.in_waiting)
  place_in(tx, run, 'x:unknown', unknown, run.in_unknown)
  if run.in_dirty and not dirty then
    -- By the order of batches and of operations in them: finer than a clock of milliseconds.
    local meta = rows.meta(tx)
    local place = meta.mark * 1024 + math.min(tx.tick, 1023)
    meta.dirty = meta.dirty + redis.call('ZADD', key(tx, 'd', run.app), place, run.run_id)
  elseif dirty and not run.in_dirty then
    rows.meta(tx).dirty = rows.meta(tx).dirty
      - redis.call('ZREM', key(tx, 'd', run.app), run.run_id)
  end
  if run.in_dirty then wake_owner(tx, run.app) end
end

local function flush_rows(tx)
  local written = {}
  for run_id, run in pairs(tx.changed_runs) do
    written[run_id] = {'.', pack_run(run)}
  end
  for call in pairs(tx.changed_calls) do
    local run_id = call.run.run_id
    local fields = written[run_id] or {}
    written[run_id] = fields
    fields[#fields + 1] = 'c' .. call.request_id
    fields[#fields + 1] = pack_call(call)
  end
  for run_id, fields in pairs(written) do
    chunked('HSET', key(tx, 'r', run_id), fields)
  end
end

local function flush_timers(tx)
  for _, timer in ipairs(tx.new_timers or {}) do
    local run, set_id, name_json, due_ms = unpack(timer)
    redis.call('HSET', key(tx, 'r', run.run_id), 't' .. set_id, name_json)
    redis.call('ZADD', key(tx, 't', run.app), due_ms,
      rows.timer_member(run.run_id, set_id, name_json))
  end
  for _, timer in ipairs(tx.old_timers or {}) do
    redis.call('ZREM', key(tx, 't', timer.app), timer.member)
    redis.call('HDEL', key(tx, 'r', timer.run_id), 't' .. timer.set_id)
  end
end

local function flush_owners(tx)
  for app, owner in pairs(tx.new_owners) do
    redis.call('HSET', tx.base .. 'o', app,
      cmsgpack.pack({owner.worker, owner.term, owner.until_ms}))
  end
end

local function flush_offer(tx)
  local offers, offer = tx.base .. 'f', tx.new_offer
  local added = redis.call('HSET', offers, offer.worker, cmsgpack.pack(offer.row))
  if added == 1 and redis.call('HLEN', offers) % 64 == 0 then prune_offers(tx) end
end

-- Write all that the operation has changed.
function rows.flush(tx)
  tx.tick = tx.tick + 1
  for call in pairs(tx.changed_calls) do count_ready(call) end
  if tx.erased then flush_erased(tx) end
  flush_events(tx)
  flush_rows(tx)
  if tx.new_timers or tx.old_timers then flush_timers(tx) end
  for call in pairs(tx.changed_calls) do place_call(tx, call) end
  for _, run in pairs(tx.changed_runs) do place_run(tx, run) end
  if tx.new_owners then flush_owners(tx) end
  if tx.new_offer then flush_offer(tx) end
  rows.begin(tx)
end
