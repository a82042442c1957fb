-- Put before every script of this folder; no step of its own.
-- Keys (all scripts): the twelve keys of one queue, in this order.
-- Every script begins with checks that change nothing, because Redis does not
-- take back what a script wrote before it failed.

local DATA, BOUND, PRODUCER, CONSUMER = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local PRODUCER_FREE, CONSUMER_FREE = KEYS[5], KEYS[6]
local PRODUCED_MESSAGES, PRODUCED_BYTES = KEYS[7], KEYS[8]
local CONSUMED_MESSAGES, CONSUMED_BYTES = KEYS[9], KEYS[10]
local NOT_FULL, CLOSED = KEYS[11], KEYS[12]

local LISTS = {[DATA] = true, [PRODUCER_FREE] = true, [CONSUMER_FREE] = true,
               [NOT_FULL] = true, [CLOSED] = true}

-- The numbers of the keys that exist, and of those that hold another type than
-- the protocol's.
local function survey()
  local present, wrong = {}, {}
  for number, key in ipairs(KEYS) do
    local type = redis.call('TYPE', key).ok
    if type ~= 'none' then
      table.insert(present, number)
      if type ~= (LISTS[key] and 'list' or 'string') then
        table.insert(wrong, number)
      end
    end
  end
  return present, wrong
end

-- {'wrong', number...}: the reply when a key is not pressure's.
local function wrong_reply(wrong)
  return {'wrong', unpack(wrong)}
end

-- An error reply if the user may not run one of the commands, else nil. Redis
-- 6.2 can't tell beforehand; there the command itself fails.
local function forbidden(commands)
  if not redis.acl_check_cmd then
    return nil
  end
  for _, command in ipairs(commands) do
    if not redis.acl_check_cmd(unpack(command)) then
      return redis.error_reply('NOPERM the user has no permission to run ' ..
                               command[1] .. ' on ' .. command[2])
    end
  end
  return nil
end

-- A role's holder as it named itself, at most 512 bytes; false if it never did.
local function holder(key)
  if redis.call('EXISTS', key) == 0 then
    return false
  end
  return redis.call('GETRANGE', key, 0, 511)
end
