-- Gauges: how many slots of a key each node has given out. Every key is a hash with a field per
-- node, "seq gauge expiry", the expiry in milliseconds of this server's clock.
--
-- KEYS: the hashes. ARGV: node, seq, lease and ttl of a hash in milliseconds; then for each hash:
-- the node's gauge ("" to only ask), how many slots more it wants, and of how many in all. Reply,
-- in lines: for each hash what the other nodes have, and how many of the wanted slots are granted;
-- or "!" and an error. It is one text, as that costs both sides less than many.
--
-- A message counts only if its seq is above the one that is there. The same one again is answered
-- as it was; one that was overtaken gets "!".
local node, seq, lease, ttl = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local call, pcall, match, tonumber, floor = redis.call, redis.pcall, string.match, tonumber, math.floor
local max, min, type, gsub = math.max, math.min, type, string.gsub
local time = call('TIME')
local now = time[1] * 1000 + floor(time[2] / 1000)
local head, tail = ARGV[2] .. ' ', string.format(' %.0f', now + lease)
local most, quarter = 2^31, ttl / 4

local function rejected(err) return '!', (gsub(err, '[\r\n]', ' ')) end

-- other is what another node has by its field. Who only asks writes nothing.
local function other(key, field, value, asks)
  local s, gauge, expiry = match(value, '^(%d+) (%d+) (%d+)$')
  gauge, expiry = tonumber(gauge), tonumber(expiry)
  if not s or expiry <= now or gauge >= most then
    if not asks then call('HDEL', key, field) end
    return 0
  end
  if expiry > now + lease and not asks then -- the clock has stepped back
    call('HSET', key, field, s .. ' ' .. gauge .. tail)
  end
  return gauge
end

local function tell(key, gauge, wanted, limit)
  local all = pcall('HGETALL', key)
  if all.err then return rejected(all.err) end
  local sum, held, had, till = 0, nil, 0, 0
  for f = 1, #all, 2 do
    if all[f] == node then
      held, had, till = match(all[f + 1], '^(%d+) (%d+) (%d+)$')
    else
      sum = sum + other(key, all[f], all[f + 1], gauge == '')
    end
  end
  held = tonumber(held)
  if gauge == '' then return sum, 0 end
  if held and held > seq then return '!', 'overtaken' end
  if held == seq then return sum, had - gauge end
  if wanted ~= '0' then
    local granted = max(0, min(wanted, limit - sum - gauge))
    gauge, wanted = gauge + granted, granted
  end
  local set = pcall('HSET', key, node, head .. gauge .. tail)
  if type(set) == 'table' and set.err then return rejected(set.err) end
  -- Not each time: it stays for three quarters of its ttl at least, which is more than a lease.
  if not held or floor((till - lease) / quarter) ~= floor(now / quarter) then call('PEXPIRE', key, ttl) end
  return sum, wanted
end

local reply, i = {}, 5
for k = 1, #KEYS do
  reply[2 * k - 1], reply[2 * k] = tell(KEYS[k], ARGV[i], ARGV[i + 1], ARGV[i + 2])
  i = i + 3
end
return table.concat(reply, '\n')
