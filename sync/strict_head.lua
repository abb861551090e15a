-- One decision of strict mode (sync_rate 0): how many of the units that wait on one node all limits of a zone admit. It is put together of
-- strict_head.lua, a file for the family of algorithms, and strict_tail.lua.
--
-- KEYS: the record of calls; then for each rule the base of its keys, all in one slot.
-- ARGV: field, seq, want, undo, number of amends; for each amend first, at, seq, unit, n; then for each rule what its family needs.
-- Times are microseconds of this server's clock. All numbers are whole and below 2^53, where doubles are exact.
--
-- The record holds "seq granted at" of this node's last call that changed something. A seq that is there already is a call sent twice: it
-- gets the same grant and changes nothing. A lower one comes too late: nobody waits for it. undo is the first call whose
-- outcome the node never learnt: a grant of that one or a later one is taken back. An amend gives a unit back (n > 0) or spends some
-- unasked (n < 0); it is done unless the record says that the call first, which brought it along for the first time, has been here.
local field, seq, want, undo = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local exact = 9007199254740992

local function text(n) return string.format('%.0f', n) end

-- floor(a * b / c) and the rest, exact, for b <= c. A product that a double can't hold is divided digit by digit, as on paper.
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
local open, room, spend, give, fill, close, report, rules
