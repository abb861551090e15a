-- The keys of cells and bans that other regions have to know, in the order in which they changed:
-- those after a score. It only reads. KEYS: a sorted set; and where another region is read as well
-- its hash counted, region, which has its name, the hash relay and the control record. ARGV: after
-- which score; how many at most; "read" to read what they hold, or ""; the region that reads, and
-- up to which version it has read the control record. Several have one score, and those are
-- never parted. Reply: seconds and microseconds of this server's clock, the highest score that
-- there is, that of the last key (or the one after which there are none), the keys, their scores,
-- how many keys come after them, and what they hold, or nothing where the server lets no script
-- read what is not in KEYS. Then the region's name; when its nodes were counted last, when one has
-- found a loss last, and when it has read the region that reads, in milliseconds; which node reads
-- there; which one it has read of here; up to which revision it has read the control record of the
-- reader; all "" if not; its own record's version, and the entries after that.
local set, after, most, time = KEYS[1], ARGV[1], tonumber(ARGV[2]), redis.call('TIME')
local highest = redis.call('ZREVRANGE', set, 0, 0, 'WITHSCORES')[2] or '0'
local found = most > 0 and redis.call('ZRANGEBYSCORE', set, '(' .. after, '+inf', 'WITHSCORES', 'LIMIT', 0, most) or {}
local last, keys, scores = found[#found] or after, {}, {}
local full = #found == 2 * most
for i = 1, #found, 2 do
  if not full or found[i + 1] ~= last then keys[#keys + 1], scores[#keys + 1] = found[i], found[i + 1] end
end
if full and most > 0 then
  for _, key in ipairs(redis.call('ZRANGEBYSCORE', set, last, last)) do keys[#keys + 1], scores[#keys + 1] = key, last end
end
local reply = {time[1], time[2], highest, last, keys, scores, full and redis.call('ZCOUNT', set, '(' .. last, '+inf') or 0, ARGV[3] == 'read' and cells(keys) or {}}
if #KEYS > 1 then
  local counted, by = redis.pcall('HMGET', KEYS[2], 'nodes', 'lost'), ARGV[4]
  local relay = redis.pcall('HMGET', KEYS[4], 'answered:' .. by, 'node', 'reader:' .. by, 'theirrecord:' .. by)
  reply[9] = redis.call('GET', KEYS[3]) or ''
  reply[10], reply[11] = string.match(counted[1] or '', '^%d+') or '', counted[2] or ''
  for i = 1, 4 do reply[11 + i] = relay[i] or '' end
  reply[16], reply[17] = record(KEYS[5], ARGV[5])
end
return reply
