-- A heartbeat over rows, as aaa/store/renewal.py has it: renew what is still held, tell what was lost.

local renewal = {}

-- A lease that has ended is not revived (G1).
local function renew_call(tx, worker, held)
  local run, call = rows.run_and_call(tx, held.run_id, held.request_id)
  local mine = call and guard.is_held(call) and call.holder == worker
    and call.attempt == held.attempt and call.due_ms > tx.now
  if not mine then return 'lost' end
  call.due_ms = tx.now + held.lease_ttl_ms
  rows.save_call(tx, call)
  return run.cancelling and 'cancelled' or 'held'
end

local function is_hot(tx, app)
  local timer = rows.next_timer(tx, app)
  return #rows.dirty(tx, app, 1) > 0 or rows.any_expired(tx, app)
    or (timer ~= nil and timer <= tx.now) or rows.any_ready(tx, app)
end

local function renew_owned(tx, worker, ttl_ms, app)
  local owner = rows.owner(tx, app)
  if not owner or owner.worker ~= worker or owner.until_ms <= tx.now then return false end
  rows.save_owner(tx, app, {worker = worker, term = owner.term, until_ms = tx.now + ttl_ms})
  return true
end

-- Fields: lost apps, then a letter for each call (h held, l lost, c cancelled), hot, next expiry.
function renewal.renew(tx, take)
  local worker, ttl_ms = take(), tonumber(take())
  local lost, verdicts = {}, {}
  for _ = 1, tonumber(take()) do
    local app = take()
    if not renew_owned(tx, worker, ttl_ms, app) then lost[#lost + 1] = app end
  end
  for i = 1, tonumber(take()) do
    local held = {
      run_id = take(), request_id = take(), attempt = tonumber(take()),
      lease_ttl_ms = tonumber(take()),
    }
    verdicts[i] = renew_call(tx, worker, held):sub(1, 1)
  end
  rows.flush(tx)
  local hot, expiry = false, nil
  for _ = 1, tonumber(take()) do
    local app = take()
    hot = hot or is_hot(tx, app)
    local next = rows.next_expiry(tx, app)
    if next then expiry = math.min(next, expiry or next) end
  end
  local fields = {#lost}
  wire.append(fields, lost)
  wire.append(fields, {table.concat(verdicts), hot and 1 or 0, expiry or ''})
  return fields
end

-- The workers that are alive, in a zset scored by when each will count as gone.
function renewal.member(key, take)
  local now = rows.now_ms()
  local worker, ttl_ms, apps, info = take(), tonumber(take()), take(), take()
  local gone = redis.call('ZRANGEBYSCORE', key, '-inf', now,
    'LIMIT', 0, 256)
  for _, name in ipairs(gone) do renewal.leave(key, name) end
  redis.call('ZADD', key, now + ttl_ms, worker)
  redis.call('HSET', key .. ':apps', worker, apps)
  -- Nothing said: what it said last stands.
  if info ~= '' then redis.call('HSET', key .. ':info', worker, info) end
  local fields = {}
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', key, '(' .. now, '+inf')) do
    wire.append(fields, {name, redis.call('HGET', key .. ':apps', name) or ''})
  end
  return fields
end

-- Read only. Fields: now, then name, apps and info of each worker that lives.
function renewal.members(key)
  local now = rows.now_ms()
  local fields = {now}
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', key, '(' .. now, '+inf')) do
    wire.append(fields, {
      name, redis.call('HGET', key .. ':apps', name) or '',
      redis.call('HGET', key .. ':info', name) or '{}',
    })
  end
  return fields
end

function renewal.leave(key, worker)
  redis.call('ZREM', key, worker)
  redis.call('HDEL', key .. ':apps', worker)
  redis.call('HDEL', key .. ':info', worker)
end
