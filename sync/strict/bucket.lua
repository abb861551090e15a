-- Token bucket, GCRA and leaky bucket: a level that rises by what is admitted and drains. For each
-- rule: limit, size and ttl in milliseconds, which each batch brings, window, its unit (1 for
-- microseconds, 1000 for nanoseconds). The key holds "whole rest at rate till[ stamp end]": whole +
-- rest / window requests at an instant, how many of them drain in a window, until when the key
-- stays, in milliseconds, and the reset that it is under. rate is the limit of the request that was
-- decided last: what has passed before the next one drains at that, whoever looks meanwhile.
rules = {width = 5, brought = 3}

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
  local r = {key = key .. ':level', ttl = 0, window = tonumber(ARGV[at + 3]), unit = tonumber(ARGV[at + 4])}
  bring(r, at)
  local whole, rest, since, rate, till, stamp, over = string.match(redis.call('GET', r.key) or '', '^(%d+) (%d+) (%d+) ?(%d*) ?(%d*) ?(%d*) ?(%d*)$')
  under(r, tonumber(stamp or '') or 0, tonumber(over or '') or 0)
  if r.empty then whole, rest, r.dirty = 0, 0, true end
  r.whole, r.rest = math.min(tonumber(whole or 0), exact), math.min(tonumber(rest or 0), r.window - 1)
  r.rate = math.min(tonumber(rate or '') or r.limit, exact)
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

function spend(r, n)
  r.whole, r.dirty = r.whole + n, true
end

-- A penalty fills the bucket at its instant, as far as the level is not known for a later one, and
-- drains since.
function fill(r, n, at)
  advance(r, at)
  if r.limit == 0 or r.whole >= r.size then return end
  r.whole, r.dirty = r.whole + n, true
  if r.whole >= r.size then r.whole, r.rest = r.size, 0 end
end

-- What is foreseen is in whole and rest, and taken out when they are written.
function foresee(r, n)
  local whole, rest, dirty = r.whole, r.rest, r.dirty
  fill(r, n, now)
  r.dirty, r.foreseen, r.cut = dirty, (r.foreseen or 0) + r.whole - whole, (r.cut or 0) + rest - r.rest
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
  if r.stamp > 0 then level = level .. ' ' .. text(r.stamp) .. ' ' .. text(r.ends) end
  redis.call('SET', r.key, level, 'PX', r.ttl)
end

function report(r) return {room(r), r.whole, r.rest, r.rate} end
