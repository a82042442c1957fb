-- Takes a get back: elements that nobody could use return to where they were, if
-- nobody got any since. The queue may then be longer than its bound, for
-- producers used the room meanwhile.
-- Keys: see shared.lua. Arguments: our client id, what the counter of elements
--   ever got was after the get, the elements, oldest first.
-- Reply: {'done'} | {'absent'} | {'busy', who or nil, elements of :closed} |
--   {'overtaken'}: somebody got since, or the counter does not tell.

if redis.call('EXISTS', BOUND) == 0 then
  return {'absent'}
end
if redis.call('LLEN', CONSUMER_FREE) == 0 then
  return {'busy', holder(CONSUMER), redis.call('LLEN', CLOSED)}
end
if redis.call('GET', CONSUMED_MESSAGES) ~= ARGV[2] then
  return {'overtaken'}
end

redis.call('SET', CONSUMER, ARGV[1])
local length, bytes = 0, 0
for number = #ARGV, 3, -1 do
  length = redis.call('RPUSH', DATA, ARGV[number])
  bytes = bytes + #ARGV[number]
end
redis.pcall('DECRBY', CONSUMED_MESSAGES, #ARGV - 2)
redis.pcall('DECRBY', CONSUMED_BYTES, bytes)
local bound = tonumber(redis.call('GET', BOUND)) or 0
if bound > 0 and length >= bound then
  redis.call('DEL', NOT_FULL)
end
return {'done'}
