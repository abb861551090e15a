-- What a node has spent of its cells, said in full, and in a strict call what it asks for.
--
-- A cell is a hash: what all nodes know of one key in one limit. It has a field for each node, and
-- for each other region one whose name begins with "~":
--   of windows and logs  seq open epoch total…        totals of epochs, the newest first
--   of a bucket          seq open start total granted noted
-- "sum" is what all of these have, and "~" what the other regions have:
--   of windows and logs  stamp end open epoch total…
--   of a bucket          stamp end open total whole rest at rate added
-- and "fields" is how many fields there may be before dead ones are looked for.
--
-- seq numbers the messages of a node. open is how much of the newest epoch belongs to responses that
-- have not begun. stamp is the latest reset that the key is under, end when the key ends, in
-- milliseconds. A bucket's level is whole + rest/window; below 0 it has been idle. start names a state
-- of a bucket, granted is what the last call gave, and noted what had been added to the level by then.
-- Other times are microseconds of this server's clock. All numbers are whole and below 2^53.
--
-- KEYS: cells; bans; where limits go over regions the sorted set told.
-- ARGV: node; number of cells; threshold of told, or ""; 1 where no earlier message of these cells is
-- without an answer. For each cell its family, what stands around the state, and the state:
--   family  "w" for windows and logs, "s" where the oldest epoch fades, "b" for a bucket; window, epochs
--           of a window, epochs that count, size, rate, milliseconds for which the newest epoch counts,
--           1 where what is granted is open
--   around  stamp; of a bucket also fresh, span, heard and the level that the node knows: whole, rest
--   state   seq open epoch total…; of a bucket seq open start total
-- For each ban "begun length stamp" or "". Of a strict call what it asks for: count and cost of requests
-- that follow each other, and for each cell the size and the rate that they go by.
--
-- Reply, in lines: seconds and microseconds; what is granted of each of these, or "old" or "banned"; for
-- each cell the node's field as it was and the sum by now, or "@" and the stamp that the cell is under, or
-- "!" and an error; the bans.
--
-- A message counts only if its seq is above that of the field, so repeated and overtaken ones change
-- nothing. The seq 0 reads. Everything is read before anything is written.
local call, pcall, match, gmatch, format, concat, sub = redis.call, redis.pcall, string.match, string.gmatch, string.format, table.concat, string.sub
local max, min, floor, fmod = math.max, math.min, math.floor, math.fmod
local node, cells, least, quiet = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4] == '1'
local bans = #KEYS - cells - (least and 1 or 0)
local asked = 5 + 3 * cells + bans -- where what a call asks for begins
local strict, region, most = asked <= #ARGV, string.byte(node) == 126, 2^52
local clock = call('TIME')
local now = clock[1] * 1000000 + clock[2]
local instant, reply, cell, score, status = format('%.0f', now), {clock[1] .. ' ' .. clock[2], ''}, {}, nil, nil
local family, kind, window, parts, live, size, rate, ttl, opens, epoch, into

local function text(x) return x < 1e14 and x > -1e14 and x or format('%.0f', x) end

-- Adds to v, by age, what of a list of totals still counts. What lies more than an epoch ahead was
-- counted before the clock stepped back: it counts as now's.
local function add(v, sign, newest, totals)
  local age = epoch - newest
  local ahead = age < -1
  for n in gmatch(totals, '%d+') do
    if age < live then
      local at = ahead and max(age, 0) or age
      v[at] = (v[at] or 0) + sign * n
    end
    age = age + 1
  end
end

-- The newest epoch of v, its total, and the older ones as they stand behind it. newest may be one without.
local function list(v, newest)
  local from, to, all = (newest or epoch) > epoch and -1 or (v[-1] or 0) > 0 and -1 or 0, live - 1, {}
  while to > from and (v[to] or 0) <= 0 do to = to - 1 end
  for age = from + 1, to do all[age - from] = text(max(0, min(most, v[age] or 0))) end
  return epoch - from, max(0, min(most, v[from] or 0)), to > from and ' ' .. concat(all, ' ') or ''
end

-- The totals behind a newer one: n - 1 epochs without any, and what stood there, most in all.
local function behind(first, rest, n, most)
  if n > most then return '' end
  rest = string.rep(' 0', n - 1) .. ' ' .. text(first) .. rest
  for _ = most + 1, select(2, string.gsub(rest, ' ', '')) do rest = match(rest, '^(.*) ') end
  while sub(rest, -2) == ' 0' do rest = sub(rest, 1, -3) end
  return rest
end

-- Totals after a grant of n now.
local function granted(newest, first, rest, n)
  if newest == epoch then return newest, first + n, rest end
  if newest < epoch then return epoch, n, behind(first, rest, epoch - newest, live - 1) end
  local v = {}
  add(v, 1, newest, text(first) .. rest)
  v[0] = (v[0] or 0) + n
  return list(v, newest)
end

-- Adds up by their fields what all others have, what the other regions have of it, and what of it is open,
-- by epochs. What lies ahead is folded into now, what counts no more is dropped.
local function look(key)
  local v, regions, open, alive, fold, drop, all = {}, {}, {}, 0, {}, {}, call('HGETALL', key)
  local last = 0
  for i = 1, #all, 2 do
    local name, own = all[i], {}
    if name ~= 'sum' and name ~= '~' and name ~= 'fields' and name ~= node then
      local far = string.byte(name) == 126
      local seq, opened, newest, totals = match(all[i + 1], '^(%d+) (%d+) (%d+) ([%d ]+)$')
      if seq then add(own, 1, newest + 0, totals) end
      if seq and (far or next(own)) then
        alive = alive + 1
        if newest + 0 > epoch + 1 then
          local first, rest
          newest, first, rest = list(own)
          fold[#fold + 1], fold[#fold + 2] = name, concat({seq, opened, newest, text(first)}, ' ') .. rest
        end
        last = max(last, newest)
        for age, n in pairs(own) do
          v[age] = (v[age] or 0) + n
          if far then regions[age] = (regions[age] or 0) + n end
        end
        open[epoch - newest] = (open[epoch - newest] or 0) + opened
      elseif not far then
        drop[#drop + 1] = name
      end
    end
  end
  fold[#fold + 1], fold[#fold + 2] = 'fields', 2 * alive + 16
  return v, regions, open, last, {fold = fold, drop = drop}
end

-- A cell that the node is new to is looked through where it has more fields than were left the last time.
local function crowded(key) return call('HLEN', key) > (tonumber(call('HGET', key, 'fields') or '') or 64) end

-- Windows and logs: takes what the node says for its field. What comes of it is in c, or nothing is said.
local function windows(c, f, s, far, stamp, state)
  local seq, open, top, first, rest = match(state, '^(%d+) (%d+) (%d+) (%d+)(.*)$')
  local fseq, fopen, ftop, ffirst, frest = match(f or '', '^(%d+) (%d+) (%d+) (%d+)([%d ]*)$')
  local under, till, sopen, stop, sfirst, srest = match(s or '', '^(%d+) (%d+) (%d+) (%d+) (%d+)([%d ]*)$')
  local all = f and not fseq or s and not under
  open, top, first = open + 0, top + 0, first + 0
  if under and under ~= stamp then
    if under + 0 > stamp + 0 then c.under = under return end
    if seq ~= '0' then c.x, fseq, under, far, all = {empty = true}, nil, nil, nil, false end
  end
  if fseq and fseq + 0 > now + 864e8 then fseq, all = nil, true end -- no clock gave that
  if seq == '0' or fseq and seq + 0 <= fseq + 0 then return end
  if top > epoch + 1 then -- the node has not heard that the clock stepped back
    local own = {}
    add(own, 1, top, text(first) .. rest)
    top, first, rest = list(own)
  end
  if fseq then ftop, ffirst = ftop + 0, ffirst + 0 else fopen, ftop, ffirst, frest = 0, top, 0, '' end
  if under then till, stop, sfirst = till + 0, stop + 0, sfirst + 0 else till, sopen, stop, sfirst, srest = 0, 0, top, 0, '' end
  all = all or fseq and (not under or region and not far) or stop > epoch + 1 or ftop > epoch + 1 or under and not fseq and crowded(c.key)
  if top > epoch and fseq then -- ahead it leaves out an epoch that still counts here
    local own, had = {}, {}
    add(own, 1, top, text(first) .. rest)
    add(had, 1, ftop, text(ffirst) .. frest)
    own[live - 1] = own[live - 1] or had[live - 1]
    top, first, rest = list(own, top)
  end
  c.same = top == ftop and first == ffirst and rest == frest and open == fopen + 0 and not c.x
  local was, past, regions, opens = stop, nil, nil, nil
  if not all then
    if not fseq then past = '' elseif top > ftop then past = behind(ffirst, frest, top - ftop, top > epoch and live or live - 1) end
    if top == ftop and rest == frest and (first == ffirst and stop > top or stop == top and sfirst >= ffirst) then
      sfirst = min(most, sfirst + first - ffirst) -- only the newest total differs
    elseif past == rest and stop <= top then -- or an epoch began
      if stop < top then srest = behind(sfirst, srest, top - stop, top > epoch and live or live - 1) end
      sfirst, stop = stop == top and min(most, sfirst + first) or first, top
    else
      local v = {}
      add(v, 1, stop, text(sfirst) .. srest)
      add(v, -1, ftop, text(ffirst) .. frest)
      for _, n in pairs(v) do all = all or n < 0 end
      add(v, 1, top, text(first) .. rest)
      stop, sfirst, srest = list(v, max(stop, top))
    end
    sopen = max(0, (was == stop and sopen - (ftop == stop and fopen or 0) or 0) + (top == stop and open or 0))
  end
  if all then
    c.same = false
    local v
    v, regions, opens, was, c.x = look(c.key)
    add(v, 1, top, text(first) .. rest)
    stop, sfirst, srest = list(v, max(was, top))
    sopen = (opens[epoch - stop] or 0) + (top == stop and open or 0)
  end
  if region then
    local newest, total, older
    if not regions then
      regions = {}
      if far then add(regions, 1, match(far, '^%d+ %d+ %d+ (%d+) ([%d ]+)$')) end
      add(regions, -1, ftop, text(ffirst) .. frest)
    end
    add(regions, 1, top, text(first) .. rest)
    newest, total, older = list(regions)
    c.x = c.x or {}
    c.x.far = concat({stamp, 0, 0, newest, text(total)}, ' ') .. older
  end
  c.stamp, c.seq, c.open, c.top, c.first, c.rest = stamp, seq, open, top, first, rest
  c.till, c.sopen, c.stop, c.sfirst, c.srest, c.size = till, sopen, stop, sfirst, srest, ttl
end

-- What of a cell of windows counts now. The oldest epoch fades where kind is "s".
local function used(c)
  local age, all = epoch - c.stop, 0
  for n in gmatch(text(c.sfirst) .. c.srest, '%d+') do
    if age >= 0 and age < live then all = all + n end
    if age == live - 1 and kind == 's' then
      local gone = n * into
      all = all - (gone < 9e15 and (gone - fmod(gone, window)) / window or max(0, floor(n / window * into) - 1))
    end
    age = age + 1
  end
  return all
end

-- What flows out of a bucket in a time: whole units, and parts of the window.
local function flow(rate, us)
  local all = rate * us
  local part = fmod(all, window)
  local units = (all - part) / window
  return all < 9e15 and units or floor(units + .5), part
end

-- Buckets: takes what the node says for its field. What comes of it is in c, or nothing is said.
local function bucket(c, f, s, far, around, state)
  local stamp, fresh, span, heard, known, part = match(around, '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$')
  local seq, open, start, total = match(state, '^(%d+) (%d+) (%d+) (%d+)$')
  local fseq, fopen, fstart, ftotal, got, noted = match(f or '', '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$')
  local under, till, sopen, all, whole, rest, at, flows, added = match(s or '', '^(%d+) (%d+) (%d+) (%d+) (-?%d+) (%d+) (%d+) (%d+) (%d+)$')
  local empty = s and not under
  if under and under ~= stamp then
    if under + 0 > stamp + 0 then c.under = under return end
    empty = seq ~= '0'
  end
  if fseq and fseq + 0 > now + 864e8 then fseq = nil end -- no clock gave that
  if seq == '0' or fseq and not empty and seq + 0 <= fseq + 0 then return end
  if empty then c.x, fseq, under, far = {empty = true}, nil, nil, nil end
  if under then
    local units, parts = flow(flows + 0, max(0, now - at))
    till, sopen, all, flows, added, whole, rest = till + 0, sopen + 0, all + 0, flows + 0, added + 0, whole - units, rest - parts
    if rest < 0 then whole, rest = whole - 1, rest + window end
    units, parts = flow(flows, span + 0)
    if parts > 0 then units, parts = units + 1, window - parts end
    if whole < -units or whole == -units and rest < parts then whole, rest = -units, parts end
  else
    till, sopen, all, whole, rest, flows, added = 0, 0, 0, 0, 0, rate, 0
  end
  fresh, total, open = fresh + 0, total + 0, open + 0
  local more = fresh
  if fseq and fstart == start then
    more, got = total - ftotal, got + 0
    all = all + more
    if got > 0 and fseq + 0 > heard + 0 then -- nobody heard of it: what still stands of it goes
      local stands = noted + 0 <= added and whole - (added - noted) or -1
      if stands >= got then whole = whole - got elseif stands >= 0 then whole, rest = whole - stands, 0 end
      more = more + got
    end
    if more < 0 and whole >= 0 then
      whole = whole + more
      if whole < 0 then whole, rest = 0, 0 end
    end
  else
    all, known, part = all + total, known - fresh, part + 0
    if known > whole or known == whole and part > rest then added, whole, rest = added + known - whole + 1, known, part end
  end
  more = min(more, fresh)
  if more > 0 or rate > flows then flows = rate end
  more = min(more, size + rate - whole)
  if more > 0 then whole, added = whole + more, added + more end
  c.same = fseq and fstart == start and total == ftotal + 0 and open == fopen + 0 and got == 0 and c.x == nil
  if region then
    c.x = c.x or {}
    local there = match(far or '', '^%d+ %d+ %d+ (%d+)$') or 0
    c.x.far = concat({stamp, 0, 0, text(max(0, there + total - (fseq and fstart == start and ftotal or 0)))}, ' ')
  end
  c.stamp, c.seq, c.open, c.start, c.total, c.till, c.sopen = stamp, seq, open, start, total, till, max(0, sopen + open - (fseq and fopen or 0))
  c.all, c.whole, c.rest, c.flows, c.added = max(0, min(most, all)), whole, rest, flows, added
end

local function familyOf(i)
  if ARGV[2 + 3 * i] == family then return end
  family = ARGV[2 + 3 * i]
  kind, window, parts, live, size, rate, ttl, opens = match(family, '^(%a) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) ([01])$')
  window, live, size, rate, ttl = window + 0, live + 0, size + 0, rate + 0, ttl + 0
  local past = fmod(now, window)
  into = fmod(past * parts, window)
  epoch = (now - past) / window * parts + (past * parts - into) / window
end

for i = 1, cells do
  familyOf(i)
  local key, had = KEYS[i], nil
  if least or region then had = pcall('HMGET', key, node, 'sum', '~') else had = pcall('HMGET', key, node, 'sum') end
  local c = {key = key, held = had[1] or '', there = had[2] or '', more = 0}
  cell[i] = c
  if had.err then
    c.failed, status = string.gsub(had.err, '[\r\n]', ' '), 'failed'
  elseif kind == 'b' then
    bucket(c, had[1], had[2], had[3], ARGV[3 + 3 * i], ARGV[4 + 3 * i])
  else
    windows(c, had[1], had[2], had[3], ARGV[3 + 3 * i], ARGV[4 + 3 * i])
  end
  c.far = had[3]
  if not c.stamp then status = status or 'old' end
end

local ban = {}
for i = 1, bans do
  local says, there = ARGV[4 + 3 * cells + i], call('GET', KEYS[cells + i]) or ''
  local b, l, s = match(there, '^(%d+) (%d+) (%d+)$')
  local begun, length, stamp = match(says, '^(%d+) (%d+) (%d+)$')
  local new = begun and (not b or stamp + 0 > s + 0 or stamp == s and begun + 0 > b + 0)
  if not new then says, begun, length = there, b, l end
  local left = begun and begun + length - now or 0
  if left > 0 then status = status or 'banned' end
  ban[i] = {says, new and text(floor(min(3e12, max(60000, left / 1000))))}
end

-- What is asked for, in order: as many of each as all limits have room for, all limits or none.
if strict then
  local grants = {}
  for i = 1, cells do
    familyOf(i)
    if kind ~= 'b' and not status then cell[i].used = used(cell[i]) end
  end
  for at = asked, #ARGV, 2 + 2 * cells do
    local fit, cost = status and 0 or ARGV[at] + 0, ARGV[at + 1] + 0
    for i = 1, fit > 0 and cost > 0 and cells or 0 do
      local c, most, flows = cell[i], ARGV[at + 2 * i] + 0, ARGV[at + 2 * i + 1] + 0
      local room = c.used and most - c.used or most - max(0, c.whole + (c.rest > 0 and 1 or 0))
      if not c.used then
        c.flows = flows
        if flows == 0 then room = 0 end
      end
      if fit * cost > room then fit = max(0, (room - fmod(room, cost)) / cost) end
    end
    for i = 1, fit * cost > 0 and cells or 0 do
      local c = cell[i]
      c.more = c.more + fit * cost
      if c.used then c.used = c.used + fit * cost else c.whole, c.added = c.whole + fit * cost, c.added + fit * cost end
    end
    grants[#grants + 1] = text(fit)
  end
  reply[2] = status or concat(grants, ',')
end

-- Writes a cell that counts for so many milliseconds.
local function write(c, field, head, rest, need)
  local key, x, till = c.key, c.x or {}, c.till
  local ends = till < now / 1000 + need + 60000 and floor(now / 1000 + 2 * (need + 60000))
  if x.empty then call('DEL', key) end
  if x.drop and #x.drop > 0 then call('HDEL', key, unpack(x.drop, 1, min(4000, #x.drop))) end
  if x.fold then call('HSET', key, unpack(x.fold, 1, min(4000, #x.fold))) end
  if x.far then call('HSET', key, '~', x.far) end
  c.there = concat({c.stamp, ends or till, text(c.sopen), head}, ' ') .. rest
  call('HSET', key, node, field, 'sum', c.there)
  if ends then call('PEXPIREAT', key, text(ends)) end
end

for i = 1, cells do
  local c, n = cell[i], cell[i].more
  if c.stamp and (n > 0 or not (quiet and c.same)) then
    familyOf(i)
    local told = least and not region and KEYS[#KEYS]
    local counts, far
    if kind == 'b' then
      local level, need = c.whole + c.rest / window, c.x and c.x.empty and ttl or 0
      if level > 0 and c.flows > 0 then need = max(need, min(3e11, level / c.flows * window / 1000)) end
      if opens == '1' then c.open, c.sopen = c.open + n, c.sopen + n end
      c.all, c.sopen = min(most, c.all + n), min(c.sopen, max(0, c.whole + 1))
      write(c, concat({c.seq, text(c.open), c.start, text(c.total + n), text(n), n > 0 and text(c.added) or 0}, ' '),
        concat({text(c.all), text(c.whole), text(c.rest), instant, text(c.flows), text(c.added)}, ' '), '', need)
      counts, far = c.all, match(c.far or '', '^%d+ %d+ %d+ (%d+)$')
    else
      if n > 0 then
        local top, stop = c.top, c.stop
        c.top, c.first, c.rest = granted(top, c.first, c.rest, n)
        c.stop, c.sfirst, c.srest = granted(stop, c.sfirst, c.srest, n)
        if c.top > top then c.open = 0 end
        if c.stop > stop then c.sopen = 0 end
        if opens == '1' then c.open, c.sopen = c.open + n, c.sopen + n end
      end
      write(c, concat({c.seq, text(c.open), c.top, text(c.first)}, ' ') .. c.rest, c.stop .. ' ' .. text(c.sfirst), c.srest, ttl)
      if told then
        counts, far = c.sfirst, 0
        for total in gmatch(c.srest, '%d+') do counts = counts + total end
        for total in gmatch(match(c.far or '', '^%d+ %d+ %d+ %d+ ([%d ]+)$') or '', '%d+') do far = far + total end
      end
    end
    if told and (counts - (far or 0) >= least or c.x and c.x.empty or call('ZSCORE', told, c.key)) then
      score = score or max(now, (tonumber(call('ZREVRANGE', told, 0, 0, 'WITHSCORES')[2] or '') or 0) + 1)
      call('ZADD', told, format('%.0f', score), c.key)
    end
  end
end

reply[2] = reply[2] or ''
for i, c in ipairs(cell) do
  reply[1 + 2 * i], reply[2 + 2 * i] = c.failed and '!' or c.under and '@' or c.held, c.failed or c.under or c.there
end
for i = 1, bans do
  if ban[i][2] then call('SET', KEYS[cells + i], ban[i][1], 'PX', ban[i][2]) end
  reply[2 + 2 * cells + i] = ban[i][1]
end
return concat(reply, '\n')
