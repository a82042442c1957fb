-- One slot less. Its holder keeps it until it releases.
if obj.spec.slots > 1 then
  obj.spec.slots = obj.spec.slots - 1
end
return obj
