-- One slot less; whoever holds it keeps it until they release.
if obj.spec.slots > 1 then
  obj.spec.slots = obj.spec.slots - 1
end
return obj
