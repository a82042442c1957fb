-- Puts elements, as many as there is room for, all steps of the protocol's Put at
-- once. A consumer that waits for an element wakes afterwards.
-- Keys: see shared.lua. Arguments: our client id, the mode, the elements. Mode
--   'room': only while there is room; 'overfill': also where there is none.
-- Reply: {'put', how many of the elements, 1 if there is room
--   for more else 0} | {'absent'} | {'closed'} |
--   {'busy', who or nil, 0}: a producer holds its role | {'full'} |
--   {'wrong', 2}: the bound is no number.
--
-- The role is free from beginning to end, so its token need not be moved; a
-- producer that waits for the role waits for someone else's.

local bound = redis.call('GET', BOUND)
if not bound then
  return {'absent'}
end
bound = tonumber(bound)
if not bound then
  return {'wrong', 2}
end
if redis.call('LLEN', CLOSED) > 0 then
  return {'closed'}
end
if redis.call('LLEN', PRODUCER_FREE) == 0 then
  return {'busy', holder(PRODUCER), 0}
end

local count = #ARGV - 2
local tokens = redis.call('LLEN', NOT_FULL)
if bound > 0 and ARGV[2] == 'room' then
  local room = bound - redis.call('LLEN', DATA)
  if tokens == 0 then
    redis.call('SET', PRODUCER, ARGV[1])
    return {'full'}
  end
  if room <= 0 then
    -- A token that promises room where there is none: a change of the bound met
    -- a put, or a client pushed it without comparing. Whoever takes an element
    -- pushes the next one.
    redis.call('SET', PRODUCER, ARGV[1])
    redis.call('DEL', NOT_FULL)
    return {'full'}
  end
  count = math.min(count, room)
end

-- The first write: at the memory limit it is refused, and nothing has changed.
redis.call('SET', PRODUCER, ARGV[1])
local length, bytes = 0, 0
for first = 3, count + 2, 1000 do
  length = redis.call('LPUSH', DATA, unpack(ARGV, first, math.min(first + 999, count + 2)))
end
for number = 3, count + 2 do
  bytes = bytes + #ARGV[number]
end
-- A counter that is none must not stop the data.
redis.pcall('INCRBY', PRODUCED_MESSAGES, count)
redis.pcall('INCRBY', PRODUCED_BYTES, bytes)

if bound == 0 or length < bound then
  if tokens == 0 then
    redis.call('LPUSH', NOT_FULL, '1')
  elseif tokens > 1 then
    redis.call('LTRIM', NOT_FULL, 0, 0)
  end
elseif tokens > 0 then
  redis.call('DEL', NOT_FULL)
end
return {'put', count, (bound == 0 or length < bound) and 1 or 0}
