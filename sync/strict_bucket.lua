-- Token bucket, GCRA and leaky bucket: a level that rises by what is admitted and drains limit in every window. For each rule: limit, size,
-- window, its unit (1 for microseconds, 1000 for nanoseconds), ttl in milliseconds. The key holds "whole rest at": whole + rest / window requests.
rules = {width = 5}

local function drain(r, elapsed)
  local rest = math.fmod(elapsed, r.window)
  local whole, part = muldiv(r.limit, rest, r.window)
  whole = whole + (elapsed - rest) / r.window * r.limit
  if whole > r.whole or whole == r.whole and part >= r.rest then
    r.whole, r.rest = 0, 0
    return
  end
  r.whole, r.rest = r.whole - whole, r.rest - part
  if r.rest < 0 then r.whole, r.rest = r.whole - 1, r.rest + r.window end
end

function open(key, at)
  local r = {key = key .. ':level', limit = tonumber(ARGV[at]), size = tonumber(ARGV[at + 1]), window = tonumber(ARGV[at + 2]), unit = tonumber(ARGV[at + 3]), ttl = ARGV[at + 4]}
  local whole, rest, since = string.match(redis.call('GET', r.key) or '', '^(%d+) (%d+) (%d+)$')
  r.whole, r.rest = math.min(tonumber(whole or 0), exact), math.min(tonumber(rest or 0), r.window - 1)
  if since and tonumber(since) > now then
    r.dirty = true -- the clock has stepped back: what is there drains from now on
  elseif since and r.limit > 0 then
    drain(r, (now - since) * r.unit)
  end
  return r
end

function room(r)
  if r.limit == 0 then return 0 end
  local used = r.whole
  if r.rest > 0 then used = used + 1 end
  return math.max(0, r.size - used)
end

function spend(r, n)
  r.whole, r.dirty = r.whole + n, true
end

-- At most to the brim.
function fill(r, n)
  if r.limit == 0 or r.whole >= r.size then return end
  r.whole, r.dirty = r.whole + n, true
  if r.whole >= r.size then r.whole, r.rest = r.size, 0 end
end

function give(r, _, _, _, n)
  if r.whole >= n then r.whole = r.whole - n else r.whole, r.rest = 0, 0 end
  r.dirty = true
end

function close(r)
  if r.dirty then redis.call('SET', r.key, text(r.whole) .. ' ' .. text(r.rest) .. ' ' .. text(now), 'PX', r.ttl) end
end

function report(r) return {room(r), r.whole, r.rest} end
