-- One batch of the background sync. Every key is a hash for one (zone, key, epoch): a field per
-- node, "seq total attempts", and "sum", the running "total attempts" of all nodes. A bucket has a
-- key without an epoch beside them, its fill: "requests at drain until": how full it was at an
-- instant, what flows out in requests per millisecond, and until when the key has to stay, both
-- instants in milliseconds of this server's clock.
--
-- KEYS: the hashes, then the fills, one for each of a bucket's clients.
-- ARGV: node, seq, number of fills, ttl of a hash in milliseconds; then for each hash: total ("" to
-- only ask), attempts; and where there are fills: what of the total is unsent and still stands in
-- the bucket, in the first hash of each client followed by drain, the fill as the node knows it,
-- and "!" where the store may have lost something: "unsent drain fill[ !]".
-- Reply, in lines: seconds and microseconds of this server's clock; then for each hash: what the
-- node's field held, and "sum", in the first of a bucket's client with the fill before this message
-- if there is one; or "!" and an error. It is one text, as that costs both sides less than many.
--
-- A message counts only if its seq is above the one that is there: a repeated or overtaken one
-- changes nothing.
local node, seq, ttl = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[4])
local fills, hashes = tonumber(ARGV[3]), #KEYS - ARGV[3]
local pcall, match, format, floor, max, min, tonumber = redis.pcall, string.match, string.format, math.floor, math.max, math.min, tonumber
local time = redis.call('TIME')
local now = time[1] * 1000 + floor(time[2] / 1000)
local head, instant = ARGV[2] .. ' ', format(' %d ', now)
local exact = 2^53

local function rejected(err) return '!', (string.gsub(err, '[\r\n]', ' ')) end

-- What all other nodes have, added up again: "sum" makes no sense, or this node's field doesn't.
local function recount(key)
  local total, attempts, all = 0, 0, redis.call('HGETALL', key)
  for f = 1, #all, 2 do
    if all[f] ~= 'sum' and all[f] ~= node then
      local _, t, a = match(all[f + 1], '^(%d+) (%d+) (%d+)$')
      total, attempts = total + (t or 0), attempts + (a or 0)
    end
  end
  return total, attempts
end

-- The third result is how much more there is than the node had reported before, nil where nothing
-- was written.
local function push(key, total, tries)
  local had = pcall('HMGET', key, node, 'sum')
  if had.err then return rejected(had.err) end
  local mine, sum = had[1], had[2]
  local s, held, tried
  if mine then s, held, tried = match(mine, '^(%d+) (%d+) (%d+)$') end
  if held and held + 0 >= exact then s, held, tried = nil, nil, nil end
  if total == '' or s and seq <= s + 0 then return held or '', sum and match(sum, '^[^\r\n]*') or '0 0' end
  local all, attempts
  if sum then all, attempts = match(sum, '^(%d+) (%d+)$') end
  if sum and not all or mine and not (s and sum) or all and (all - (held or 0) < 0 or all + 0 >= exact) then
    all, attempts = recount(key)
    all, attempts = all + (held or 0), attempts + (tried or 0)
  end
  local more = total - (held or 0)
  local spent, asked = (all or 0) + more, max(0, (attempts or 0) + tries - (tried or 0))
  -- The first form is faster, and exact where the numbers are.
  local new = format(spent < 1e15 and spent > -1e15 and asked < 1e15 and '%d %d' or '%.0f %.0f', spent, asked)
  local set = pcall('HSET', key, node, head .. total .. ' ' .. tries, 'sum', new)
  if set ~= 0 and type(set) == 'table' and set.err then return rejected(set.err) end
  if not s then redis.call('PEXPIRE', key, ttl) end
  return held or '', new, more
end

-- read is what a fill has by now, the drain as it is written there, and until when the key stays;
-- nil where there is none that makes sense.
local function read(value)
  local fill, at, drain, till = match(value or '', '^(%S+) (%S+) (%S+) (%S+)$')
  fill, at, till = tonumber(fill), tonumber(at), tonumber(till)
  local rate = tonumber(drain)
  if fill and at and rate and till and fill >= 0 and fill < exact and at >= 0 and at < exact and rate >= 0 and rate < exact and till < exact then
    return max(0, fill - rate * max(0, now - at)), drain, till
  end
end

-- flows is the drain rate from now on: that of the node that wrote last. A node that has admitted
-- nothing doesn't lower it: with the lower limit it denies while another one admits, and what that
-- one admits would pile up.
local function flows(above, drain, old)
  if old and (above <= 0 or drain + 0 == 0) and drain + 0 <= old + 0 then return old end
  return drain
end

-- write stores a fill that is above what it has by now by so much.
-- The key outlives the hashes, and twice the time that it takes to drain.
local function write(key, had, above, drain, level, lost, till)
  local fill = max(0, (had or level) + (had and above or 0))
  if lost then fill = max(fill, level) end
  local stays = ttl -- where there are totals without a fill, it was lost
  if drain + 0 > 0 then stays = max(stays, spareTTL + 2 * fill / drain) end
  till = floor(max(now + min(stays, 3e12), min(till or 0, now + 3e12)))
  redis.call('SET', key, format('%.3f', fill) .. instant .. drain .. format(' %d', till), 'PX', format('%d', till - now))
end

local reply = {time[1], time[2]}
local n, i = 2, 5
if fills == 0 then
  for k = 1, hashes do
    reply[n + 1], reply[n + 2] = push(KEYS[k], ARGV[i], ARGV[i + 1])
    n, i = n + 2, i + 2
  end
  return table.concat(reply, '\n')
end

-- A key of another type has no value here, and is written over.
local values = redis.call('MGET', unpack(KEYS, hashes + 1))
local k = 1
for f = 1, fills do
  local unsent, drain, level, lost = match(ARGV[i + 2], '^(%d+) (%S+) (%S+) ?(!?)$')
  local had, old, till = read(values[f])
  local above, wrote, line = 0, false, n + 2
  repeat
    local held, sum, more = push(KEYS[k], ARGV[i], ARGV[i + 1])
    reply[n + 1], reply[n + 2] = held, sum
    if more then above, wrote = above + min(more, tonumber(unsent)), true end
    k, n, i = k + 1, n + 2, i + 3
    unsent = k <= hashes and match(ARGV[i + 2], '^%d+$')
  until not unsent
  if had and reply[line - 1] ~= '!' then reply[line] = reply[line] .. format(' %.3f', had) end
  drain = flows(above, drain, old)
  if wrote and (above ~= 0 or not had or lost ~= '' or drain ~= old) then
    write(KEYS[hashes + f], had, above, drain, tonumber(level), lost ~= '', till)
  end
end
return table.concat(reply, '\n')
