-- The guard's state machine, as aaa/store/guard.py has it, function by function.
--
-- States in rows: w waiting, r ready, l leased, v verifying, s settled.

local guard = {}

local TRANSITIONS = {
  w = {grant = 'r', drop = 's'},
  r = {hold = 'w', start = 'l', drop = 's'},
  -- A model's answer that nobody wants any more is dropped while it is asked.
  l = {start = 'l', verify = 'v', lost = 's', abandon = 's', settle = 's', drop = 's'},
  v = {verify = 'v', lost = 's', abandon = 's', settle = 's'},
  s = {},
}

-- Make a legal step; an illegal one is a programming error.
function guard.take(call, step)
  local state = TRANSITIONS[call.state][step]
  if not state then error('illegal step ' .. step .. ' from ' .. call.state) end
  call.state = state
end

-- Delivery and cap: what the call was first claimed with, tightened by later terms (G22).
function guard.in_force(call, terms)
  if call.attempt == 0 then
    if terms then return terms.delivery, terms.max_attempts end
    return call.delivery, call.cap
  end
  if not terms then return call.delivery, call.cap end
  local once = call.delivery == K.AT_MOST_ONCE or terms.delivery == K.AT_MOST_ONCE
  return once and K.AT_MOST_ONCE or K.AT_LEAST_ONCE, math.min(call.cap, terms.max_attempts)
end

local function judge_ready(call, terms, now, stopped)
  if not terms or stopped then return 'skip' end
  if terms.needs_approval and call.approval == '' then return 'hold' end
  if call.approval == 'granted' and call.approval_until_ms <= now then return 'hold' end
  return 'start'
end

local function judge_lost(call, terms, now, cancelled, paused)
  local again = terms and not paused and 'start' or 'skip'
  local guarded = call.guarded or (terms and terms.guarded)  -- tightened, never loosened
  if not guarded and not cancelled then return again end
  local delivery, cap = guard.in_force(call, terms)
  local once, spent = delivery == K.AT_MOST_ONCE, call.attempt >= cap
  if not (once or spent or cancelled) then return again end
  local last = (once or (cancelled and not spent)) and 'lost' or 'abandon'
  if not call.verify or call.verifies >= K.MAX_VERIFIES then return last end
  if terms then return 'verify' end
  local waited = now - call.due_ms
  return waited > K.VERIFY_GRACE_TTLS * call.lease_ttl_ms and last or 'skip'
end

-- What an offer does to a call now. `terms` is nil for a worker without the tool's code.
function guard.judge(call, terms, now)
  local run = call.run
  local cancelled = run.cancelling or run.status ~= 'open'
  local paused = run.suspended or run.parked
  if call.state == 'r' then return judge_ready(call, terms, now, cancelled or paused) end
  if guard.is_held(call) and call.due_ms <= now then
    return judge_lost(call, terms, now, cancelled, paused)
  end
  return 'skip'
end

function guard.is_held(call)
  return call.state == 'l' or call.state == 'v'
end
