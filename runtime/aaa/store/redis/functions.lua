-- The functions of the library. KEYS[1] is a partition's base, and names its slot in a cluster.

local function apply(tx, op)
  local verdict = logic.apply(tx, op)
  rows.flush(tx)
  return verdict
end

-- Apply operations in order, each as a whole or not at all.
-- Arguments: origin, seen, channel's word, number of operations, the operations.
-- Fields: the mark, whether runs are dirty or calls ready now, then for each operation the number of its verdict's fields, and these.
local function commit(keys, args)
  local take = wire.reader(args)
  local tx = rows.open(keys[1])
  tx.origin = take()
  local seen, spublish = tonumber(take()), take()
  local ops = {}
  for i = 1, tonumber(take()) do ops[i] = wire.operation(take) end
  logic.check_mark(tx, seen)
  local fields = {0, 0}
  for _, op in ipairs(ops) do
    local ok, verdict = pcall(apply, tx, op)
    if not ok then
      local text = type(verdict) == 'table' and verdict.err or tostring(verdict)
      verdict = {'error', text}
      rows.forget(tx)
    end
    fields[#fields + 1] = #verdict
    wire.append(fields, verdict)
  end
  rows.save_meta(tx)
  local meta = rows.meta(tx)
  local hot = meta.dirty > 0 or meta.ready > 0
  fields[1], fields[2] = meta.mark, hot and 1 or 0
  if hot and tx.wake then redis.call(spublish, keys[1] .. 'wake', tx.origin) end
  return wire.pack(fields)
end

local function pulse(keys, args)
  return wire.pack(renewal.renew(rows.open(keys[1]), wire.reader(args)))
end

local function member(keys, args)
  return wire.pack(renewal.member(keys[1], wire.reader(args)))
end

local function leave(keys, args)
  renewal.leave(keys[1], args[1])
  return ''
end

-- What the store is, written by the first that opens it. Arguments: field, value, field, value ...
local function meta(keys, args)
  if redis.call('EXISTS', keys[1]) == 0 then redis.call('HSET', keys[1], unpack(args)) end
  return wire.pack(redis.call('HGETALL', keys[1]))
end

-- Every command that the library uses, on keys that hold nothing else. A user who lacks one would
-- otherwise learn it in the middle of an operation, when a part of it is written.
local function permitted(keys, args)
  local k = keys[1]
  local tries = {
    {'HSET', k .. 'h', 'a', '1'}, {'HGET', k .. 'h', 'a'}, {'HMGET', k .. 'h', 'a'},
    {'HGETALL', k .. 'h'}, {'HKEYS', k .. 'h'}, {'HLEN', k .. 'h'}, {'HDEL', k .. 'h', 'a'},
    {'RPUSH', k .. 'l', 'a'}, {'LINDEX', k .. 'l', '0'}, {'LRANGE', k .. 'l', '0', '-1'},
    {'ZADD', k .. 'z', '1', 'a'}, {'ZRANGE', k .. 'z', '0', '-1'},
    {'ZRANGEBYSCORE', k .. 'z', '-inf', '+inf'}, {'ZREVRANGE', k .. 'z', '0', '-1'},
    {'ZREM', k .. 'z', 'a'}, {'SADD', k .. 's', 'a'}, {'SMEMBERS', k .. 's'},
    {'SREM', k .. 's', 'a'}, {'EXISTS', k .. 'h'}, {args[1], k .. 'wake', ''},
    {'DEL', k .. 'h', k .. 'l', k .. 'z', k .. 's'},
  }
  for _, try in ipairs(tries) do
    local reply = redis.pcall(unpack(try))
    if type(reply) == 'table' and reply.err then
      return wire.pack({try[1]:lower(), reply.err})
    end
  end
  return wire.pack({''})
end

local function register(name, callback)
  redis.register_function(K.LIBRARY .. '_' .. name, callback)
end

local function register_read(name, read)
  redis.register_function{
    function_name = K.LIBRARY .. '_' .. name,
    callback = function(keys, args) return wire.pack(read(keys[1], wire.reader(args))) end,
    flags = {'no-writes'},
  }
end

register('commit', commit)
register('pulse', pulse)
register('member', member)
register('leave', leave)
register('meta', meta)
register('permitted', permitted)
register_read('events', reads.events)
register_read('run', reads.run)
register_read('runs', reads.runs)
register_read('members', renewal.members)
