// Whether the jobs of CI systems say only what those systems read: a workflow of GitHub by
// actionlint, one of Argo in its own types and by the checks of its linter.

package main

import (
	"context"
	"errors"
	"io"

	argo "github.com/argoproj/argo-workflows/v4/pkg/apis/workflow/v1alpha1"
	"github.com/argoproj/argo-workflows/v4/util/logging"
	"github.com/argoproj/argo-workflows/v4/workflow/validate"
	"github.com/rhysd/actionlint"
)

// githubWorkflow checks a workflow of GitHub that is written as JSON.
func githubWorkflow(text []byte) error {
	linter, err := actionlint.NewLinter(io.Discard, &actionlint.LinterOptions{})
	if err != nil {
		return err
	}
	problems, err := linter.Lint("workflow.yaml", text, nil)
	if err != nil {
		return err
	}
	var all []error
	for _, problem := range problems {
		all = append(all, problem)
	}
	return errors.Join(all...)
}

// argoWorkflow checks one that refers to no template of the cluster.
func argoWorkflow(text []byte) error {
	var object argo.Workflow
	if err := read(text, &object); err != nil {
		return err
	}
	ctx := logging.WithLogger(context.Background(), logging.NewSlogLogger(logging.Error, logging.Text))
	return validate.ValidateWorkflow(ctx, nil, nil, &object, nil, validate.ValidateOpts{Submit: true})
}
