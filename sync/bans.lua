-- The bans of keys: those that a node tells of, and those that it asks for.
--
-- KEYS: that of each ban; and where other regions hear of bans that begin here, the sorted set
-- told. ARGV: for each "rest length" of a ban, 0 for none, "age" of a pardon, and "at", when that
-- was left by this server's clock, where it is not left just now; or nothing, to ask. Numbers are
-- microseconds.
-- Reply: a line for each, "begun rest length" of the ban that began last, or nothing.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local stored = redis.call('MGET', unpack(KEYS, 1, #ARGV)) -- a key of another type has no value
local reply, names = {}, {}
for i = 1, #ARGV do
  local key = KEYS[i]
  local left, whole, age, at = string.match(ARGV[i], '^(%d+) (%d+) ?(%d*) ?(%d*)$')
  left, whole, age = tonumber(left), tonumber(whole), tonumber(age)
  local begun, rest, length = ban(key, stored[i], now, age, true)
  if whole and whole > 0 then
    local new = math.min(tonumber(at) or now, now) - (whole - left)
    left = new + whole - now
    if left > 0 and (not begun or new > begun or new == begun and whole > length) then
      begun, rest, length = new, left, whole
      names[#names + 1] = key
      redis.call('SET', key, string.format('%.0f %.0f', begun, length), 'PX', string.format('%.0f', math.ceil(rest / 1000)))
    end
  end
  reply[i] = begun and string.format('%.0f %.0f %.0f', begun, rest, length) or ''
end
if #KEYS > #ARGV then tell(KEYS[#KEYS], names, now) end
return table.concat(reply, '\n')
