-- What the effects of one append do to its calls, as aaa/store/drafts.py has it: checked before
-- anything is changed, so that a decision may open a call and settle it at once.

local drafts = {}

local function is_model(queue)
  return queue:sub(1, #K.LLM_QUEUE) == K.LLM_QUEUE
end

-- Why an effect is refused; nil if the draft has taken it.
local CHECKS = {
  drop = function(draft)
    if draft.state == 's' then return 'settled' end
    if draft.state ~= 'w' and draft.state ~= 'r' and not draft.model then return 'started' end
    draft.state = 's'
  end,
  grant = function(draft, effect)
    if draft.args_digest ~= effect.args_digest then return 'digest' end
    if draft.state ~= 'w' then return 'not_waiting' end
    draft.state = 'r'
  end,
  hold = function(draft)
    if draft.state ~= 'r' then return 'started' end
    draft.state = 'w'
  end,
  resolve = function(draft)
    if not draft.unknown then return 'not_waiting' end
    draft.unknown = false
  end,
}

local function draft_of(tx, run, calls, request_id)
  if not calls[request_id] then
    local call = rows.call(tx, run, request_id)
    if not call then return nil end
    calls[request_id] = {
      state = call.state, args_digest = call.args_digest, unknown = call.unknown,
      model = is_model(call.queue),
    }
  end
  return calls[request_id]
end

local function check(tx, run, calls, entry, open)
  local effect = entry.effect
  if not effect then return nil end
  if not open and effect.kind ~= 'resolve' then return 'closed' end
  if effect.kind == 'open' then
    calls[entry.id] = {
      state = effect.needs_approval and 'w' or 'r', args_digest = effect.args_digest,
      unknown = false, model = is_model(effect.queue),
    }
  elseif CHECKS[effect.kind] then
    local draft = draft_of(tx, run, calls, effect.request_id)
    if not draft then return 'no_call' end
    return CHECKS[effect.kind](draft, effect)
  end
  return nil
end

-- Why the entries that do not stand in the run yet cannot be written; nil if they can.
function drafts.check_all(tx, run, entries, known)
  local calls, seen, open = {}, {}, run.status == 'open'
  for i, entry in ipairs(entries) do
    if not known[i] and not seen[entry.id] then
      local why = check(tx, run, calls, entry, open)
      if why then return why end
      seen[entry.id] = true
      open = open and not (entry.effect and entry.effect.kind == 'close')
    end
  end
  return nil
end
