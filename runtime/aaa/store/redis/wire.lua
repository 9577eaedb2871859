-- Arguments in, replies out.
--
-- Arguments come flat, one after the other. A reply is one string: the lengths of its fields in the
-- first line, then the fields. One string is one element for the client's parser, and no byte of a
-- payload is ever escaped, converted or looked at.

local wire = {}

-- A function that gives the next argument at each call.
function wire.reader(args)
  local at = 0
  return function()
    at = at + 1
    return args[at]
  end
end

local function number(take)
  return tonumber(take())
end

local function flag(take)
  return take() == '1'
end

-- Formatting a number costs as much as a command; most numbers here are small and come again.
local texts = {}

-- A whole number below 10^14, a time or a count, as text.
function wire.text(value)
  local text = texts[value]
  if not text then
    text = tostring(value)
    if value < 1024 then texts[value] = text end
  end
  return text
end

function wire.pack(fields)
  local lengths, text = {}, wire.text
  for i = 1, #fields do
    local field = fields[i]
    if type(field) ~= 'string' then
      field = text(field)
      fields[i] = field
    end
    lengths[i] = text(#field)
  end
  return table.concat(lengths, ',') .. '\n' .. table.concat(fields)
end

function wire.append(fields, more)
  local n = #fields
  for i = 1, #more do
    fields[n + i] = more[i]
  end
end

-- How each effect of an event is written down; the order is that of the client's encoder.
local EFFECTS = {
  none = function() return nil end,
  open = function(take)
    return {
      kind = 'open', queue = take(), call_json = take(), name_json = take(), key_json = take(),
      args_digest = take(), needs_approval = flag(take), verify = flag(take),
    }
  end,
  drop = function(take) return {kind = 'drop', request_id = take()} end,
  grant = function(take)
    return {kind = 'grant', request_id = take(), args_digest = take(), for_ms = number(take)}
  end,
  hold = function(take) return {kind = 'hold', request_id = take()} end,
  resolve = function(take) return {kind = 'resolve', request_id = take()} end,
  flag = function(take) return {kind = 'flag', name = take()} end,
  require = function(take) return {kind = 'require', policy = take()} end,
  close = function(take) return {kind = 'close', status = take()} end,
  timer = function(take) return {kind = 'timer', name_json = take(), after_ms = number(take)} end,
}

-- An event as the client wrote it: `body` is "type\nid\nparent\nraw".
local function entries(take)
  local list = {}
  for i = 1, number(take) do
    local id, body = take(), take()
    list[i] = {id = id, body = body, effect = EFFECTS[take()](take)}
  end
  return list
end

local function offer(take)
  local o = {
    worker = take(), worker_json = take(), nonce = take(), limit = number(take),
    queues = {}, terms = {},
  }
  for i = 1, number(take) do
    local queue = take()
    o.queues[i] = queue
    o.terms[queue] = {
      delivery = take(), max_attempts = number(take), lease_ttl_ms = number(take),
      guarded = flag(take), needs_approval = flag(take), policy_json = take(),
    }
  end
  return o
end

local OPERATIONS = {
  create = function(take)
    return {run_id = take(), app = take(), digest = take(), entries = entries(take)}
  end,
  append = function(take)
    local op = {run_id = take(), entries = entries(take)}
    if flag(take) then op.at = {seq = number(take), last_id = take()} end
    if flag(take) then op.term, op.worker = number(take), take() end
    op.rests_on, op.settler = {}, nil
    local pairs_of = number(take)
    op.settler = take()
    for i = 1, pairs_of do op.rests_on[i] = {request_id = take(), attempt = number(take)} end
    if flag(take) then op.offer = offer(take) end
    return op
  end,
  claim = function(take) return {app = take(), offer = offer(take)} end,
  settle = function(take)
    return {
      run_id = take(), request_id = take(), attempt = number(take), worker = take(),
      id = take(), body = take(), fence = flag(take), unknown = flag(take),
    }
  end,
  release = function(take)
    return {run_id = take(), request_id = take(), attempt = number(take), worker = take()}
  end,
  own = function(take) return {app = take(), worker = take(), ttl_ms = number(take)} end,
  disown = function(take) return {app = take(), worker = take()} end,
  take = function(take)
    return {app = take(), worker = take(), term = number(take), limit = number(take)}
  end,
  delete = function(take) return {run_id = take(), force = flag(take)} end,
  accept_loss = function(take) return {force = flag(take), by_json = take()} end,
}

function wire.operation(take)
  local name = take()
  local op = OPERATIONS[name](take)
  op.name = name
  return op
end
