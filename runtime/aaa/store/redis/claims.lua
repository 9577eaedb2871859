-- Claiming, as aaa/store/claims.py has it, function by function.
--
-- Events that the store writes itself are spliced from JSON texts that came with the request, in
-- canonical key order: the same bytes as every other backend writes, and nothing is decoded.

local claims = {}

local function is_tool(queue)
  return queue:sub(1, #K.TOOL_QUEUE) == K.TOOL_QUEUE
end
claims.is_tool = is_tool

-- The same queue under another policy; '': under none in particular.
function claims.under_policy(queue, policy)
  local bare = queue:match('^[^' .. K.POLICY_MARK .. ']*')
  return policy == '' and bare or bare .. K.POLICY_MARK .. policy
end

-- The text of an event whose parent is the first part of its id: "=n" stands for n characters.
function claims.body(type_, parent, suffix, raw)
  return table.concat({type_, parent .. suffix, '=' .. #parent, raw}, '\n')
end

function claims.attempt_suffix(attempt)
  return string.format(':attempt:%d', attempt)
end

-- Whether this very offer claimed the call and it is still running under it.
function claims.holds(call, offer)
  return guard.is_held(call) and call.holder == offer.worker and call.nonce == offer.nonce
end

-- The reply for a call that is held: ten fields.
function claims.as_claimed(tx, call)
  local run_id = call.run.run_id
  local request = rows.blob(tx, run_id, call.seq)
  if not request then error('run ' .. run_id .. ': call without its request ' .. call.request_id) end
  local verifying = call.state == 'v'
  local started = false
  if not verifying and call.attempt > 0 and call.guarded and is_tool(call.queue) then
    started = rows.seq_of(tx, run_id, call.request_id .. claims.attempt_suffix(call.attempt))
  end
  return {
    run_id, call.seq, request, call.attempt, verifying and 'verify' or 'run', call.lease_ttl_ms,
    call.delivery, started or 0, started and rows.blob(tx, run_id, started) or '', call.queue,
  }
end

local function record_start(tx, run, call, policy_json, worker_json)
  local raw = table.concat({
    string.format('{"attempt":%d,"call_id":', call.attempt), call.call_json,
    ',"idempotency_key":', call.key_json, ',"name":', call.name_json,
    ',"policy":', policy_json, ',"worker":', worker_json, '}',
  })
  local suffix = claims.attempt_suffix(call.attempt)
  rows.add_event(tx, run, call.request_id .. suffix,
    claims.body(K.TOOL_STARTED, call.request_id, suffix, raw))
end

-- Lease the call and begin an attempt (or ask verify=). The caller saves the run.
local function start(tx, run, call, terms, offer, verify)
  call.delivery, call.cap = guard.in_force(call, terms)
  guard.take(call, verify and 'verify' or 'start')
  call.holder, call.nonce = offer.worker, offer.nonce
  call.lease_ttl_ms = terms.lease_ttl_ms
  call.due_ms = tx.now + terms.lease_ttl_ms
  if verify then
    call.verifies = call.verifies + 1
  else
    -- As it began it goes on: its records have no gap (G3, G18).
    if call.attempt == 0 then call.guarded = terms.guarded end
    call.attempt = call.attempt + 1
    if call.approval == 'granted' then call.approval = 'used' end
    if call.guarded and is_tool(call.queue) then
      record_start(tx, run, call, terms.policy_json, offer.worker_json)
    end
  end
  rows.save_call(tx, call)
end

-- Claim what a decision has just opened, as far as the offer goes.
function claims.claim_opened(tx, run, opened, offer)
  local claimed = {}
  if not offer or rows.meta(tx).behind > 0 then return claimed end
  for _, call in ipairs(opened) do
    local terms = offer.terms[call.queue]
    if terms and #claimed < offer.limit and call.state == 'r' then
      if guard.judge(call, terms, tx.now) == 'start' then
        start(tx, run, call, terms, offer, false)
        claimed[#claimed + 1] = claims.as_claimed(tx, call)
      end
    end
  end
  return claimed
end

-- Write the one result of a call whose attempt was lost (G4, G5).
function claims.lose(tx, run, call, step, by_json)
  local unknown, tool = step == 'lost', is_tool(call.queue)
  local raw = table.concat({
    '{', by_json and '"accepted_by":' .. by_json .. ',' or '',
    string.format('"attempt":%d,"call_id":', call.attempt), call.call_json,
    ',"effect":"unknown","error":"', unknown and 'OutcomeUnknown' or 'ExecutionAbandoned',
    '","message":', unknown and K.UNKNOWN_JSON or K.ABANDONED_JSON,
    ',"name":', call.name_json, '}',
  })
  rows.add_event(tx, run, call.request_id .. ':result',
    claims.body(tool and K.TOOL_FAILED or K.LLM_FAILED, call.request_id, ':result', raw))
  if call.state == 'w' then run.awaiting = run.awaiting - 1 end
  call.state = 's' -- from any state, when a person accepts a loss
  call.holder = '' -- no attempt's: nobody's outcome is the result
  call.unknown = tool
  if tool then run.unknown = run.unknown + 1 end
  if run.status == 'open' then run.dirty = true end
  rows.save_call(tx, call)
  rows.save_run(tx, run)
end

local function take_over(tx, op, claimed)
  local settled = {}
  for _, call in ipairs(rows.expired(tx, op.app, K.SCAN_LIMIT)) do
    local run = call.run
    if not run.deleted then
      local terms = op.offer.terms[call.queue]
      local step = guard.judge(call, terms, tx.now)
      if step == 'lost' or step == 'abandon' then
        claims.lose(tx, run, call, step)
        settled[#settled + 1] = run.run_id
      elseif terms and step ~= 'skip' and #claimed < op.offer.limit then
        start(tx, run, call, terms, op.offer, step == 'verify')
        rows.save_run(tx, run)
        claimed[#claimed + 1] = call
      end
    end
  end
  return settled
end

local function waiting_calls(tx, op, limit)
  local waiting = {}
  for _, queue in ipairs(op.offer.queues) do
    for _, call in ipairs(rows.ready(tx, op.app, queue, limit)) do
      waiting[#waiting + 1] = call
      call.place = #waiting
    end
  end
  table.sort(waiting, function(a, b)
    if a.due_ms ~= b.due_ms then return a.due_ms < b.due_ms end
    if a.seq ~= b.seq then return a.seq < b.seq end
    return a.place < b.place
  end)
  return waiting
end

local function take_ready(tx, op, claimed)
  local held, limit = {}, op.offer.limit
  for _, call in ipairs(waiting_calls(tx, op, limit - #claimed + 1)) do
    local terms = op.offer.terms[call.queue]
    local step = guard.judge(call, terms, tx.now)
    if step == 'hold' then
      held[#held + 1] = claims.as_claimed(tx, call)
    elseif step == 'start' then
      if #claimed >= limit then return held, true end
      start(tx, call.run, call, terms, op.offer, false)
      rows.save_run(tx, call.run)
      claimed[#claimed + 1] = call
    end
  end
  return held, false
end

local function as_verdict(tx, op, claimed, settled, held, more)
  local expiry = rows.next_expiry(tx, op.app)
  local fields = {'claims', #claimed}
  for _, one in ipairs(claimed) do wire.append(fields, one) end
  fields[#fields + 1] = #settled
  wire.append(fields, settled)
  fields[#fields + 1] = #held
  for _, one in ipairs(held) do wire.append(fields, one) end
  fields[#fields + 1] = more and 1 or 0
  fields[#fields + 1] = expiry or ''
  return fields
end

-- The same offer again, after a lost reply: the same claims, nothing changed.
local function claim_again(tx, op, last)
  local again = {}
  for i = 3, #last, 2 do
    local _, call = rows.run_and_call(tx, last[i], last[i + 1])
    if call and claims.holds(call, op.offer) then
      again[#again + 1] = claims.as_claimed(tx, call)
    end
  end
  return as_verdict(tx, op, again, {}, {}, false)
end

-- Take over lost calls, then take ready ones, longest waiting first.
function claims.claim(tx, op)
  local offer = op.offer
  if rows.meta(tx).behind > 0 then return {'refused', 'behind', ''} end
  local last = rows.last_offer(tx, offer.worker)
  if last and last[1] == offer.nonce then return claim_again(tx, op, last) end
  local taken, claimed, got = {}, {}, {}
  local settled = take_over(tx, op, taken)
  local held, more = take_ready(tx, op, taken)
  for i, call in ipairs(taken) do
    claimed[i] = claims.as_claimed(tx, call)
    got[#got + 1] = call.run.run_id
    got[#got + 1] = call.request_id
  end
  if #taken > 0 then rows.save_offer(tx, offer.worker, offer.nonce, got) end
  rows.flush(tx) -- the next expiry counts what was just leased
  return as_verdict(tx, op, claimed, settled, held, more)
end
