-- One batch of the background exchange. Every key is a hash for one (zone, key, epoch): a field per node, "seq total attempts", and
-- "sum", the running "total attempts" of all nodes, for buckets with "level at": the fill in requests, and when, in milliseconds.
--
-- ARGV: node, seq, drain in requests per millisecond ("" without a bucket), ttl in milliseconds; then for each key: total ("" to only ask), attempts,
-- with a bucket also its fill as the node knows it: what stood in it when the epoch began is in no total of this epoch.
-- Reply, in lines: seconds and microseconds of this server's clock; then for each key: what the node's field held, and "sum" with the level as it was
-- before; or "!" and an error. It is one text, as that costs both sides less than many.
--
-- A message counts only if its seq is above the one that is there: a repeated or overtaken one changes nothing.
local node, seq, drain, ttl = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local pcall, match, format, floor, max, tonumber = redis.pcall, string.match, string.format, math.floor, math.max, tonumber
local time = redis.call('TIME')
local now = time[1] * 1000 + floor(time[2] / 1000)
local head = ARGV[2] .. ' '

local function refused(err) return '!', (string.gsub(err, '[\r\n]', ' ')) end

-- What all other nodes have, counted anew: "sum" makes no sense, or this node's field doesn't.
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

local function push(key, i)
  local had = pcall('HMGET', key, node, 'sum')
  if had.err then return refused(had.err) end
  local mine, sum = had[1], had[2]
  local s, held, tried
  if mine then s, held, tried = match(mine, '^(%d+) (%d+) (%d+)$') end
  if held and held + 0 >= 2^53 then s, held, tried = nil, nil, nil end
  local total = ARGV[i]
  if total == '' or s and seq <= s + 0 then return held or '', sum and match(sum, '^[^\r\n]*') or '0 0' end
  local all, attempts, level, at
  if sum and drain then
    all, attempts, level, at = match(sum, '^(%d+) (%d+) ?(%S*) ?(%S*)$')
  elseif sum then
    all, attempts = match(sum, '^(%d+) (%d+)$')
  end
  if sum and not all or mine and not (s and sum) or all and (all - (held or 0) < 0 or all + 0 >= 2^53) then
    all, attempts = recount(key)
    all, attempts = all + (held or 0), attempts + (tried or 0)
  end
  local tries = ARGV[i + 1]
  local more = total - (held or 0)
  local spent, asked = (all or 0) + more, max(0, (attempts or 0) + tries - (tried or 0))
  -- The first form is faster, and exact where the numbers are.
  local new = format(spent < 1e15 and spent > -1e15 and asked < 1e15 and '%d %d' or '%.0f %.0f', spent, asked)
  local stored, seen = new, new
  if drain then
    local fill = max(0, (tonumber(level) or 0) - drain * max(0, now - (tonumber(at) or now)))
    if fill >= 2^53 then fill = 0 end
    stored = new .. format(' %.3f %.0f', max(0, fill + more, tonumber(ARGV[i + 2]) or 0), now)
    if (level or '') ~= '' then seen = new .. ' ' .. level .. ' ' .. at end
  end
  local set = pcall('HSET', key, node, head .. total .. ' ' .. tries, 'sum', stored)
  if set ~= 0 and type(set) == 'table' and set.err then return refused(set.err) end
  if not s then redis.call('PEXPIRE', key, ttl) end
  return held or '', seen
end

local reply = {time[1], time[2]}
local n, i, step = 2, 5, drain and 3 or 2
for k = 1, #KEYS do
  reply[n + 1], reply[n + 2] = push(KEYS[k], i)
  n, i = n + 2, i + step
end
return table.concat(reply, '\n')
