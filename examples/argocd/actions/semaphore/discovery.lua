local slots = obj.spec.slots
local suspended = obj.spec.suspend == true
return {
  ["suspend"] = {disabled = suspended, iconClass = "fa fa-fw fa-pause-circle"},
  ["resume"] = {disabled = not suspended, iconClass = "fa fa-fw fa-play-circle"},
  ["scale-up"] = {disabled = slots >= 10000, iconClass = "fa fa-fw fa-plus-circle"},
  -- Only "hold" removes the last slot: one click too many must not close a lock.
  ["scale-down"] = {disabled = slots <= 1, iconClass = "fa fa-fw fa-minus-circle"},
  ["hold"] = {disabled = slots == 0, iconClass = "fa fa-fw fa-hand-paper"},
}
