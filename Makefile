# What a contributor runs. The work is in dev/, one script a subject; each says at its top
# what it does.

.DEFAULT_GOAL := help
.PHONY: help demo test test-brokers test-cluster soak up down lint generate bench prove foreign dist dist-check

# Arguments for the script behind a target: make test ARGS='client::waiting::'
ARGS ?=

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## Show Lockkeeper at work on real servers (needs nothing running)
	@dev/build --demo
	@dev/up --demo
	@dev/demo $(ARGS)

test: ## Lint, build, start fresh servers, run every test (ARGS are filters)
	@dev/test $(ARGS)

test-brokers: ## The locks' tests once more, on RabbitMQ 4.3 and 4.0 (fetched on the first run)
	@dev/test --brokers $(ARGS)

test-cluster: ## Locks while a node of a RabbitMQ cluster is down (3.10 and 4.3)
	@dev/test --cluster $(ARGS)

soak: ## What takes too long for every run: locks fought over and lost more often, more schedules of queues, thousands of objects, more random frames
	@LOCKKEEPER_SOAK=1 cargo test --lib --quiet --package lockkeeper-semaphore incoming::
	@LOCKKEEPER_SOAK=1 dev/test client::aborting:: client::processes:: client::fencing:: client::takeover:: exec::losing:: \
		queue::schedules::accounts:: pipe::schedules:: \
		operator::deletion::a_namespace_with_many operator::restarts:: prover::controls:: prover::variants::
	@LOCKKEEPER_SOAK=1 RUST_TEST_THREADS=1 dev/test scale::
	@LOCKKEEPER_SOAK=1 dev/test --cluster clusters::faults::

up: ## Start Kubernetes, RabbitMQ, Redis and the operator; then: . target/dev/env
	@dev/build --up
	@dev/up $(ARGS)

down: ## Stop what make up started
	@dev/down $(ARGS)

lint: ## Check format, clippy, documentation, minimal Rust version, licenses and scripts
	@dev/lint

generate: ## Write all that is generated: crds/, the chart's definitions and README, charts/install/
	@dev/build-servers
	@dev/generate

bench: ## Measure, with the optimised programs
	@dev/install
	@dev/bench $(ARGS)

prove: ## Judge our clients, those in Python and other locks, and write docs/proved: make prove [SRC=<amqp-locks-python>]
	@SRC="$(SRC)" dev/prove $(ARGS)

foreign: ## Share locks and queues with others' clients: make foreign SRC=<a checkout of one>
	@dev/foreign $(SRC)

dist: ## Make what a release publishes, in dist/: make dist [ARGS='--image REPOSITORY --url URL']
	@dev/dist $(ARGS)

dist-check: ## Check dist/ with other tools, as root (ARGS=--again: make it twice and compare)
	@dev/dist-check $(ARGS)
