-- Charges for token bucket, GCRA and leaky bucket. It follows bucket.lua.

-- Adds whole + part/window requests, which are what was left at the instant t. They drain from then
-- on, though the charge arrives later; what this server has drained beyond t stays drained. The
-- level may rise above the brim. What comes after t drains at the limit by which it was charged.
local function charge(r, t, whole, part)
  if t >= r.at and r.limit > 0 then
    advance(r, math.min(t, now))
    r.rate = r.limit
  end
  advance(r, math.min(t, now))
  if r.added then r.added = r.added + math.max(0, whole + (part > 0 and 1 or 0)) end
  r.whole, r.rest = r.whole + whole, r.rest + part
  if r.rest >= r.window then r.whole, r.rest = r.whole + 1, r.rest - r.window end
  if r.whole < 0 then r.whole, r.rest = 0, 0 end
  r.whole, r.dirty = math.min(r.whole, exact), true
end
