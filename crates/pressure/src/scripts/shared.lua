-- Prepended to every script of this folder; not a step of its own.
-- Keys (all scripts): the fourteen keys of one queue, in this order.
-- Every script starts with checks that change nothing, because Redis does not roll
-- back the writes of a script that fails.

local DATA, BOUND, PRODUCER, CONSUMER = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local PRODUCER_FREE, CONSUMER_FREE = KEYS[5], KEYS[6]
local PRODUCED_MESSAGES, PRODUCED_BYTES = KEYS[7], KEYS[8]
local CONSUMED_MESSAGES, CONSUMED_BYTES = KEYS[9], KEYS[10]
local NOT_FULL, CLOSED = KEYS[11], KEYS[12]
-- The elements in flight: a hash with two fields for each, ID for the element and ID/by
-- for 'COUNT CLIENT', the number of its deliveries and the last client. If deliveries
-- were given back that do not count as attempts, COUNT is 'DELIVERIES-GIVEN_BACK'. And a
-- sorted set of the ids by the end of the lease, in milliseconds since 1970 by the
-- server's clock; 0 for leases that are known to have ended. Redis sorts those by id, and
-- ids sort as their elements were in the queue.
local IN_FLIGHT, LEASES = KEYS[13], KEYS[14]

local LISTS = {[DATA] = true, [PRODUCER_FREE] = true, [CONSUMER_FREE] = true,
               [NOT_FULL] = true, [CLOSED] = true}
local TYPES = {[IN_FLIGHT] = 'hash', [LEASES] = 'zset'}

-- Returns the numbers of the keys that exist, and of those whose type is not the
-- protocol's.
local function survey()
  local present, wrong = {}, {}
  for number, key in ipairs(KEYS) do
    local type = redis.call('TYPE', key).ok
    if type ~= 'none' then
      table.insert(present, number)
      if type ~= (TYPES[key] or LISTS[key] and 'list' or 'string') then
        table.insert(wrong, number)
      end
    end
  end
  return present, wrong
end

-- {'wrong', number...}: the reply for keys that were not written by pressure.
local function wrong_reply(wrong)
  return {'wrong', unpack(wrong)}
end

-- Returns an error reply if the user may not run one of the commands, else nil. Redis
-- 6.2 can't check in advance; there the command itself fails.
local function forbidden(commands)
  if not redis.acl_check_cmd then
    return nil
  end
  for _, command in ipairs(commands) do
    if not redis.acl_check_cmd(unpack(command)) then
      return redis.error_reply('NOPERM the user has no permission to run ' ..
                               command[1] .. (command[2] and ' on ' .. command[2] or ''))
    end
  end
  return nil
end

-- Returns the id that a role's holder set, at most 512 bytes; false if none was set.
local function holder(key)
  if redis.call('EXISTS', key) == 0 then
    return false
  end
  return redis.call('GETRANGE', key, 0, 511)
end

-- Lets a script that frees memory, or needs no more than it has freed, run at the
-- memory limit. Redis checks the limit until a script's first write, and not for
-- LTRIM. This call keeps the whole list.
local function run_at_memory_limit()
  redis.call('LTRIM', NOT_FULL, 0, -1)
end

-- Returns the server's time: milliseconds since 1970, and the microseconds as text.
local function time()
  local now = redis.call('TIME')
  return now[1] * 1000 + math.floor(now[2] / 1000), string.format('%d%06d', now[1], now[2])
end

-- Returns the bound that this text is, nil if it is none. Clients read it alike: Lua's
-- tonumber also takes '0x10', ' 7 ' and 'inf'.
local function bound_of(text)
  return #text <= 19 and string.find(text, '^%d+$') and tonumber(text) or nil
end

-- Returns the number of deliveries in a COUNT, and how many of them do not count as
-- attempts.
local function counts(count)
  local deliveries, returned = string.match(count, '^(%d+)%-?(%d*)')
  return tonumber(deliveries) or 0, tonumber(returned) or 0
end

-- Returns the number of elements in flight. Asks with a command that every user of the
-- queue may run. If Redis has evicted :leases, the elements still exist; at
-- least one, if the user may not count them.
local function in_flight()
  if redis.call('EXISTS', LEASES) == 1 then
    return redis.call('ZCARD', LEASES)
  elseif redis.call('EXISTS', IN_FLIGHT) == 0 then
    return 0
  end
  local fields = redis.pcall('HLEN', IN_FLIGHT)
  return type(fields) == 'number' and math.ceil(fields / 2) or 1
end
