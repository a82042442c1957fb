-- Acknowledges elements in flight, or moves the end of their leases.
-- Keys: see shared.lua. Arguments: 'ack', or the time until the lease ends, in
--   milliseconds from now: 0 returns the element; then the deliveries, 'ID COUNT' as
--   get.lua returned them.
-- Reply: {'done', deliveries...}: those that are no longer in flight, because they were
--   acknowledged, or because their lease ended and a client got the element again.
--   | {'wrong', numbers}.

local _, wrong = survey()
if #wrong > 0 then
  return wrong_reply(wrong)
end
local reply = {'done'}
if in_flight() == 0 then
  for number = 2, #ARGV do
    table.insert(reply, ARGV[number])
  end
  return reply
end

run_at_memory_limit()
local ends = ARGV[1] ~= 'ack' and time() + tonumber(ARGV[1])
for number = 2, #ARGV do
  local id, count = string.match(ARGV[number], '^(%S+) (%d+)$')
  local by = id and redis.call('HGET', IN_FLIGHT, id .. '/by')
  if not by or string.match(by, '^%d+') ~= count then
    table.insert(reply, ARGV[number])
  elseif ends then
    redis.call('ZADD', LEASES, ends, id)
  else
    redis.call('ZREM', LEASES, id)
    redis.call('HDEL', IN_FLIGHT, id, id .. '/by')
  end
end
return reply
