# The verbs and their order. Stages decide by digests whether a result is current.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
# Which TensorFlow: cpu, gpu or tpu (see pyproject.toml).
EXTRA ?= cpu
PARAMS ?= params.yaml
BIN := .venv/bin

# A variable on the command line that nothing reads is a mistake; variables of the environment are not looked at.
VARIABLES := A ADDRESS AGAIN ALLOW_PARTIAL B BACKEND BIN CLUSTER DEBUG DEBUG_ROWS ENGINE EXPLAIN EXTRA FILE FOLD FORCE FORMAT MACHINES MEMBER MODE ONLY PARAMS PYTHON RUN \
  SEARCH SEEDS SET SOURCE TARGET TOP TOPOLOGY
UNKNOWN := $(firstword $(foreach name,$(filter-out $(VARIABLES) MAKE% SHELL .% -%,$(.VARIABLES)),$(if $(filter command,$(origin $(name))),$(name))))
ifneq ($(UNKNOWN),)
  SUGGESTION := $(shell $(PYTHON) pipelines/make_variables.py '$(UNKNOWN)' params.yaml $(VARIABLES))
  $(error $(UNKNOWN)=$(value $(UNKNOWN)): unknown variable$(if $(SUGGESTION),; did you mean $(subst VALUE,$(value $(UNKNOWN)),$(SUGGESTION))?); \
    variables: $(VARIABLES); parameters of params.yaml are set by SET="block.name=value")
endif

# A value reaches the shell through the environment, so no quote in it can end the command early.
export GOLDFOLD_SET := $(SET)
export GOLDFOLD_EXPLAIN := $(value EXPLAIN)
export GOLDFOLD_ONLY := $(value ONLY)
export GOLDFOLD_SOURCE := $(value SOURCE)
export GOLDFOLD_TARGET := $(value TARGET)
# The goldfold command, run from this folder: a `goldfold` script belongs to the folder it was installed from.
STAGE = $(if $(DEBUG),env DEBUG=1) $(BIN)/python -m pipelines $(1) --params "$(PARAMS)" --set "$$GOLDFOLD_SET" $(if $(FORCE),--force) $(if $(DEBUG),--debug)
PICK = $(if $(MEMBER),--member "$(MEMBER)") $(if $(FOLD),--fold "$(FOLD)")
FILES = $(if $(FILE),--file "$(FILE)")
RAY = $(if $(CLUSTER),--cluster "$(CLUSTER)")
ROWS = $(if $(DEBUG_ROWS),--debug-rows "$(DEBUG_ROWS)")

##@ The main job
download: $(BIN)/.ready ## download the competition, verify every file, index it, assign folds (ONLY="train/": only these files)
	@$(call STAGE,download) $(if $(value ONLY),--only="$$GOLDFOLD_ONLY")
	@$(if $(value ONLY),:,$(call STAGE,prepare))

train: $(BIN)/.ready$(if $(CLUSTER), $(BIN)/.ready-cluster) ## train every fold model that is not current (MEMBER=cnn FOLD=2: only that one; CLUSTER=auto: on a Ray cluster)
	@$(call STAGE,resolve)
	@$(call STAGE,preflight) --mode ops --if-tpu $(PICK)
	@$(call STAGE,tune) $(PICK)
	@$(call STAGE,$(if $(DEBUG),debug,train)) $(PICK) $(if $(DEBUG),$(ROWS),$(RAY))

predict: $(BIN)/.ready$(if $(CLUSTER), $(BIN)/.ready-cluster) ## predict under every view, then fit TTA policy, blend and decision rule; write the submission
	@$(call STAGE,predict) $(if $(ALLOW_PARTIAL),--allow-partial) $(RAY)
	@$(call STAGE,blend) $(if $(ALLOW_PARTIAL),--allow-partial)

submit: $(BIN)/.ready ## check the submission, submit it once, wait for its score (AGAIN=1: submit the same file again)
	@$(call STAGE,submit) $(FILES) $(if $(AGAIN),--again)

##@ Serving
export: $(BIN)/.ready-onnx$(if $(findstring litert,$(FORMAT)), $(BIN)/.ready-litert) ## export the blend as SavedModel and ONNX (MEMBER=cnn FOLD=0: a part of it; FORMAT=saved_model,onnx,litert)
	@$(call STAGE,export) $(PICK) $(if $(FORMAT),--format "$(FORMAT)")

serve: $(BIN)/.ready-serve$(if $(findstring litert,$(ENGINE)), $(BIN)/.ready-litert) ## serve the export on 127.0.0.1:8501, with a page to drop photos on (ENGINE=saved_model ADDRESS=127.0.0.1:8080)
	@$(call STAGE,serve) $(PICK) $(if $(ENGINE),--engine "$(ENGINE)") $(if $(ADDRESS),--address "$(ADDRESS)")

##@ Single stages
prepare resolve: $(BIN)/.ready
	@$(call STAGE,$@)

tune: $(BIN)/.ready ## search hyperparameters (SET="tune.trials=20")
	@$(call STAGE,tune) $(PICK)

blend: $(BIN)/.ready ## fit TTA policy, blend and decision rule from cached probabilities, in seconds
	@$(call STAGE,blend) $(if $(ALLOW_PARTIAL),--allow-partial)

folds: $(BIN)/.ready ## export the folds as CSV (id, label, fold, group, file) for models trained elsewhere
	@$(call STAGE,folds)

grade: $(BIN)/.ready ## score the submission against the private solution of a local competition (each use is counted)
	@$(call STAGE,grade) $(FILES)

##@ Planning for a TPU
preflight: $(BIN)/.ready$(if $(filter ops,$(MODE)),,-preflight) ## compile the members for a TPU: memory, speed, what to change (TOPOLOGY=v5e-8 MEMBER=b6 SEARCH=1 MODE=quick)
	@$(call STAGE,preflight) $(PICK) $(if $(TOPOLOGY),--topology "$(TOPOLOGY)") $(if $(MODE),--mode "$(MODE)") $(if $(BACKEND),--backend "$(BACKEND)") $(if $(SEARCH),--search)

plan: $(BIN)/.ready ## estimate hours, sessions and cost (TOPOLOGY=v5e-8; without it: this machine; MACHINES=4: training on a cluster)
	@$(call STAGE,plan) $(PICK) $(if $(TOPOLOGY),--topology "$(TOPOLOGY)") $(if $(MACHINES),--machines "$(MACHINES)")

test-preflight: $(BIN)/.ready-dev $(BIN)/.ready-preflight ## the tests that need libtpu
	@$(BIN)/python -m pytest tests/preflight/test_preflight.py

##@ Conversion
convert: $(BIN)/.ready ## images to TFRecord shards in several sizes (SOURCE=folder or gs://... TARGET=...; SET="convert.engine=beam")
	@$(call STAGE,convert) $(if $(value SOURCE),--source="$$GOLDFOLD_SOURCE") $(if $(value TARGET),--target="$$GOLDFOLD_TARGET")

beam: .venv/beam/.ready ## install Apache Beam into .venv/beam, an environment of its own (for convert.engine=beam)

test-cluster: $(BIN)/.ready-dev ## the tests of clusters, with the long ones: real Ray nodes and JAX processes on this machine
	@$(BIN)/python -m pytest tests/cluster tests/cluster/acceptance.py

test-beam: .venv/beam/.ready $(BIN)/.ready-dev ## the tests that need Apache Beam
	@.venv/beam/bin/python -m pytest --noconftest -p no:cacheprovider tests/data/convert/test_beam.py
	@$(BIN)/python -m pytest tests/pipelines/test_convert.py

##@ Kaggle and other machines
kernel: $(BIN)/.ready ## train and predict missing fold models on Kaggle and import them (MEMBER=cnn FOLD=2)
	@$(call STAGE,kernel) $(PICK) $(if $(AGAIN),--again)

kernel-status: $(BIN)/.ready ## status of the kernel: queued, running or done
	@$(call STAGE,kernel-status)

kernel-log: $(BIN)/.ready ## the kernel's log, followed while it runs
	@$(call STAGE,kernel-status) --log

quota: $(BIN)/.ready ## hours of TPU and GPU left this week
	@$(call STAGE,quota)

bucket: $(BIN)/.ready ## synchronise data, fold models and predictions with storage.bucket
	@$(call STAGE,bucket)

submissions: $(BIN)/.ready ## list submissions with expected score, Kaggle scores and the 95 % interval of their gap; number left today
	@$(call STAGE,submissions)

leaderboard: $(BIN)/.ready ## top of the public leaderboard and rank of this team (TOP=50)
	@$(call STAGE,leaderboard) $(if $(TOP),--top "$(TOP)")

diff: $(BIN)/.ready ## compare two submissions: ids and classes that differ (A=3f8c B=91aa)
	@$(call STAGE,diff) --a "$(A)" --b "$(B)"

doctor: $(BIN)/.ready ## check this machine and its results, with a fix for each error (EXPLAIN="pasted error": explain it)
	@$(call STAGE,doctor) $(if $(value EXPLAIN),--explain="$$GOLDFOLD_EXPLAIN")

##@ Runs
runs: $(BIN)/.ready ## list all runs: difference from the parameters, folds, scores, time, size, submissions (MEMBER=cnn: only its)
	@$(call STAGE,runs) $(if $(MEMBER),--member "$(MEMBER)")

adopt: $(BIN)/.ready ## write the parameters of a run into the parameter file, comments kept (RUN=cnn@1a2b3c4d)
	@$(call STAGE,adopt) $(if $(RUN),--run "$(RUN)")

prune: $(BIN)/.ready ## list runs that no submission, recipe or parameter uses; FORCE=1 removes them
	@$(call STAGE,prune)

##@ Analysis
report: $(BIN)/.ready ## write all results to one page: work/<competition>/report.html
	@$(call STAGE,report)

table: $(BIN)/.ready ## compare all blends and TTA policies by honest score
	@$(call STAGE,table) $(if $(ALLOW_PARTIAL),--allow-partial)

compare: $(BIN)/.ready ## compare two blends: paired difference and changed rows (A=3f8c B=91aa)
	@$(call STAGE,compare) --a "$(A)" --b "$(B)"

bench: $(BIN)/.ready ## images per second of reading, augmentation, the training step and training (MEMBER=cnn)
	@$(call STAGE,bench) $(PICK)

noise: $(BIN)/.ready ## spread of a member's score over seeds (MEMBER=cnn SEEDS=3)
	@$(call STAGE,noise) $(PICK) $(if $(SEEDS),--seeds "$(SEEDS)")

issues-in-labels: $(BIN)/.ready-labels ## list labels that are probably wrong, with a contact sheet
	@$(call STAGE,issues-in-labels)

##@ Development
test: $(BIN)/.ready-dev ## lint, types, tests
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile tests

test-oldest: ## the light tests and one training on the oldest packages that pyproject.toml allows (PYTHON=python3.11)
	@$(PYTHON) -m venv .venv/oldest
	@.venv/oldest/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-oldest.txt -e ".[cpu]" pytest pytest-timeout hypothesis
	@.venv/oldest/bin/python -m pytest tests/ensemble tests/submission tests/data tests/test_floors.py tests/config/test_params.py tests/artifacts/test_dependencies.py tests/artifacts/test_manifest.py
	@for stage in download prepare resolve tune train predict blend; do .venv/oldest/bin/python -m pipelines $$stage --force \
	  --work .venv/oldest/work --submissions .venv/oldest/submissions --set "train.epochs=2 prepare.folds=2 tune.trials=1"; done

clean: ## remove computed results, keep downloads and submissions
	@for f in work/*/; do if [ -d "$$f" ]; then find "$$f" -mindepth 1 -maxdepth 1 ! -name raw ! -name 'raw.*' -exec rm -rf {} +; fi; done

fresh: ## remove work/; submissions/ and its ledger stay
	@rm -rf work

help: ## this page
	@printf 'goldfold: from download to a submission that can be trusted\n\n  make download train predict\n'
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## / {printf "  %-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@printf '\nVariables\n'
	@printf '  %-26s %s\n' 'PARAMS=recipes/x.yaml' 'another parameter file' 'SET="train.epochs=3"' 'override parameters, separated by spaces' \
	  'MEMBER=cnn FOLD=2' 'only that fold model' 'RUN=cnn@1a2b3c4d' 'a run listed by `make runs`' \
	  'ONLY="train/*.csv"' 'download one file, folder or pattern into raw.only/ for inspection; nothing is indexed' 'FORCE=1' 'compute again although the result is current' \
	  'CLUSTER=auto' 'train, predict: on the machines of this Ray cluster (docs/cluster.md)' 'MACHINES=4' 'plan: training on as many machines' 'AGAIN=1' 'submit the same file, or push a kernel, again' \
	  'ALLOW_PARTIAL=1' 'predict although fold models are missing (marked in the submission)' \
	  'FORMAT=onnx ENGINE=onnx' 'format to export, runtime to serve with' 'ADDRESS=127.0.0.1:8501' 'where the server listens' \
	  'DEBUG=1 DEBUG_ROWS=64' 'eager, few rows, numeric checks, tracebacks, pictures' 'EXTRA=gpu' 'which TensorFlow to install: cpu, gpu, tpu'

# pip's own marker is the last line of each recipe, so a killed installation is done again.
$(BIN)/.ready: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing goldfold's packages into .venv (once; a minute or two)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[$(EXTRA)]"
	@touch $@

$(BIN)/.ready-labels: $(BIN)/.ready
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[$(EXTRA),labels]"
	@touch $@

$(BIN)/.ready-preflight: $(BIN)/.ready
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[$(EXTRA),preflight]"
	@touch $@

# Apache Beam's pins exclude this project's protobuf, Pillow and dateutil, so it gets an environment without TensorFlow.
.venv/beam/.ready: requirements-beam.txt
	@test -x .venv/beam/bin/python || $(PYTHON) -m venv .venv/beam
	@echo "installing Apache Beam into .venv/beam (once; a minute or two)"
	@.venv/beam/bin/python -m pip install --quiet --disable-pip-version-check -r requirements-beam.txt
	@touch $@

$(BIN)/.ready-onnx $(BIN)/.ready-litert $(BIN)/.ready-serve $(BIN)/.ready-cluster: $(BIN)/.ready
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[$(EXTRA),$(patsubst .ready-%,%,$(notdir $@))]"
	@touch $@

$(BIN)/.ready-dev: $(BIN)/.ready
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[$(EXTRA),labels,onnx,litert,serve,cluster,dev]"
	@touch $@

.PHONY: test-cluster export serve convert beam test-beam runs adopt prune preflight plan test-preflight download train predict submit kernel kernel-status kernel-log quota leaderboard bucket submissions diff doctor prepare resolve tune blend folds grade table compare bench noise report issues-in-labels test test-oldest clean fresh help
