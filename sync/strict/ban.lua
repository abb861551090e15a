-- The ban of a call's key comes after its cells, with how long ago it was pardoned, or nothing. A
-- call with the seq 0 writes nothing.
do
  local n = tonumber(ARGV[2])
  local key, age = table.remove(KEYS, n + 1), tonumber(table.remove(ARGV, 5 + 3 * n))
  local time, stored = redis.call('TIME'), redis.pcall('GET', key)
  if type(stored) == 'string' then
    local begun, rest, length = ban(key, stored, time[1] * 1000000 + time[2], age, ARGV[1] ~= '0')
    if begun then return redis.error_reply(string.format('BANNED %.0f %.0f %.0f', begun, rest, length)) end
  end
end

