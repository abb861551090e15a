-- Writes to the control record, and is the only script that does. KEYS[1] is a hash: an entry by
-- its name, "stamp until keep length body", and the field version, "clock digest count first last":
--   clock   rises with each change, to this server's time in microseconds where that is more. A new
--           entry's stamp is the clock.
--   digest  the sum of the first 48 bits of the SHA-1 of "name value" of all entries, modulo 2^48
--   count   how many entries there are
--   first   before this no entry is removed, and last: after this none is kept; in milliseconds
-- ARGV: the highest stamp that the caller knows, how many entries there may be ("" for any number;
-- resets are counted apart),
-- and for each entry its name, a length, a rest and a text. With a length, in milliseconds, the
-- text is the body of a new entry. It is kept as long as what it replaces would have been, up to 30
-- days, so that nobody brings that back; the rest is how long that is as far as the caller knows.
-- Without a length the text is a whole value, which another node has written before: the higher
-- stamp wins, and of equal ones the greater text.
-- Reply: seconds and microseconds of this server's clock, clock, digest, and for each entry the
-- value that is there now, "" if there is none.
local time = redis.call('TIME')
local us = time[1] * 1000000 + time[2]
local ms = math.floor(us / 1000)
local key, known, most = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2])
local grace, month = 60000, 30 * 24 * 3600000

local function parse(value)
  local stamp, keep = string.match(value or '', '^(%d+) %d+ (%d+) %d+ ')
  return tonumber(stamp), tonumber(keep)
end

local function hash(id, value)
  return tonumber(string.sub(redis.sha1hex(id .. ' ' .. value), 1, 12), 16)
end

local version = redis.call('HGET', key, 'version') or ''
local clock, digest, count, first, last = string.match(version, '^(%d+) (%d+) (%d+) (%d+) (%d+)$')
clock, digest, count = tonumber(clock or 0), tonumber(digest or 0), tonumber(count or 0)
first, last = tonumber(first or 0), tonumber(last or 0)

-- Removes what has ended a while ago, and counts the rest again.
if first > 0 and ms > first + grace then
  digest, count, first, last = 0, 0, 0, 0
  local all = redis.call('HGETALL', key)
  for i = 1, #all, 2 do
    if all[i] ~= 'version' then
      local _, keep = parse(all[i + 1])
      if not keep or ms > keep + grace then
        redis.call('HDEL', key, all[i])
      else
        digest, count = (digest + hash(all[i], all[i + 1])) % 2 ^ 48, count + 1
        if first == 0 or keep < first then first = keep end
        last = math.max(last, keep)
      end
    end
  end
end

local function tick(stamp) clock = math.max(us, clock + 1, known + 1, stamp) end

local function put(id, old, value, keep)
  if old then digest = digest - hash(id, old) else count = count + 1 end
  digest = (digest + hash(id, value)) % 2 ^ 48
  if first == 0 or keep < first then first = keep end
  last = math.max(last, keep)
  redis.call('HSET', key, id, value)
  return value
end

-- How many entries there are of the budget that a name belongs to: resets have one of their own.
local function budget(id)
  local n, resets = 0, string.sub(id, 1, 6) == 'reset:'
  local all = redis.call('HGETALL', key)
  for i = 1, #all, 2 do
    if all[i] ~= 'version' and (string.sub(all[i], 1, 6) == 'reset:') == resets then n = n + 1 end
  end
  return n
end

local function write(id, length, rest, body)
  local old = redis.call('HGET', key, id)
  if not old and most and count >= most and budget(id) >= most then return '' end
  local _, had = parse(old)
  local keep = math.max(ms + length, math.min(math.max(ms + rest, had or 0), ms + month))
  tick(0)
  return put(id, old, string.format('%.0f %.0f %.0f %.0f ', clock, ms + length, keep, length) .. body, keep)
end

-- Compares bytes: Lua compares texts as the server's locale sorts them.
local function is_less(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then return x < y end
  end
  return #a < #b
end

local function merge(id, value)
  local old = redis.call('HGET', key, id)
  local had = parse(old)
  local stamp, keep = parse(value)
  if keep <= ms or had and (had > stamp or had == stamp and not is_less(old, value)) then return old or '' end
  tick(stamp)
  return put(id, old, value, keep)
end

local reply = {time[1], time[2], '', ''}
for i = 3, #ARGV, 4 do
  local id, length, rest, text = ARGV[i], tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]), ARGV[i + 3]
  if length then reply[#reply + 1] = write(id, length, rest, text) else reply[#reply + 1] = merge(id, text) end
end
if count > 0 or version ~= '' then
  redis.call('HSET', key, 'version', string.format('%.0f %.0f %.0f %.0f %.0f', clock, digest, count, first, last))
  redis.call('PEXPIRE', key, string.format('%.0f', math.max(last - ms, 0) + 2 * grace))
end
reply[3], reply[4] = string.format('%.0f', clock), string.format('%.0f', digest)
return reply
