-- One partition's rows, and the unit of work of one operation.
--
-- A script has no rollback. So an operation only changes tables in memory, and `rows.flush` writes
-- all of it at its end: an operation that is refused, or that fails, has written nothing.
--
-- Keys, after the partition's base `<prefix>{p<number>}:`:
--   m               hash    mark, behind (G23), numbers of dirty runs and ready calls
--   r:<run>         hash    "." the run's row, "c<request>" its calls, "t<event>" its timers
--   e:<run>         list    its events, "time\ntype\nid\nparent\nraw"; the place is the seq
--   i:<run>         hash    event id -> seq
--   d:<app>         zset    runs whose log has moved past their cursor, longest waiting first
--   q:<n>:<app>:<queue>  zset  ready calls, "seq run request" by ready since; n is #app
--   Q:<app>         set     queues of the app that may have ready calls
--   l:<app>         zset    leased calls, "run request" by the lease's end
--   t:<app>         zset    timers, "run n event name" by due time; n is #event
--   o               hash    app -> owner, term, until
--   f               hash    worker -> its newest offer and what it got
--   x:all, x:open, x:waiting, x:unknown   zset  runs by time of creation

local rows = {}

local STATE_READY, STATE_LEASED, STATE_VERIFYING = 'r', 'l', 'v'

-- Whether a set of flags, a sum of powers of two, holds one of them.
local function has(flags, power)
  return flags % (2 * power) >= power
end

local function now_ms()
  local now = redis.call('TIME')
  return tonumber(now[1]) * 1000 + math.floor(tonumber(now[2]) / 1000)
end
rows.now_ms = now_ms

function rows.open(base)
  local now = now_ms()
  local tx = {base = base, now = now, stamp = wire.text(now) .. '\n', tick = 0}
  rows.forget(tx)
  return tx
end

-- Drop what is remembered and not written: after an operation that failed.
function rows.forget(tx)
  tx.runs, tx.calls, tx.seqs, tx.blobs, tx.owners = {}, {}, {}, {}, {}
  rows.begin(tx)
end

-- What one operation changes, until it is written. Of what is rare there is no table before there
-- is something to put into it.
function rows.begin(tx)
  tx.changed_runs, tx.changed_calls, tx.new_events = {}, {}, {}
  tx.erased, tx.new_timers, tx.old_timers, tx.new_owners, tx.new_offer = nil, nil, nil, nil, nil
end

local function key(tx, kind, name)
  return tx.base .. kind .. ':' .. name
end
rows.key = key

-- ------------------------------------------------------------------------------------ the mark

-- mark, behind, and how many runs are dirty and how many calls ready in the partition.
function rows.meta(tx)
  if not tx.meta then
    local stored = redis.call('HMGET', tx.base .. 'm', 'mark', 'behind', 'dirty', 'ready')
    tx.meta = {
      mark = tonumber(stored[1] or 0), behind = tonumber(stored[2] or 0),
      dirty = tonumber(stored[3] or 0), ready = tonumber(stored[4] or 0),
    }
    tx.stored_meta = {behind = tx.meta.behind, dirty = tx.meta.dirty, ready = tx.meta.ready}
  end
  return tx.meta
end

-- Written once a batch, at its end.
function rows.save_meta(tx)
  local meta = rows.meta(tx)
  local fields = {'mark', meta.mark}
  for name, stored in pairs(tx.stored_meta) do
    if meta[name] ~= stored then wire.append(fields, {name, meta[name]}) end
  end
  redis.call('HSET', tx.base .. 'm', unpack(fields))
end

-- ---------------------------------------------------------------------------------------- runs

-- Remember in which indexes a stored run stands, so that a change touches only what differs.
function rows.note_places(run)
  run.in_all = run.seq > 0 and not run.deleted
  run.in_open = run.in_all and run.status == 'open'
  run.in_waiting = run.in_all and run.awaiting > 0
  run.in_unknown = run.in_all and run.unknown > 0
  run.in_dirty = run.in_open and run.dirty
end

local function unpack_run(run_id, packed)
  local row = cmsgpack.unpack(packed)
  local flags = row[7]
  local run = {
    run_id = run_id, app = row[1], digest = row[2], status = row[3], seq = row[4],
    last_id = row[5], cursor = row[6], dirty = has(flags, 1), cancelling = has(flags, 2),
    suspended = has(flags, 4), parked = has(flags, 8), deleted = has(flags, 16),
    awaiting = row[8], unknown = row[9], ready = row[10], created_ms = row[11],
    closed_ms = row[12] > 0 and row[12] or nil,
  }
  rows.note_places(run)
  return run
end
rows.unpack_run = unpack_run

function rows.run(tx, run_id)
  local run = tx.runs[run_id]
  if run == nil then
    local packed = redis.call('HGET', key(tx, 'r', run_id), '.')
    run = packed and unpack_run(run_id, packed)
    tx.runs[run_id] = run
  end
  return run or nil
end

function rows.new_run(tx, run)
  tx.runs[run.run_id] = run
  tx.calls[run.run_id] = {}
  tx.seqs[run.run_id] = {}
end

function rows.save_run(tx, run)
  tx.changed_runs[run.run_id] = run
end

-- Drop the events, calls and timers of a run; its row stays.
function rows.erase_run(tx, run)
  local calls, timers = {}, {}
  local fields = redis.call('HGETALL', key(tx, 'r', run.run_id))
  for i = 1, #fields, 2 do
    local kind, name = fields[i]:sub(1, 1), fields[i]:sub(2)
    if kind == 'c' then
      calls[#calls + 1] = rows.call(tx, run, name)
    elseif kind == 't' then
      timers[#timers + 1] = rows.timer_member(run.run_id, name, fields[i + 1])
    end
  end
  tx.erased = {run = run, calls = calls, timers = timers} -- an operation erases one run at most
end

function rows.dirty(tx, app, limit)
  local found = {}
  for i, run_id in ipairs(redis.call('ZRANGE', key(tx, 'd', app), 0, limit - 1)) do
    found[i] = rows.run(tx, run_id)
  end
  return found
end

-- -------------------------------------------------------------------------------------- events

-- The seqs of these events, `false` for those that do not stand in the run.
function rows.seqs_of(tx, run_id, ids)
  local known, asked, found = tx.seqs[run_id], {}, {}
  if not known then
    known = {}
    tx.seqs[run_id] = known
  end
  local is_new = tx.runs[run_id] and tx.runs[run_id].in_all == nil
  for _, id in ipairs(ids) do
    if known[id] == nil and not is_new then asked[#asked + 1] = id end
  end
  for from = 1, #asked, 1000 do
    local upto = math.min(from + 999, #asked)
    local seqs = redis.call('HMGET', key(tx, 'i', run_id), unpack(asked, from, upto))
    for i = from, upto do
      known[asked[i]] = tonumber(seqs[i - from + 1] or nil) or false
    end
  end
  for i, id in ipairs(ids) do
    found[i] = known[id] or false
  end
  return found
end

function rows.seq_of(tx, run_id, id)
  return rows.seqs_of(tx, run_id, {id})[1]
end

-- The stored text of the event at a place.
function rows.blob(tx, run_id, seq)
  local fresh = tx.blobs[run_id]
  return fresh and fresh[seq] or redis.call('LINDEX', key(tx, 'e', run_id), seq - 1)
end

-- `body` is "type\nid\nparent\nraw".
function rows.add_event(tx, run, id, body)
  run.seq = run.seq + 1
  run.last_id = id
  local run_id = run.run_id
  local blob = tx.stamp .. body
  local new = tx.new_events[run_id]
  if not new then
    new = {blobs = {}, index = {}}
    tx.new_events[run_id] = new
  end
  new.blobs[#new.blobs + 1] = blob
  new.index[#new.index + 1] = id
  new.index[#new.index + 1] = run.seq
  tx.seqs[run_id] = tx.seqs[run_id] or {}
  tx.seqs[run_id][id] = run.seq
  tx.blobs[run_id] = tx.blobs[run_id] or {}
  tx.blobs[run_id][run.seq] = blob
  return run.seq
end

-- --------------------------------------------------------------------------------------- calls

local function unpack_call(run, request_id, packed)
  local row = cmsgpack.unpack(packed)
  local flags = row[9]
  local call = {
    run = run, request_id = request_id, seq = row[1], queue = row[2], call_json = row[3],
    name_json = row[4], key_json = row[5], args_digest = row[6], state = row[7], due_ms = row[8],
    verify = has(flags, 1), shelved = has(flags, 2), guarded = has(flags, 4),
    unknown = has(flags, 8), attempt = row[10], holder = row[11], nonce = row[12] or '',
    lease_ttl_ms = row[13] or 0, delivery = row[14] or '', cap = row[15] or 0,
    verifies = row[16] or 0, approval = row[17] or '', approval_until_ms = row[18] or 0,
  }
  call.in_ready = call.state == STATE_READY and not call.shelved
  call.in_leases = call.state == STATE_LEASED or call.state == STATE_VERIFYING
  call.stored_due_ms, call.was_ready = call.due_ms, call.state == STATE_READY
  call.stored_queue = call.queue
  return call
end

-- Load a run and one of its calls in one command.
function rows.run_and_call(tx, run_id, request_id)
  if tx.runs[run_id] == nil then
    local both = redis.call('HMGET', key(tx, 'r', run_id), '.', 'c' .. request_id)
    local run = both[1] and unpack_run(run_id, both[1])
    tx.runs[run_id] = run
    if run then
      tx.calls[run_id] = tx.calls[run_id] or {}
      tx.calls[run_id][request_id] = both[2] and unpack_call(run, request_id, both[2])
    end
  end
  local run = rows.run(tx, run_id)
  return run, run and rows.call(tx, run, request_id)
end

function rows.call(tx, run, request_id)
  local known = tx.calls[run.run_id]
  if not known then
    known = {}
    tx.calls[run.run_id] = known
  end
  local call = known[request_id]
  if call == nil then
    local packed = redis.call('HGET', key(tx, 'r', run.run_id), 'c' .. request_id)
    call = packed and unpack_call(run, request_id, packed)
    known[request_id] = call
  end
  return call or nil
end

function rows.save_call(tx, call)
  tx.calls[call.run.run_id] = tx.calls[call.run.run_id] or {}
  tx.calls[call.run.run_id][call.request_id] = call
  tx.changed_calls[call] = true
end

-- The ready calls of a run, the shelved ones and those that this operation opened included.
function rows.ready_of(tx, run)
  local found = {}
  if run.ready > 0 then
    for _, call in ipairs(rows.calls(tx, run)) do
      if call.state == 'r' then found[#found + 1] = call end
    end
    return found
  end
  for call in pairs(tx.changed_calls) do -- seldom more than one turn's
    if call.run == run and call.state == 'r' then found[#found + 1] = call end
  end
  return found
end

-- All calls of a run, in the order of their requests; those that this operation opened included.
function rows.calls(tx, run)
  local found, seen = {}, {}
  for _, field in ipairs(redis.call('HKEYS', key(tx, 'r', run.run_id))) do
    if field:sub(1, 1) == 'c' then
      local call = rows.call(tx, run, field:sub(2))
      found[#found + 1] = call
      seen[call] = true
    end
  end
  for call in pairs(tx.changed_calls) do
    if call.run == run and not seen[call] then found[#found + 1] = call end
  end
  table.sort(found, function(a, b) return a.seq < b.seq end)
  return found
end

function rows.queue_key(tx, app, queue)
  return tx.base .. 'q:' .. #app .. ':' .. app .. ':' .. queue
end

function rows.ready_member(call)
  return string.format('%010d %s %s', call.seq, call.run.run_id, call.request_id)
end

function rows.lease_member(call)
  return call.run.run_id .. ' ' .. call.request_id
end

-- Ready calls that are not shelved, longest waiting first.
function rows.ready(tx, app, queue, limit)
  local found = {}
  for _, member in ipairs(redis.call('ZRANGE', rows.queue_key(tx, app, queue), 0, limit - 1)) do
    local run_id, request_id = member:match('^%d+ (%S+) (.*)$')
    local _, call = rows.run_and_call(tx, run_id, request_id)
    if call then found[#found + 1] = call end
  end
  return found
end

function rows.any_ready(tx, app)
  for _, queue in ipairs(redis.call('SMEMBERS', key(tx, 'Q', app))) do
    if redis.call('EXISTS', rows.queue_key(tx, app, queue)) == 1 then return true end
    redis.call('SREM', key(tx, 'Q', app), queue)
  end
  return false
end

-- Leased calls whose lease has ended, longest ended first.
function rows.expired(tx, app, limit)
  local found = {}
  local members = redis.call('ZRANGEBYSCORE', key(tx, 'l', app), '-inf',
    tx.now, 'LIMIT', 0, limit)
  for _, member in ipairs(members) do
    local run_id, request_id = member:match('^(%S+) (.*)$')
    local _, call = rows.run_and_call(tx, run_id, request_id)
    if call then found[#found + 1] = call end
  end
  return found
end

function rows.any_expired(tx, app)
  local first = redis.call('ZRANGE', key(tx, 'l', app), 0, 0, 'WITHSCORES')
  return first[2] ~= nil and tonumber(first[2]) <= tx.now
end

-- When the next lease that has not ended yet will end: milliseconds from now, or nil.
function rows.next_expiry(tx, app)
  local next = redis.call('ZRANGEBYSCORE', key(tx, 'l', app), '(' .. tx.now,
    '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  return next[2] and math.max(0, tonumber(next[2]) - tx.now)
end

-- Every call of the partition that is neither settled nor waiting.
function rows.open_calls(tx)
  local found = {}
  for _, run_id in ipairs(redis.call('ZRANGE', tx.base .. 'x:all', 0, -1)) do
    local run = rows.run(tx, run_id)
    for _, call in ipairs(run and rows.calls(tx, run) or {}) do
      if call.state ~= 's' then found[#found + 1] = call end
    end
  end
  return found
end
