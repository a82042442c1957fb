-- Closes the lock. Holders keep their slots until they release.
obj.spec.slots = 0
return obj
