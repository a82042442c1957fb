-- Change the server again as the spec says.
obj.spec.suspend = false
return obj
