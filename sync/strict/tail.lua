-- The call 0 is a look: it gets the reply that a call would get now, and writes nothing. It brings
-- no corrections.
--
-- Everything is read before anything is written: what is wrong with a key shows before something
-- has changed.
local was = redis.call('HGET', KEYS[1], field)
local last, granted, since, each = string.match(was or '', '^(%d+) (%d+) (%d+) ?(.*)$')
last, granted, since = tonumber(last or 0), tonumber(granted or 0), tonumber(since or 0)
if seq > 0 and seq < last then return {-1, now} end

local at, corrected = 8, false
for i = 2, #KEYS do
  local r = open(KEYS[i], at)
  r.corrections = at + rules.width
  at = r.corrections + 1 + 4 * tonumber(ARGV[r.corrections])
  corrected = corrected or at > r.corrections + 1
  rules[i - 1] = r
end
if told then return told end
if seq > last then checkRights() end

local function correct(r)
  for i = r.corrections + 1, r.corrections + 4 * tonumber(ARGV[r.corrections]), 4 do
    local op, n, a, b = ARGV[i], tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3])
    if op == '1' then
      give(r, a, a, b, n)
    elseif op == '3' then
      settle(r, n, a)
    elseif op == '4' then
      debit(r, n)
    elseif op == '5' then
      unspend(r, n, b)
    else
      fill(r, n, math.min(a, now))
    end
  end
end

local before -- what was granted to each batch when this call came for the first time
if seq == last and seq > 0 then
  before, replayed = {}, true
  for n in string.gmatch(each, '%d+') do before[#before + 1] = tonumber(n) end
  if #before == 0 then before[1] = granted end
elseif seq > 0 then
  for _, r in ipairs(rules) do
    if rollback > 0 and last >= rollback and granted > 0 then give(r, since, last, 1, granted) end
    if last < first then correct(r) end
  end
end

-- Reads what a batch wants.
local function wants(list)
  want, runs = tonumber(list), nil
  asked = want
  if want then return end
  want, asked, runs = 0, 0, {}
  for count, cost in string.gmatch(list, '(%d+):(%d+)') do
    local run = {count = tonumber(count), cost = tonumber(cost)}
    runs[#runs + 1] = run
    want = want + run.count * run.cost
    if run.cost > 0 then asked = asked + run.count end
  end
end

-- What is spent of a grant.
local function spentOf(grant)
  local left = grant
  for _, run in ipairs(runs or {}) do
    if run.cost > 0 then
      local fit = math.min(run.count, (left - math.fmod(left, run.cost)) / run.cost)
      left = left - fit * run.cost
      run.denied = fit < run.count
    end
  end
  if runs then return grant - left end
  return grant
end

local reply, grants, spent, listed = {0, now}, {}, 0, false

-- Decides the next batch: all of it that fits, in all rules or in none.
local function decide()
  local n = #grants + 1
  local grant = before and (before[n] or 0) or want
  if not before then
    for _, r in ipairs(rules) do grant = math.min(grant, room(r)) end
  end
  local units = spentOf(grant)
  if not before and units > 0 then
    for _, r in ipairs(rules) do spend(r, units) end
  end
  if ARGV[7] == '1' and grant < want then
    for _, r in ipairs(rules) do foresee(r, want - grant) end
  end
  grants[n], spent, listed = grant, spent + units, listed or n > 1 or runs ~= nil
  if n == 1 then reply[1] = grant else reply[#reply + 1] = grant end
  for _, r in ipairs(rules) do reply[#reply + 1] = report(r) end
end

wants(ARGV[3])
decide()
while at <= #ARGV do
  wants(ARGV[at])
  at = at + 1
  for _, r in ipairs(rules) do
    bring(r, at)
    at = at + rules.brought
  end
  decide()
end

if seq > last then
  for _, r in ipairs(announce and rules or {}) do announce(r) end
  for _, r in ipairs(rules) do close(r) end
  -- A call that changed nothing may come again: whatever it would get then, nobody waits for it.
  if spent > 0 or rollback > 0 or corrected then
    local record = ARGV[2] .. ' ' .. text(spent) .. ' ' .. text(now)
    if listed then
      for i, grant in ipairs(grants) do grants[i] = text(grant) end
      record = record .. ' ' .. table.concat(grants, ' ')
    end
    redis.call('HSET', KEYS[1], field, record)
    redis.call('PEXPIRE', KEYS[1], ARGV[6])
  end
end
return reply
