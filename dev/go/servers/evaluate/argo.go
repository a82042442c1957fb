// How Argo CD runs a customization: gopher-lua with the base, package and table
// libraries and nothing else (Argo CD adds os.time and os.date, which ours must do
// without), the object as the global obj, one second.

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	lua "github.com/yuin/gopher-lua"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	luajson "layeh.com/gopher-json"
)

// verdicts that Argo CD knows; it shows any other as Unknown.
var verdicts = []string{"Healthy", "Progressing", "Degraded", "Suspended", "Missing", "Unknown"}

// run gives what the script returns, as JSON.
func run(object []byte, script string, parameters map[string]string) ([]byte, error) {
	state := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer state.Close()
	for _, library := range []struct {
		name string
		open lua.LGFunction
	}{
		{lua.LoadLibName, lua.OpenPackage},
		{lua.BaseLibName, lua.OpenBase},
		{lua.TabLibName, lua.OpenTable},
	} {
		call := lua.P{Fn: state.NewFunction(library.open), Protect: true}
		if err := state.CallByParam(call, lua.LString(library.name)); err != nil {
			return nil, err
		}
	}
	limit, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	state.SetContext(limit)

	given, err := luajson.Decode(state, object)
	if err != nil {
		return nil, err
	}
	state.SetGlobal("obj", given)
	table := state.NewTable()
	for name, value := range parameters {
		table.RawSetString(name, lua.LString(value))
	}
	state.SetGlobal("actionParams", table)
	if err := state.DoString(script); err != nil {
		return nil, err
	}
	returned := state.Get(-1)
	if returned.Type() != lua.LTTable {
		return nil, fmt.Errorf("the script returned a %s instead of a table", returned.Type())
	}
	return luajson.Encode(returned)
}

func health(object []byte, script string) (answer, error) {
	text, err := run(object, script, nil)
	if err != nil {
		return answer{}, err
	}
	var said struct{ Status, Message string }
	if err := json.Unmarshal(text, &said); err != nil {
		return answer{}, err
	}
	if !slices.Contains(verdicts, said.Status) {
		return answer{}, fmt.Errorf("%q is no health that Argo CD knows", said.Status)
	}
	return answer{Verdict: said.Status, Message: said.Message}, nil
}

func actions(object []byte, script string) (answer, error) {
	text, err := run(object, script, nil)
	if err != nil {
		return answer{}, err
	}
	var said map[string]struct {
		Disabled bool `json:"disabled"`
	}
	if err := json.Unmarshal(text, &said); err != nil {
		return answer{}, err
	}
	usable := map[string]bool{}
	for name, action := range said {
		usable[name] = !action.Disabled
	}
	return answer{Actions: usable}, nil
}

func act(object []byte, script string, parameters map[string]string) (answer, error) {
	text, err := run(object, script, parameters)
	if err != nil {
		return answer{}, err
	}
	var before, after map[string]any
	if err := json.Unmarshal(object, &before); err != nil {
		return answer{}, err
	}
	if err := json.Unmarshal(text, &after); err != nil {
		return answer{}, err
	}
	restore(after, before)
	text, err = json.Marshal(after)
	if err != nil {
		return answer{}, err
	}
	// Argo CD applies the difference as a merge patch.
	patch, err := jsonpatch.CreateMergePatch(object, text)
	return answer{Patch: patch}, err
}

// restore makes {} again what was {}: in Lua an empty map and an empty list are the
// same. Argo CD does so too.
func restore(after, before map[string]any) {
	for key, was := range before {
		switch is := after[key].(type) {
		case map[string]any:
			if was, ok := was.(map[string]any); ok {
				restore(is, was)
			}
		case []any:
			if _, ok := was.(map[string]any); ok && len(is) == 0 {
				after[key] = map[string]any{}
			}
			was, ok := was.([]any)
			for i := 0; ok && i < min(len(is), len(was)); i++ {
				inner, ok1 := is[i].(map[string]any)
				innerWas, ok2 := was[i].(map[string]any)
				if ok1 && ok2 {
					restore(inner, innerWas)
				}
			}
		}
	}
}
