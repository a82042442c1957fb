-- Gets elements: all steps of the protocol's Get in one script. A producer that
-- waits for room wakes afterwards. Elements in flight whose lease has ended come first.
-- Keys: see shared.lua. Arguments: the client id, the maximum number of elements (at
--   least 1), the byte limit: no further element is taken once it is reached.
--   Optionally the length of a lease in milliseconds: the elements are then in flight
--   until they are acknowledged or the lease ends, see settle.lua.
-- Reply: {'got', elements ever read or nil, elements left including those in flight,
--   elements...}, oldest first; with a lease, each follows its delivery, 'ID COUNT'
--   ('ID DELIVERIES-RETURNED' if some of the deliveries do not count as attempts)
--   | {'absent'}
--   | {'busy', holder or nil, elements of :closed}: a consumer holds its role |
--   {'empty', elements in flight} | {'closed'}: and nothing left | {'wrong', numbers}:
--   the bound is not a number, or a key has another type.
--
-- The role stays free during the whole script, so its token need not be moved.

local bound = redis.call('GET', BOUND)
if not bound then
  return {'absent'}
end
bound = bound_of(bound)
if not bound then
  return {'wrong', 2}
end
local lease = tonumber(ARGV[4])
local has_leases = redis.call('EXISTS', IN_FLIGHT, LEASES) > 0
if lease or has_leases then
  local _, wrong = survey()
  if #wrong > 0 then
    return wrong_reply(wrong)
  end
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

local function wants_more()
  return count < most and (count == 0 or bytes < most_bytes)
end
local function add(element, delivery)
  count = count + 1
  bytes = bytes + #element
  if delivery then
    table.insert(reply, delivery)
  end
  table.insert(reply, element)
end

local now, micros
if lease or has_leases then
  now, micros = time()
end
local serial = 0
local function next_id()
  local id
  repeat
    id = string.format('%s-%06d', micros, serial)
    serial = serial + 1
    -- A clock that was set back must not overwrite an element.
  until not redis.call('HGET', IN_FLIGHT, id .. '/by')
  return id
end
local function deliver(id, number, returned)
  local count = returned > 0 and number .. '-' .. returned or tostring(number)
  redis.call('ZADD', LEASES, now + lease, id)
  redis.call('HSET', IN_FLIGHT, id .. '/by', count .. ' ' .. ARGV[1])
  return id .. ' ' .. count
end

-- Marks leases that have ended since the last get, all of them as a rule. After the
-- death of many clients there are too many for one script: then the first to end.
-- Returns whether there were any.
local function mark_ended()
  local most = redis.call('ZCOUNT', LEASES, '(0', now) > 1000 and 25 or 1000
  local ended = redis.call('ZRANGEBYSCORE', LEASES, '(0', now, 'LIMIT', 0, most)
  for _, id in ipairs(ended) do
    redis.call('ZADD', LEASES, 0, id)
  end
  return #ended > 0
end

-- The oldest elements whose leases have ended, until there are enough.
local function deliver_ended()
  local ids = redis.call('ZRANGEBYSCORE', LEASES, '-inf', 0, 'LIMIT', 0, math.min(most - count, 100))
  for _, id in ipairs(ids) do
    if not wants_more() then
      break
    end
    local element = redis.call('HGET', IN_FLIGHT, id)
    if not element then
      -- Not written by these scripts.
      redis.call('ZREM', LEASES, id)
    elseif lease then
      local deliveries, returned = counts(redis.call('HGET', IN_FLIGHT, id .. '/by') or '')
      add(element, deliver(id, deliveries + 1, returned))
    else
      add(element)
      redis.call('ZREM', LEASES, id)
      redis.call('HDEL', IN_FLIGHT, id, id .. '/by')
    end
  end
  return #ids > 0
end

if has_leases and redis.call('EXISTS', LEASES) == 0 then
  -- Redis has evicted the ends of the leases: all of these elements come again.
  local fields = redis.pcall('HKEYS', IN_FLIGHT)
  for _, field in ipairs(fields.err and {} or fields) do
    if string.sub(field, -3) ~= '/by' then
      redis.call('ZADD', LEASES, 0, field)
    end
  end
end
while has_leases and wants_more() do
  local are_marked = mark_ended()
  if not deliver_ended() and not are_marked then
    break
  end
end

local count_again, bytes_again = count, bytes
while wants_more() do
  local element = redis.call('RPOP', DATA)
  if not element then
    break
  end
  if lease then
    local id = next_id()
    redis.call('HSET', IN_FLIGHT, id, element)
    add(element, deliver(id, 1, 0))
  else
    add(element)
  end
end
if count == 0 then
  local left = in_flight()
  if left > 0 then
    return {'empty', left}
  end
  return {closed > 0 and 'closed' or 'empty', 0}
end

local length = redis.call('LLEN', DATA)
reply[3] = length + in_flight()
if bound == 0 or length < bound then
  if tokens == 0 then
    redis.call('LPUSH', NOT_FULL, '1')
  elseif tokens > 1 then
    redis.call('LTRIM', NOT_FULL, 0, 0)
  end
end
-- An invalid counter must not cause the loss of elements.
local got = redis.pcall('INCRBY', CONSUMED_MESSAGES, count - count_again)
if type(got) == 'number' then
  reply[2] = got
end
redis.pcall('INCRBY', CONSUMED_BYTES, bytes - bytes_again)
return reply
