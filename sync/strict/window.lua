-- Fixed and sliding windows. For each rule: limit, which each batch brings, span of an epoch, its
-- unit (1 for microseconds, 1000 for nanoseconds), how many earlier epochs count, ttl in
-- milliseconds, and 1 where what is granted is settled, 0 where it is reserved. The hashes are
-- those of the sync in the background; strict mode knows "sum" only, the "total attempts[ settled]"
-- of all nodes. total and settled are units, attempts requests. Without settled all of total is.
-- Where limits go over regions the ttl is followed by how much other regions have to know of, how
-- many regions there are, and the shard of what they are told; "sum" then has what they have told.
rules = {width = 6, brought = 1}

local function read(r, epoch)
  local e = {key = r.key .. ':' .. text(epoch), total = 0, attempts = 0, foreseen = 0, grown = 0}
  if reset > 0 and epoch <= r.boundary then e.key = e.key .. '@' .. text(reset) end
  local had, far
  if r.least then
    had, far = unpack(redis.call('HMGET', e.key, 'sum', '~'))
    e.far = far and tonumber(string.match(far, '^%d+')) or nil
  else
    had = redis.call('HGET', e.key, 'sum')
  end
  if not had then
    e.new, e.settled = true, r.reserves and 0 or nil
    return e
  end
  local total, attempts, settled = string.match(had, '^(%-?%d+) (%d+) ?(%d*)')
  if total then
    e.total, e.attempts = math.min(tonumber(total), exact), math.min(tonumber(attempts), exact)
    e.settled = tonumber(settled) and math.min(tonumber(settled), exact)
  end
  if r.reserves then e.settled = e.settled or math.max(0, e.total) end
  return e
end

function bring(r, at) r.limit = tonumber(ARGV[at]) end

function open(key, at)
  local r = {key = key, span = tonumber(ARGV[at + 1]), unit = tonumber(ARGV[at + 2]), live = tonumber(ARGV[at + 3]), reserves = ARGV[at + 5] == '0'}
  local least, regions
  r.ttl, least, regions, r.shard = string.match(ARGV[at + 4], '^(%d+) ?(%d*) ?(%d*) ?(%d*)$')
  r.least, r.regions = tonumber(least), tonumber(regions)
  r.epoch, r.into = muldiv(now, r.unit, r.span)
  r.boundary = muldiv(forgiven, r.unit, r.span)
  bring(r, at)
  for age = 0, r.live do r[age] = read(r, r.epoch - age) end
  return r
end

-- The epoch that fades is rounded up, which loses nothing: the limit is whole, and so is what is
-- compared with it.
function room(r)
  local used = math.max(0, r[0].total)
  for age = 1, r.live - 1 do used = used + math.max(0, r[age].total) end
  if r.live > 0 then
    local whole, rest = muldiv(math.max(0, r[r.live].total), r.span - r.into, r.span)
    used = used + whole
    if rest > 0 then used = used + 1 end
  end
  return math.max(0, r.limit - used)
end

local function add(e, n, tries, settled)
  e.total, e.attempts, e.dirty = e.total + n, e.attempts + tries, true
  e.grown = e.grown + n
  if e.settled then e.settled = math.max(0, e.settled + settled) end
end

function spend(r, n) add(r[0], n, asked, r.reserves and 0 or n) end

local function epochOf(r, at) return r[r.epoch - muldiv(at, r.unit, r.span)] end

function fill(r, n, at)
  local e = epochOf(r, at)
  if e then add(e, n, 0, n) end
end

function give(r, at, _, _, n)
  local e = epochOf(r, at)
  if not e then return end
  local back = math.min(n, math.max(0, e.total))
  add(e, -back, 0, r.reserves and 0 or -back)
end

function settle(r, n, at)
  local e = epochOf(r, at)
  if e then add(e, 0, 0, n) end
end

local most = exact / 2 -- what sums of nodes can still be added to

function debit(r, n)
  n = math.max(0, math.min(n, most - r[0].total))
  add(r[0], n, 0, n)
end

function foresee(r, n) r[0].total, r[0].foreseen = r[0].total + n, r[0].foreseen + n end

-- Has other regions told of an epoch, as push.lua does, by how much it has grown. It is urgent each
-- time that this region's part passes a multiple of what may be unsent of a key in a node: see
-- NeedsSync in internal/table/estimate.go.
local function note(r, e)
  local here = e.total - e.foreseen - (e.far or 0)
  if here < (e.far and 1 or r.least) then return end
  local step = math.max(1, math.ceil(room(r) / 8 / (e.far and 1 or r.regions)), math.ceil(r.limit / 64))
  local base = string.match(r.key, '^.-{') .. r.shard .. '}:'
  tell(base .. 'told', base .. 'hurry', {e.key}, now, math.floor(here / step) > math.floor((here - e.grown) / step))
end

-- What is told is written afterwards: where it may not be told nothing counts.
function announce(r)
  for age = 0, r.least and r.live or -1 do
    if r[age].dirty then note(r, r[age]) end
  end
end

function close(r)
  for age = 0, r.live do
    local e = r[age]
    if e.dirty then
      local settled = e.settled and ' ' .. text(e.settled) or ''
      redis.call('HSET', e.key, 'sum', text(e.total - e.foreseen) .. ' ' .. text(e.attempts) .. settled)
      if e.new then redis.call('PEXPIRE', e.key, r.ttl) end
    end
  end
end

function report(r)
  local all = {room(r), r.epoch}
  for age = 0, r.live do all[age + 3] = math.max(0, r[age].total) end
  if r.reserves then
    for age = 0, r.live do all[#all + 1] = math.max(0, math.min(r[age].settled, r[age].total)) end
  end
  return all
end
