-- Makes a queue, only where none of its keys exists. A repeat finds the queue
-- and changes nothing.
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
-- What a deletion left: a queue made over it would be born closed.
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
