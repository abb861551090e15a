-- Charges for token bucket, GCRA and leaky bucket. It follows strict_bucket.lua.

-- Adds whole + part/window requests, which are what was left at the instant t. The bucket is brought
-- to that instant first and drained from there: a charge that arrives late has drained meanwhile.
-- What this server has drained beyond t stays drained. The level may rise above the brim.
local function charge(r, t, whole, part)
  if r.limit == 0 then return end
  local had, rest, since = string.match(redis.call('GET', r.key) or '', '^(%d+) (%d+) (%d+)$')
  since = math.min(tonumber(since or t), now)
  t = math.min(math.max(t, since), now)
  r.whole, r.rest = math.min(tonumber(had or 0), exact), math.min(tonumber(rest or 0), r.window - 1)
  drain(r, (t - since) * r.unit)
  r.whole, r.rest = r.whole + whole, r.rest + part
  if r.rest >= r.window then r.whole, r.rest = r.whole + 1, r.rest - r.window end
  if r.whole < 0 then r.whole, r.rest = 0, 0 end
  r.whole = math.min(r.whole, exact)
  drain(r, (now - t) * r.unit)
  r.dirty = true
  local drains = (r.whole + 1) / r.limit * (r.window / r.unit / 1000) + 60000
  r.ttl = text(math.min(math.max(tonumber(r.ttl), math.ceil(drains)), 3153600000000))
end
