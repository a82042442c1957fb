local suspended = obj.spec.suspend == true
return {
  ["suspend"] = {disabled = suspended, iconClass = "fa fa-fw fa-pause-circle"},
  ["resume"] = {disabled = not suspended, iconClass = "fa fa-fw fa-play-circle"},
}
