-- Everything is read before anything is written: what is wrong with a key shows before something has changed.
local amends = tonumber(ARGV[5])
local was = redis.call('HGET', KEYS[1], field)
local last, granted, since = string.match(was or '', '^(%d+) (%d+) (%d+)$')
last, granted, since = tonumber(last or 0), tonumber(granted or 0), tonumber(since or 0)
if seq < last then return {-1, now} end

for i = 2, #KEYS do rules[i - 1] = open(KEYS[i], 6 + amends * 5 + (i - 2) * rules.width) end

local grant = granted
if seq > last then
  if undo > 0 and last >= undo and granted > 0 then
    for _, r in ipairs(rules) do give(r, since, last, 1, granted) end
  end
  for a = 0, amends - 1 do
    local at = 6 + a * 5
    if last < tonumber(ARGV[at]) then
      local n = tonumber(ARGV[at + 4])
      for _, r in ipairs(rules) do
        if n < 0 then
          fill(r, -n)
        else
          give(r, tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3]), n)
        end
      end
    end
  end
  grant = want
  for _, r in ipairs(rules) do grant = math.min(grant, room(r)) end
  if grant > 0 then
    for _, r in ipairs(rules) do spend(r, grant) end
  end
  for _, r in ipairs(rules) do close(r) end
  -- A call that changed nothing may come again: whatever it would get then, nobody waits for it.
  if grant > 0 or undo > 0 or amends > 0 then
    redis.call('HSET', KEYS[1], field, ARGV[2] .. ' ' .. text(grant) .. ' ' .. text(now))
    if not was or amends > 0 then redis.call('PEXPIRE', KEYS[1], 600000) end
  end
end

local reply = {grant, now}
for i, r in ipairs(rules) do reply[i + 2] = report(r) end
return reply
