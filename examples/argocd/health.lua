-- The health of a Semaphore or a PressureQueue. A lock that is full, or whose holders are
-- draining, is Healthy: that is its work.
local function say(status, message)
  return {status = status, message = message}
end

if obj.metadata.deletionTimestamp ~= nil then
  return say("Progressing", "Being deleted: the operator lets it go when its server's part is gone")
end
local status = obj.status
if status == nil or status.conditions == nil or status.observedGeneration ~= obj.metadata.generation then
  return say("Progressing", "The operator has not looked at this spec yet")
end

local is = {}
for _, condition in ipairs(status.conditions) do
  is[condition.type] = condition
end
local function holds(type)
  return is[type] ~= nil and is[type].status == "True"
end

if holds("Reconciling") then
  return say("Progressing", is.Reconciling.message)
end
if holds("Stalled") then
  if is.Stalled.reason == "Suspended" then
    return say("Suspended", is.Stalled.message)
  end
  return say("Degraded", is.Stalled.message)
end
if not holds("Ready") then
  return say("Progressing", is.Ready and is.Ready.message or "The operator has not finished its first look")
end
if obj.spec ~= nil and obj.spec.suspend then
  return say("Suspended", is.Ready.message)
end
if holds("Damaged") then
  return say("Healthy", "Damaged: " .. is.Damaged.message)
end
return say("Healthy", is.Ready.message)
