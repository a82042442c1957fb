-- Checks whether the user may run all commands of a client's scripts. A client asks
-- once per connection, because an interrupted script leaves half of its work.
-- Changes nothing.
-- Keys: see shared.lua. Arguments: 'put', 'get', or 'lease' for a get with a lease.
-- Reply: {'allowed'} | {'wrong', numbers} | an error.

local _, wrong = survey()
if #wrong > 0 then
  return wrong_reply(wrong)
end
local commands = {{'LPUSH', NOT_FULL, '1'}, {'LTRIM', NOT_FULL, '0', '0'}}
if ARGV[1] == 'put' then
  for _, command in ipairs({
    {'SET', PRODUCER, 'x'}, {'LPUSH', DATA, 'x'}, {'LPOP', DATA}, {'DEL', NOT_FULL},
    {'INCRBY', PRODUCED_MESSAGES, '1'}, {'INCRBY', PRODUCED_BYTES, '1'},
  }) do
    table.insert(commands, command)
  end
else
  for _, command in ipairs({
    {'SET', CONSUMER, 'x'}, {'RPOP', DATA},
    {'INCRBY', CONSUMED_MESSAGES, '1'}, {'INCRBY', CONSUMED_BYTES, '1'},
  }) do
    table.insert(commands, command)
  end
end
if ARGV[1] == 'lease' or in_flight() > 0 then
  for _, command in ipairs({
    {'HGET', IN_FLIGHT, 'x'}, {'HSET', IN_FLIGHT, 'x', 'x'}, {'HDEL', IN_FLIGHT, 'x'},
    {'ZADD', LEASES, '0', 'x'}, {'ZREM', LEASES, 'x'}, {'ZCARD', LEASES},
    {'ZCOUNT', LEASES, '0', '0'}, {'ZRANGEBYSCORE', LEASES, '0', '0'}, {'TIME'},
  }) do
    table.insert(commands, command)
  end
end
local refusal = forbidden(commands)
if refusal then
  return refusal
end
return {'allowed'}
