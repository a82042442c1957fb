-- Closes a queue: takes the producer role, writes the client id, pushes two elements
-- to :closed, releases the role. A repeat finds the queue closed and changes
-- nothing.
-- Keys: see shared.lua. Arguments: the client id.
-- Reply: {'done'} | {'already'} | {'absent'} | {'busy', holder or nil}: a producer
--   holds its role, nothing was changed | {'wrong', numbers}.

local _, wrong = survey()
if #wrong > 0 then
  return wrong_reply(wrong)
end
if redis.call('EXISTS', BOUND) == 0 then
  return {'absent'}
end
if redis.call('LLEN', CLOSED) > 0 then
  return {'already'}
end
if redis.call('LLEN', PRODUCER_FREE) == 0 then
  return {'busy', holder(PRODUCER)}
end
local refusal = forbidden({
  {'RPOP', PRODUCER_FREE}, {'SET', PRODUCER, 'x'},
  {'LPUSH', CLOSED, '0'}, {'LPUSH', PRODUCER_FREE, '1'},
})
if refusal then
  return refusal
end

local role = redis.call('RPOP', PRODUCER_FREE)
redis.call('SET', PRODUCER, ARGV[1])
redis.call('LPUSH', CLOSED, '0', '0')
redis.call('LPUSH', PRODUCER_FREE, role)
return {'done'}
