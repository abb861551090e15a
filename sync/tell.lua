-- tell adds the names of bans of which other regions have to know to the sorted set told. us is
-- this server's time in microseconds: the score is that, and above all others.
--
-- highest is the highest score in a set. One that no clock comes to is removed, as all later ones
-- would have to be above it, and so is a key of another type.
local function highest(set)
  local found = redis.pcall('ZREVRANGE', set, 0, 0, 'WITHSCORES')
  if found.err then
    if string.find(found.err, '^WRONGTYPE') then redis.call('PEXPIRE', set, 0) end
    found = redis.call('ZREVRANGE', set, 0, 0, 'WITHSCORES')
  end
  local score = tonumber(found[2] or 0)
  if score <= 4.5e15 then return score end
  redis.call('ZREMRANGEBYSCORE', set, '(4.5e15', '+inf')
  return highest(set)
end

local function tell(told, names, us)
  if #names == 0 then return end
  local score, set = string.format('%.0f', math.max(highest(told) + 1, us)), {}
  for i, name in ipairs(names) do set[2 * i - 1], set[2 * i] = score, name end
  redis.call('ZADD', told, unpack(set))
  redis.call('PEXPIRE', told, toldTTL)
end
