-- Sliding log: a sorted set of what was admitted, by microseconds. For each rule: limit, which each
-- batch brings, window in microseconds, ttl in milliseconds. What came at t no longer counts at t +
-- window.
rules = {width = 3, brought = 1, trims = 'ZREMRANGEBYRANK'}

-- When the n-th newest is from. What is counted and not written would be the newest.
local function newest(r, n)
  if n <= r.unwritten then return now end
  local i = r.unwritten - n
  return tonumber(redis.call('ZRANGE', r.key, i, i, 'WITHSCORES')[2])
end

-- unpack takes a few thousand at most.
local most = 1024

-- After a step of the clock, what was admitted in the future counts as admitted now.
local function pull(r)
  local members = redis.call('ZRANGEBYSCORE', r.key, '(' .. text(now), '+inf')
  for from = 1, #members, most do
    local args = {}
    for i = from, math.min(from + most - 1, #members) do
      args[#args + 1] = text(now)
      args[#args + 1] = members[i]
    end
    redis.call('ZADD', r.key, unpack(args))
  end
end

function bring(r, i) r.limit = tonumber(ARGV[i]) end

function open(key, i)
  local r = {key = key .. ':log', spent = 0, unwritten = 0, window = tonumber(ARGV[i + 1]), ttl = ARGV[i + 2]}
  bring(r, i)
  r.from = now - r.window
  if reset > 0 and forgiven < now then r.from = math.max(r.from, forgiven) end
  r.past = text(r.from)
  if seq > 0 and (newest(r, 1) or 0) > now then pull(r) end
  r.count = redis.call('ZCOUNT', r.key, '(' .. r.past, '+inf')
  return r
end

function room(r) return math.max(0, r.limit - r.count) end

local function member(s, unit) return text(s) .. ':' .. text(unit) .. ':' .. field end

local function add(r, n, at, call, unit, step)
  redis.call('ZREMRANGEBYSCORE', r.key, '-inf', r.past)
  local score = text(at)
  for from = 0, n - 1, most do
    local args = {}
    for i = from, math.min(from + most, n) - 1 do
      args[#args + 1] = score
      args[#args + 1] = member(call, unit + i * step)
    end
    redis.call('ZADD', r.key, unpack(args))
  end
  redis.call('PEXPIRE', r.key, r.ttl)
  r.count = r.count + n
end

function spend(r, n)
  if seq == 0 then
    r.count, r.unwritten = r.count + n, r.unwritten + n
  else
    add(r, n, now, seq, r.spent + 1, 1)
    r.spent = r.spent + n
  end
end

-- Penalties are numbered downwards from -1. They leave at most limit in all: the oldest make room.
local filled = 0
function fill(r, n, at)
  n = math.min(n, r.limit)
  if n <= 0 or at <= r.from then return end
  add(r, n, at, first, filled - 1, -1)
  filled = filled - n
  local over = math.min(n, r.count - r.limit)
  if over > 0 then
    redis.call('ZREMRANGEBYRANK', r.key, 0, text(over - 1))
    r.count = r.count - over
  end
end

-- What leaves for it, as more than twice the limit would stand, would leave before the rest does.
function debit(r, n)
  n = math.min(n, r.limit)
  if n <= 0 then return end
  add(r, n, now, first, filled - 1, -1)
  filled = filled - n
  local over = r.count - 2 * r.limit
  if over > 0 then
    redis.call('ZREMRANGEBYRANK', r.key, 0, text(over - 1))
    r.count = r.count - over
  end
end

function foresee(r, n)
  n = math.min(n, r.limit)
  if n <= 0 then return end
  r.unwritten = r.unwritten + n
  r.count = math.max(r.count, math.min(r.count + n, r.limit))
end

function give(r, _, call, unit, n)
  redis.call('ZREMRANGEBYSCORE', r.key, '-inf', r.past)
  for from = 0, n - 1, most do
    local args = {}
    for i = from, math.min(from + most, n) - 1 do args[#args + 1] = member(call, unit + i) end
    r.count = r.count - redis.call('ZREM', r.key, unpack(args))
  end
end

function close() end

-- The one that has to leave for n more to fit; -1 for none.
local function leaves(r, n)
  if r.count <= 0 then return -1 end
  return math.min(now, newest(r, math.min(math.max(1, r.limit - n + 1), r.count)))
end

-- When one more fits, and when the last one leaves; -1 for an empty log. Then when the next request
-- fits of each run that was not admitted as a whole.
function report(r)
  local all = {room(r), 0, -1, -1}
  if r.count > 0 then all = {room(r), r.count, leaves(r, 1), math.min(now, newest(r, 1))} end
  for _, run in ipairs(runs or {}) do
    if run.denied then all[#all + 1] = leaves(r, run.cost) end
  end
  return all
end
