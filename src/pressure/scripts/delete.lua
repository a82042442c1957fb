-- Runs one step of a queue's deletion. Send it until it replies 'gone'. The first
-- step removes :bound and wakes all waiting clients. The last one removes every key,
-- once both roles are free at the same moment. Each step in between wakes clients
-- that have started to wait. The keys show that the deletion has started: some
-- exist, but no :bound. Therefore any client can continue it.
-- Keys: see shared.lua. Arguments: the mode, one of
--   'ordinary';
--   'if-empty': as ordinary, but do not start while there are elements, or some in flight;
--   'nameless': as ordinary, but a role that is not free and has no holder's id
--     counts as removed already (another deletion removes them role by role);
--   'force': remove every key in the next step, even if roles are taken.
-- Reply: {'gone'} | {'begun'} | {'not-empty', length} | {'waiting', producer's
--   state, its id or nil, consumer's state, its id or nil}, the states being
--   'free', 'out' or 'nameless' | {'wrong', numbers}.
--
-- Unlike in the source document, the roles are not removed one by one. A free role
-- that stays lets clients finish that had already checked :bound. Otherwise they
-- would wait on a key that never returns.

local present, wrong = survey()
if #wrong > 0 then
  return wrong_reply(wrong)
end
if #present == 0 then
  return {'gone'}
end
local commands = {{'LPUSH', NOT_FULL, '0'}, {'LPUSH', CLOSED, '0'}}
for _, key in ipairs(KEYS) do
  table.insert(commands, {'DEL', key})
end
local refusal = forbidden(commands)
if refusal then
  return refusal
end

local mode = ARGV[1]
if redis.call('EXISTS', BOUND) == 1 then
  local length = redis.call('LLEN', DATA) + in_flight()
  if mode == 'if-empty' and length > 0 then
    return {'not-empty', length}
  end
  redis.call('DEL', BOUND)
  redis.call('LPUSH', NOT_FULL, '0')
  redis.call('LPUSH', CLOSED, '0', '0')
  return {'begun'}
end
if mode == 'force' then
  redis.call('DEL', unpack(KEYS))
  return {'gone'}
end

local function state(free, id)
  if redis.call('LLEN', free) > 0 then
    return 'free'
  end
  return redis.call('EXISTS', id) == 1 and 'out' or 'nameless'
end
local producer = state(PRODUCER_FREE, PRODUCER)
local consumer = state(CONSUMER_FREE, CONSUMER)

local function is_out(role)
  return role == 'out' or (role == 'nameless' and mode ~= 'nameless')
end
if not is_out(producer) and not is_out(consumer) then
  redis.call('DEL', unpack(KEYS))
  return {'gone'}
end

-- A second producer may have taken the role after the first and found no token. A
-- second consumer may have found no element of :closed.
if is_out(producer) and redis.call('LLEN', NOT_FULL) == 0 then
  redis.call('LPUSH', NOT_FULL, '0')
end
if redis.call('LLEN', CLOSED) == 0 then
  redis.call('LPUSH', CLOSED, '0', '0')
end
return {'waiting', producer, holder(PRODUCER), consumer, holder(CONSUMER)}
