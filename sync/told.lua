-- Names of cells and bans that other regions have to know, in the order in which they changed:
-- those after a score. KEYS[1]: a sorted set. ARGV: after which score; how many at most; and "take"
-- to remove them and all before, "sweep" to remove those whose key is gone, or "". Several names
-- have one score, and those are never parted. Reply: the highest score that there is, that of the
-- last name (or the one after which there are none), the names, and how many names come after them.
local key, after, most = KEYS[1], ARGV[1], tonumber(ARGV[2])
local highest = redis.call('ZREVRANGE', key, 0, 0, 'WITHSCORES')[2] or '0'
local found = redis.call('ZRANGEBYSCORE', key, '(' .. after, '+inf', 'WITHSCORES', 'LIMIT', 0, most)
local last, names = found[#found] or after, {}
local full = #found == 2 * most
for i = 1, #found, 2 do
  if not full or found[i + 1] ~= last then names[#names + 1] = found[i] end
end
if full then
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', key, last, last)) do names[#names + 1] = name end
end
if ARGV[3] == 'take' and #names > 0 then redis.call('ZREMRANGEBYSCORE', key, '-inf', last) end
if ARGV[3] == 'sweep' then
  for _, name in ipairs(names) do
    if redis.call('EXISTS', name) == 0 then redis.call('ZREM', key, name) end
  end
end
return {highest, last, names, full and redis.call('ZCOUNT', key, '(' .. last, '+inf') or 0}
