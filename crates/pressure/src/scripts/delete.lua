-- Runs one step of a queue's deletion. Send it until it replies 'gone'. The first
-- step removes :bound and wakes all waiting clients. The last one removes every key,
-- once both roles are free at the same moment. Each step in between wakes clients
-- that have started to wait. The keys show that the deletion has started: some
-- exist, but no :bound. Therefore any client can continue it.
-- Keys: see shared.lua. Arguments: the mode, one of
--   'ordinary';
--   'if-free': as ordinary, but do not start while a role is taken;
--   'if-passing': as ordinary, but do not start while a role is taken whose holder has
--     nothing to wait for: it is at work, or it has died. The start wakes one that waits.
--     A role that was never taken has no holder;
--   'if-empty': as ordinary, but do not start while there are elements, or some in flight;
--   'nameless': as ordinary, but a role that is not free and has no holder's id
--     counts as removed already (another deletion removes them role by role);
--   'force': remove every key in the next step, even if roles are taken.
-- Reply: {'gone', elements and elements in flight that this step removed} | {'begun'} |
--   {'not-empty', length} | {'waiting', producer's state, its id or nil, consumer's
--   state, its id or nil}, the states being 'free', 'out' or 'nameless' | {'busy', the
--   same}: not started | {'wrong', numbers}.
--
-- Unlike in pressure 0.15, the roles are not removed one by one. A free role
-- that stays lets clients finish that had already checked :bound. Otherwise they
-- would wait on a key that never returns.

local present, wrong = survey()
if #wrong > 0 then
  return wrong_reply(wrong)
end
if #present == 0 then
  return {'gone', 0, 0}
end
local commands = {{'LPUSH', NOT_FULL, '0'}, {'LPUSH', CLOSED, '0'}}
for _, key in ipairs(KEYS) do
  table.insert(commands, {'DEL', key})
end
local refusal = forbidden(commands)
if refusal then
  return refusal
end

local function remove()
  local reply = {'gone', redis.call('LLEN', DATA), in_flight()}
  redis.call('DEL', unpack(KEYS))
  return reply
end
local function state(free, id)
  if redis.call('LLEN', free) > 0 then
    return 'free'
  end
  return redis.call('EXISTS', id) == 1 and 'out' or 'nameless'
end
local producer = state(PRODUCER_FREE, PRODUCER)
local consumer = state(CONSUMER_FREE, CONSUMER)
local function roles(word)
  return {word, producer, holder(PRODUCER), consumer, holder(CONSUMER)}
end

local mode = ARGV[1]
if redis.call('EXISTS', BOUND) == 1 then
  local has_token = redis.call('LLEN', NOT_FULL) > 0
  local has_end = redis.call('LLEN', DATA) + redis.call('LLEN', CLOSED) > 0
  if mode == 'if-passing' then
    producer = producer == 'out' and has_token and 'out' or 'free'
    consumer = consumer == 'out' and has_end and 'out' or 'free'
  end
  if (mode == 'if-free' or mode == 'if-passing') and
     (producer ~= 'free' or consumer ~= 'free') then
    return roles('busy')
  end
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
  return remove()
end

local function is_out(role)
  return role == 'out' or (role == 'nameless' and mode ~= 'nameless')
end
if not is_out(producer) and not is_out(consumer) then
  return remove()
end

-- A second producer may have taken the role after the first and found no token. A
-- second consumer may have found no element of :closed.
if is_out(producer) and redis.call('LLEN', NOT_FULL) == 0 then
  redis.call('LPUSH', NOT_FULL, '0')
end
if redis.call('LLEN', CLOSED) == 0 then
  redis.call('LPUSH', CLOSED, '0', '0')
end
return roles('waiting')
