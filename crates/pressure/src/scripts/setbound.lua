-- Changes the bound together with the token that signals room: a producer that waits
-- for room wakes, and one that finds a full queue waits. A repeat finds the bound,
-- and changes nothing unless both roles are free.
-- Keys: see shared.lua. Arguments: the new bound.
-- Reply: {'done'} | {'already'} | {'absent'} | {'wrong', numbers}.
--
-- While a producer holds its role, the keys do not show whether it waits for the
-- token, or has taken it and is about to push an element. The token is pushed in
-- both cases. A missing token would let the first kind wait forever, while a surplus
-- one lets the second kind exceed the bound by one element.

local _, wrong = survey()
if #wrong > 0 then
  return wrong_reply(wrong)
end
local old = redis.call('GET', BOUND)
if not old then
  return {'absent'}
end
if not bound_of(old) then
  return {'wrong', 2}
end
local refusal = forbidden({
  {'SET', BOUND, '0'}, {'LPUSH', NOT_FULL, '1'}, {'DEL', NOT_FULL},
  {'LTRIM', NOT_FULL, '0', '0'},
})
if refusal then
  return refusal
end

local length = redis.call('LLEN', DATA)
local tokens = redis.call('LLEN', NOT_FULL)
local bound = tonumber(ARGV[1])
local is_changed = old ~= ARGV[1]
local is_idle = redis.call('LLEN', PRODUCER_FREE) > 0 and
                redis.call('LLEN', CONSUMER_FREE) > 0
-- A creation that sends individual commands has not pushed the token yet, and will.
-- No client can wait for it either, because a producer writes its id before that.
local is_unused = length == 0 and redis.call('EXISTS', PRODUCER) == 0 and
                  redis.call('EXISTS', PRODUCED_MESSAGES) == 0

local is_done = false
if is_changed then
  redis.call('SET', BOUND, ARGV[1])
  is_done = true
end
-- With an unchanged bound, the token is repaired only if no client can hold it.
if is_changed or is_idle then
  if bound > 0 and length >= bound then
    if tokens > 0 then
      redis.call('DEL', NOT_FULL)
      is_done = true
    end
  elseif tokens == 0 then
    if not is_unused then
      redis.call('LPUSH', NOT_FULL, '1')
      is_done = true
    end
  elseif tokens > 1 then
    redis.call('LTRIM', NOT_FULL, 0, 0)
    is_done = true
  end
end
return {is_done and 'done' or 'already'}
