-- Says that this node is there. KEYS[1] is a hash with a field per node, "seq expiry mark applied
-- name": the last heartbeat, when the lease ends in milliseconds of this server's clock, the
-- heartbeat at which it was last found that an earlier one, which had been answered, is no longer
-- known here, and up to which clock the node has applied the control record. ARGV: node, seq, lease
-- in milliseconds (0 ends it), the last seq that was answered (-1 if none), what is not used, 1 if
-- it wants the leases, and its name. Reply: seconds and microseconds of this server's clock, the
-- seq that was there (-1 if none), how many nodes there are, and the mark (0 if none), which stays,
-- so that it doesn't matter whether the reply to just that heartbeat arrives. Then an empty control
-- record, and the leases by node.
local time = redis.call('TIME')
local now, lease = time[1] * 1000 + math.floor(time[2] / 1000), tonumber(ARGV[3])
if lease == 0 then
  redis.call('HDEL', KEYS[1], ARGV[1])
  return {time[1], time[2]}
end

local held, _, mark = string.match(redis.call('HGET', KEYS[1], ARGV[1]) or '', '^(%d+) (%d+) ?(%d*)')
held = tonumber(held or -1)
if held < tonumber(ARGV[4]) then mark = ARGV[2] end
mark = tonumber(mark or '') or 0
if held < tonumber(ARGV[2]) then
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[2] .. ' ' .. string.format('%.0f %.0f 0 ', now + lease, mark) .. ARGV[7])
end

local nodes, leases, all = 0, {}, redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  local node, seq, expiry, rest = all[i], string.match(all[i + 1], '^(%d+) (%d+)(.*)')
  expiry = tonumber(expiry or 0)
  if expiry < now then
    redis.call('HDEL', KEYS[1], node)
  else
    nodes = nodes + 1
    if expiry > now + lease then -- the clock has stepped back
      expiry = now + lease
      redis.call('HSET', KEYS[1], node, string.format('%s %.0f', seq, expiry) .. rest)
    end
    if ARGV[6] == '1' then
      leases[#leases + 1], leases[#leases + 2] = node, string.format('%s %.0f', seq, expiry) .. rest
    end
  end
end
redis.call('PEXPIRE', KEYS[1], lease * 4)
return {time[1], time[2], held, nodes, mark, '', {}, 1, leases}
