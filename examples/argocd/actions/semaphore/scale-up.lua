-- One slot more.
obj.spec.slots = obj.spec.slots + 1
return obj
