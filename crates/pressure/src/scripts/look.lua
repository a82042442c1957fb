-- Returns whether the queue exists, its length, whether it is closed, and its oldest
-- elements. Changes nothing.
-- Keys: see shared.lua. Arguments: how many elements to return, 0 for none.
-- Reply: {'there', length, 1 if it is closed else 0, elements...}, oldest first |
--   {'absent'} | {'wrong', numbers}.

local _, wrong = survey()
if #wrong > 0 then
  return wrong_reply(wrong)
end
local bound = redis.call('GET', BOUND)
if not bound then
  return {'absent'}
end
if not bound_of(bound) then
  return {'wrong', 2}
end
local length = redis.call('LLEN', DATA)
local reply = {'there', length, redis.call('LLEN', CLOSED) > 0 and 1 or 0}
-- Not more than there are: Lua writes a large number as 1e+17.
local most = math.min(tonumber(ARGV[1]), length)
if most > 0 then
  local elements = redis.call('LRANGE', DATA, -most, -1)
  for number = #elements, 1, -1 do
    reply[#reply + 1] = elements[number]
  end
end
return reply
