// Whether objects of Flux, KEDA and Argo Workflows say only what those tools read: decoded strictly
// into their own types, and, where a text inside has a language of its own, understood.

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"
	// The zones of the machine may be missing.
	_ "time/tzdata"

	argo "github.com/argoproj/argo-workflows/v4/pkg/apis/workflow/v1alpha1"
	flux "github.com/fluxcd/kustomize-controller/api/v1"
	keda "github.com/kedacore/keda/v2/apis/keda/v1alpha1"
	"github.com/robfig/cron/v3"
	strict "sigs.k8s.io/json"

	fluxcel "github.com/fluxcd/pkg/runtime/cel"
)

func decode(text []byte) error {
	var kind struct{ APIVersion, Kind string }
	if err := json.Unmarshal(text, &kind); err != nil {
		return err
	}
	switch kind.APIVersion + " " + kind.Kind {
	case flux.GroupVersion.String() + " Kustomization":
		var object flux.Kustomization
		if err := read(text, &object); err != nil {
			return err
		}
		_, err := fluxcel.NewStatusReader(object.Spec.HealthCheckExprs)
		return err
	case keda.GroupVersion.String() + " ScaledObject":
		var object keda.ScaledObject
		if err := read(text, &object); err != nil {
			return err
		}
		if err := keda.CheckReplicaCountBoundsAreValid(&object); err != nil {
			return err
		}
		return triggers(object.Spec.Triggers)
	case keda.GroupVersion.String() + " ScaledJob":
		var object keda.ScaledJob
		if err := read(text, &object); err != nil {
			return err
		}
		return triggers(object.Spec.Triggers)
	case keda.GroupVersion.String() + " TriggerAuthentication":
		var object keda.TriggerAuthentication
		return read(text, &object)
	case argo.SchemeGroupVersion.String() + " Workflow":
		return argoWorkflow(text)
	default:
		return fmt.Errorf("%s %s is not known here", kind.APIVersion, kind.Kind)
	}
}

// read fails for a field that the type does not have, or that is there twice.
func read(text []byte, into any) error {
	errs, err := strict.UnmarshalStrict(text, into)
	return errors.Join(append(errs, err)...)
}

func triggers(all []keda.ScaleTriggers) error {
	if err := keda.ValidateTriggers(all); err != nil {
		return err
	}
	for _, trigger := range all {
		var err error
		switch trigger.Type {
		case "cron":
			err = schedule(trigger.Metadata)
		case "redis":
			err = list(trigger.Metadata)
		default:
			err = fmt.Errorf("a trigger of type %q is not known here", trigger.Type)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// schedule checks what KEDA's cron scaler does, with the same library.
func schedule(metadata map[string]string) error {
	if err := known(metadata, "timezone", "start", "end", "desiredReplicas"); err != nil {
		return err
	}
	parser := cron.NewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow)
	for _, name := range []string{"start", "end"} {
		if _, err := parser.Parse(metadata[name]); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	if metadata["start"] == metadata["end"] {
		return errors.New("start and end are the same")
	}
	if _, err := time.LoadLocation(metadata["timezone"]); err != nil {
		return err
	}
	if count, err := strconv.ParseInt(metadata["desiredReplicas"], 10, 64); err != nil || count == 0 {
		return fmt.Errorf("desiredReplicas %q", metadata["desiredReplicas"])
	}
	return nil
}

// list checks what KEDA's redis scaler does.
func list(metadata map[string]string) error {
	err := known(metadata, "address", "host", "port", "listName", "listLength",
		"activationListLength", "databaseIndex", "enableTLS", "unsafeSsl")
	if err != nil {
		return err
	}
	if metadata["listName"] == "" {
		return errors.New("no listName")
	}
	for _, name := range []string{"listLength", "activationListLength", "databaseIndex"} {
		if value, set := metadata[name]; set {
			if _, err := strconv.ParseInt(value, 10, 64); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	return nil
}

// known refuses names that KEDA would pass over in silence.
func known(metadata map[string]string, names ...string) error {
	for name := range metadata {
		if !slices.Contains(names, name) {
			return fmt.Errorf("%s is nothing that the scaler reads", name)
		}
	}
	return nil
}
