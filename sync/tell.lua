-- tell adds the names of hashes of which other regions have to know to the sorted set told, and
-- where urgent is set to hurry. us is this server's time in microseconds: the score is that, and
-- above all others.
local function tell(told, hurry, names, us, urgent)
  if #names == 0 then return end
  local last = redis.call('ZREVRANGE', told, 0, 0, 'WITHSCORES')[2]
  local score, set = string.format('%.0f', math.max((last or 0) + 1, us)), {}
  for i, name in ipairs(names) do set[2 * i - 1], set[2 * i] = score, name end
  redis.call('ZADD', told, unpack(set))
  redis.call('PEXPIRE', told, toldTTL)
  if urgent then
    redis.call('ZADD', hurry, unpack(set))
    redis.call('PEXPIRE', hurry, 60000)
  end
end

