-- Repairs one fault of a queue, only if the queue is still as expected.
-- Keys: see shared.lua. Arguments: the repair, then the expected content of each key,
--   in their order: '*' for any content, a list's length, '-' for a missing string,
--   '=' and the string (its first 512 bytes).
--   The repair is one of
--   'producer', 'consumer': release this role, and repair the token of :not_full;
--   'creation': push the roles and the token if missing;
--   'deletion': remove every key, only if there is no :bound;
--   'tokens': leave one token in each key that has more, and, if both roles are
--     free, repair the token of :not_full.
-- Reply: {'done', then alternately the change and the key's number: 'pushed',
--   'trimmed' or 'removed'} | {'already'}: there is nothing to do | {'stale',
--   number}: this key is not as expected | {'wrong', numbers}.

local what = ARGV[1]

local function now(number)
  local key = KEYS[number]
  if LISTS[key] then
    return tostring(redis.call('LLEN', key))
  end
  local text = holder(key)
  return text and '=' .. text or '-'
end

local present, wrong = survey()
if #wrong > 0 then
  return wrong_reply(wrong)
end
for number = 1, #KEYS do
  local expected = ARGV[1 + number]
  if expected ~= '*' and expected ~= now(number) then
    return {'stale', number}
  end
end
local has_bound = redis.call('EXISTS', BOUND) == 1
if has_bound == (what == 'deletion') then
  return {'stale', 2}
end
local commands = {{'LPUSH', NOT_FULL, '1'}, {'LTRIM', NOT_FULL, '0', '0'}}
for _, key in ipairs(what == 'deletion' and KEYS or {NOT_FULL}) do
  table.insert(commands, {'DEL', key})
end
local refusal = forbidden(commands)
if refusal then
  return refusal
end

local reply = {'done'}
local function did(word, number)
  table.insert(reply, word)
  table.insert(reply, number)
end

if what == 'deletion' then
  redis.call('DEL', unpack(KEYS))
  for _, number in ipairs(present) do
    did('removed', number)
  end
end

local function push_where_none(number)
  if redis.call('LLEN', KEYS[number]) == 0 then
    redis.call('LPUSH', KEYS[number], '1')
    did('pushed', number)
  end
end
local function trim(number)
  if redis.call('LLEN', KEYS[number]) > 1 then
    redis.call('LTRIM', KEYS[number], 0, 0)
    did('trimmed', number)
  end
end
-- One token if there is room, none if not.
local function settle()
  local bound = bound_of(redis.call('GET', BOUND)) or 0
  if bound == 0 or redis.call('LLEN', DATA) < bound then
    push_where_none(11)
  elseif redis.call('DEL', NOT_FULL) > 0 then
    did('removed', 11)
  end
end

if what == 'creation' then
  push_where_none(5)
  push_where_none(6)
  push_where_none(11)
elseif what == 'producer' or what == 'consumer' then
  push_where_none(what == 'producer' and 5 or 6)
  settle()
elseif what == 'tokens' then
  trim(5)
  trim(6)
  trim(11)
  -- While a role is taken, its client may have the token.
  if redis.call('LLEN', PRODUCER_FREE) > 0 and
     redis.call('LLEN', CONSUMER_FREE) > 0 then
    settle()
  end
end
return #reply > 1 and reply or {'already'}
