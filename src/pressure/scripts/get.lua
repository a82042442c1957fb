-- Gets elements: all steps of the protocol's Get in one script. A producer that
-- waits for room wakes afterwards.
-- Keys: see shared.lua. Arguments: the client id, the maximum number of elements (at
--   least 1), the byte limit: no further element is taken once it is reached.
-- Reply: {'got', elements ever read or nil, elements left, elements...},
--   oldest first | {'absent'}
--   | {'busy', holder or nil, elements of :closed}: a consumer holds its role |
--   {'empty'} | {'closed'}: and empty | {'wrong', 2}: the bound
--   is not a number.
--
-- The role stays free during the whole script, so its token need not be moved.

local bound = redis.call('GET', BOUND)
if not bound then
  return {'absent'}
end
bound = tonumber(bound)
if not bound then
  return {'wrong', 2}
end
local closed = redis.call('LLEN', CLOSED)
if redis.call('LLEN', CONSUMER_FREE) == 0 then
  return {'busy', holder(CONSUMER), closed}
end

run_at_memory_limit()
redis.call('SET', CONSUMER, ARGV[1])
local tokens = redis.call('LLEN', NOT_FULL)
local most, most_bytes = tonumber(ARGV[2]), tonumber(ARGV[3])
local reply, count, bytes = {'got', false, 0}, 0, 0
while count < most and (count == 0 or bytes < most_bytes) do
  local element = redis.call('RPOP', DATA)
  if not element then
    break
  end
  count = count + 1
  bytes = bytes + #element
  reply[count + 3] = element
end
if count == 0 then
  return {closed > 0 and 'closed' or 'empty'}
end

reply[3] = redis.call('LLEN', DATA)
if bound == 0 or reply[3] < bound then
  if tokens == 0 then
    redis.call('LPUSH', NOT_FULL, '1')
  elseif tokens > 1 then
    redis.call('LTRIM', NOT_FULL, 0, 0)
  end
end
-- An invalid counter must not cause the loss of elements.
local got = redis.pcall('INCRBY', CONSUMED_MESSAGES, count)
if type(got) == 'number' then
  reply[2] = got
end
redis.pcall('INCRBY', CONSUMED_BYTES, bytes)
return reply
