-- The rows beside runs: who owns an app's part of the partition, timers, and workers' offers.

local key = rows.key

function rows.owner(tx, app)
  local owner = tx.owners[app]
  if owner == nil then
    local packed = redis.call('HGET', tx.base .. 'o', app)
    owner = false
    if packed then
      local row = cmsgpack.unpack(packed)
      owner = {worker = row[1], term = row[2], until_ms = row[3]}
    end
    tx.owners[app] = owner
  end
  return owner or nil
end

function rows.save_owner(tx, app, owner)
  tx.owners[app] = owner
  tx.new_owners = tx.new_owners or {}
  tx.new_owners[app] = owner
end

function rows.timer_member(run_id, set_id, name_json)
  return run_id .. ' ' .. #set_id .. ' ' .. set_id .. ' ' .. name_json
end

function rows.add_timer(tx, run, set_id, name_json, due_ms)
  tx.new_timers = tx.new_timers or {}
  table.insert(tx.new_timers, {run, set_id, name_json, due_ms})
end

function rows.due_timers(tx, app, limit)
  local found = {}
  local members = redis.call('ZRANGEBYSCORE', key(tx, 't', app), '-inf',
    tx.now, 'LIMIT', 0, limit)
  for i, member in ipairs(members) do
    local run_id, length, rest = member:match('^(%S+) (%d+) (.*)$')
    local set_id, name_json = rest:sub(1, tonumber(length)), rest:sub(tonumber(length) + 2)
    found[i] = {app = app, member = member, set_id = set_id, run_id = run_id, name_json = name_json}
  end
  return found
end

function rows.drop_timer(tx, timer)
  tx.old_timers = tx.old_timers or {}
  table.insert(tx.old_timers, timer)
end

-- When the app's next timer is due, by the server's clock, or nil.
function rows.next_timer(tx, app)
  local first = redis.call('ZRANGE', key(tx, 't', app), 0, 0, 'WITHSCORES')
  return first[2] and tonumber(first[2])
end

-- {nonce, saved at, run, request, run, request, ...} of a worker's newest offer here.
function rows.last_offer(tx, worker)
  local packed = redis.call('HGET', tx.base .. 'f', worker)
  return packed and cmsgpack.unpack(packed) or nil
end

function rows.save_offer(tx, worker, nonce, got)
  local row = {nonce, tx.now}
  wire.append(row, got)
  tx.new_offer = {worker = worker, row = row}
end
