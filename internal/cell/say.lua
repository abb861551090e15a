-- What a node has spent of its cells, said in full, and in a strict call what it asks for.
--
-- A cell is a hash: what all nodes know of one key in one limit. It has a field for each node, and
-- for each other region one whose name begins with "~":
--   of windows and logs  seq total epoch open total…     totals of epochs, the newest first
--   of a bucket          seq open start total granted noted
-- "sum" is what all of these have, and "~" what the other regions have:
--   of windows and logs  total stamp end epoch open total…
--   of a bucket          stamp end open total whole rest at rate added; of "~" stamp 0 0 total
-- "fields" is how many fields there may be before dead ones are looked for. "born" is of a bucket
-- of which other regions are told: since when it is here, what of its total was spent before, and 1
-- once a node knew of more than was here.
--
-- seq numbers the messages of a node. open is how much of the newest epoch belongs to responses
-- that have not begun. stamp is the latest reset that the key is under, end when the key ends, in
-- milliseconds. A bucket's level is whole + rest/window; below 0 it has been idle. start names a
-- state of a bucket, granted is what the last call gave. noted is what had been added to the level
-- by then, and what was given back since of later grants. Other times are microseconds of this
-- server's clock. All numbers are whole and below 2^53.
--
-- KEYS: cells; bans; where limits go over regions the sorted set told. ARGV: seq; number of cells;
-- threshold of told, or "". Then for each cell:
--   family  "w" for windows and logs, "s" where the oldest epoch fades, "c" for windows of a
--           calendar, "b" for a bucket; window, epochs of a window (of "c" how far the clock is
--           ahead of one on which each window is as long as this one), epochs that count (of a
--           bucket 1 where its rate is that of a request since the last message, and 2 more where
--           a penalty has filled it), size, rate, milliseconds for which the newest epoch counts,
--           1 where what is granted is open, or of another region where no total may fall, the
--           stamp, and the node; "" is as before
--   state   total; of a bucket open start total
--   more    " epoch open total…"; of a bucket fresh, span, acked and the level that the node
--           knows: whole rest; of another region acked is 1 more than what of the level is from
--           there, and 0 where that is not known
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
local F = {} -- the family of the cell at hand

-- Ledgers: the totals of epochs.
--
-- A list has them as text, "total" and then " total" for each older one. By age they are in a
-- table, where 0 is the epoch of now. The functions are made where they are needed, as most
-- messages need none.
local function ledgers()
  local epoch, next, live, max, min = F.epoch, F.next, F.live, math.max, math.min

  -- Adds to v what of a list still counts. What lies ahead was counted before the clock stepped
  -- back, unless the next epoch is about to begin: it counts as now's.
  local function add(v, sign, newest, list)
    local age, ahead = epoch - newest, newest + 0 > next
    for n in string.gmatch(list, '%d+') do
      if age < live then
        local at = ahead and max(age, 0) or age
        v[at] = (v[at] or 0) + sign * n
      end
      age = age + 1
    end
  end

  -- The newest epoch of v, its total, and the older ones as a list has them. newest may be one
  -- without.
  local function list(v, newest)
    local from, to, all = ((newest or 0) > epoch or (v[-1] or 0) > 0) and -1 or 0, live - 1, {}
    while to > from and (v[to] or 0) <= 0 do to = to - 1 end
    for age = from + 1, to do all[age - from] = string.format(' %d', max(0, min(2^52, v[age] or 0))) end
    return epoch - from, max(0, min(2^52, v[from] or 0)), table.concat(all)
  end

  -- The older ones once the epoch n later is the newest: those that a list had, at most so many.
  local function behind(first, older, n, most)
    if n > most then return '' end
    older = string.rep(' 0', n - 1) .. string.format(' %d', first) .. older
    for _ = most + 1, select(2, string.gsub(older, ' ', '')) do older = match(older, '^(.*) ') end
    while string.sub(older, -2) == ' 0' do older = string.sub(older, 1, -3) end
    return older
  end

  return add, list, behind
end

-- Adds up by their fields what all others have, what the other regions have of it, and what of it
-- is open, by age. What lies ahead is folded into now, what counts no more is dropped.
local function look(key, add, list)
  local v, regions, open, newest, alive, fold, drop = {}, {}, {}, 0, 0, {}, {}
  local all = call('HGETALL', key)
  for i = 1, #all, 2 do
    local name, own = all[i], {}
    if name ~= 'sum' and name ~= '~' and name ~= 'fields' and name ~= F.node then
      local far = string.byte(name) == 126
      local s, total, epoch, opened, older = match(all[i + 1], '^(%d+) (%d+) (%d+) (%d+)([%d ]*)$')
      if s then add(own, 1, epoch, total .. older) end
      if s and (far or next(own)) then
        alive = alive + 1
        if epoch + 0 > F.next then
          epoch, total, older = list(own)
          fold[#fold + 1], fold[#fold + 2] = name, string.format('%s %d %d %s%s', s, total, epoch, opened, older)
        end
        newest = math.max(newest, epoch)
        for age, n in pairs(own) do
          v[age] = (v[age] or 0) + n
          if far then regions[age] = (regions[age] or 0) + n end
        end
        open[F.epoch - epoch] = (open[F.epoch - epoch] or 0) + opened
      elseif not far then
        drop[#drop + 1] = name
      end
    end
  end
  fold[#fold + 1], fold[#fold + 2] = 'fields', 2 * alive + 16
  return v, regions, open, newest, {fold = fold, drop = drop}
end

-- Windows and logs: takes what the node says for its field. What comes of it is returned; without a
-- total nothing is said.
local function windows(key, f, s, far, total, more)
  local top, open, rest = match(more, '^ (%d+) (%d+)(.*)$')
  local fseq, ffirst, ftop, fopen, frest = match(f or '', '^(%d+) (%d+) (%d+) (%d+)([%d ]*)$')
  local sfirst, under, till, stop, sopen, srest = match(s or '', '^(%d+) (%d+) (%d+) (%d+) (%d+)([%d ]*)$')
  local epoch, next, live, max, min, format = F.epoch, F.next, F.live, math.max, math.min, string.format
  local all, first, x = f and not fseq or s and not under, total + 0, nil
  open, top = open + 0, top + 0
  if under and under ~= F.stamp then
    if under + 0 > F.stamp + 0 then return {key = key, under = under} end
    if seq > 0 then x, fseq, under, far, all = {empty = true}, nil, nil, nil, false end
  end
  if fseq and fseq + 0 > now + 864e8 then fseq, all = nil, true end -- no clock gave that
  if seq == 0 or fseq and seq <= fseq + 0 then return {key = key, held = f or '', there = s or ''} end
  local add, list, behind = ledgers()
  if top > next then -- the node does not know that the clock stepped back
    local own = {}
    add(own, 1, top, format('%d', first) .. rest)
    top, first, rest = list(own)
  end
  if fseq then ftop, ffirst = ftop + 0, ffirst + 0 else fopen, ftop, ffirst, frest = 0, top, 0, '' end
  if under then till, stop, sfirst = till + 0, stop + 0, sfirst + 0 else till, sopen, stop, sfirst, srest = 0, 0, top, 0, '' end
  all = all or fseq and (not under or F.region and not far) or stop > next or ftop > next
    or under and not fseq and call('HLEN', key) > (tonumber(call('HGET', key, 'fields') or '') or 64)
  local rises = F.region and F.opens == '1'
  if fseq and (rises or top > epoch) then -- ahead it leaves out an epoch that still counts here
    local own, had = {}, {}
    add(own, 1, top, format('%d', first) .. rest)
    add(had, 1, ftop, format('%d', ffirst) .. frest)
    own[live - 1] = own[live - 1] or had[live - 1]
    if rises then
      for age, n in pairs(had) do own[age] = max(own[age] or 0, n) end
    end
    top, first, rest = list(own, max(top, rises and ftop or top))
  end
  local was, most, past, regions, opened = stop, top > epoch and live or live - 1, nil, nil, nil
  if not all then
    if not fseq then past = '' elseif top > ftop then past = behind(ffirst, frest, top - ftop, most) end
    if top == ftop and rest == frest and (first == ffirst and stop > top or stop == top and sfirst >= ffirst) then
      sfirst = min(2^52, sfirst + first - ffirst) -- only the newest total differs
    elseif past == rest and stop <= top then -- or an epoch began
      if stop < top then srest = behind(sfirst, srest, top - stop, most) end
      sfirst = stop == top and min(2^52, sfirst + first) or first
      stop = top
    else
      local v = {}
      add(v, 1, stop, format('%d', sfirst) .. srest)
      add(v, -1, ftop, format('%d', ffirst) .. frest)
      for _, n in pairs(v) do all = all or n < 0 end
      add(v, 1, top, format('%d', first) .. rest)
      stop, sfirst, srest = list(v, max(stop, top))
    end
    sopen = max(0, (was == stop and sopen - (ftop == stop and fopen or 0) or 0) + (top == stop and open or 0))
  end
  if all then
    local v
    v, regions, opened, was, x = look(key, add, list)
    add(v, 1, top, format('%d', first) .. rest)
    stop, sfirst, srest = list(v, max(was, top))
    sopen = (opened[epoch - stop] or 0) + (top == stop and open or 0)
  end
  if F.region then
    if not regions then
      regions = {}
      local n, at, older = match(far or '0 0 0 0 0', '^(%d+) %d+ %d+ (%d+) %d+([%d ]*)$')
      add(regions, 1, at, n .. older)
      add(regions, -1, ftop, format('%d', ffirst) .. frest)
    end
    add(regions, 1, top, format('%d', first) .. rest)
    local newest, n, older = list(regions)
    x = x or {}
    x.far = format('%d %s 0 %d 0%s', n, F.stamp, newest, older)
  end
  return {
    key = key, family = F, held = f or '', there = s or '', far = far, x = x, more = 0, used = 0, till = till,
    top = top, total = first, tail = format(' %d %d%s', top, open, rest), stop = stop, all = sfirst, stail = format(' %d %d%s', stop, sopen, srest),
  }
end

-- Totals after a grant of n now.
local function granted(newest, first, tail, n)
  local open, older = match(tail, '^ %d+ (%d+)(.*)$')
  if newest == F.epoch then
    first = first + n
  else
    local add, list, behind = ledgers()
    if newest < F.epoch then
      older = behind(first, older, F.epoch - newest, F.live - 1)
      newest, first, open = F.epoch, n, 0
    else
      local v = {}
      add(v, 1, newest, string.format('%d', first) .. older)
      v[0] = (v[0] or 0) + n
      newest, first, older = list(v, newest)
    end
  end
  if F.opens == '1' then open = open + n end
  return first, string.format(' %d %d%s', newest, open, older)
end

-- What of a cell of windows counts now. The oldest epoch fades where the kind is "s".
local function used(c)
  local age, last, all = F.epoch - c.stop, F.live - 1, 0
  for n in string.gmatch(string.format('%d', c.all) .. match(c.stail, '^ %d+ %d+(.*)$'), '%d+') do
    if age >= 0 and age <= last then all = all + n end
    if age == last and F.kind == 's' then
      local gone = n * F.into
      all = all - (gone < 9e15 and (gone - math.fmod(gone, F.window)) / F.window or math.max(0, math.floor(n / F.window * F.into) - 1))
    end
    age = age + 1
  end
  return all
end

-- The fields of nodes whose grants came before one that is given back. Their noted grows by what is
-- given back, as so much less was added after their grants.
local function earlier(key, noted, given)
  local all, fold = call('HGETALL', key), nil
  for i = 1, #all, 2 do
    local head, at = match(all[i + 1], '^(%d+ %d+ %d+ %d+ %d+) (%d+)$')
    if head and all[i] ~= F.node and at ~= '0' and at + 0 < noted then
      fold = fold or {}
      fold[#fold + 1], fold[#fold + 2] = all[i], string.format('%s %d', head, at + given)
    end
  end
  return fold
end

-- Buckets: takes what the node says for its field. What comes of it is returned; without a total
-- nothing is said.
local function bucket(key, f, s, far, state, around)
  local open, start, total = match(state, '^(%d+) (%d+) (%d+)$')
  local fresh, span, acked, known, part = match(around, '^(%d+) (%d+) (%d+) (%d+) (%d+)$')
  local fseq, fopen, fstart, ftotal, got, noted = match(f or '', '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$')
  local under, till, sopen, all, whole, rest, at, flows, added = match(s or '', '^(%d+) (%d+) (%d+) (%d+) (-?%d+) (%d+) (%d+) (%d+) (%d+)$')
  local window, rate, empty, x, fold = F.window, F.rate, s and not under, nil, nil
  if under and under ~= F.stamp then
    if under + 0 > F.stamp + 0 then return {key = key, under = under} end
    empty = seq > 0
  end
  if fseq and fseq + 0 > now + 864e8 then fseq = nil end -- no clock gave that
  if seq == 0 or fseq and not empty and seq <= fseq + 0 then return {key = key, held = f or '', there = s or ''} end
  if empty then x, fseq, under, far = {empty = true}, nil, nil, nil end
  if under then
    till, sopen, all, flows, added = till + 0, sopen + 0, all + 0, flows + 0, added + 0
  else
    till, sopen, all, whole, rest, at, flows, added = 0, 0, 0, 0, 0, 0, rate, 0
  end
  -- What has flowed out since, but no more than was idle while the node spent what it says. At
  -- which of two rates that was, nobody knows: at the lower one.
  local gone = flows * math.max(0, now - at)
  local parts = math.fmod(gone, window)
  whole, rest = whole - math.floor((gone - parts) / window + .5), rest - parts
  if rest < 0 then whole, rest = whole - 1, rest + window end
  if whole < 0 then
    gone = (F.live % 2 == 1 and math.min(flows, rate) or flows) * span
    parts = math.fmod(gone, window)
    local least = -math.ceil(gone / window)
    if parts > 0 then parts = window - parts end
    if whole < least or whole == least and rest < parts then whole, rest = least, parts end
  end
  fresh, total, open = fresh + 0, total + 0, open + 0
  local knows, raised, before = fseq and fstart == start, false, 0
  if F.region and not knows then -- a node here may know what was there before this cell
    local born, knew = match(under and call('HGET', key, 'born') or '', '^(%d+) %d+ ([01])$')
    if acked ~= '0' and (not under or knew == '0' or born and start + 0 >= born + 0) then
      fresh, known = acked - 1, -1
    else
      fresh = 0
    end
  elseif F.region and knows and F.opens == '1' then
    total = math.max(total, ftotal)
  end
  local more = fresh
  if knows then
    more, got = total - ftotal, got + 0
    all = all + more
    if got > 0 and fseq + 0 > acked + 0 then -- nobody knows of it: what still stands of it goes
      local stands = noted + 0 <= added and whole - (added - noted) or -1
      if stands >= got then whole = whole - got elseif stands >= 0 then whole, rest = whole - stands, 0 end
      if stands > 0 then fold = earlier(key, noted + 0, math.min(stands, got)) end
      more = more + got
    end
    if more < 0 and whole >= 0 then
      whole = whole + more
      if whole < 0 then whole, rest = 0, 0 end
    end
  else
    all, known, part, before = all + total, known - fresh, part + 0, F.region and 0 or math.max(0, total - fresh)
    if before > 0 and least and under then
      local born = match(call('HGET', key, 'born') or '', '^%d+')
      -- What began here spent nothing before: this is an older copy, which does not know it.
      if born and born + 0 > 1 and start + 0 >= born + 0 then before = 0 end
    end
    if known >= 0 and (known > whole or known == whole and part > rest) then
      added = added + known - whole + 1
      whole, rest, raised = known, part, true
    end
  end
  more = math.min(more, fresh)
  if flows == 0 or F.live % 2 == 1 and (more > 0 or more == 0 and rate > flows) then flows = rate end
  more = math.min(more, F.size + rate - whole)
  if more > 0 then whole, added = whole + more, added + more end
  if F.live > 1 then -- the node knows the part of a request with which that was filled
    local n, r = match(around, '^%d+ %d+ %d+ (%d+) (%d+)$')
    n, r = n + 0, r + 0
    if whole == n or whole == n + 1 and rest <= r or whole == n - 1 and rest >= r then whole, rest = n, r end
  end
  if fold or F.region then x = x or {} end
  if fold then x.fold = fold end
  if F.region then
    local there = match(far or '', '^%d+ 0 0 (%d+)$') or 0
    x.far = string.format('%s 0 0 %d', F.stamp, math.max(0, there + total - (knows and ftotal or 0)))
  end
  return {
    key = key, family = F, held = f or '', there = s or '', far = far, x = x, more = 0, till = till, start = start, open = open, total = total, born = least and not under, raised = least and raised, before = least and before or 0,
    sopen = math.max(0, sopen + open - (fseq and fopen or 0)), all = math.max(0, math.min(2^52, all)), whole = whole, rest = rest, flows = flows, added = added,
  }
end

-- Has other regions hear of a key.
local function mark(key)
  local told = KEYS[#KEYS]
  if not score then
    local highest = redis.pcall('ZREVRANGE', told, 0, 0, 'WITHSCORES')
    if highest.err then -- another program has written it
      call('DEL', told)
      highest = {}
    elseif (tonumber(highest[2] or '') or 0) > 4.5e15 then -- no clock gave that
      call('ZREMRANGEBYSCORE', told, '(4.5e15', '+inf')
      highest = call('ZREVRANGE', told, 0, 0, 'WITHSCORES')
    end
    score = math.max(now, (tonumber(highest[2] or '') or 0) + 1)
    call('PEXPIRE', told, 2592000000) -- a month after the last one, as the relay's cursors
  end
  call('ZADD', told, string.format('%d', score), key)
end

-- Has other regions hear of a cell of which all have so much, and the other regions that: from the
-- threshold on, of what both have, and where it must be.
local function tell(key, all, older, far, must)
  local theirs, more = match(far or '', F.kind == 'b' and '^%d+ 0 0 (%d+)$' or '^(%d+) %d+ 0 %d+ 0([%d ]*)$')
  local here = all - (theirs or 0)
  for n in string.gmatch(older, '%d+') do here = here + n end
  for n in string.gmatch(more or '', '%d+') do here = here - n end
  if must and not F.region or here > 0 and (must or not F.region and (far or here >= least)) then mark(key) end
end

local tail, top, open, older
for i = 1, cells do
  local key, text, total, more, had, c = KEYS[i], ARGV[1 + 3 * i], ARGV[2 + 3 * i], ARGV[3 + 3 * i], nil, nil
  if text ~= '' then
    local kind, window, parts, live, size, rate, ttl, opens, stamp, node = match(text, '^(%a) (%d+) (-?%d+) (%d+) (%d+) (%d+) (%d+) ([01]) (%d+) (%S+)$')
    -- Nodes can have other zone data. So a window of a calendar may have begun for some already.
    local at, calendar = now, kind == 'c'
    if calendar then at, parts = now - parts, 1 end
    local into = math.fmod(at, window)
    local past = into * parts
    local part = math.fmod(past, window)
    local epoch = (at - into) / window * parts + (past - part) / window
    -- When the newest epoch counts no more, and for a message that finds the key end before, until
    -- when the key stays: as long once more, after a window of a calendar for a day.
    local due = now / 1000 + ttl + 60000
    if calendar then due = (now - into + window) / 1000 + 60000 end
    F = {
      node = node, region = string.byte(node) == 126, kind = kind, window = window + 0, live = live + 0, size = size + 0, rate = rate + 0, ttl = ttl + 0, opens = opens, stamp = stamp,
      epoch = epoch, next = (calendar or window - part <= 1e6 * parts) and epoch + 1 or epoch, into = part, due = due, ends = math.floor(calendar and due + 864e5 or 2 * due - now / 1000),
    }
  end
  if least or F.region then had = redis.pcall('HMGET', key, F.node, 'sum', '~') else had = redis.pcall('HMGET', key, F.node, 'sum') end
  local f, s = had[1], had[2]
  -- Mostly the newest total alone has grown, or an epoch began.
  if f and s and F.kind ~= 'b' and not F.region then
    if more ~= tail then
      tail = more
      top, open, older = match(more, '^ (%d+) (%d+)(.*)$')
      top = top + 0
    end
    local fseq, ftotal, ftail = match(f, '^(%d+) (%d+)(.*)$')
    local all, under, till, stop, sopen, rest = match(s, '^(%d+) (%d+) (%d+) (%d+) (%d+)(.*)$')
    if under == F.stamp and fseq and seq > fseq + 0 and top <= F.next and all + total < 1e14 then
      if stop + 0 == top and ftail == more and all - ftotal >= 0 then
        all = all + total - ftotal
      elseif ftail then
        local ftop, _, was = match(ftail, '^ (%d+) (%d+)(.*)$')
        was = ' ' .. ftotal .. (was or '')
        all = ftop and ftop + 1 == top and (stop == ftop or stop + 0 == top) and top <= F.epoch and all
        if all and older ~= was and not (string.sub(was, 1, #older + 1) == older .. ' ' and select(2, string.gsub(older, ' ', '')) == F.live - 1) then all = nil end
        if all and stop == ftop then
          rest = F.live > 1 and ' ' .. all .. rest or ''
          if select(2, string.gsub(rest, ' ', '')) >= F.live then rest = match(rest, '^(.*) ') end
          stop, all, sopen = top, total + 0, open
        elseif all then
          all, sopen = all + total, sopen + open
        end
      else
        all = nil
      end
    else
      all = nil
    end
    if all and strict then
      c = {
        key = key, family = F, held = f, there = s, far = had[3], x = nil, more = 0, used = 0, till = till + 0,
        top = top, total = total + 0, tail = more, stop = top, all = all, stail = ' ' .. top .. ' ' .. sopen .. rest,
      }
    elseif all then
      local ends = till + 0 < F.due and F.ends
      s = all .. ' ' .. under .. ' ' .. (ends or till) .. ' ' .. stop .. ' ' .. sopen .. rest
      call('HSET', key, F.node, ARGV[1] .. ' ' .. total .. more, 'sum', s)
      if ends then call('PEXPIREAT', key, ends) end
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
  if c and least and had[3] then c.mark = ' ~' end
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
      F = c.family
      if F.live > 1 or c.stop > F.epoch then c.used = used(c) elseif c.stop == F.epoch then c.used = c.all end
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
    F = c.family
    local n, x, field, before, after, due, ends = c.more, c.x, nil, nil, nil, F.due, F.ends
    if F.kind == 'b' then
      local need = x and x.empty and F.ttl or 0
      if c.whole >= 0 and c.flows > 0 then need = math.max(need, math.min(3e11, (c.whole + 1) / c.flows * F.window / 1000)) end
      due = now / 1000 + need + 60000
      ends = math.floor(2 * due - now / 1000)
      if F.opens == '1' then c.open, c.sopen = c.open + n, c.sopen + n end
      c.all = math.min(2^52, c.all + n)
      field = string.format('%s %d %s %d %d %d', ARGV[1], c.open, c.start, c.total + n, n, n > 0 and c.added or 0)
      before = F.stamp .. ' '
      after = string.format(' %d %d %d %d %d %d %d', math.min(c.sopen, math.max(0, c.whole + 1)), c.all, c.whole, c.rest, now, c.flows, c.added)
    else
      if n > 0 and c.top == F.epoch and c.stop == F.epoch and F.opens == '0' then
        c.total, c.all = c.total + n, c.all + n
      elseif n > 0 then
        c.total, c.tail = granted(c.top, c.total, c.tail, n)
        c.all, c.stail = granted(c.stop, c.all, c.stail, n)
      end
      field = string.format('%s %d%s', ARGV[1], c.total, c.tail)
      before, after = string.format('%d %s ', c.all, F.stamp), c.stail
    end
    if x then
      if x.empty then call('DEL', c.key) end
      if x.drop and #x.drop > 0 then call('HDEL', c.key, unpack(x.drop, 1, math.min(4000, #x.drop))) end
      if x.fold then call('HSET', c.key, unpack(x.fold, 1, math.min(4000, #x.fold))) end
      if x.far then call('HSET', c.key, '~', x.far) end
    end
    if c.born or c.raised or (c.before or 0) > 0 then
      local born, spent, knew = match(not c.born and call('HGET', c.key, 'born') or '', '^(%d+) (%d+) ([01])$')
      spent = math.min(2^52, (spent or 0) + c.before)
      call('HSET', c.key, 'born', string.format('%d %d %s', born or c.born and now or 1, spent, c.raised and '1' or knew or '0'))
    end
    ends = c.till < due and ends
    c.there = before .. (ends or c.till) .. after
    call('HSET', c.key, F.node, field, 'sum', c.there)
    if ends then call('PEXPIREAT', c.key, ends) end
    if least then
      local must = x and x.empty
      if F.region then must = c.held == '' elseif not must then must = redis.pcall('ZSCORE', KEYS[#KEYS], c.key) end
      tell(c.key, c.all, F.kind == 'b' and '' or match(c.stail, '^ %d+ %d+(.*)$'), x and x.far or c.far, must)
    end
  end
  if c then reply[1 + 2 * i], reply[2 + 2 * i] = c.failed and '!' or c.under and '@' or c.held, c.failed or c.under or c.there .. (c.mark or '') end
end
for i = 1, bans do
  local key, lasts = KEYS[cells + i], ban[i][2]
  if lasts and lasts > 0 then call('SET', key, ban[i][1], 'PX', string.format('%d', lasts)) elseif lasts then call('DEL', key) end
  if lasts and lasts > 0 and least then mark(key) end
  reply[2 + 2 * cells + i] = ban[i][1]
end
return table.concat(reply, '\n')
