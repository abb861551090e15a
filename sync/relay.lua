-- Says that a node would tell the other regions what the nodes of this one have, and whether it is
-- the one that does. KEYS: the hash relay, and region, which has the name of this server's region.
-- ARGV: node, lease in milliseconds (0 gives it up), the region, for how many milliseconds from now
-- the reader knows that it may know too little ("" for no change), and then names of fields and
-- their values, which are kept: how far each other region has been told.
-- Reply: seconds and microseconds of this server's clock, 1 if this node is the one, the name of
-- the region, and the fields that there are.
local time = redis.call('TIME')
local now, lease = time[1] * 1000 + math.floor(time[2] / 1000), tonumber(ARGV[2])
local name = redis.call('GET', KEYS[2])
if not name then
  name = ARGV[3]
  redis.call('SET', KEYS[2], name)
end
redis.call('PEXPIRE', KEYS[2], toldTTL)
local had = redis.call('HMGET', KEYS[1], 'node', 'until')
local held, mine = tonumber(had[2] or '') or 0, had[1] == ARGV[1]
if held > now + 10000 then held = 0 end -- the clock has stepped back
if lease == 0 then
  if mine then redis.call('HSET', KEYS[1], 'until', '0') end
  return {time[1], time[2], 0, name, {}}
end
local fields = redis.call('HGETALL', KEYS[1]) -- as they were
if name ~= ARGV[3] or not mine and held > now then return {time[1], time[2], 0, name, fields} end
redis.call('HSET', KEYS[1], 'node', ARGV[1], 'until', string.format('%.0f', now + lease))
if ARGV[4] ~= '' then redis.call('HSET', KEYS[1], 'doubt', string.format('%.0f', now + ARGV[4])) end
if mine then -- else it has to read first what was kept
  for i = 5, #ARGV, 2 do redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
end
redis.call('PEXPIRE', KEYS[1], toldTTL)
return {time[1], time[2], 1, name, fields}
