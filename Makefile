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
VARIABLES := A ADDRESS AGAIN ALLOW_PARTIAL B BACKEND BIN CLUSTER DEBUG DEBUG_ROWS ENGINE EXPLAIN EXTRA FILE FOLD FORCE FORMAT FUZZ_SECONDS KILLS MACHINES MEMBER MODE ONLY PARAMS PYTHON RUN \
  SEARCH SEEDS SET SOURCE TARGET TOP TOPOLOGY TORCH TRIAL WORKERS
UNKNOWN := $(firstword $(foreach name,$(filter-out $(VARIABLES) MAKE% SHELL .% -%,$(.VARIABLES)),$(if $(filter command,$(origin $(name))),$(name))))
ifneq ($(UNKNOWN),)
  SUGGESTION := $(shell $(PYTHON) pipelines/terminal/make_variables.py '$(UNKNOWN)' params.yaml $(VARIABLES))
  $(error $(UNKNOWN)=$(value $(UNKNOWN)): unknown variable$(if $(SUGGESTION),; did you mean $(subst VALUE,$(value $(UNKNOWN)),$(SUGGESTION))?); \
    variables: $(VARIABLES); parameters of params.yaml are set by SET="block.name=value")
endif

# A value reaches the shell through the environment, so no quote in it can end the command early.
export GOLDFOLD_SET := $(SET)
export GOLDFOLD_GOALS := $(MAKECMDGOALS)
export GOLDFOLD_EXPLAIN := $(value EXPLAIN)
export GOLDFOLD_ONLY := $(value ONLY)
export GOLDFOLD_SOURCE := $(value SOURCE)
export GOLDFOLD_TARGET := $(value TARGET)
# The goldfold command, run from this folder: a `goldfold` script belongs to the folder it was installed from.
# A stage that the system ended cannot say so itself: 137 = killed, often for its memory; 139, 134 = crashed. 141 = nobody
# reads its output (make runs | head): no error, unless there is more to do.
ENDED = ended() { case $$? in 137) echo "goldfold: the stage was killed, probably because memory ran out: lower train.batch, predict.batch or cache.ram_gigabytes" ;; \
  134|139) echo "goldfold: the stage crashed in compiled code; the stacks are above" ;; \
  141) $(if $(JOB)$(word 2,$(MAKECMDGOALS)),return,exit) 0 ;; *) return 0 ;; esac >&2; \
  echo "goldfold: complete fold models are kept; the same command continues, and the fold that ended this one comes last" >&2; }; trap ended EXIT;
GOLDFOLD = $(ENDED) $(if $(DEBUG),env DEBUG=1) $(BIN)/python -m pipelines
OPTIONS = --params "$(PARAMS)" --set "$$GOLDFOLD_SET" $(if $(FORCE),--force) $(if $(DEBUG),--debug)
STAGE = $(GOLDFOLD) $(1) $(OPTIONS)
PICK = $(if $(MEMBER),--member "$(MEMBER)") $(if $(FOLD),--fold "$(FOLD)")
FILES = $(if $(FILE),--file "$(FILE)")
ROWS = $(if $(DEBUG_ROWS),--debug-rows "$(DEBUG_ROWS)")

# The main job: the stages of each target, separated by +. Targets that follow each other in one make call run in one
# process, which starts TensorFlow once; stages exchange files only, so their results are the same. DEBUG=1 changes how
# TensorFlow runs until the process ends.
with = $(1) $(OPTIONS) $(2)
RAY = $(if $(CLUSTER),--cluster "$(CLUSTER)")
PARTIAL = $(if $(ALLOW_PARTIAL),--allow-partial)
STAGES_download = $(call with,download,$(if $(value ONLY),--only="$$GOLDFOLD_ONLY")) $(if $(value ONLY),,+ $(call with,prepare))
STAGES_train = $(call with,resolve) + $(call with,preflight,--mode ops --if-tpu $(PICK)) + $(call with,tune,$(PICK)) + \
  $(if $(DEBUG),$(call with,debug,$(PICK) $(ROWS)),$(call with,train,$(PICK) $(RAY)))
STAGES_predict = $(call with,predict,$(PARTIAL) $(RAY)) + $(call with,blend,$(PARTIAL))
JOB := $(filter download train predict,$(MAKECMDGOALS))
TOGETHER := $(if $(DEBUG),,$(and $(findstring $(JOB),$(MAKECMDGOALS)),$(filter $(words $(JOB)),$(words $(sort $(JOB))))))
OF_JOB = $(foreach target,$(JOB),$(if $(filter-out $(firstword $(JOB)),$(target)),+) $(STAGES_$(target)))
MAIN_JOB = $(if $(TOGETHER),$(if $(filter $(firstword $(JOB)),$(1)),$(GOLDFOLD) $(OF_JOB),:),$(GOLDFOLD) $(STAGES_$(1)))

##@ The main job
download: $(BIN)/.ready ## download the competition, verify every file, index it, assign folds (ONLY="train/": only these files)
	@$(call MAIN_JOB,download)

train: $(BIN)/.ready$(if $(CLUSTER), $(BIN)/.ready-cluster) ## train every fold model that is not current (MEMBER=cnn FOLD=2: only that one; CLUSTER=auto: on a Ray cluster)
	@$(call MAIN_JOB,train)

predict: $(BIN)/.ready$(if $(CLUSTER), $(BIN)/.ready-cluster) ## predict under every view, then fit TTA policy, blend and decision rule; write the submission
	@$(call MAIN_JOB,predict)

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

tune: $(BIN)/.ready$(if $(CLUSTER), $(BIN)/.ready-cluster) ## search hyperparameters with Optuna (MEMBER=cnn SET="tune.trials=20" WORKERS=4: in four processes; CLUSTER=auto: of a Ray cluster)
	@$(call STAGE,tune) $(PICK) $(if $(WORKERS),--workers "$(WORKERS)") $(RAY)

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
	@.venv/beam/bin/python -m pytest --noconftest -p no:cacheprovider tests/convert/test_beam.py
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

adopt: $(BIN)/.ready ## write the parameters of a run or of a trial into the parameter file, comments kept (RUN=cnn@1a2b3c4d TRIAL=cnn:7)
	@$(call STAGE,adopt) $(if $(RUN),--run "$(RUN)") $(if $(TRIAL),--trial "$(TRIAL)")

prune: $(BIN)/.ready ## list runs that no submission, recipe or parameter uses; FORCE=1 removes them
	@$(call STAGE,prune)

##@ Analysis
report: $(BIN)/.ready ## write all results to one page: work/<competition>/report.html
	@$(call STAGE,report)

table: $(BIN)/.ready ## compare all blends and TTA policies by honest score
	@$(call STAGE,table) $(if $(ALLOW_PARTIAL),--allow-partial)

compare: $(BIN)/.ready ## compare two blends: paired difference and changed rows (A=3f8c B=91aa)
	@$(call STAGE,compare) --a "$(A)" --b "$(B)"

dashboard: $(BIN)/.ready-dashboard ## show the studies of `make tune` in the browser, on 127.0.0.1:8080 only (MEMBER=cnn ADDRESS=127.0.0.1:0)
	@$(call STAGE,dashboard) $(if $(MEMBER),--member "$(MEMBER)") $(if $(ADDRESS),--address "$(ADDRESS)")

bench: $(BIN)/.ready ## images per second of reading, augmentation, the training step and training (MEMBER=cnn)
	@$(call STAGE,bench) $(PICK)

noise: $(BIN)/.ready ## spread of a member's score over seeds (MEMBER=cnn SEEDS=3)
	@$(call STAGE,noise) $(PICK) $(if $(SEEDS),--seeds "$(SEEDS)")

grad-cam: $(BIN)/.ready ## what the network looks at in confident errors and right rows, for the report (MEMBER=cnn)
	@$(call STAGE,grad-cam) $(if $(MEMBER),--member "$(MEMBER)")

issues-in-labels: $(BIN)/.ready-labels ## list labels that are probably wrong, with a contact sheet
	@$(call STAGE,issues-in-labels)

##@ Development
docs: $(BIN)/.ready-dev ## build the documentation site into site/
	@$(BIN)/python -m mkdocs build --strict --quiet

# mypy uses one core, so it runs beside the tests. Its messages come last, where they are seen.
test: $(BIN)/.ready-dev ## lint, types, the documentation, tests
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .
	@log=$$(mktemp); trap 'rm -f "$$log"' EXIT; $(BIN)/mypy > "$$log" 2>&1 & types=$$!; failed=0; \
	  $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder tests || failed=1; \
	  wait $$types || failed=1; cat "$$log"; exit $$failed

soak: $(BIN)/.ready-dev ## kill stages at random moments; the results must be those of an undisturbed run (KILLS=50; many minutes)
	@KILLS="$(or $(KILLS),50)" $(BIN)/python -m pytest -m soak -s tests/faults

fuzz: $(BIN)/.ready-fuzz ## look for inputs that a reader does not refuse clearly (FUZZ_SECONDS=600 for each of the nine readers)
	@for reader in csv external_csv external_npz image npz params tfrecord yaml zip; do echo "fuzz: $$reader"; \
	  $(BIN)/python tests/fuzz/run.py $$reader "$(or $(FUZZ_SECONDS),600)" work/fuzz/$$reader 2>&1 | tail -n 20; done

benchmarks: $(BIN)/.ready-dev ## measure speed and memory against named references, into docs/speed.md (SOURCE=photos.zip ONLY=memory TORCH=python)
	@$(BIN)/python -m benchmarks $(if $(value SOURCE),--source="$$GOLDFOLD_SOURCE") $(if $(TORCH),--torch "$(TORCH)") $(if $(value ONLY),--only $$GOLDFOLD_ONLY)

test-long: $(BIN)/.ready-dev ## the tests that take many minutes: studies of 30 trials, workers killed at random moments
	@$(BIN)/python -m pytest -m long --timeout 7200 tests

test-oldest: ## the light tests and one training on the oldest packages that pyproject.toml allows (PYTHON=python3.11)
	@$(PYTHON) -m venv .venv/oldest
	@.venv/oldest/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-oldest.txt -e ".[cpu]" pytest pytest-timeout hypothesis
	@.venv/oldest/bin/python -m pytest tests/ensemble tests/submission tests/prepare tests/images tests/test_floors.py tests/config/test_params.py tests/workspace/test_dependencies.py tests/files/test_manifest.py
	@for stage in download prepare resolve tune train predict blend; do .venv/oldest/bin/python -m pipelines $$stage --force \
	  --work .venv/oldest/work --submissions .venv/oldest/submissions --set "train.epochs=2 prepare.folds=3 tune.trials=1"; done

clean: ## remove computed results, keep downloads and submissions
	@for f in work/*/; do if [ -d "$$f" ]; then find "$$f" -mindepth 1 -maxdepth 1 ! -name raw ! -name 'raw.*' -exec rm -rf {} +; fi; done

fresh: ## remove work/; submissions/ and its ledger stay
	@rm -rf work

# make help | head: the shell or awk ends by SIGPIPE, which is no error.
QUIET = trap 'exit 0' PIPE; trap 'test $$? -ne 141 || exit 0' EXIT; exec 2>/dev/null;
help: ## this page
	@$(QUIET) printf 'goldfold: from download to a submission that can be trusted\n\n  make download train predict\n'
	@$(QUIET) awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## / {printf "  %-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@$(QUIET) printf '\nVariables\n'
	@$(QUIET) printf '  %-26s %s\n' 'PARAMS=recipes/x.yaml' 'another parameter file' 'SET="train.epochs=3"' 'override parameters, separated by spaces' \
	  'MEMBER=cnn FOLD=2' 'only that fold model' 'WORKERS=4' 'processes that run trials of one study' 'RUN=cnn@1a2b3c4d' 'a run listed by `make runs`' 'TRIAL=cnn:7' 'a trial of a study' \
	  'ONLY="train/*.csv"' 'download one file, folder or pattern into raw.only/ for inspection; nothing is indexed' 'FORCE=1' 'compute again although the result is current' \
	  'CLUSTER=auto' 'train, predict, tune: on the machines of this Ray cluster (docs/cluster.md)' 'MACHINES=4' 'plan: training on as many machines' \
	  'AGAIN=1' 'submit the same file, or push a kernel, again' 'FILE=3f8c' 'submit or grade this submission instead of the newest' \
	  'A=3f8c B=91aa' 'the two submissions of diff and compare, by their first digits' \
	  'ALLOW_PARTIAL=1' 'predict although fold models are missing (marked in the submission)' \
	  'TOPOLOGY=v5e-8 MODE=quick' 'the TPU of preflight and plan; compile, quick or ops' 'BACKEND=jax SEARCH=1' 'preflight: the backend; search the largest batch that fits' \
	  'SEEDS=3 TOP=50' 'number of seeds of noise; rows of leaderboard' 'EXPLAIN="error text"' 'doctor: explain this error' \
	  'SOURCE=photos TARGET=shards' 'convert: from and to, local or gs://' \
	  'FORMAT=onnx ENGINE=onnx' 'format to export, runtime to serve with' 'ADDRESS=127.0.0.1:8501' 'where the server listens' \
	  'KILLS=50 FUZZ_SECONDS=600' 'kills of make soak; time of make fuzz for each reader' 'TORCH=python' 'benchmarks: a Python that has torch and timm' 'DEBUG=1 DEBUG_ROWS=64' 'eager, few rows, numeric checks, tracebacks, pictures' 'EXTRA=gpu' 'which TensorFlow to install: cpu, gpu, tpu' \
	  'PYTHON=python3.12 BIN=bin' 'the Python that makes .venv; another folder of commands than .venv/bin'

# pip's own marker is the last line of each recipe, so a killed installation is done again.
$(BIN)/.ready: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing goldfold's packages into .venv (once; a minute or two)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[$(EXTRA)]"
	@touch $@

# Apache Beam's pins exclude this project's protobuf, Pillow and dateutil, so it gets an environment without TensorFlow.
.venv/beam/.ready: requirements-beam.txt
	@test -x .venv/beam/bin/python || $(PYTHON) -m venv .venv/beam
	@echo "installing Apache Beam into .venv/beam (once; a minute or two)"
	@.venv/beam/bin/python -m pip install --quiet --disable-pip-version-check -r requirements-beam.txt
	@touch $@

$(BIN)/.ready-fuzz: $(BIN)/.ready-dev
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[$(EXTRA),dev,fuzz]"
	@touch $@

$(patsubst %,$(BIN)/.ready-%,labels preflight onnx litert serve dashboard cluster): $(BIN)/.ready
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[$(EXTRA),$(patsubst .ready-%,%,$(notdir $@))]"
	@touch $@

$(BIN)/.ready-dev: $(BIN)/.ready
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[$(EXTRA),labels,onnx,litert,serve,cluster,dashboard,databases,samplers,docs,dev]"
	@touch $@

.PHONY: test-cluster dashboard test-long export serve convert beam test-beam runs adopt prune preflight plan test-preflight download train predict submit kernel kernel-status kernel-log quota leaderboard bucket submissions diff doctor prepare resolve tune blend folds grade table compare bench noise report grad-cam issues-in-labels docs test benchmarks soak fuzz test-oldest clean fresh help
