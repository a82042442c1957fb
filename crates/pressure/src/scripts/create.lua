-- Creates a queue, only if none of its keys exists. A repeat finds the queue and
-- changes nothing.
-- Keys: see shared.lua. Arguments: the bound. Optionally 'adopt': a queue that lost its
--   :bound gets it back, with all that is left of it.
-- Reply: {'done'} | {'already'}: there is a :bound | {'residue', numbers of the
--   keys that exist although there is no :bound} | {'wrong', numbers}.

local present, wrong = survey()
if #wrong > 0 then
  return wrong_reply(wrong)
end
if redis.call('EXISTS', BOUND) == 1 then
  return {'already'}
end
-- Leftovers of a deletion, or of a queue that lost its :bound: a queue created over them
-- would have their elements, and would be closed from the start.
local adopts = ARGV[2] == 'adopt' and #present > 0
if #present > 0 and not adopts then
  return {'residue', unpack(present)}
end
local refusal = forbidden({
  {'SET', BOUND, '0'}, {'LPUSH', PRODUCER_FREE, '1'},
  {'LPUSH', CONSUMER_FREE, '1'}, {'LPUSH', NOT_FULL, '1'},
  {'DEL', NOT_FULL}, {'LTRIM', CLOSED, '0', '1'},
})
if refusal then
  return refusal
end

redis.call('SET', BOUND, ARGV[1])
if adopts then
  -- The roles stay as they are: a client may hold one. More than two elements in :closed
  -- show a deletion.
  redis.call('LTRIM', CLOSED, 0, 1)
  local bound = tonumber(ARGV[1])
  if bound > 0 and redis.call('LLEN', DATA) >= bound then
    redis.call('DEL', NOT_FULL)
  elseif redis.call('LLEN', NOT_FULL) == 0 then
    redis.call('LPUSH', NOT_FULL, '1')
  else
    redis.call('LTRIM', NOT_FULL, 0, 0)
  end
  return {'done'}
end
redis.call('LPUSH', PRODUCER_FREE, '1')
redis.call('LPUSH', CONSUMER_FREE, '1')
redis.call('LPUSH', NOT_FULL, '1')
return {'done'}
