-- Says that a node would tell the other regions what the nodes of this one have, and whether it is
-- the one that does. KEYS: the hash relay, region, which has the name of this server's region, and
-- regions, with the heartbeats of the others. ARGV: node, lease in milliseconds (0 gives it up),
-- the region, the last number of what the node has said as the relay ("" before it has one), after
-- how many milliseconds a region is lost, the names of the others, and then for each of them that
-- the node tells of its name, how far it has been told, how many milliseconds ago it has answered
-- ("" if it has not), how it stands, and up to which clock of the control record it has that (""
-- where that is not known). All that is kept. Reply: seconds and microseconds of this server's
-- clock, 1 if this node is the one, the name of the region, the fields that there were, for each of
-- the others why it is lost, "" where it is not, "?" where nodes have read for too short a time to
-- tell, and the number after which the relay goes on: above all that another one has said, and
-- about the time. This is what makes a region lost: its Redis has not answered the relay for so
-- long, or no heartbeat of a node of it, which stays until toldTTL after it, has come here.
local time = redis.call('TIME')
local now, lease = time[1] * 1000 + math.floor(time[2] / 1000), tonumber(ARGV[2])
local name = redis.call('GET', KEYS[2])
if not name then
  name = ARGV[3]
  redis.call('SET', KEYS[2], name)
end
redis.call('PEXPIRE', KEYS[2], toldTTL)
local had = redis.call('HMGET', KEYS[1], 'node', 'until')
local held, mine = tonumber(had[2] or '') or 0, had[1] == ARGV[1]
if held > now + 10000 then held = 0 end -- the clock has stepped back
if lease == 0 then
  if mine then redis.call('HSET', KEYS[1], 'until', string.format('%.0f', now)) end
  return {time[1], time[2], 0, name, {}}
end
local fields, number = redis.call('HGETALL', KEYS[1]), ARGV[4] -- as they were
local is, since = name == ARGV[3] and (mine or held <= now), tonumber(redis.call('HGET', KEYS[1], 'since') or '')
if is then
  redis.call('HSET', KEYS[1], 'node', ARGV[1], 'until', string.format('%.0f', now + lease))
  if not since or now - held >= 2000 then -- nobody has read for longer than another node takes
    since = now
    redis.call('HSET', KEYS[1], 'since', string.format('%.0f', since))
  end
  if not mine or number == '' then
    local us, last = time[1] * 1000000 + time[2], tonumber(redis.call('HGET', KEYS[1], 'number') or '') or 0
    if last > us + 864e8 then last = 0 end -- no clock gave that
    number = string.format('%.0f', math.max(us, last + 1e6))
  end
  redis.call('HSET', KEYS[1], 'number', number)
  if mine then -- else it has to read first what was kept
    for i = 7, #ARGV, 5 do
      redis.call('HSET', KEYS[1], 'told:' .. ARGV[i], ARGV[i + 1], 'shown:' .. ARGV[i], ARGV[i + 3])
      if ARGV[i + 2] ~= '' then redis.call('HSET', KEYS[1], 'answered:' .. ARGV[i], string.format('%.0f', now - ARGV[i + 2])) end
      if ARGV[i + 4] ~= '' then redis.call('HSET', KEYS[1], 'record:' .. ARGV[i], ARGV[i + 4]) end
    end
  end
  redis.call('PEXPIRE', KEYS[1], toldTTL)
end

local lost, after = {}, tonumber(ARGV[5])
since = since or now
local function silent(at) return math.abs(now - (at or since)) >= after end
for other in string.gmatch(ARGV[6], '%S+') do
  local answered = tonumber(redis.call('HGET', KEYS[1], 'answered:' .. other) or '')
  local ends = tonumber(string.match(redis.call('HGET', KEYS[3], other) or '', '^%d+ (%d+)') or '')
  local why = ''
  if silent(answered) then
    why = string.match(redis.call('HGET', KEYS[1], 'shown:' .. other) or '', '^%S+ %S+ %S+ %S+ (.+)') or 'its redis does not answer'
  elseif silent(ends and ends - toldTTL) then
    why = 'its nodes do not reach the redis of this region; the log there says why'
  end
  if why == '' and not (answered and ends) or why ~= '' and not silent(since) then why = '?' end
  lost[#lost + 1] = why
end
return {time[1], time[2], is and 1 or 0, name, fields, lost, number}
