-- Says that this node is there. KEYS[1] is a hash with a field per node, "seq expiry mark": the
-- last heartbeat, when the lease ends in milliseconds of this server's clock, and the heartbeat at
-- which it was last found that an earlier one, which had been answered, is no longer known here.
-- ARGV: node, seq, lease in milliseconds, the last seq that was answered (-1 if none).
-- Reply: seconds and microseconds of this server's clock, the seq that was there (-1 if none), how
-- many nodes there are, and the mark (0 if none). The mark stays, so that it doesn't matter whether
-- the reply to just that heartbeat arrives.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local held, _, mark = string.match(redis.call('HGET', KEYS[1], ARGV[1]) or '', '^(%d+) (%d+) ?(%d*)$')
held = tonumber(held or -1)
if held < tonumber(ARGV[4]) then mark = ARGV[2] end
mark = tonumber(mark or '') or 0
if held < tonumber(ARGV[2]) then
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[2] .. ' ' .. string.format('%.0f %.0f', now + ARGV[3], mark))
end
local nodes, all = 0, redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  local expiry = tonumber(string.match(all[i + 1], '^%d+ (%d+)') or 0)
  if expiry < now then
    redis.call('HDEL', KEYS[1], all[i])
  else
    nodes = nodes + 1
  end
end
redis.call('PEXPIRE', KEYS[1], ARGV[3] * 4)
return {time[1], time[2], held, nodes, mark}
