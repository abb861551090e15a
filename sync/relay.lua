-- Says that a node would read the other regions for the nodes of this one, and whether it is the
-- one that does. KEYS: the hash relay and region, which has the name of this server's region. ARGV:
-- node, lease in milliseconds (0 gives it up), the region, the last number of what the node has
-- said as the relay ("" before it has one), after how many milliseconds a region is lost, the names
-- of the others, and then for each of them that the node reads its name, how many milliseconds ago
-- its Redis has answered, and was known to have read this one ("" if never), how it stands, which
-- node reads there, up to which revision its control record was read, and up to which it has read
-- that of this region. All that is kept. Reply: seconds and microseconds of this server's clock, 1
-- if this node is the one, the name of the region, the fields that there were, for each of the
-- others why it is lost, "" where it is not, "?" where nodes have read for too short a time to
-- tell, and the number after which the relay goes on: above all that another one has said, and
-- about the time. A region is lost whose Redis has not answered the relay for so long, or whose
-- nodes have not read the Redis here.
local time = redis.call('TIME')
local now, lease = time[1] * 1000 + math.floor(time[2] / 1000), tonumber(ARGV[2])
local name = redis.call('GET', KEYS[2])
if not name then
  name = ARGV[3]
  redis.call('SET', KEYS[2], name)
end
redis.call('PEXPIRE', KEYS[2], toldTTL)
local had = redis.call('HMGET', KEYS[1], 'node', 'until', 'since', 'number')
local ends, mine = tonumber(had[2] or '') or 0, had[1] == ARGV[1]
if ends > now + 10000 then ends = 0 end -- the clock has stepped back
if lease == 0 then
  if mine then redis.call('HSET', KEYS[1], 'until', string.format('%.0f', now)) end
  return {time[1], time[2], 0, name, {}}
end
local fields, number = redis.call('HGETALL', KEYS[1]), ARGV[4] -- as they were
local is, since = name == ARGV[3] and (mine or ends <= now), tonumber(had[3] or '')
if is then
  if not since or now - ends >= 2000 then -- nobody has read for longer than another node takes
    since = now
  end
  if not mine or number == '' then
    local us, last = time[1] * 1000000 + time[2], tonumber(had[4] or '') or 0
    if last > us + 864e8 then last = 0 end -- no clock gave that
    number = string.format('%.0f', math.max(us, last + 1e6))
  end
  redis.call('HSET', KEYS[1], 'node', ARGV[1], 'until', string.format('%.0f', now + lease), 'since', string.format('%.0f', since), 'number', number)
  for i = 7, mine and #ARGV or 0, 7 do -- another one has to read first what was kept
    local of = ARGV[i]
    redis.call('HSET', KEYS[1], 'shown:' .. of, ARGV[i + 3], 'reader:' .. of, ARGV[i + 4], 'theirrecord:' .. of, ARGV[i + 5], 'ourrecord:' .. of, ARGV[i + 6])
    if ARGV[i + 1] ~= '' then redis.call('HSET', KEYS[1], 'answered:' .. of, string.format('%.0f', now - ARGV[i + 1])) end
    if ARGV[i + 2] ~= '' then redis.call('HSET', KEYS[1], 'readus:' .. of, string.format('%.0f', now - ARGV[i + 2])) end
  end
  redis.call('PEXPIRE', KEYS[1], toldTTL)
end

local lost, after = {}, tonumber(ARGV[5])
since = since or now
local function silent(at) return math.abs(now - (at or since)) >= after end
for other in string.gmatch(ARGV[6], '%S+') do
  local had, why = redis.call('HMGET', KEYS[1], 'answered:' .. other, 'readus:' .. other, 'shown:' .. other), ''
  local answered, readus = tonumber(had[1] or ''), tonumber(had[2] or '')
  if silent(answered) then
    why = string.match(had[3] or '', '^%S+ %S+ %S+ %S+ (.+)') or 'its redis does not answer'
  -- Only where it answered lately is readus up to date.
  elseif silent(readus) and (not answered or math.abs(now - answered) < 3000) then
    why = 'its nodes do not reach the redis of this region; the log there says why'
  end
  if why == '' and not (answered and readus) or why ~= '' and not silent(since) then why = '?' end
  lost[#lost + 1] = why
end
return {time[1], time[2], is and 1 or 0, name, fields, lost, number}
