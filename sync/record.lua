-- record reads the control record under a key, see control.lua, for one who has read it up to a
-- version, "revision born", or wants all. It returns the version ("" if there is none, "!" and an
-- error where the key holds something else), the entries that were written since, each after its
-- name, and whether these are all that there are: it is another record, or has gone back.
local function record(key, read, all)
  local version, entries = redis.pcall('HGET', key, 'version') or '', {}
  if type(version) == 'table' then return '!' .. version.err, entries, true end
  local revision, born = string.match(version, '^(%d+) (%d+)')
  local from, of = string.match(read, '^(%d+) (%d+)$')
  revision, from = tonumber(revision or 0), tonumber(from or -1)
  if all or of ~= (born or '0') or from > revision then from = -1 end
  if from < revision then
    local found = redis.call('HGETALL', key)
    for i = 1, #found, 2 do
      local at = tonumber(string.match(found[i + 1], '^(%d+) %d+ %d+ %d+ ') or -1)
      if at > from and found[i] ~= 'version' then
        entries[#entries + 1], entries[#entries + 2] = found[i], found[i + 1]
      end
    end
  end
  return version, entries, from < 0
end
