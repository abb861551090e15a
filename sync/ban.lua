-- ban says when a key's ban began, what is left of it and its length, by what is stored of it;
-- nothing where it is over, or was pardoned. Times are microseconds of this server's clock. age is
-- how long ago the key was pardoned, nil for never. A ban that begins in the future, as the clock
-- was set back, begins now: taken for now at each look, it would last until the clock has caught
-- up. It is written back where write is set.
local function ban(key, value, now, age, write)
  local begun, length = string.match(value or '', '^(%d+) (%d+)$')
  begun, length = tonumber(begun), tonumber(length)
  if not begun or begun >= 2^53 or length >= 2^53 then return end
  local future = begun > now
  begun = math.min(begun, now)
  local rest = begun + length - now
  if rest <= 0 then return end
  if age and begun <= now - age then
    if write then redis.call('PEXPIRE', key, 0) end
    return
  end
  if future and write then
    redis.call('SET', key, string.format('%.0f %.0f', begun, length), 'PX', string.format('%.0f', math.ceil(rest / 1000)))
  end
  return begun, rest, length
end

