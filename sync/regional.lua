-- What the nodes of this region have, for the other regions. KEYS: the number of the last reading,
-- the sorted set told, the hashes, and then a fill for each client, which only buckets have. ARGV:
-- above which number this reading has to be; which number the reader was given here last; and how
-- many fills there are.
--
-- Readings are numbered by this server, so that the later of two has the higher number, whoever
-- made it, whenever it arrives in another region, and however the clock is set: by microseconds,
-- and above the last one. A server that does not know a number that it gave has forgotten what was
-- read with it: the reply is then "!", and nothing is read. Reply, in lines: the number and the one
-- before it; for each hash "ttl total attempts[ settled]", or nothing where it is gone, and then
-- its name is removed from told; for each fill "level drain[ stamp end]", or nothing.
local above, fills = tonumber(ARGV[1]), tonumber(ARGV[3])
local match, format, max = string.match, string.format, math.max
local last = redis.pcall('GET', KEYS[1]) -- false for none
last = type(last) == 'string' and tonumber(match(last, '^%d+$')) or 0
if last >= 2^52 then last = 0 end -- no clock comes to that
if last < tonumber(ARGV[2]) then return '!' end
local time = redis.call('TIME')
local us = time[1] * 1000000 + time[2]
local now = math.floor(us / 1000)
local number = format('%.0f', max(us, last + 1, above + 1))
redis.call('SET', KEYS[1], number, 'PX', toldTTL)
local reply = {number .. format(' %.0f', last)}

for i = 3, #KEYS - fills do
  local had = redis.pcall('HMGET', KEYS[i], 'sum', '~')
  local line = ''
  local sum = not had.err and had[1] or ''
  local total, attempts, settled = match(sum, '^(%d+) (%d+) (%d+)$')
  if not total then total, attempts = match(sum, '^(%d+) (%d+)$') end
  if total then
    local t, a, n = match(had[2] or '', '^(%d+) (%d+) (%d+)$')
    line = format('%.0f %.0f %.0f', max(1, redis.call('PTTL', KEYS[i])), max(0, total - (t or 0)), max(0, attempts - (a or 0)))
    if settled then line = line .. format(' %.0f', max(0, settled - (n or 0))) end
  elseif not had.err and not had[1] then
    redis.call('ZREM', KEYS[2], KEYS[i])
  end
  reply[#reply + 1] = line
end

if fills > 0 then
  local values = redis.call('MGET', unpack(KEYS, #KEYS - fills + 1))
  for i = 1, fills do
    local fill, at, drain, under = match(values[i] or '', '^(%S+) (%d+) (%S+) %d+(.*)$')
    local level = tonumber(fill)
    if level and tonumber(drain) and match(under, '^ ?%d* ?%d*$') then
      level = max(0, level - drain * max(0, now - at))
      reply[#reply + 1] = format('%.3f ', level) .. drain .. under
    else
      reply[#reply + 1] = ''
    end
  end
end
return table.concat(reply, '\n')
