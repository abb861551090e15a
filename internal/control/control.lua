-- Writes to the control record, and is the only script that does. KEYS[1] is a hash: an entry by
-- its name, "at stamp until keep length body", and the field version, "revision born cleanup last":
--   at        the revision that it was written with, which tells who has read it
--   revision  rises with each change, to this server's time in microseconds where that is more
--   born      when the record began: one that begins again is another one
--   cleanup   when what has ended is to be removed next, in milliseconds
--   last      after this no entry is kept, in milliseconds
-- ARGV: the highest stamp that the caller knows, and for each entry its name, a length, and a text.
-- With a length, in milliseconds, the entry is made now: the text is how long what it replaces is
-- still kept, as far as the caller knows, and the body. Without a length the text is a whole value
-- without at, which was made elsewhere: the higher stamp wins, and of equal ones this one. (A node
-- tells of what it takes for the greater one.) An entry is kept as long as what it replaces would
-- have been, up to 30 days, so that nobody brings that back.
-- Reply: for each entry the value that is there now, without at, "" if there is none.
local time = redis.call('TIME')
local us = time[1] * 1000000 + time[2]
local ms = math.floor(us / 1000)
local key, known = KEYS[1], tonumber(ARGV[1])
local grace, hour, month = 60000, 3600000, 30 * 24 * 3600000

local version = redis.call('HGET', key, 'version') or ''
local revision, born, cleanup, last = string.match(version, '^(%d+) (%d+) (%d+) (%d+)$')
revision, born, cleanup, last = tonumber(revision or 0), born or string.format('%.0f', us), tonumber(cleanup or 0), tonumber(last or 0)

local function parse(value)
  local rest = string.match(value or '', '^%d+ (.*)$')
  local stamp, keep = string.match(rest or '', '^(%d+) %d+ (%d+) %d+ ')
  return rest, tonumber(stamp), tonumber(keep)
end

if ms > cleanup then
  last, cleanup = 0, ms + hour
  local all = redis.call('HGETALL', key)
  for i = 1, #all, 2 do
    local _, _, keep = parse(all[i + 1])
    if keep and ms <= keep + grace then
      last = math.max(last, keep)
    elseif all[i] ~= 'version' then
      redis.call('HDEL', key, all[i])
    end
  end
end

local function put(id, length, text)
  local old, had, kept = parse(redis.call('HGET', key, id))
  local stamp, ends, keep, rest = string.match(text, '^(%d+) (%d+) (%d+) (.*)$')
  local after = math.max(us, revision + 1, known + 1)
  if length then
    local left, body = string.match(text, '^(%d+) (.*)$')
    stamp, ends, rest = after, ms + length, string.format('%.0f ', length) .. body
    keep = math.max(ends, ms + left)
  end
  stamp, ends, keep = tonumber(stamp), tonumber(ends), tonumber(keep)
  keep = math.max(keep, math.min(kept or 0, ms + month))
  local new = string.format('%.0f %.0f %.0f ', stamp, ends, keep) .. rest
  if keep <= ms or had and had > stamp or new == old then return old or '' end
  revision, last = math.max(after, stamp), math.max(last, keep)
  redis.call('HSET', key, id, string.format('%.0f ', revision) .. new)
  return new
end

local reply = {}
for i = 2, #ARGV, 3 do reply[#reply + 1] = put(ARGV[i], tonumber(ARGV[i + 1]), ARGV[i + 2]) end
if revision > 0 then
  redis.call('HSET', key, 'version', string.format('%.0f %s %.0f %.0f', revision, born, cleanup, last))
  redis.call('PEXPIRE', key, string.format('%.0f', math.max(last - ms, 0) + 2 * grace))
end
return reply
