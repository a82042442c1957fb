// Command evaluate says what GitOps tools make of an object, with the libraries that
// they use themselves. One JSON request a line on standard input, one answer a line on
// standard output. Which objects, and what is expected of them, is the tests' matter.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"

	fluxcel "github.com/fluxcd/pkg/runtime/cel"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"

	"github.com/fluxcd/pkg/apis/kustomize"
)

// request is one question about one object.
type request struct {
	// Do is kstatus, flux, health, actions, act, decode or github.
	Do string `json:"do"`
	// Object as the API server gives it; for decode and github, as a file has it.
	Object json.RawMessage `json:"object"`
	// Script is the Lua of health, actions and act.
	Script string `json:"script"`
	// Parameters are what the user typed, for act.
	Parameters map[string]string `json:"parameters"`
	// Checks are a Flux Kustomization's healthCheckExprs, for flux.
	Checks []kustomize.CustomHealthCheck `json:"checks"`
}

// answer has Error, or what was asked for.
type answer struct {
	// Verdict of kstatus, flux and health.
	Verdict string `json:"verdict,omitempty"`
	// Message for people, beside a verdict.
	Message string `json:"message,omitempty"`
	// Actions by name, and whether each can be used now.
	Actions map[string]bool `json:"actions,omitempty"`
	// Patch is the merge patch that an action comes to.
	Patch json.RawMessage `json:"patch,omitempty"`
	Error string          `json:"error,omitempty"`
}

func main() {
	in := bufio.NewReader(os.Stdin)
	out := json.NewEncoder(os.Stdout)
	decoder := json.NewDecoder(in)
	for decoder.More() {
		var asked request
		if err := decoder.Decode(&asked); err != nil {
			fmt.Fprintln(os.Stderr, "not a request:", err)
			os.Exit(64)
		}
		said, err := reply(asked)
		if err != nil {
			said = answer{Error: err.Error()}
		}
		if err := out.Encode(said); err != nil {
			os.Exit(74)
		}
	}
}

func reply(asked request) (answer, error) {
	switch asked.Do {
	case "decode":
		return answer{}, decode(asked.Object)
	case "github":
		return answer{}, githubWorkflow(asked.Object)
	}
	object := &unstructured.Unstructured{}
	if err := object.UnmarshalJSON(asked.Object); err != nil {
		return answer{}, err
	}
	switch asked.Do {
	case "kstatus":
		result, err := status.Compute(object)
		if err != nil {
			return answer{}, err
		}
		return answer{Verdict: result.Status.String(), Message: result.Message}, nil
	case "flux":
		return fluxVerdict(object, asked.Checks)
	case "health":
		return health(asked.Object, asked.Script)
	case "actions":
		return actions(asked.Object, asked.Script)
	case "act":
		return act(asked.Object, asked.Script, asked.Parameters)
	default:
		return answer{}, fmt.Errorf("nothing is known of %q", asked.Do)
	}
}

// fluxVerdict is the verdict of a Kustomization with these healthCheckExprs.
func fluxVerdict(object *unstructured.Unstructured, checks []kustomize.CustomHealthCheck) (answer, error) {
	reader, err := fluxcel.NewStatusReader(checks)
	if err != nil {
		return answer{}, err
	}
	result, err := reader(nil).ReadStatusForObject(context.Background(), nil, object)
	if err != nil {
		return answer{}, err
	}
	if result.Error != nil {
		// Flux goes on asking until its timeout.
		return answer{Verdict: result.Status.String(), Message: result.Error.Error()}, nil
	}
	return answer{Verdict: result.Status.String(), Message: result.Message}, nil
}
