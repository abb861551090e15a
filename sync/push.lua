-- One batch of the background exchange. Every key is a hash for one (zone, key, epoch): a field per node, "seq total attempts", and
-- "sum", the running "total attempts" of all nodes, for buckets with "level at": the fill in requests, and when, in milliseconds.
--
-- ARGV: node, seq, drain in requests per millisecond ("" without a bucket); then for each key: ttl in milliseconds, total ("" to only ask), attempts,
-- with a bucket also its fill as the node knows it: what stood in it when the epoch began is in no total of this epoch.
-- Reply: seconds and microseconds of this server's clock; then for each key: what the node's field held, and "sum" with the level as it was before; or "!" and an error.
--
-- A message counts only if its seq is above the one that is there: a repeated or overtaken one changes nothing.
local node, seq, drain = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local pcall, match, format, floor = redis.pcall, string.match, string.format, math.floor
local time = redis.call('TIME')
local now = time[1] * 1000 + floor(time[2] / 1000)
local reply = {time[1], time[2]}

local function push(key, i)
  local had = pcall('HMGET', key, node, 'sum')
  if had.err then return '!', had.err end
  local mine, sum = had[1], had[2]
  local s, held, tried
  if mine then s, held, tried = match(mine, '^(%d+) (%-?%d+) (%d+)') end
  local total = ARGV[i + 1]
  if total == '' or s and seq <= tonumber(s) then return held or '', sum or '0 0' end
  local all, attempts, level, at
  if sum then all, attempts, level, at = match(sum, '^(%-?%d+) (%d+) ?(%S*) ?(%S*)') end
  local more = total - (held or 0)
  local new = format('%.0f %.0f', (all or 0) + more, math.max(0, (attempts or 0) + ARGV[i + 2] - (tried or 0)))
  local stored, seen = new, new
  if drain then
    local fill = math.max(0, (tonumber(level) or 0) - drain * math.max(0, now - (tonumber(at) or now)))
    stored = new .. format(' %.3f %.0f', math.max(0, fill + more, tonumber(ARGV[i + 3]) or 0), now)
    if (level or '') ~= '' then seen = new .. ' ' .. level .. ' ' .. at end
  end
  local set = pcall('HSET', key, node, ARGV[2] .. ' ' .. total .. ' ' .. ARGV[i + 2], 'sum', stored)
  if type(set) == 'table' and set.err then return '!', set.err end
  if not s then redis.call('PEXPIRE', key, ARGV[i]) end
  return held or '', seen
end

local n = 2
for k = 1, #KEYS do
  reply[n + 1], reply[n + 2] = push(KEYS[k], 4 + (k - 1) * (drain and 4 or 3))
  n = n + 2
end
return reply
