-- Creates a queue, only if none of its keys exists. A repeat finds the queue and
-- changes nothing.
-- Keys: see shared.lua. Arguments: the bound.
-- Reply: {'done'} | {'already'}: there is a :bound | {'residue', numbers of the
--   keys that exist although there is no :bound} | {'wrong', numbers}.

local present, wrong = survey()
if #wrong > 0 then
  return wrong_reply(wrong)
end
if redis.call('EXISTS', BOUND) == 1 then
  return {'already'}
end
-- Leftovers of a deletion: a queue created over them would be closed from the start.
if #present > 0 then
  return {'residue', unpack(present)}
end
local refusal = forbidden({
  {'SET', BOUND, '0'}, {'LPUSH', PRODUCER_FREE, '1'},
  {'LPUSH', CONSUMER_FREE, '1'}, {'LPUSH', NOT_FULL, '1'},
})
if refusal then
  return refusal
end

redis.call('SET', BOUND, ARGV[1])
redis.call('LPUSH', PRODUCER_FREE, '1')
redis.call('LPUSH', CONSUMER_FREE, '1')
redis.call('LPUSH', NOT_FULL, '1')
return {'done'}
