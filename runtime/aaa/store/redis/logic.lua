-- The operations of the port, as aaa/store/logic.py has them, function by function.
--
-- Every function checks first and changes afterwards, and changes rows in memory only: `rows.flush`
-- writes them. A verdict is a flat list of fields that begins with its kind.

local logic = {}

local function refused(why, detail)
  return {'refused', why, detail or ''}
end

-- Move the partition's high-water mark; remember it if the store is behind `seen` (G23).
function logic.check_mark(tx, seen)
  local meta = rows.meta(tx)
  if meta.mark < seen then meta.behind = math.max(meta.behind, seen) end
  meta.mark = meta.mark + 1
end

local function stopped(run)
  return run.cancelling or run.suspended or run.parked or run.status ~= 'open'
end

local function ids_of(entries)
  local ids = {}
  for i, entry in ipairs(entries) do ids[i] = entry.id end
  return ids
end

-- "appended", head, the events (dup, seq, stored text), the claims.
local function appended(tx, run, seqs, dups, claimed)
  local fields = {'appended', run.seq, run.last_id, #seqs}
  for i, seq in ipairs(seqs) do
    wire.append(fields, {dups[i] and 1 or 0, seq, seq and rows.blob(tx, run.run_id, seq) or ''})
  end
  fields[#fields + 1] = #claimed
  for _, one in ipairs(claimed) do wire.append(fields, one) end
  return fields
end

-- ----------------------------------------------------------------------------------- appending

-- Ready calls of a stopped run leave their queue, so that they never stand before others.
local function shelve(tx, run)
  for _, call in ipairs(rows.ready_of(tx, run)) do
    if call.shelved ~= stopped(run) then
      call.shelved = stopped(run)
      rows.save_call(tx, call)
    end
  end
end

local function flag(tx, run, name)
  if name == 'cancel' then
    run.cancelling = true
  elseif name == 'suspend' then
    run.suspended = true
  elseif name == 'park' then
    run.parked = true
  elseif name == 'resume' then
    run.suspended, run.parked = false, false
  end
  shelve(tx, run)
end

local function open_call(tx, run, id, effect)
  local call = {
    run = run, request_id = id, seq = run.seq, queue = effect.queue,
    call_json = effect.call_json, name_json = effect.name_json, key_json = effect.key_json,
    args_digest = effect.args_digest, state = effect.needs_approval and 'w' or 'r',
    due_ms = tx.now, shelved = stopped(run), verify = effect.verify, guarded = true,
    unknown = false, attempt = 0, holder = '', nonce = '', lease_ttl_ms = 0, delivery = '',
    cap = 0, verifies = 0, approval = effect.needs_approval and 'needed' or '',
    approval_until_ms = 0,
  }
  if effect.needs_approval then run.awaiting = run.awaiting + 1 end
  rows.save_call(tx, call)
  return call
end

-- What each effect does. Calls exist and are in a fitting state: that was checked.
local WRITES = {
  open = function(tx, run, id, effect, opened)
    opened[#opened + 1] = open_call(tx, run, id, effect)
  end,
  drop = function(tx, run, _, effect)
    local call = rows.call(tx, run, effect.request_id)
    if call.state == 'w' then run.awaiting = run.awaiting - 1 end
    guard.take(call, 'drop')
    call.holder = '' -- no attempt's: nobody's outcome is the result
    rows.save_call(tx, call)
  end,
  grant = function(tx, run, _, effect)
    local call = rows.call(tx, run, effect.request_id)
    guard.take(call, 'grant')
    call.approval, call.approval_until_ms = 'granted', tx.now + effect.for_ms
    call.due_ms, call.shelved = tx.now, stopped(run)
    run.awaiting = run.awaiting - 1
    rows.save_call(tx, call)
  end,
  hold = function(tx, run, _, effect)
    local call = rows.call(tx, run, effect.request_id)
    guard.take(call, 'hold')
    call.approval = 'needed'
    run.awaiting = run.awaiting + 1
    rows.save_call(tx, call)
  end,
  resolve = function(tx, run, _, effect)
    local call = rows.call(tx, run, effect.request_id)
    call.unknown = false
    run.unknown = run.unknown - 1
    rows.save_call(tx, call)
  end,
  timer = function(tx, run, id, effect)
    rows.add_timer(tx, run, id, effect.name_json, tx.now + effect.after_ms)
  end,
  flag = function(tx, run, _, effect) flag(tx, run, effect.name) end,
  require = function(tx, run, _, effect)
    for _, call in ipairs(rows.calls(tx, run)) do
      if call.state ~= 's' and claims.is_tool(call.queue) then
        call.queue = claims.under_policy(call.queue, effect.policy)
        rows.save_call(tx, call)
      end
    end
  end,
  close = function(tx, run, _, effect)
    run.status, run.closed_ms = effect.status, tx.now
    shelve(tx, run)
  end,
}

local function write(tx, run, entry, opened)
  local seq = rows.add_event(tx, run, entry.id, entry.body)
  local effect = entry.effect
  if effect then WRITES[effect.kind](tx, run, entry.id, effect, opened) end
  return seq
end

-- Write what is not there yet; an id that comes twice in one operation stands once (L2).
local function write_all(tx, run, entries, known, opened)
  local seqs, dups, written = {}, {}, {}
  for i, entry in ipairs(entries) do
    local seq = known[i] or written[entry.id]
    dups[i] = seq and true or false
    if not seq then
      seq = write(tx, run, entry, opened)
      written[entry.id] = seq
    end
    seqs[i] = seq
  end
  return seqs, dups
end

local function check_append(tx, run, op, known)
  if op.term then
    local owner = rows.owner(tx, run.app)
    if not owner or owner.term ~= op.term or owner.worker ~= op.worker then return 'term' end
  end
  if op.at and (op.at.seq ~= run.seq or op.at.last_id ~= run.last_id) then return 'moved' end
  for _, rest in ipairs(op.rests_on) do
    local call = rows.call(tx, run, rest.request_id)
    local ours = call and call.state == 's' and call.holder == op.settler
      and call.attempt == rest.attempt
    if not ours then return 'moved' end
  end
  if run.status ~= 'open' and op.term then return 'closed' end
  return drafts.check_all(tx, run, op.entries, known)
end

-- The same append after a lost reply: the same answer, the same claims, nothing changed.
local function append_again(tx, run, op, seqs)
  local claimed = {}
  for _, entry in ipairs(op.entries) do
    if op.offer and entry.effect and entry.effect.kind == 'open' then
      local call = rows.call(tx, run, entry.id)
      if call and claims.holds(call, op.offer) then
        claimed[#claimed + 1] = claims.as_claimed(tx, call)
      end
    end
  end
  return appended(tx, run, seqs, seqs, claimed)
end

local function all_known(seqs)
  for _, seq in ipairs(seqs) do
    if not seq then return false end
  end
  return #seqs > 0
end

local function append(tx, op)
  local run = rows.run(tx, op.run_id)
  if not run then return refused('no_run') end
  if run.deleted then return refused('deleted') end
  local known = rows.seqs_of(tx, op.run_id, ids_of(op.entries))
  if all_known(known) then return append_again(tx, run, op, known) end
  local why = check_append(tx, run, op, known)
  if why then return refused(why) end
  local opened = {}
  local seqs, dups = write_all(tx, run, op.entries, known, opened)
  -- A call that is opened and settled by the same decision is nobody's to claim.
  local claimed = claims.claim_opened(tx, run, opened, op.offer)
  if op.term then
    run.cursor, run.dirty = run.seq, false
  elseif run.status == 'open' then
    run.dirty = true
  end
  rows.save_run(tx, run)
  return appended(tx, run, seqs, dups, claimed)
end

local function create(tx, op)
  local run = rows.run(tx, op.run_id)
  local ids = ids_of(op.entries)
  if run then
    if run.deleted then return refused('deleted', run.digest) end
    if run.digest ~= op.digest then return refused('exists', run.digest) end
    local seqs, stored, dups = rows.seqs_of(tx, op.run_id, ids), {}, {}
    for _, seq in ipairs(seqs) do
      if seq then stored[#stored + 1] = seq end
    end
    for i = 1, #stored do dups[i] = true end
    local fields = appended(tx, run, stored, dups, {})
    fields[#fields + 1] = #ids -- so many dups are reported, even of events that do not stand
    return fields
  end
  run = {
    run_id = op.run_id, app = op.app, digest = op.digest, status = 'open', seq = 0, last_id = '',
    cursor = 0, dirty = true, cancelling = false, suspended = false, parked = false,
    deleted = false, awaiting = 0, unknown = 0, ready = 0, created_ms = tx.now,
  }
  rows.new_run(tx, run)
  local seqs, dups = write_all(tx, run, op.entries, {}, {})
  rows.save_run(tx, run)
  local fields = appended(tx, run, seqs, dups, {})
  fields[#fields + 1] = 0
  return fields
end

-- ------------------------------------------------------------------------------------ settling

local function raw_of_blob(blob)
  return blob:match('^[^\n]*\n[^\n]*\n[^\n]*\n[^\n]*\n(.*)$')
end

-- Keep an outcome that came too late for audit; models and unguarded calls keep none.
local function keep_stale(tx, run, call, op)
  if not (call.guarded and claims.is_tool(call.queue)) then
    return {'settled', 'dropped', run.seq, run.last_id, 0, ''}
  end
  local kind, outcome = op.body:match('^([^\n]*)\n[^\n]*\n[^\n]*\n(.*)$')
  local raw = table.concat({
    string.format('{"attempt":%d,"call_id":', op.attempt), call.call_json,
    ',"name":', call.name_json, ',"outcome":', outcome, ',"type":"', kind, '"}',
  })
  -- What `verify=` said of an attempt must not stand in the way of what the attempt itself says.
  local stem = claims.attempt_suffix(op.attempt) .. ':stale'
  local suffix, number = stem, 1
  local seq = rows.seq_of(tx, run.run_id, op.request_id .. suffix)
  while seq and raw_of_blob(rows.blob(tx, run.run_id, seq)) ~= raw do
    number = number + 1
    suffix = string.format('%s:%d', stem, number)
    seq = rows.seq_of(tx, run.run_id, op.request_id .. suffix)
  end
  if not seq then
    seq = rows.add_event(tx, run, op.request_id .. suffix,
      claims.body(K.TOOL_STALE_RESULT, op.request_id, suffix, raw))
    rows.save_run(tx, run)
  end
  return {'settled', 'stale', run.seq, run.last_id, seq, rows.blob(tx, run.run_id, seq)}
end

local function settle(tx, op)
  local run, call = rows.run_and_call(tx, op.run_id, op.request_id)
  if not run then return refused('no_run') end
  if run.deleted then return refused('deleted') end
  if not call or op.attempt < 1 or op.attempt > call.attempt then return refused('no_call') end
  if call.state == 's' then
    local seq = rows.seq_of(tx, op.run_id, op.request_id .. ':result')
    local mine = call.holder == op.worker and (call.attempt == op.attempt or not op.fence)
    if seq and mine then
      local blob = rows.blob(tx, op.run_id, seq)
      if raw_of_blob(blob) == op.body:match('^[^\n]*\n[^\n]*\n[^\n]*\n(.*)$') then
        return {'settled', 'dup', run.seq, run.last_id, seq, blob}
      end
    end
    return keep_stale(tx, run, call, op)
  end
  if op.attempt < call.attempt and op.fence then return keep_stale(tx, run, call, op) end
  if op.attempt == call.attempt and call.state == 'l' and call.holder ~= op.worker then
    return refused('stranger')
  end
  guard.take(call, 'settle')
  local seq = rows.add_event(tx, run, op.id, op.body)
  -- The first finisher wins when results are not fenced: a repeat of its settle is then a dup.
  call.holder = op.worker
  call.unknown = op.unknown
  if op.unknown then run.unknown = run.unknown + 1 end
  if run.status == 'open' then run.dirty = true end
  rows.save_call(tx, call)
  rows.save_run(tx, run)
  return {'settled', 'applied', run.seq, run.last_id, seq, rows.blob(tx, run.run_id, seq)}
end

local function release(tx, op)
  local _, call = rows.run_and_call(tx, op.run_id, op.request_id)
  if not call then return refused('no_call') end
  local mine = call.holder == op.worker and call.attempt == op.attempt
  if not (mine and guard.is_held(call)) then return {'done', 0} end
  call.due_ms = math.min(call.due_ms, tx.now)
  rows.save_call(tx, call)
  return {'done', 1}
end

-- ----------------------------------------------------------------------------------- ownership

local function own(tx, op)
  local owner = rows.owner(tx, op.app)
  local alive = owner and owner.until_ms > tx.now
  if alive and owner.worker ~= op.worker then
    return {'busy', owner.worker, owner.until_ms - tx.now}
  end
  -- An ownership that ran out is gone even for its old holder: a new one has a new term.
  local term = alive and owner.term or (owner and owner.term or 0) + 1
  rows.save_owner(tx, op.app, {worker = op.worker, term = term, until_ms = tx.now + op.ttl_ms})
  return {'owned', term}
end

local function disown(tx, op)
  local owner = rows.owner(tx, op.app)
  if not owner or owner.worker ~= op.worker then return {'done', 0} end
  rows.save_owner(tx, op.app, {worker = owner.worker, term = owner.term, until_ms = 0})
  return {'done', 1}
end

local function fire(tx, timer)
  rows.drop_timer(tx, timer)
  local run = rows.run(tx, timer.run_id)
  if not run or run.status ~= 'open' then return end
  rows.add_event(tx, run, timer.set_id .. ':fired',
    claims.body(K.TIMER_FIRED, timer.set_id, ':fired', '{"name":' .. timer.name_json .. '}'))
  run.dirty = true
  rows.save_run(tx, run)
end

local function take(tx, op)
  local owner = rows.owner(tx, op.app)
  if not owner or owner.worker ~= op.worker or owner.until_ms <= tx.now then
    return refused('term')
  end
  if op.term ~= 0 and op.term ~= owner.term then return refused('term') end
  for _, timer in ipairs(rows.due_timers(tx, op.app, op.limit)) do fire(tx, timer) end
  rows.flush(tx) -- the list counts the runs whose timer has just fired
  local runs = rows.dirty(tx, op.app, op.limit + 1)
  local count = math.min(#runs, op.limit)
  local fields = {'taken', count}
  for i = 1, count do
    wire.append(fields, {runs[i].run_id, runs[i].seq, runs[i].last_id})
  end
  local due = rows.next_timer(tx, op.app)
  wire.append(fields, {#runs > op.limit and 1 or 0, due and math.max(0, due - tx.now) or ''})
  return fields
end

-- ------------------------------------------------------------------------------ deleting, loss

local function delete(tx, op)
  local run = rows.run(tx, op.run_id)
  if not run then return refused('no_run') end
  if run.deleted then return {'done', 0} end
  if run.status == 'open' and not op.force then return refused('open') end
  rows.erase_run(tx, run)
  run.deleted, run.dirty, run.awaiting, run.unknown, run.ready = true, false, 0, 0, 0
  if run.status == 'open' then run.status, run.closed_ms = 'cancelled', tx.now end
  rows.save_run(tx, run)
  return {'done', 1}
end

local function accept_loss(tx, op)
  local meta = rows.meta(tx)
  if meta.behind == 0 and not op.force then return {'done', 0} end
  local count = 0
  for _, call in ipairs(rows.open_calls(tx)) do
    if claims.is_tool(call.queue) then
      claims.lose(tx, call.run, call, 'lost', op.by_json)
      count = count + 1
    end
  end
  meta.mark, meta.behind = math.max(meta.mark, meta.behind) + 1, 0
  return {'done', count}
end

local OPERATIONS = {
  append = append, settle = settle, claim = claims.claim, take = take, own = own,
  create = create, release = release, disown = disown, delete = delete,
  accept_loss = accept_loss,
}

function logic.apply(tx, op)
  return OPERATIONS[op.name](tx, op)
end
