-- Charges for the sliding log. It follows log.lua.

local entries = 0

-- Adds units at the instant t, or removes some that were charged then (units < 0).
local function charge(r, t, units)
  t = math.min(t, now)
  if t <= r.from then return end
  if units > 0 then
    redis.call('ZREMRANGEBYSCORE', r.key, '-inf', r.past)
    local args = {}
    for _ = 1, units do
      entries = entries + 1
      args[#args + 1] = text(t)
      args[#args + 1] = text(seq) .. ':' .. text(entries) .. ':' .. field
    end
    redis.call('ZADD', r.key, unpack(args))
    redis.call('PEXPIRE', r.key, r.ttl)
  else
    local own = ':' .. field
    for _, member in ipairs(redis.call('ZRANGEBYSCORE', r.key, text(t), text(t))) do
      if units < 0 and string.sub(member, -#own) == own then
        redis.call('ZREM', r.key, member)
        units = units + 1
      end
    end
  end
  r.count = redis.call('ZCOUNT', r.key, '(' .. r.past, '+inf')
end
