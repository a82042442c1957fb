-- Reads all keys of a queue at one moment. Changes nothing.
-- Keys: see shared.lua. Arguments: none.
-- Reply: {numbers of the keys that exist, numbers of those of a wrong type,
--   {bound, produced messages, produced bytes, consumed messages, consumed
--    bytes}, each text or nil,
--   {producer, consumer}, each text or nil,
--   {lengths of data, producer_free, consumer_free, not_full, closed, number of
--    elements in flight, number of those whose lease has ended}}.
--   A key of a wrong type reads as absent.

local present, wrong = survey()
local is_wrong = {}
for _, number in ipairs(wrong) do
  is_wrong[KEYS[number]] = true
end

-- Numbers have at most 20 digits. Longer texts are invalid and need not be complete.
local function text(key)
  if is_wrong[key] or redis.call('EXISTS', key) == 0 then
    return false
  end
  return redis.call('GETRANGE', key, 0, 31)
end

local function id(key)
  return not is_wrong[key] and holder(key)
end

local function length(key)
  return is_wrong[key] and 0 or redis.call('LLEN', key)
end

local flying, ended = 0, 0
if not is_wrong[LEASES] and not is_wrong[IN_FLIGHT] then
  flying = in_flight()
  ended = flying
  if flying > 0 and redis.call('EXISTS', LEASES) == 1 then
    ended = redis.call('ZCOUNT', LEASES, '-inf', (time()))
  end
end

return {
  present,
  wrong,
  {text(BOUND), text(PRODUCED_MESSAGES), text(PRODUCED_BYTES),
   text(CONSUMED_MESSAGES), text(CONSUMED_BYTES)},
  {id(PRODUCER), id(CONSUMER)},
  {length(DATA), length(PRODUCER_FREE), length(CONSUMER_FREE),
   length(NOT_FULL), length(CLOSED), flying, ended},
}
