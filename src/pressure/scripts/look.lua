-- Returns whether the queue exists, its length, whether it is closed, and its oldest
-- elements. Changes nothing.
-- Keys: see shared.lua. Arguments: how many elements to return, 0 for none.
-- Reply: {'there', length, 1 if it is closed else 0, elements...}, oldest first |
--   {'absent'}.

if redis.call('EXISTS', BOUND) == 0 then
  return {'absent'}
end
local reply = {'there', redis.call('LLEN', DATA), redis.call('LLEN', CLOSED) > 0 and 1 or 0}
local most = tonumber(ARGV[1])
if most > 0 then
  local elements = redis.call('LRANGE', DATA, -most, -1)
  for number = #elements, 1, -1 do
    reply[#reply + 1] = elements[number]
  end
end
return reply
