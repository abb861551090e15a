-- Token bucket, GCRA and leaky bucket: a level that rises by what is admitted and drains. For each
-- rule: limit, size and ttl in milliseconds, which each batch brings, window, its unit (1 for
-- microseconds, 1000 for nanoseconds), and 1 where what is granted is settled, 0 where it is
-- reserved. The key holds "whole rest at rate till[ stamp end[ added]]": whole + rest / window
-- requests at an instant, how many of them drain in a window, until when the key stays, in
-- milliseconds, the reset that it is under, and where units are reserved how many were added in
-- all. rate is the limit of the request that was decided last: what has passed before the next one
-- drains at that, whoever looks meanwhile.
--
-- What drains is at the bottom. So of units that were reserved there stands what is in the bucket
-- less what was added since. A refund makes all that was added later and earlier stand lower by as
-- much: nobody knows the order, and what is refunded may be less than what was not used, but never
-- what has drained already.
rules = {width = 6, brought = 3}

-- added begins at the time, so that the numbers of a key that was forgotten don't come again.
local function raise(r, n)
  r.whole, r.dirty = r.whole + n, true
  if not r.added then return end
  r.added = r.added + n
  if r.added > exact / 2 then r.added = now end
end

local function drain(r, elapsed)
  local rest = math.fmod(elapsed, r.window)
  local whole, part = muldiv(r.rate, rest, r.window)
  whole = whole + (elapsed - rest) / r.window * r.rate
  if whole > r.whole or whole == r.whole and part >= r.rest then
    r.whole, r.rest = 0, 0
    return
  end
  r.whole, r.rest = r.whole - whole, r.rest - part
  if r.rest < 0 then r.whole, r.rest = r.whole - 1, r.rest + r.window end
end

-- Brings the level to an instant.
local function advance(r, to)
  if to <= r.at then return end
  if r.whole > 0 or r.rest > 0 then drain(r, (to - r.at) * r.unit) end
  r.at = to
end

-- Finds out which reset the level is under.
local function under(r, stamp, over)
  if over <= now then stamp = 0 end
  r.stamp, r.ends, r.empty = math.max(stamp, reset), ends, stamp < reset
  if stamp > reset then r.ends, told = over, {-2, now, stamp, over} end
end

function bring(r, at)
  r.limit, r.size, r.ttl = tonumber(ARGV[at]), tonumber(ARGV[at + 1]), math.max(r.ttl, tonumber(ARGV[at + 2]))
end

function open(key, at)
  local r = {key = key .. ':level', ttl = 0, window = tonumber(ARGV[at + 3]), unit = tonumber(ARGV[at + 4]), reserves = ARGV[at + 5] == '0'}
  bring(r, at)
  local whole, rest, since, rate, till, stamp, over, added = string.match(redis.call('GET', r.key) or '', '^(%d+) (%d+) (%d+) ?(%d*) ?(%d*) ?(%d*) ?(%d*) ?(%d*)$')
  under(r, tonumber(stamp or '') or 0, tonumber(over or '') or 0)
  if r.empty then whole, rest, r.dirty = 0, 0, true end
  r.whole, r.rest = math.min(tonumber(whole or 0), exact), math.min(tonumber(rest or 0), r.window - 1)
  r.rate = math.min(tonumber(rate or '') or r.limit, exact)
  r.added = tonumber(added or '') or r.reserves and now or nil
  r.at, r.till = tonumber(since or 0), tonumber(till or '') or 0
  if r.at > now then
    r.at, r.dirty = now, true -- the clock has stepped back: what is there drains from now on
  end
  return r
end

function room(r)
  advance(r, now)
  if r.limit == 0 then return 0 end
  if want > 0 and r.rate ~= r.limit then r.rate, r.dirty = r.limit, true end
  local used = r.whole
  if r.rest > 0 then used = used + 1 end
  return math.max(0, r.size - used)
end

function spend(r, n) raise(r, n) end

-- A penalty fills the bucket at its instant, as far as the level is not known for a later one, and
-- drains since.
function fill(r, n, at)
  advance(r, at)
  if r.limit == 0 or r.whole >= r.size then return end
  raise(r, n)
  if r.whole >= r.size then r.whole, r.rest = r.size, 0 end
end

function debit(r, n)
  advance(r, now)
  local used = r.whole
  if r.rest > 0 then used = used + 1 end
  n = math.min(n, r.size + r.limit - used)
  if n > 0 then raise(r, n) end
end

function unspend(r, n, top)
  advance(r, now)
  if not r.added or r.added < top then return end
  n = math.min(n, r.whole - (r.added - top))
  if n > 0 then r.whole, r.dirty = r.whole - n, true end
end

-- What is foreseen is in whole and rest, and taken out when they are written.
function foresee(r, n)
  local whole, rest, dirty, added = r.whole, r.rest, r.dirty, r.added
  fill(r, n, now)
  r.dirty, r.added, r.foreseen, r.cut = dirty, added, (r.foreseen or 0) + r.whole - whole, (r.cut or 0) + rest - r.rest
end

function give(r, _, _, _, n)
  if r.whole >= n then r.whole = r.whole - n else r.whole, r.rest = 0, 0 end
  r.dirty = true
end

-- The key outlives what is in it, and never ends before it was to end: limits differ.
function close(r)
  if not r.dirty then return end
  local ttl, ms = r.ttl, math.floor(now / 1000)
  if r.rate > 0 then ttl = math.max(ttl, (r.whole + 1) / r.rate * r.window / r.unit / 1000 + 60000) end
  ttl = math.floor(math.min(math.max(ttl, r.till - ms), 3153600000000))
  local level = text(r.whole - (r.foreseen or 0)) .. ' ' .. text(r.rest + (r.cut or 0)) .. ' ' .. text(r.at) .. ' ' .. text(r.rate)
  r.ttl = text(ttl)
  level = level .. ' ' .. text(ms + ttl)
  if r.stamp > 0 or r.added then level = level .. ' ' .. text(r.stamp) .. ' ' .. text(r.stamp > 0 and r.ends or 0) end
  if r.added then level = level .. ' ' .. text(r.added) end
  redis.call('SET', r.key, level, 'PX', r.ttl)
end

-- What was added is told only to who has just got something: to a call that comes twice it would be
-- what others have added since.
function report(r) return {room(r), r.whole, r.rest, r.rate, r.reserves and not replayed and r.added or nil} end
