-- Says that this node is there. KEYS[1] is a hash with a field per node, "seq expiry since applied
-- name": the last heartbeat, when the lease ends in milliseconds of this server's clock, since when
-- the server knows all heartbeats of the node that it has answered, in milliseconds as well, and up
-- to which revision the node has applied the control record. KEYS[2] is that record, see
-- control.lua. KEYS[3] is a hash with "at nodes" under the name nodes: how many nodes there were,
-- and when they were counted; and under lost when a loss was found last. All leases are read once a
-- second, by the first that finds that older, in place of at each heartbeat: that took 1,000 nodes
-- a whole processor. ARGV: node, seq, lease in milliseconds (0 ends it), the last seq that was
-- answered (-1 if none), the version of the control record that the node has applied ("" if none),
-- 1 if it wants the leases, its name, and the since of the last answer. Reply: seconds and
-- microseconds of this server's clock, the seq that was there (-1 if none), how many nodes there
-- are, and since. Where that is another one, the server has forgotten: it stays, so that it doesn't
-- matter whether the reply to just that heartbeat arrives, and a late copy of an answered heartbeat
-- hides nothing. Then the version of the control record, its entries, 1 if these are all, as
-- record.lua has them, and the leases by node.
local time = redis.call('TIME')
local now, lease = time[1] * 1000 + math.floor(time[2] / 1000), tonumber(ARGV[3])
if lease == 0 then
  redis.call('HDEL', KEYS[1], ARGV[1])
  redis.call('HDEL', KEYS[3], 'nodes')
  return {time[1], time[2]}
end

local stored, _, since = string.match(redis.call('HGET', KEYS[1], ARGV[1]) or '', '^(%d+) (%d+) ?(%d*)')
stored, since = tonumber(stored or -1), tonumber(since or '')
local seq, answered = tonumber(ARGV[2]), tonumber(ARGV[4])
if not since or stored < answered then since = now end
local forgot = stored < answered or since ~= tonumber(ARGV[8])
if forgot and answered >= 0 and stored < seq then
  redis.call('HSET', KEYS[3], 'lost', string.format('%.0f', now))
end
-- What the node has applied holds in this history of the server only: one that has forgotten may
-- have another record since.
local version, entries, all = record(KEYS[2], ARGV[5], forgot)
local applied = not all and string.match(ARGV[5], '^%d+') or '0'
if stored < seq then
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[2] .. ' ' .. string.format('%.0f %.0f ', now + lease, since) .. applied .. ' ' .. ARGV[7])
end

redis.call('PEXPIRE', KEYS[1], lease * 4)

local at, nodes = string.match(redis.call('HGET', KEYS[3], 'nodes') or '', '^(%d+) (%d+)$')
local age, leases = now - tonumber(at or 0), {}
if stored < 0 and age >= 0 and age < 1000 then -- else all nodes would read all, after a loss
  nodes = nodes + 1
  redis.call('HSET', KEYS[3], 'nodes', string.format('%s %.0f', at, nodes))
end
if ARGV[6] == '1' or age < 0 or age >= 1000 then
  local found = redis.call('HGETALL', KEYS[1])
  nodes = 0
  for i = 1, #found, 2 do
    local node, seq, expiry, rest = found[i], string.match(found[i + 1], '^(%d+) (%d+)(.*)')
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
  redis.call('HSET', KEYS[3], 'nodes', string.format('%.0f %.0f', now, nodes))
  redis.call('PEXPIRE', KEYS[3], lease * 4)
end
return {time[1], time[2], stored, tonumber(nodes), since, version, entries, all and 1 or 0, leases}
