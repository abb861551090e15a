-- One decision of strict mode (sync_rate 0): how many of the units that wait on one node all limits
-- of a zone admit. It is put together of head.lua, a file for the family of algorithms, and
-- tail.lua.
--
-- KEYS: the record of calls; then for each rule the base of its keys, all in one slot. ARGV: field,
-- seq, want, rollback, first and the reset that the key is under, how long the record is kept in
-- milliseconds, and 1 where denied requests count; then for each rule what its family needs, the
-- number of its corrections, and four numbers for each: op, n, a, b; then for each further batch
-- what it wants, and for each rule what its requests bring. Times are microseconds of this server's
-- clock. All numbers are whole and below 2^53, where doubles are exact.
--
-- want is how many requests ask for one unit each, or "count:cost,…" where some ask for another
-- number: runs of requests that follow each other and cost the same. The grant is then a budget:
-- what all limits have room for, of what is wanted at most. Of each run as many are admitted as fit
-- into what is left of it. The rest is passed over, so that one large request denies nobody behind
-- it. The node works out the same from the budget.
--
-- A batch is requests that follow each other and go by the same limits. The batches of a call are
-- decided in order, as if they were calls one after the other at this instant. Those after the
-- first bring the first numbers that their family needs: their limits.
--
-- Where denied requests count, the reply says how the rules will stand when those of this call have
-- been charged, and batches are decided by that, too. Nothing of it is written: the node charges
-- them with the key's next call, as a correction, which is done once whatever becomes of a call.
--
-- The record holds "seq spent at" of this node's last call that changed something, and the grant of
-- each batch where there were several, or runs. A seq that is there already is a call that was sent
-- twice: it gets the same grants and changes nothing. A lower one comes too late: nobody waits for
-- it. rollback is the first call with an outcome unknown to the node: what that one or a later one
-- has granted is rolled back.
--
-- Corrections (see correction.go):
--   1  refunds n units
--   2  charges n units for requests that were denied at the instant a: at most to the brim of a
--      bucket
--   4  charges n units that responses have cost beyond what was reserved, now: a bucket holds at
--      most what drains in one window beyond its size
--   5  refunds n units that a bucket had reserved, as far as they still stand in it: b is what had
--      been added to the bucket in all when they were
-- All corrections of a call belong together. They are done unless the record says that a call from
-- first on has been here: first is the call that brought them along for the first time, and no call
-- until they are acknowledged has others.
--
-- A reset is "stamp end at" after first: its stamp, until when it holds, and up to when it
-- forgives. A level under a lower stamp is empty. Under a higher one nothing is done, and the reply
-- is -2, the instant, that stamp and its end.
local field, seq, want, rollback = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local first, reset, ends, forgiven = string.match(ARGV[5], '^(%d+) ?(%d*) ?(%d*) ?(%d*)$')
local exact = 9007199254740992

local function text(n) return string.format('%.0f', n) end

-- floor(a * b / c) and the rest, exact, for b <= c. A product that a double can't hold is divided
-- digit by digit, as on paper.
local function muldiv(a, b, c)
  local product = a * b
  if product < exact then
    local rest = math.fmod(product, c)
    return (product - rest) / c, rest
  end
  local _, bits = math.frexp(c)
  local base = 2 ^ math.max(1, 52 - bits)
  local digit = 1
  while digit * base <= a do digit = digit * base end
  local quotient, rest = 0, 0
  while digit >= 1 do
    local d = math.floor(a / digit)
    a = a - d * digit
    digit = digit / base
    local n = rest * base + d * b
    rest = math.fmod(n, c)
    quotient = quotient * base + (n - rest) / c
  end
  return quotient, rest
end

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
first, reset, ends, forgiven = tonumber(first), tonumber(reset) or 0, tonumber(ends) or 0, tonumber(forgiven) or 0
if ends <= now then reset = 0 end
local told, asked, runs, replayed
local open, bring, room, spend, give, fill, settle, debit, unspend, foresee, announce, close, report, rules

-- Fails, before anything is written, where this user may not run what counts a call that has
-- changed something: otherwise that would come again, and count twice. Redis tells since 7.0.
local function checkRights()
  for _, command in ipairs({{'HSET', KEYS[1], field, ''}, {'PEXPIRE', KEYS[1], '0'}}) do
    if redis.acl_check_cmd and not redis.acl_check_cmd(unpack(command)) then redis.call(unpack(command)) end
  end
end
