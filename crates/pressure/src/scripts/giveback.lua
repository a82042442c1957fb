-- Reverts a get: unused elements return to their place, if no client has read any
-- since. The queue may exceed its bound afterwards, because producers have used the
-- room.
-- Keys: see shared.lua. Arguments: the client id, the counter of elements ever read
--   as it was after the get, the elements, oldest first.
-- Reply: {'done'} | {'absent'} | {'busy', holder or nil, elements of :closed} |
--   {'overtaken'}: a client has read elements since, or the counter is unusable.

if redis.call('EXISTS', BOUND) == 0 then
  return {'absent'}
end
if redis.call('LLEN', CONSUMER_FREE) == 0 then
  return {'busy', holder(CONSUMER), redis.call('LLEN', CLOSED)}
end
if redis.call('GET', CONSUMED_MESSAGES) ~= ARGV[2] then
  return {'overtaken'}
end

run_at_memory_limit()
redis.call('SET', CONSUMER, ARGV[1])
local length, bytes = 0, 0
for number = #ARGV, 3, -1 do
  length = redis.call('RPUSH', DATA, ARGV[number])
  bytes = bytes + #ARGV[number]
end
redis.pcall('DECRBY', CONSUMED_MESSAGES, #ARGV - 2)
redis.pcall('DECRBY', CONSUMED_BYTES, bytes)
local bound = bound_of(redis.call('GET', BOUND)) or 0
if bound > 0 and length >= bound then
  redis.call('DEL', NOT_FULL)
end
return {'done'}
