-- What a node has spent of its cells, said in full, and in a strict call what it asks for.
--
-- A cell is a hash: what all nodes know of one key in one limit. It has a field for each node, and
-- for each other region one whose name begins with "~":
--   of windows and logs  seq total epoch reserved total…     totals of epochs, the newest first
--   of a bucket          seq reserved incarnation total granted added
-- "sum" is what all of these have, and "~" what the other regions have:
--   of windows and logs  total stamp end epoch reserved total…
--   of a bucket          stamp end reserved total whole rest at rate added; of "~" stamp 0 0 total
-- "fields" is how many fields there may be before dead ones are looked for. "born" is of a bucket
-- of which other regions are told: since when it is here, what of its total was spent before, and 1
-- once a node had a higher level than was here, which the cell took over.
--
-- seq numbers the messages of a node. reserved is how much of the newest epoch belongs to responses
-- that have not begun. stamp is the latest reset that the key is under, end when the key ends, in
-- milliseconds. A bucket's level is whole + rest/window; below 0 it has been idle. incarnation is
-- the number that a node gives to its state of a bucket, another one once the server has lost some
-- of that. granted is what the last call gave. added is what was ever added to the level: of a node
-- by its last grant, and what was given back since of later grants. Other times are microseconds of
-- this server's clock. All numbers are whole and below 2^53.
--
-- Below, names that begin with f are of the node's field as it was, and with s of the sum.
--
-- KEYS: cells; bans; where limits go over regions the sorted set told. ARGV: seq; number of cells;
-- threshold of told, or "". Then for each cell:
--   rule    "w" for windows and logs, "s" where the oldest epoch fades, "c" for windows of a
--           calendar, "b" for a bucket; window, epochs of a window (of "c" how far the clock is
--           ahead of one on which each window is as long as this one), epochs that count (of a
--           bucket 1 where its rate is that of a request since the last message, and 2 more where
--           a penalty has filled it), size, rate, milliseconds for which the newest epoch counts,
--           1 where what is granted is reserved, or of another region where no total may fall, the
--           stamp, and the node; "" is as before
--   state   total; of a bucket reserved incarnation total
--   more    " epoch reserved total…"; of a bucket unacked, unackedFor, answered and the level that
--           the node knows: whole rest; of another region answered is 1 more than what of the level
--           is from there, and 0 where that is not known
-- For each ban "begun length stamp", where bans grow with " memory", for how long it is remembered
-- after its end; "0 0 stamp" where none is known, or "". Of a strict call what
-- it asks for: count and cost of requests that follow each other, and for each cell the size and
-- the rate that they go by.
--
-- Reply, in lines: seconds and microseconds; what is granted of each of these, or "old", "banned"
-- or "failed"; for each cell the node's field as it was and the sum by now, or "@" and the stamp
-- that the cell is under, or "!" and an error; the bans. Where told is named, a sum ends in " ~" if
-- another region has something of the cell.
--
-- A message counts only if its seq is above that of the field, so repeated and overtaken ones
-- change nothing. The seq 0 reads. Everything is read before anything is written.
local call, match, seq, cells, least = redis.call, string.match, ARGV[1] + 0, ARGV[2] + 0, tonumber(ARGV[3])
local bans = #KEYS - cells - (least and 1 or 0)
local asked = 4 + 3 * cells + bans -- where what a call asks for begins
local strict = asked <= #ARGV
local clock = call('TIME')
local now = clock[1] * 1000000 + clock[2]
local reply, cell, score, status = {clock[1] .. ' ' .. clock[2], ''}, {}, nil, nil
local F = {} -- the rule of the cell at hand

-- Ledgers: the totals of epochs.
--
-- A list has them as text, "total" and then " total" for each older one. By age they are in a
-- table, where 0 is the epoch of now. The functions are made where they are needed, as most
-- messages need none.
local function ledgers()
  local epoch, next, kept, max, min = F.epoch, F.next, F.kept, math.max, math.min

  -- Adds to v what of a list still counts. What lies ahead was counted before the clock stepped
  -- back, unless the next epoch is about to begin: it counts as now's.
  local function add(v, sign, newest, list)
    local age, ahead = epoch - newest, newest + 0 > next
    for n in string.gmatch(list, '%d+') do
      if age < kept then
        local at = ahead and max(age, 0) or age
        v[at] = (v[at] or 0) + sign * n
      end
      age = age + 1
    end
  end

  -- The newest epoch of v, its total, and the older ones as a list has them. newest may be one
  -- without.
  local function list(v, newest)
    local from, to, all = ((newest or 0) > epoch or (v[-1] or 0) > 0) and -1 or 0, kept - 1, {}
    while to > from and (v[to] or 0) <= 0 do to = to - 1 end
    for age = from + 1, to do all[age - from] = string.format(' %d', max(0, min(2^52, v[age] or 0))) end
    return epoch - from, max(0, min(2^52, v[from] or 0)), table.concat(all)
  end

  -- The older ones once the epoch n later is the newest: those that a list had, at most so many.
  local function olderAfter(first, older, n, most)
    if n > most then return '' end
    older = string.rep(' 0', n - 1) .. string.format(' %d', first) .. older
    for _ = most + 1, select(2, string.gsub(older, ' ', '')) do older = match(older, '^(.*) ') end
    while string.sub(older, -2) == ' 0' do older = string.sub(older, 1, -3) end
    return older
  end

  return add, list, olderAfter
end

-- Adds up by their fields what all others have, what the other regions have of it, and what of it
-- is reserved, by age. What lies ahead is folded into now, what counts no more is dropped.
local function sumFields(key, add, list)
  local v, regions, reserved, newest, alive, rewrite, drop = {}, {}, {}, 0, 0, {}, {}
  local all = call('HGETALL', key)
  for i = 1, #all, 2 do
    local name, own = all[i], {}
    if name ~= 'sum' and name ~= '~' and name ~= 'fields' and name ~= F.node then
      local far = string.byte(name) == 126
      local s, total, epoch, reservedAt, older = match(all[i + 1], '^(%d+) (%d+) (%d+) (%d+)([%d ]*)$')
      if s then add(own, 1, epoch, total .. older) end
      if s and (far or next(own)) then
        alive = alive + 1
        if epoch + 0 > F.next then
          epoch, total, older = list(own)
          rewrite[#rewrite + 1], rewrite[#rewrite + 2] = name, string.format('%s %d %d %s%s', s, total, epoch, reservedAt, older)
        end
        newest = math.max(newest, epoch)
        for age, n in pairs(own) do
          v[age] = (v[age] or 0) + n
          if far then regions[age] = (regions[age] or 0) + n end
        end
        reserved[F.epoch - epoch] = (reserved[F.epoch - epoch] or 0) + reservedAt
      elseif not far then
        drop[#drop + 1] = name
      end
    end
  end
  rewrite[#rewrite + 1], rewrite[#rewrite + 2] = 'fields', 2 * alive + 16
  return v, regions, reserved, newest, {rewrite = rewrite, drop = drop}
end

-- Windows and logs: takes what the node says for its field. What comes of it is returned; without a
-- total nothing is said.
local function windows(key, f, s, far, total, more)
  local newest, reserved, rest = match(more, '^ (%d+) (%d+)(.*)$')
  local fseq, ffirst, fnewest, freserved, frest = match(f or '', '^(%d+) (%d+) (%d+) (%d+)([%d ]*)$')
  local sfirst, under, stored, snewest, sreserved, srest = match(s or '', '^(%d+) (%d+) (%d+) (%d+) (%d+)([%d ]*)$')
  local epoch, next, kept, max, min, format = F.epoch, F.next, F.kept, math.max, math.min, string.format
  local recount, first, extra = f and not fseq or s and not under, total + 0, nil
  reserved, newest = reserved + 0, newest + 0
  if under and under ~= F.stamp then
    if under + 0 > F.stamp + 0 then return {key = key, under = under} end
    if seq > 0 then extra, fseq, under, far, recount = {empty = true}, nil, nil, nil, false end
  end
  if fseq and fseq + 0 > now + 864e8 then fseq, recount = nil, true end -- no clock gave that
  if seq == 0 or fseq and seq <= fseq + 0 then return {key = key, previous = f or '', there = s or ''} end
  local add, list, olderAfter = ledgers()
  if newest > next then -- the node does not know that the clock stepped back
    local own = {}
    add(own, 1, newest, format('%d', first) .. rest)
    newest, first, rest = list(own)
  end
  if fseq then fnewest, ffirst = fnewest + 0, ffirst + 0 else freserved, fnewest, ffirst, frest = 0, newest, 0, '' end
  if under then stored, snewest, sfirst = stored + 0, snewest + 0, sfirst + 0 else stored, sreserved, snewest, sfirst, srest = 0, 0, newest, 0, '' end
  recount = recount or fseq and (not under or F.region and not far) or snewest > next or fnewest > next
    or under and not fseq and call('HLEN', key) > (tonumber(call('HGET', key, 'fields') or '') or 64)
  local raises = F.region and F.reserved -- by this message no total falls
  if fseq and (raises or newest > epoch) then -- ahead it leaves out an epoch that still counts here
    local own, had = {}, {}
    add(own, 1, newest, format('%d', first) .. rest)
    add(had, 1, fnewest, format('%d', ffirst) .. frest)
    own[kept - 1] = own[kept - 1] or had[kept - 1]
    if raises then
      for age, n in pairs(had) do own[age] = max(own[age] or 0, n) end
    end
    newest, first, rest = list(own, max(newest, raises and fnewest or newest))
  end
  local was, most, past, regions, reservedAt = snewest, newest > epoch and kept or kept - 1, nil, nil, nil
  if not recount then
    if not fseq then past = '' elseif newest > fnewest then past = olderAfter(ffirst, frest, newest - fnewest, most) end
    if newest == fnewest and rest == frest and (first == ffirst and snewest > newest or snewest == newest and sfirst >= ffirst) then
      sfirst = min(2^52, sfirst + first - ffirst) -- only the newest total differs
    elseif past == rest and snewest <= newest then -- or an epoch began
      if snewest < newest then srest = olderAfter(sfirst, srest, newest - snewest, most) end
      sfirst = snewest == newest and min(2^52, sfirst + first) or first
      snewest = newest
    else
      local v = {}
      add(v, 1, snewest, format('%d', sfirst) .. srest)
      add(v, -1, fnewest, format('%d', ffirst) .. frest)
      for _, n in pairs(v) do recount = recount or n < 0 end
      add(v, 1, newest, format('%d', first) .. rest)
      snewest, sfirst, srest = list(v, max(snewest, newest))
    end
    sreserved = max(0, (was == snewest and sreserved - (fnewest == snewest and freserved or 0) or 0) + (newest == snewest and reserved or 0))
  end
  if recount then
    local v
    v, regions, reservedAt, was, extra = sumFields(key, add, list)
    add(v, 1, newest, format('%d', first) .. rest)
    snewest, sfirst, srest = list(v, max(was, newest))
    sreserved = (reservedAt[epoch - snewest] or 0) + (newest == snewest and reserved or 0)
  end
  if F.region then
    if not regions then
      regions = {}
      local n, at, older = match(far or '0 0 0 0 0', '^(%d+) %d+ %d+ (%d+) %d+([%d ]*)$')
      add(regions, 1, at, n .. older)
      add(regions, -1, fnewest, format('%d', ffirst) .. frest)
    end
    add(regions, 1, newest, format('%d', first) .. rest)
    local last, n, older = list(regions)
    extra = extra or {}
    extra.far = format('%d %s 0 %d 0%s', n, F.stamp, last, older)
  end
  return {
    key = key, rule = F, previous = f or '', there = s or '', far = far, extra = extra, more = 0, used = 0, stored = stored,
    newest = newest, total = first, tail = format(' %d %d%s', newest, reserved, rest), snewest = snewest, all = sfirst, stail = format(' %d %d%s', snewest, sreserved, srest),
  }
end

-- Totals after a grant of n now.
local function granted(newest, first, tail, n)
  local reserved, older = match(tail, '^ %d+ (%d+)(.*)$')
  if newest == F.epoch then
    first = first + n
  else
    local add, list, olderAfter = ledgers()
    if newest < F.epoch then
      older = olderAfter(first, older, F.epoch - newest, F.kept - 1)
      newest, first, reserved = F.epoch, n, 0
    else
      local v = {}
      add(v, 1, newest, string.format('%d', first) .. older)
      v[0] = (v[0] or 0) + n
      newest, first, older = list(v, newest)
    end
  end
  if F.reserved then reserved = reserved + n end
  return first, string.format(' %d %d%s', newest, reserved, older)
end

-- What of a cell of windows counts now. The oldest epoch fades where the kind is "s".
local function used(c)
  local age, last, all = F.epoch - c.snewest, F.kept - 1, 0
  for n in string.gmatch(string.format('%d', c.all) .. match(c.stail, '^ %d+ %d+(.*)$'), '%d+') do
    if age >= 0 and age <= last then all = all + n end
    if age == last and F.kind == 's' then
      local gone = n * F.intoEpoch
      all = all - (gone < 9e15 and (gone - math.fmod(gone, F.window)) / F.window or math.max(0, math.floor(n / F.window * F.intoEpoch) - 1))
    end
    age = age + 1
  end
  return all
end

-- The fields of nodes whose grants came before one that is given back. Their added grows by what is
-- given back, as so much less was added after their grants.
local function earlier(key, added, given)
  local all, rewrite = call('HGETALL', key), nil
  for i = 1, #all, 2 do
    local head, at = match(all[i + 1], '^(%d+ %d+ %d+ %d+ %d+) (%d+)$')
    if head and all[i] ~= F.node and at ~= '0' and at + 0 < added then
      rewrite = rewrite or {}
      rewrite[#rewrite + 1], rewrite[#rewrite + 2] = all[i], string.format('%s %d', head, at + given)
    end
  end
  return rewrite
end

-- Buckets: takes what the node says for its field. What comes of it is returned; without a total
-- nothing is said.
local function bucket(key, f, s, far, state, details)
  local reserved, incarnation, total = match(state, '^(%d+) (%d+) (%d+)$')
  local unacked, unackedFor, answered, known, part = match(details, '^(%d+) (%d+) (%d+) (%d+) (%d+)$')
  local fseq, freserved, fincarnation, ftotal, lastGrant, fadded = match(f or '', '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$')
  local under, stored, sreserved, all, whole, rest, at, flows, added = match(s or '', '^(%d+) (%d+) (%d+) (%d+) (-?%d+) (%d+) (%d+) (%d+) (%d+)$')
  local window, rate, decided, empty, extra, rewrite = F.window, F.rate, F.kept % 2 == 1, s and not under, nil, nil
  if under and under ~= F.stamp then
    if under + 0 > F.stamp + 0 then return {key = key, under = under} end
    empty = seq > 0
  end
  if fseq and fseq + 0 > now + 864e8 then fseq = nil end -- no clock gave that
  if seq == 0 or fseq and not empty and seq <= fseq + 0 then return {key = key, previous = f or '', there = s or ''} end
  if empty then extra, fseq, under, far = {empty = true}, nil, nil, nil end
  if under then
    stored, sreserved, all, flows, added = stored + 0, sreserved + 0, all + 0, flows + 0, added + 0
  else
    stored, sreserved, all, whole, rest, at, flows, added = 0, 0, 0, 0, 0, 0, rate, 0
  end
  -- What has flowed out since, but no more than was idle while the node spent what it says. Where
  -- the rate has changed in that time, the lower one counts: nobody knows when it has.
  local gone = flows * math.max(0, now - at)
  local parts = math.fmod(gone, window)
  whole, rest = whole - math.floor((gone - parts) / window + .5), rest - parts
  if rest < 0 then whole, rest = whole - 1, rest + window end
  if whole < 0 then
    gone = (decided and math.min(flows, rate) or flows) * unackedFor
    parts = math.fmod(gone, window)
    local lowest = -math.ceil(gone / window)
    if parts > 0 then parts = window - parts end
    if whole < lowest or whole == lowest and rest < parts then whole, rest = lowest, parts end
  end
  unacked, total, reserved = unacked + 0, total + 0, reserved + 0
  local knows, raised, spentBefore = fseq and fincarnation == incarnation, false, 0
  if F.region and not knows then -- a node here may know what was there before this cell
    local born, imported = match(under and call('HGET', key, 'born') or '', '^(%d+) %d+ ([01])$')
    if answered ~= '0' and (not under or imported == '0' or born and incarnation + 0 >= born + 0) then
      unacked, known = answered - 1, -1
    else
      unacked = 0
    end
  elseif F.region and knows and F.reserved then -- as in windows
    total = math.max(total, ftotal)
  end
  local more = unacked
  if knows then
    more, lastGrant = total - ftotal, lastGrant + 0
    all = all + more
    -- Nobody knows of a grant without an answer: what has not drained of it goes.
    if lastGrant > 0 and fseq + 0 > answered + 0 then
      local undrained = fadded + 0 <= added and whole - (added - fadded) or -1
      if undrained >= lastGrant then whole = whole - lastGrant elseif undrained >= 0 then whole, rest = whole - undrained, 0 end
      if undrained > 0 then rewrite = earlier(key, fadded + 0, math.min(undrained, lastGrant)) end
      more = more + lastGrant
    end
    if more < 0 and whole >= 0 then
      whole = whole + more
      if whole < 0 then whole, rest = 0, 0 end
    end
  else
    all, known, part, spentBefore = all + total, known - unacked, part + 0, F.region and 0 or math.max(0, total - unacked)
    if spentBefore > 0 and least and under then
      local born = match(call('HGET', key, 'born') or '', '^%d+')
      -- What began here spent nothing before: this is an older copy, which does not know it.
      if born and born + 0 > 1 and incarnation + 0 >= born + 0 then spentBefore = 0 end
    end
    if known >= 0 and (known > whole or known == whole and part > rest) then
      added = added + known - whole + 1
      whole, rest, raised = known, part, true
    end
  end
  more = math.min(more, unacked)
  if flows == 0 or decided and (more > 0 or more == 0 and rate > flows) then flows = rate end
  more = math.min(more, F.size + rate - whole)
  if more > 0 then whole, added = whole + more, added + more end
  if F.kept > 1 then -- filled: the node knows the part of a request with which that was filled
    local n, r = match(details, '^%d+ %d+ %d+ (%d+) (%d+)$')
    n, r = n + 0, r + 0
    if whole == n or whole == n + 1 and rest <= r or whole == n - 1 and rest >= r then whole, rest = n, r end
  end
  if rewrite or F.region then extra = extra or {} end
  if rewrite then extra.rewrite = rewrite end
  if F.region then
    local there = match(far or '', '^%d+ 0 0 (%d+)$') or 0
    extra.far = string.format('%s 0 0 %d', F.stamp, math.max(0, there + total - (knows and ftotal or 0)))
  end
  return {
    key = key, rule = F, previous = f or '', there = s or '', far = far, extra = extra, more = 0, stored = stored, incarnation = incarnation, reserved = reserved, total = total, born = least and not under, raised = least and raised, spentBefore = least and spentBefore or 0,
    sreserved = math.max(0, sreserved + reserved - (fseq and freserved or 0)), all = math.max(0, math.min(2^52, all)), whole = whole, rest = rest, flows = flows, added = added,
  }
end

-- Has other regions hear of a key.
local function mark(key)
  local told, first = KEYS[#KEYS], not score
  if first then
    local highest = redis.pcall('ZREVRANGE', told, 0, 0, 'WITHSCORES')
    if highest.err then -- another program has written it
      call('DEL', told)
      highest = {}
    elseif (tonumber(highest[2] or '') or 0) > 4.5e15 then -- no clock gave that
      call('ZREMRANGEBYSCORE', told, '(4.5e15', '+inf')
      highest = call('ZREVRANGE', told, 0, 0, 'WITHSCORES')
    end
    score = math.max(now, (tonumber(highest[2] or '') or 0) + 1)
  end
  call('ZADD', told, string.format('%d', score), key)
  if first then call('PEXPIRE', told, 2592000000) end -- a month, as the relay's cursors
end

-- Has other regions hear of a cell of which all nodes have so much, and other regions far of it:
-- where what is left is as much as the threshold, where others have some of it, and always where
-- that is set.
local function tell(key, all, older, far, always)
  local theirs, more = match(far or '', F.kind == 'b' and '^%d+ 0 0 (%d+)$' or '^(%d+) %d+ 0 %d+ 0([%d ]*)$')
  local here = all - (theirs or 0)
  for n in string.gmatch(older, '%d+') do here = here + n end
  for n in string.gmatch(more or '', '%d+') do here = here - n end
  if always and not F.region or here > 0 and (always or not F.region and (far or here >= least)) then mark(key) end
end

local tail, newest, reserved, older
for i = 1, cells do
  local key, text, total, more, had, c = KEYS[i], ARGV[1 + 3 * i], ARGV[2 + 3 * i], ARGV[3 + 3 * i], nil, nil
  if text ~= '' then
    local kind, window, parts, kept, size, rate, ttl, flag, stamp, node = match(text, '^(%a) (%d+) (-?%d+) (%d+) (%d+) (%d+) (%d+) ([01]) (%d+) (%S+)$')
    -- Nodes can have other zone data. So a window of a calendar may have begun for some already.
    local at, calendar = now, kind == 'c'
    if calendar then at, parts = now - parts, 1 end
    local into = math.fmod(at, window)
    local past = into * parts
    local part = math.fmod(past, window)
    local epoch = (at - into) / window * parts + (past - part) / window
    -- needed is when the newest epoch counts no more, until which the key must stay. Where the key
    -- would end before, it gets another expiry: as long once more, of a calendar a day.
    local needed = now / 1000 + ttl + 60000
    if calendar then needed = (now - into + window) / 1000 + 60000 end
    F = {
      node = node, region = string.byte(node) == 126, kind = kind, window = window + 0, kept = kept + 0, size = size + 0, rate = rate + 0, ttl = ttl + 0, reserved = flag == '1', stamp = stamp,
      epoch = epoch, next = (calendar or window - part <= 1e6 * parts) and epoch + 1 or epoch, intoEpoch = part, needed = needed, expiry = math.floor(calendar and needed + 864e5 or 2 * needed - now / 1000),
    }
  end
  if least or F.region then had = redis.pcall('HMGET', key, F.node, 'sum', '~') else had = redis.pcall('HMGET', key, F.node, 'sum') end
  local f, s = had[1], had[2]
  -- Mostly the newest total alone has grown, or an epoch began.
  if f and s and F.kind ~= 'b' and not F.region then
    if more ~= tail then
      tail = more
      newest, reserved, older = match(more, '^ (%d+) (%d+)(.*)$')
      newest = newest + 0
    end
    local fseq, ftotal, ftail = match(f, '^(%d+) (%d+)(.*)$')
    local all, under, stored, snewest, sreserved, rest = match(s, '^(%d+) (%d+) (%d+) (%d+) (%d+)(.*)$')
    if under == F.stamp and fseq and seq > fseq + 0 and newest <= F.next and all + total < 1e14 then
      if snewest + 0 == newest and ftail == more and all - ftotal >= 0 then
        all = all + total - ftotal
      elseif ftail then
        local fnewest, _, was = match(ftail, '^ (%d+) (%d+)(.*)$')
        was = ' ' .. ftotal .. (was or '')
        all = fnewest and fnewest + 1 == newest and (snewest == fnewest or snewest + 0 == newest) and newest <= F.epoch and all
        if all and older ~= was and not (string.sub(was, 1, #older + 1) == older .. ' ' and select(2, string.gsub(older, ' ', '')) == F.kept - 1) then all = nil end
        if all and snewest == fnewest then
          rest = F.kept > 1 and ' ' .. all .. rest or ''
          if select(2, string.gsub(rest, ' ', '')) >= F.kept then rest = match(rest, '^(.*) ') end
          snewest, all, sreserved = newest, total + 0, reserved
        elseif all then
          all, sreserved = all + total, sreserved + reserved
        end
      else
        all = nil
      end
    else
      all = nil
    end
    if all and strict then
      c = {
        key = key, rule = F, previous = f, there = s, far = had[3], extra = nil, more = 0, used = 0, stored = stored + 0,
        newest = newest, total = total + 0, tail = more, snewest = newest, all = all, stail = ' ' .. newest .. ' ' .. sreserved .. rest,
      }
    elseif all then
      local expiry = stored + 0 < F.needed and F.expiry
      s = all .. ' ' .. under .. ' ' .. (expiry or stored) .. ' ' .. snewest .. ' ' .. sreserved .. rest
      call('HSET', key, F.node, ARGV[1] .. ' ' .. total .. more, 'sum', s)
      if expiry then call('PEXPIREAT', key, expiry) end
      if least then tell(key, all, rest, had[3], total + 0 < ftotal + 0 and redis.pcall('ZSCORE', KEYS[#KEYS], key)) end
      if least and had[3] then s = s .. ' ~' end
      reply[1 + 2 * i], reply[2 + 2 * i] = f, s
      c = false
    end
  end
  if had.err then
    c, status = {key = key, failed = string.gsub(had.err, '[\r\n]', ' ')}, 'failed'
  elseif c == nil then
    if F.kind == 'b' then c = bucket(key, f, s, had[3], total, more) else c = windows(key, f, s, had[3], total, more) end
    if not c.total then status = status or 'old' end
  end
  if c and least and had[3] then c.suffix = ' ~' end
  cell[i] = c
end

-- Of two bans the one under the later reset holds, and of these the one that ends later. One that
-- lies ahead, as the clock has stepped back, begins now.
local ban = {}
for i = 1, bans do
  local says, there = ARGV[3 + 3 * cells + i], redis.pcall('GET', KEYS[cells + i])
  if type(there) == 'table' and not string.find(there.err, '^WRONGTYPE') then return there end
  local b, l, s, m = match(type(there) == 'string' and there or '', '^(%d+) (%d+) (%d+) ?(%d*)$')
  if b and math.max(b + 0, l + 0, s + 0, tonumber(m) or 0) >= 2^53 then b, l, s = nil, nil, nil end
  local begun, length, stamp, memory = match(seq > 0 and says or '', '^(%d+) (%d+) (%d+) ?(%d*)$')
  local new = begun and (b and stamp + 0 > s + 0 or not b and length ~= '0')
  if begun and b and stamp == s and begun + 0 <= now then new = begun + length > b + l or begun + length == b + l and begun + 0 > b + 0 end
  if not new then begun, length, stamp, memory = b, l, s, m end
  if begun and begun + 0 > now then begun, new = string.format('%d', now), seq > 0 end
  local left = begun and begun + length - now or 0
  if left > 0 then status = status or 'banned' end
  if begun and memory ~= '' then left, stamp = left + memory, stamp .. ' ' .. memory end
  ban[i] = {left > 0 and begun .. ' ' .. length .. ' ' .. stamp or '', new and math.ceil(left / 1000)}
end

-- What is asked for, in order: as many of each as all limits have room for, all limits or none.
if strict then
  for i = 1, status and 0 or cells do
    local c = cell[i]
    if c.used then
      F = c.rule
      if F.kept > 1 or c.snewest > F.epoch then c.used = used(c) elseif c.snewest == F.epoch then c.used = c.all end
    end
  end
  local grants
  for at = asked, #ARGV, 2 + 2 * cells do
    local fit, cost = status and 0 or ARGV[at] + 0, ARGV[at + 1] + 0
    if fit > 0 and cost > 0 then
      for i = 1, cells do
        local c, room = cell[i], ARGV[at + 2 * i] + 0
        if c.used then
          room = room - c.used
        else
          local rate = ARGV[at + 2 * i + 1] + 0
          if rate > 0 then c.flows = rate end -- a limit of 0 drains nothing, and stops nothing
          room = rate > 0 and room - math.max(0, c.rest > 0 and c.whole + 1 or c.whole) or 0
        end
        if fit * cost > room then fit = math.max(0, (room - math.fmod(room, cost)) / cost) end
      end
      local n = fit * cost
      for i = 1, n > 0 and cells or 0 do
        local c = cell[i]
        c.more = c.more + n
        if c.used then c.used = c.used + n else c.whole, c.added = c.whole + n, c.added + n end
      end
    end
    grants = grants and string.format('%s,%d', grants, fit) or fit
  end
  reply[2] = status or grants
end

for i = 1, cells do
  local c = cell[i]
  if c and c.total then
    F = c.rule
    local n, extra, field, before, after, needed, expiry = c.more, c.extra, nil, nil, nil, F.needed, F.expiry
    if F.kind == 'b' then
      local need = extra and extra.empty and F.ttl or 0
      if c.whole >= 0 and c.flows > 0 then need = math.max(need, math.min(3e11, (c.whole + 1) / c.flows * F.window / 1000)) end
      needed = now / 1000 + need + 60000
      expiry = math.floor(2 * needed - now / 1000)
      if F.reserved then c.reserved, c.sreserved = c.reserved + n, c.sreserved + n end
      c.all = math.min(2^52, c.all + n)
      field = string.format('%s %d %s %d %d %d', ARGV[1], c.reserved, c.incarnation, c.total + n, n, n > 0 and c.added or 0)
      before = F.stamp .. ' '
      after = string.format(' %d %d %d %d %d %d %d', math.min(c.sreserved, math.max(0, c.whole + 1)), c.all, c.whole, c.rest, now, c.flows, c.added)
    else
      if n > 0 and c.newest == F.epoch and c.snewest == F.epoch and not F.reserved then
        c.total, c.all = c.total + n, c.all + n
      elseif n > 0 then
        c.total, c.tail = granted(c.newest, c.total, c.tail, n)
        c.all, c.stail = granted(c.snewest, c.all, c.stail, n)
      end
      field = string.format('%s %d%s', ARGV[1], c.total, c.tail)
      before, after = string.format('%d %s ', c.all, F.stamp), c.stail
    end
    if extra then
      if extra.empty then call('DEL', c.key) end
      if extra.drop and #extra.drop > 0 then call('HDEL', c.key, unpack(extra.drop, 1, math.min(4000, #extra.drop))) end
      if extra.rewrite then call('HSET', c.key, unpack(extra.rewrite, 1, math.min(4000, #extra.rewrite))) end
      if extra.far then call('HSET', c.key, '~', extra.far) end
    end
    if c.born or c.raised or (c.spentBefore or 0) > 0 then
      local born, spent, imported = match(not c.born and call('HGET', c.key, 'born') or '', '^(%d+) (%d+) ([01])$')
      spent = math.min(2^52, (spent or 0) + c.spentBefore)
      call('HSET', c.key, 'born', string.format('%d %d %s', born or c.born and now or 1, spent, c.raised and '1' or imported or '0'))
    end
    expiry = c.stored < needed and expiry
    c.there = before .. (expiry or c.stored) .. after
    call('HSET', c.key, F.node, field, 'sum', c.there)
    if expiry then call('PEXPIREAT', c.key, expiry) end
    if least then
      local always = extra and extra.empty
      if F.region then always = c.previous == '' elseif not always then always = redis.pcall('ZSCORE', KEYS[#KEYS], c.key) end
      tell(c.key, c.all, F.kind == 'b' and '' or match(c.stail, '^ %d+ %d+(.*)$'), extra and extra.far or c.far, always)
    end
  end
  if c then reply[1 + 2 * i], reply[2 + 2 * i] = c.failed and '!' or c.under and '@' or c.previous, c.failed or c.under or c.there .. (c.suffix or '') end
end
for i = 1, bans do
  local key, lasts = KEYS[cells + i], ban[i][2]
  if lasts and lasts > 0 then call('SET', key, ban[i][1], 'PX', string.format('%d', lasts)) elseif lasts then call('DEL', key) end
  if lasts and lasts > 0 and least then mark(key) end
  reply[2 + 2 * cells + i] = ban[i][1]
end
return table.concat(reply, '\n')
