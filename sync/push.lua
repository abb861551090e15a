-- One batch of the background sync. Every key is a hash for one (zone, key, epoch): a field per
-- node, "seq total attempts[ settled]", and "sum", the running "total attempts[ settled]" of all
-- nodes. total and settled are units, attempts requests. settled is what of the total is not
-- reserved. Nodes that reserve write it; a field without it has settled all of its total. Where
-- limits go over regions, each other region has a field as well, whose name begins with "~", and
-- "~" is the running "total attempts settled" of these: what the nodes here have is "sum" less
-- that. A bucket has a key without an epoch beside them, its fill: "requests at drain until[ stamp
-- end]": how full it was at an instant, what flows out in requests per millisecond, until when the
-- key has to stay, and the reset that it is under with the end of that; instants are milliseconds
-- of this server's clock.
--
-- KEYS: the hashes, then the fills, one for each of a bucket's clients, then where limits go over
-- regions the sorted sets told and hurry. ARGV: node, seq, number of fills, ttl of a hash in
-- milliseconds; then for each hash: total ("" to only ask) and "attempts[ settled]"; and where
-- there are fills: what of the total is unsent and still stands in the bucket, in the first hash of
-- each client followed by drain, the fill as the node knows it, the reset that the client is under,
-- and "!" where the store may have lost something: "unsent drain fill[ stamp end][ !]".
-- Reply, in lines: seconds and microseconds of this server's clock; then for each hash: what the
-- total of the node's field was, and "sum", in the first of a bucket's client with the fill before
-- this message if there is one, which has a decimal point; or "!" and an error. It is one text, as
-- that costs both sides less than many.
-- Where a bucket's fill is under a later reset than the node knows, nothing of that client is
-- written, and the reply says "@" and "stamp end" for each of its hashes.
--
-- Where limits go over regions the ttl is followed by a threshold, and "!" in a sync that should
-- not wait: "ttl threshold[!]". The name of a hash is added to told when the nodes here have that
-- much, or anything that another region has, too; and with "!" to hurry as well. A push of another
-- region tells only where it is the first, and the nodes here have something: told at each, two
-- regions would answer each other for ever. The score is this server's microseconds, and above all
-- others. What is known of another region shows in the reply: the sum ends in " ~", and a push of a
-- region is answered with its field as it was, "seq total attempts[ settled]".
--
-- A message counts only if its seq is above the one that is there: a repeated or overtaken one
-- changes nothing.
local node, seq = ARGV[1], tonumber(ARGV[2])
local ttl, least, hurry = string.match(ARGV[4], '^(%d+) ?(%d*)(!?)$')
ttl, least = tonumber(ttl), tonumber(least)
local sets, names, region = #KEYS - 1, {}, string.byte(node) == 126
local fills, hashes = tonumber(ARGV[3]), #KEYS - ARGV[3] - (least and 2 or 0)
local pcall, byte, match, format, floor, max, min, tonumber = redis.pcall, string.byte, string.match, string.format, math.floor, math.max, math.min, tonumber
local time = redis.call('TIME')
local now = time[1] * 1000 + floor(time[2] / 1000)
local head, instant = ARGV[2] .. ' ', format(' %d ', now)
local exact = 2^53

local function rejected(err) return '!', (string.gsub(err, '[\r\n]', ' ')) end

-- The numbers of a field: seq, total, attempts and settled, which may be nil.
local function field(text)
  local s, total, attempts = match(text, '^(%d+) (%d+) (%d+)$')
  if s then return s, total, attempts end
  return match(text, '^(%d+) (%d+) (%d+) (%d+)$')
end

-- What all other nodes have, added up again, or all other regions: the running total makes no
-- sense, or this node's field doesn't. some is set where one of them has a number for what is
-- settled.
local function recount(key, regions)
  local total, attempts, settled, some, all = 0, 0, 0, nil, redis.call('HGETALL', key)
  for f = 1, #all, 2 do
    local name = all[f]
    if name ~= 'sum' and name ~= '~' and name ~= node and (not regions or byte(name) == 126) then
      local _, t, a, n = field(all[f + 1])
      total, attempts, settled, some = total + (t or 0), attempts + (a or 0), settled + (n or t or 0), some or n
    end
  end
  return total, attempts, settled, some
end

-- others is the running total of other regions by now. had is what it was; held, tried and kept are
-- what the field of the one that pushes had, and the rest what it has.
local function others(key, had, held, tried, kept, total, tries, keeps)
  local all, attempts, settled = match(had or '', '^(%d+) (%d+) (%d+)$')
  if not all then
    all, attempts, settled = recount(key, true)
    all, attempts, settled = all + (held or 0), attempts + (tried or 0), settled + (kept or held or 0)
  end
  all = max(0, all + total - (held or 0))
  return all, format('%.0f %.0f %.0f', all, max(0, attempts + tries - (tried or 0)), max(0, settled + (keeps or total) - (kept or held or 0)))
end

-- push stores a node's numbers for one epoch, unless its field has a message that is as new or
-- newer. It returns what the field held, the sums of all nodes, by how much the node's total has
-- grown, nothing for that where nothing was written, and the mark that another region has the key.
local function push(key, total, rest)
  local had
  if least then had = pcall('HMGET', key, node, 'sum', '~') else had = pcall('HMGET', key, node, 'sum') end
  if had.err then return rejected(had.err) end
  local mine, sum, far = had[1], had[2], had[3]
  local mark = far and ' ~' or ''
  local s, held, tried, kept
  if mine then s, held, tried, kept = field(mine) end
  -- A region's number is of microseconds: one of next year was not given by a clock.
  if held and (held + 0 >= exact or region and s + 0 >= (time[1] + 3e7) * 1e6) then s, held, tried, kept = nil, nil, nil, nil end
  local was = region and s and mine or held or ''
  if total == '' or s and seq <= s + 0 then return was, (sum and match(sum, '^[^\r\n]*') or '0 0'), nil, mark end
  local all, attempts, settled
  if sum then all, attempts = match(sum, '^(%d+) (%d+)$') end
  if sum and not all then all, attempts, settled = match(sum, '^(%d+) (%d+) (%d+)$') end
  if sum and not all or mine and not (s and sum) or all and (all - (held or 0) < 0 or all + 0 >= exact)
    or settled and (settled - (kept or held or 0) < 0 or settled + 0 >= exact) then
    local some
    all, attempts, settled, some = recount(key)
    settled = (some or kept) and settled + (kept or held or 0)
    all, attempts = all + (held or 0), attempts + (tried or 0)
  end
  local more, tries, keeps = total - (held or 0), tonumber(rest), nil
  if not tries then tries, keeps = match(rest, '^(%d+) (%d+)$') end
  local spent, asked = (all or 0) + more, max(0, (attempts or 0) + tries - (tried or 0))
  -- The first form is faster, and exact where the numbers are.
  local new = format(spent < 1e15 and spent > -1e15 and asked < 1e15 and '%d %d' or '%.0f %.0f', spent, asked)
  if keeps or kept or settled then
    new = new .. format(' %.0f', max(0, (settled or all or 0) + (keeps or total) - (kept or held or 0)))
  end
  local set, there = nil, nil
  if region then
    there, far = others(key, (s or not mine) and far, held, tried, kept, total, tries, keeps)
    set = pcall('HSET', key, node, head .. total .. ' ' .. rest, 'sum', new, '~', far)
    if mark == '' and spent > there then names[#names + 1] = key end
  else
    set = pcall('HSET', key, node, head .. total .. ' ' .. rest, 'sum', new)
    local here = least and spent - (match(far or '', '^%d+') or 0)
    if here and here >= (far and 1 or least) then names[#names + 1] = key end
  end
  if set ~= 0 and type(set) == 'table' and set.err then return rejected(set.err) end
  if not s and not (region and redis.call('PTTL', key) >= ttl) then redis.call('PEXPIRE', key, ttl) end
  return was, new, more, mark
end

-- read is what a fill has by now, the drain as it is written there, until when the key stays, and
-- the reset it is under; nil where there is none that makes sense.
local function read(value)
  local fill, at, drain, till, under = match(value or '', '^(%S+) (%S+) (%S+) (%S+)(.*)$')
  local stamp, over
  if under and under ~= '' then stamp, over = match(under, '^ (%d+) (%d+)$') end
  if under ~= '' and not stamp then return end
  fill, at, till = tonumber(fill), tonumber(at), tonumber(till)
  local rate = tonumber(drain)
  if fill and at and rate and till and fill >= 0 and fill < exact and at >= 0 and at < exact and rate >= 0 and rate < exact and till < exact then
    return max(0, fill - rate * max(0, now - at)), drain, till, stamp, over
  end
end

-- valid is the number of a reset's stamp, 0 where there is none or it is over.
local function valid(stamp, over)
  if stamp and stamp ~= '' and (tonumber(over) or 0) > now then return tonumber(stamp) end
  return 0
end

-- flows returns the drain rate from now on: that of the node that wrote last. A node that has
-- admitted nothing since doesn't lower it. In a rollout a node with a lower limit denies all the
-- time, and with its rate the fill of what the others admit would only grow.
local function flows(above, drain, old)
  if old and (above <= 0 or drain + 0 == 0) and drain + 0 <= old + 0 then return old end
  return drain
end

-- write stores a fill that is above what it has by now by so much.
-- The key outlives the hashes, and twice the time that it takes to drain.
local function write(key, had, above, drain, level, lost, till, reset)
  local fill = max(0, (had or level) + (had and above or 0))
  if lost then fill = max(fill, level) end
  local stays = ttl -- where there are totals without a fill, it was lost
  if drain + 0 > 0 then stays = max(stays, spareTTL + 2 * fill / drain) end
  till = floor(max(now + min(stays, 3e12), min(till or 0, now + 3e12)))
  redis.call('SET', key, format('%.3f', fill) .. instant .. drain .. format(' %d', till) .. reset, 'PX', format('%d', till - now))
end

local reply = {time[1], time[2]}
local n, i = 2, 5
if fills == 0 then
  for k = 1, hashes do
    local held, sum, _, mark = push(KEYS[k], ARGV[i], ARGV[i + 1])
    reply[n + 1], reply[n + 2] = held, mark and sum .. mark or sum
    n, i = n + 2, i + 2
  end
  if least then tell(KEYS[sets], KEYS[sets + 1], names, time[1] * 1e6 + time[2], hurry ~= '' or region) end
  return table.concat(reply, '\n')
end

-- A key of another type has no value here, and is written over.
local values = redis.call('MGET', unpack(KEYS, hashes + 1, hashes + fills))
local k = 1
for f = 1, fills do
  local unsent, drain, level, stamp, over, lost = match(ARGV[i + 2], '^(%d+) (%S+) (%S+) ?(%d*) ?(%d*) ?(!?)$')
  local had, old, till, stamped, ends = read(values[f])
  local above, wrote, line, told, reset, alone = 0, false, n + 2, nil, '', true
  if stamp ~= '' or stamped and stamped ~= '' then
    local mine, there = valid(stamp, over), valid(stamped, ends)
    if there > mine then told = stamped .. ' ' .. ends end
    if mine > there then had, old, till = nil, nil, nil end
    if mine > 0 then reset = ' ' .. stamp .. ' ' .. over end
  end
  repeat
    local held, sum, more, mark = '@', told, nil, nil
    if not told then held, sum, more, mark = push(KEYS[k], ARGV[i], ARGV[i + 1]) end
    if mark and had and n + 2 == line then sum = sum .. format(' %.3f', had) end
    reply[n + 1], reply[n + 2] = held, mark and sum .. mark or sum
    if mark and not had and (tonumber(match(sum, '^%d+')) or 0) > (tonumber(more and ARGV[i] or held) or 0) then alone = false end
    if more then above, wrote = above + min(more, tonumber(unsent)), true end
    k, n, i = k + 1, n + 2, i + 3
    unsent = k <= hashes and match(ARGV[i + 2], '^%d+$')
  until not unsent
  drain = flows(above, drain, old)
  -- Others have totals, but no fill is there: it was lost, and this node may never have heard it.
  -- From the reply all nodes learn that, and send their levels as after other losses.
  local written = not had and (alone or region) or had and (above ~= 0 or drain ~= old)
  if wrote and (written or lost ~= '') then
    write(KEYS[hashes + f], had, above, drain, tonumber(level), lost ~= '', till, reset)
  end
end
if least then tell(KEYS[sets], KEYS[sets + 1], names, time[1] * 1e6 + time[2], hurry ~= '' or region) end
return table.concat(reply, '\n')
