-- Reads: a page of a run's events, a run's row, a page of a partition's runs.

local reads = {}

-- Fields: more, then the stored texts of the events at `after` + 1, `after` + 2 ...
-- A page ends after `K.PAGE_BYTES`, so that no reply stalls the server or the client.
function reads.events(base, take)
  local run_id, after, limit = take(), tonumber(take()), tonumber(take())
  local fields, bytes, batch = {0}, 0, 64
  while limit > 0 do
    local want = math.min(limit, batch)
    local blobs = redis.call('LRANGE', base .. 'e:' .. run_id, after, after + want - 1)
    for _, blob in ipairs(blobs) do
      fields[#fields + 1] = blob
      bytes = bytes + #blob
    end
    after, limit = after + want, limit - want
    if #blobs < want then return fields end
    if bytes >= K.PAGE_BYTES then
      fields[1] = limit > 0 and 1 or 0
      return fields
    end
  end
  return fields
end

local function put_run(fields, run)
  wire.append(fields, {
    run.run_id, run.app, run.digest, run.status, run.seq, run.last_id, run.cursor,
    run.cancelling and 1 or 0, run.suspended and 1 or 0, run.parked and 1 or 0,
    run.deleted and 1 or 0, run.awaiting, run.unknown, run.created_ms, run.closed_ms or '',
  })
end

function reads.run(base, take)
  local run_id, fields = take(), {}
  local packed = redis.call('HGET', base .. 'r:' .. run_id, '.')
  if packed then put_run(fields, rows.unpack_run(run_id, packed)) end
  return fields
end

-- Fields: the place to go on from ("" at the end), then the runs, newest first.
function reads.runs(base, take)
  local list, app, status, from, count = take(), take(), take(), tonumber(take()), tonumber(take())
  local fields = {''}
  local ids = redis.call('ZREVRANGE', base .. 'x:' .. list, from, from + count - 1)
  for _, run_id in ipairs(ids) do
    local packed = redis.call('HGET', base .. 'r:' .. run_id, '.')
    local run = packed and rows.unpack_run(run_id, packed)
    if run and (app == '' or run.app == app) and (status == '' or run.status == status) then
      put_run(fields, run)
    end
  end
  if #ids == count then fields[1] = from + count end
  return fields
end
