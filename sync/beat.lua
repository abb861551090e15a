-- Says that this node is there. KEYS[1] is a hash with a field per node, "seq expiry", the expiry in milliseconds of this server's clock.
-- ARGV: node, seq, lease in milliseconds.
-- Reply: seconds and microseconds of this server's clock, the seq that was there (-1 if none), and how many nodes there are.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local had = redis.call('HGET', KEYS[1], ARGV[1])
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2] .. ' ' .. string.format('%.0f', now + ARGV[3]))
local nodes, all = 0, redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  local expiry = tonumber(string.match(all[i + 1], ' (%d+)$') or 0)
  if expiry < now then
    redis.call('HDEL', KEYS[1], all[i])
  else
    nodes = nodes + 1
  end
end
redis.call('PEXPIRE', KEYS[1], ARGV[3] * 4)
return {time[1], time[2], tonumber(string.match(had or '', '^(%d+)') or -1), nodes}
