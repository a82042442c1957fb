-- Look and report, but change nothing on the server.
obj.spec.suspend = true
return obj
