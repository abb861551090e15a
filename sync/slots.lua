-- Gauges: how many slots of a key each node has given out. Every key is a hash with a field per
-- node, "seq gauge expiry", the expiry in milliseconds of this server's clock.
--
-- KEYS: the hashes. ARGV: node, seq, lease and ttl of a hash in milliseconds; then for each hash
-- the node's gauge ("" to only ask); then, where the node wants more slots of any, for each hash
-- "wanted limit": how many slots more, and of how many in all. Reply, a line for each hash: what
-- the other nodes have, and where slots are wanted how many of them are granted; or "!" and an
-- error. It is one text, as that costs both sides less than many.
--
-- A message counts only if its seq is above the one that is there. The same one again is answered
-- as it was; one that was overtaken gets "!".
--
-- A third of what a message costs is the text below, not the commands. So the loop calls no
-- function of its own where nothing is wanted, it has [0-9] where %d takes twice as long, and a
-- number that nothing is added to stays a text.
local node, seq, lease, ttl = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local call, pcall, match, type, max, min = redis.call, redis.pcall, string.match, type, math.max, math.min
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local latest = now + lease
local head, tail = ARGV[2] .. ' ', string.format(' %.0f', latest)
-- A hash gets its ttl with the first message in each half of it, whichever node's that is. So it
-- has the other half left at least, which is a lease.
local renewed = latest - now % (ttl / 2)

local function rejected(err) return '!' .. string.gsub(err, '[\r\n]', ' ') end

-- grant returns how many of the wanted slots there are.
local function grant(wants, sum, gauge)
  local wanted, limit = match(wants, '^([0-9]+) ([0-9]+)$')
  return max(0, min(wanted, limit - sum - gauge))
end

local reply, keys, args = {}, KEYS, ARGV
for k = 1, #keys do
  local key, gauge, wants = keys[k], args[4 + k], args[4 + #keys + k]
  local all, sum, newest, previous, had = pcall('HGETALL', key), '0', 0, nil, nil
  for f = 1, #all, 2 do
    local s, has, expiry = match(all[f + 1], '^([0-9]+) ([0-9]+) ([0-9]+)$')
    if s then expiry = expiry + 0 end
    if all[f] == node then
      previous, had = s, has
      if s and expiry > newest then newest = expiry end
    elseif s and expiry > now and #has < 10 then
      if expiry > newest then newest = expiry end
      if sum == '0' then sum = has elseif has ~= '0' then sum = sum + has end
      if expiry > latest and gauge ~= '' then -- the clock has stepped back
        call('HSET', key, all[f], s .. ' ' .. has .. tail)
      end
    elseif gauge ~= '' then
      call('HDEL', key, all[f])
    end
  end
  local line = sum
  if all.err then
    line = rejected(all.err)
  elseif gauge ~= '' and previous and previous + 0 >= seq then
    if previous + 0 > seq then line = '!overtaken' elseif wants then line = sum .. ' ' .. had - gauge end
  elseif gauge ~= '' then
    if wants then
      local granted = grant(wants, sum, gauge)
      gauge, line = gauge + granted, sum .. ' ' .. granted
    end
    local set = pcall('HSET', key, node, head .. gauge .. tail)
    if set ~= 0 and type(set) == 'table' and set.err then
      line = rejected(set.err)
    elseif newest < renewed or newest > latest then
      call('PEXPIRE', key, ttl)
    end
  end
  reply[k] = line
end
return table.concat(reply, '\n')
