-- Acknowledges elements in flight, moves the end of their leases, or gives deliveries
-- back that do not count as attempts.
-- Keys: see shared.lua. Arguments: 'ack', or the time until the lease ends, in
--   milliseconds from now: 0 returns the element; or 'back' and that time, 'back 0': the
--   next delivery then has this one's number. Then the deliveries, 'ID COUNT' as get.lua
--   returned them.
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
local what, after = string.match(ARGV[1], '^(%a*) ?(%d*)$')
local ends = tonumber(after)
if ends and ends > 0 then
  ends = time() + ends
end
for number = 2, #ARGV do
  local id, count = string.match(ARGV[number], '^(%S+) (%d+%-?%d*)$')
  local by = id and redis.call('HGET', IN_FLIGHT, id .. '/by')
  local last, client = string.match(by or '', '^(%d+%-?%d*)(.*)$')
  local deliveries, returned = counts(count or '')
  local given_back = what == 'back' and deliveries .. '-' .. returned + 1
  if not last or last ~= count and last ~= given_back then
    table.insert(reply, ARGV[number])
  elseif what == 'ack' then
    redis.call('ZREM', LEASES, id)
    redis.call('HDEL', IN_FLIGHT, id, id .. '/by')
  else
    redis.call('ZADD', LEASES, ends, id)
    if last == count and given_back then
      redis.call('HSET', IN_FLIGHT, id .. '/by', given_back .. client)
    end
  end
end
return reply
