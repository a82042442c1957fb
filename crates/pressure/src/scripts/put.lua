-- Puts elements, as many as there is room for: all steps of the protocol's Put in
-- one script. A consumer that waits for an element wakes afterwards.
-- Keys: see shared.lua. Arguments: the client id, the mode, then either the number of
--   bytes that this script's transaction has already pushed as one element (and no
--   further arguments), or 'none' and the elements. Mode 'room': only while there is
--   room; 'overfill': also if there is none.
-- Reply: {'put', number of elements put, 1 if there is room for more else 0} |
--   {'absent'} | {'closed'} | {'busy', holder or nil, 0}: a producer holds its role |
--   {'full'} | {'wrong', 2}: the bound is not a number.
--
-- The role stays free during the whole script, so its token need not be moved. A
-- producer that waits for the role waits for another client to release it.
--
-- A large element makes a script slow, because it is copied into Lua and out again.
-- It is therefore pushed first, and removed here if it is not allowed. Other clients
-- see nothing of that before the transaction is over.

local pushed = tonumber(ARGV[3])
local count = pushed and 1 or #ARGV - 3
local is_kept = false

local function put()
  local bound = redis.call('GET', BOUND)
  if not bound then
    return {'absent'}
  end
  bound = bound_of(bound)
  if not bound then
    return {'wrong', 2}
  end
  if redis.call('LLEN', CLOSED) > 0 then
    return {'closed'}
  end
  if redis.call('LLEN', PRODUCER_FREE) == 0 then
    return {'busy', holder(PRODUCER), 0}
  end

  local tokens = redis.call('LLEN', NOT_FULL)
  local length = redis.call('LLEN', DATA) - (pushed and 1 or 0)
  -- The first write: at the memory limit it is refused, and nothing has changed.
  redis.call('SET', PRODUCER, ARGV[1])
  if bound > 0 and ARGV[2] == 'room' then
    if tokens == 0 then
      return {'full'}
    end
    if length >= bound then
      -- The token promises room that does not exist: a change of the bound coincided
      -- with a put, or a client pushed the token without a comparison. The next client
      -- that takes an element pushes a new token.
      redis.call('DEL', NOT_FULL)
      return {'full'}
    end
    count = math.min(count, bound - length)
  end

  local bytes = pushed or 0
  if pushed then
    is_kept = true
  else
    for first = 4, count + 3, 1000 do
      redis.call('LPUSH', DATA, unpack(ARGV, first, math.min(first + 999, count + 3)))
    end
    for number = 4, count + 3 do
      bytes = bytes + #ARGV[number]
    end
  end
  -- An invalid counter must not stop the data.
  redis.pcall('INCRBY', PRODUCED_MESSAGES, count)
  redis.pcall('INCRBY', PRODUCED_BYTES, bytes)

  local has_room = bound == 0 or length + count < bound
  if has_room then
    if tokens == 0 then
      redis.call('LPUSH', NOT_FULL, '1')
    elseif tokens > 1 then
      redis.call('LTRIM', NOT_FULL, 0, 0)
    end
  elseif tokens > 0 then
    redis.call('DEL', NOT_FULL)
  end
  return {'put', count, has_room and 1 or 0}
end

if not pushed then
  return put()
end
local is_well, reply = pcall(put)
if not is_kept then
  redis.call('LPOP', DATA)
end
if not is_well then
  return type(reply) == 'table' and reply or redis.error_reply(reply)
end
return reply
