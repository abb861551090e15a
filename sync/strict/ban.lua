-- The last of KEYS is that of the key's ban, and the last of ARGV how long ago it was pardoned, or
-- nothing. A call with the seq 0 writes nothing.
do
  local key, age = table.remove(KEYS), tonumber(table.remove(ARGV))
  local time, stored = redis.call('TIME'), redis.pcall('GET', key)
  if type(stored) == 'string' then
    local begun, rest, length = ban(key, stored, time[1] * 1000000 + time[2], age, ARGV[2] ~= '0')
    if begun then return redis.error_reply(string.format('BANNED %.0f %.0f %.0f', begun, rest, length)) end
  end
end

