-- Puts elements, as many as there is room for, all steps of the protocol's Put at
-- once. A consumer that waits for an element wakes afterwards.
-- Keys: see shared.lua. Arguments: our client id, the mode, how many bytes the
--   transaction that this script ends has pushed already as one element (then
--   there are no more arguments), else 'none' and the elements. Mode 'room': only
--   while there is room; 'overfill': also where there is none.
-- Reply: {'put', how many of the elements, 1 if there is room for more else 0} |
--   {'absent'} | {'closed'} | {'busy', who or nil, 0}: a producer holds its role |
--   {'full'} | {'wrong', 2}: the bound is no number.
--
-- The role is free from beginning to end, so its token need not be moved; a
-- producer that waits for the role waits for someone else's.
--
-- A large element takes a script long, because it is copied into Lua and out again.
-- So it is pushed first, and taken back here if it may not be there; nobody sees
-- anything of that before the transaction is over.

local pushed = tonumber(ARGV[3])
local count = pushed and 1 or #ARGV - 3
local is_kept = false

local function put()
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

  local tokens = redis.call('LLEN', NOT_FULL)
  local length = redis.call('LLEN', DATA) - (pushed and 1 or 0)
  -- The first write: at the memory limit it is refused, and nothing has changed.
  redis.call('SET', PRODUCER, ARGV[1])
  if bound > 0 and ARGV[2] == 'room' then
    if tokens == 0 then
      return {'full'}
    end
    if length >= bound then
      -- A token that promises room where there is none: a change of the bound met
      -- a put, or a client pushed it without comparing. Whoever takes an element
      -- pushes the next one.
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
  -- A counter that is none must not stop the data.
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
