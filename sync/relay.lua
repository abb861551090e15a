-- Says that a node would tell the other regions what the nodes of this one have, and whether it is
-- the one that does. KEYS: the hash relay, region, which has the name of this server's region, and
-- regions, with the heartbeats of the others. ARGV: node, lease in milliseconds (0 gives it up),
-- the region, for how many milliseconds from now the reader knows that it may know too little (""
-- for no change), for how many milliseconds a region is heard of, the names of the others, and
-- then for each of them that the node tells of its name, how far it has been told, how many
-- milliseconds ago it has answered ("" if it has not), how it stands, and up to which clock of the
-- control record it has that ("" where that is not known). All that is kept.
-- Reply: seconds and microseconds of this server's clock, 1 if this node is the one, the name of
-- the region, the fields that there are, and how many other regions are heard of: their heartbeat
-- here, which is known until toldTTL after it, is that recent, and they have answered.
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
local heard, most = 0, tonumber(ARGV[5])
for other in string.gmatch(ARGV[6], '%S+') do
  local ends = tonumber(string.match(redis.call('HGET', KEYS[3], other) or '', '^%d+ (%d+)') or 0)
  local answered = tonumber(redis.call('HGET', KEYS[1], 'answered:' .. other) or '') or 0
  if ends - toldTTL > now - most and math.abs(now - answered) < most then heard = heard + 1 end
end
if name ~= ARGV[3] or not mine and held > now then return {time[1], time[2], 0, name, fields, heard} end
redis.call('HSET', KEYS[1], 'node', ARGV[1], 'until', string.format('%.0f', now + lease))
if ARGV[4] ~= '' then redis.call('HSET', KEYS[1], 'doubt', string.format('%.0f', now + ARGV[4])) end
if mine then -- else it has to read first what was kept
  for i = 7, #ARGV, 5 do
    redis.call('HSET', KEYS[1], 'told:' .. ARGV[i], ARGV[i + 1], 'shown:' .. ARGV[i], ARGV[i + 3])
    if ARGV[i + 2] ~= '' then redis.call('HSET', KEYS[1], 'answered:' .. ARGV[i], string.format('%.0f', now - ARGV[i + 2])) end
    if ARGV[i + 4] ~= '' then redis.call('HSET', KEYS[1], 'record:' .. ARGV[i], ARGV[i + 4]) end
  end
end
redis.call('PEXPIRE', KEYS[1], toldTTL)
return {time[1], time[2], 1, name, fields, heard}
