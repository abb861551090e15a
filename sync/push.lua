-- One batch of the background exchange. Every key is a hash for one (zone, key, epoch): a field per node, "seq total attempts", and
-- "sum", the running "total attempts" of all nodes, for buckets with "level at": the fill in requests, and when, in milliseconds.
--
-- ARGV: node, seq, drain in requests per millisecond ("" without a bucket); then for each key: ttl in milliseconds, total ("" to only ask), attempts,
-- with a bucket also its fill as the node knows it: what stood in it when the epoch began is in no total of this epoch.
-- Reply: seconds and microseconds of this server's clock; then for each key: what the node's field held, and "sum" with the level as it was before; or "!" and an error.
--
-- A message counts only if its seq is above the one that is there: a repeated or overtaken one changes nothing.
local node, seq, drain = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local reply = {time[1], time[2]}

local function push(key, i)
  local had = redis.pcall('HMGET', key, node, 'sum')
  if had.err then return '!', had.err end
  local s, held, tried = string.match(had[1] or '', '^(%d+) (%-?%d+) (%d+)$')
  local sum, attempts, level, at = string.match(had[2] or '', '^(%-?%d+) (%d+) ?(%S*) ?(%S*)$')
  sum, attempts = tonumber(sum or 0), tonumber(attempts or 0)
  local seen = ''
  if level and level ~= '' then seen = ' ' .. level .. ' ' .. at end
  if ARGV[i + 1] ~= '' and seq > tonumber(s or -1) then
    local more = tonumber(ARGV[i + 1]) - (held or 0)
    sum = sum + more
    attempts = math.max(0, attempts + ARGV[i + 2] - (tried or 0))
    local new = string.format('%.0f %.0f', sum, attempts)
    if drain then
      local fill = math.max(0, (tonumber(level) or 0) - drain * math.max(0, now - (tonumber(at) or now)))
      new = new .. string.format(' %.3f %.0f', math.max(0, fill + more, tonumber(ARGV[i + 3]) or 0), now)
    end
    local set = redis.pcall('HSET', key, node, ARGV[2] .. ' ' .. ARGV[i + 1] .. ' ' .. ARGV[i + 2], 'sum', new)
    if type(set) == 'table' and set.err then return '!', set.err end
    if not s then redis.call('PEXPIRE', key, ARGV[i]) end
  end
  return held or '', string.format('%.0f %.0f', sum, attempts) .. seen
end

for k = 1, #KEYS do
  local held, sum = push(KEYS[k], 4 + (k - 1) * (drain and 4 or 3))
  reply[#reply + 1] = held
  reply[#reply + 1] = sum
end
return reply
