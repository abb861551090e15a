-- One charge: what a node decided of a key by itself while it could not ask this server. It is put
-- together of head.lua, a file for the family of algorithms, a charge_ file for the same family,
-- and this one.
--
-- KEYS: the record of charges; then the base of the rule's keys. ARGV: field, seq, "0", "0", "0"
-- and the reset that the charge is under, number of parts; for each part the instant in
-- microseconds and the requests, whole and the rest as the level has it. Then what the rule needs.
--
-- The record holds the seq of the last charge of each field. One that is not above it has been here
-- before and changes nothing: a charge is sent again, as it was, until its answer arrives. The
-- record lives as long as what was charged can count.
local parts = tonumber(ARGV[6])
local last = tonumber(redis.call('HGET', KEYS[1], field) or '0') or 0
local r = open(KEYS[2], 7 + parts * 3)
if told then return told end -- it is of what is forgiven
if seq > last then
  checkRights()
  for p = 0, parts - 1 do
    charge(r, tonumber(ARGV[7 + p * 3]), tonumber(ARGV[8 + p * 3]), tonumber(ARGV[9 + p * 3]))
  end
  close(r)
  redis.call('HSET', KEYS[1], field, text(seq))
  redis.call('PEXPIRE', KEYS[1], r.ttl)
end
return {0, now, report(r)}
