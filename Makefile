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
BIN := .venv/bin

# A variable on the command line that nothing reads is a mistake; variables of the environment are not looked at.
VARIABLES := A ADDRESS AGAIN ALLOW_PARTIAL B BACKEND BIN BUDGET CLUSTER DEBUG DEBUG_ROWS ENGINE EXPLAIN EXTRA FILE FOLD FOLDER FORCE FORMAT FUZZ_SECONDS HOURS KILLS MACHINES MEMBER MODE ONLY OUT PAIR PARAMS PYTHON RUN \
  SEEDS SET SOURCE TARGET TOP TOPOLOGY TORCH TRIAL VERBOSE WORKERS
quoted = '$(subst ','\'',$(1))'
GIVEN := $(sort $(foreach name,$(filter-out MAKE% SHELL .% -%,$(.VARIABLES)),$(if $(filter command,$(origin $(name))),$(name))))
UNKNOWN := $(firstword $(filter-out $(VARIABLES),$(GIVEN)))
VARIABLE_CHECK := $(call quoted,$(value PYTHON)) -m pipelines.terminal.make_variables
ifneq ($(UNKNOWN),)
  SUGGESTION := $(shell $(VARIABLE_CHECK) suggest $(call quoted,$(UNKNOWN)) params.yaml $(VARIABLES))
  $(error $(UNKNOWN)=$(value $(UNKNOWN)): unknown variable$(if $(SUGGESTION),; did you mean $(subst VALUE,$(value $(UNKNOWN)),$(SUGGESTION))?); \
    make help-all lists the variables; parameters of params.yaml are set by SET="block.name=value")
endif
# So is one that is known, but that none of the targets reads. An empty value is none.
USED := $(foreach name,$(filter $(VARIABLES),$(GIVEN)),$(if $(value $(name)),$(name)))
ifneq ($(filter-out BIN EXTRA PYTHON,$(USED)),)
  UNREAD := $(shell $(VARIABLE_CHECK) unread $(call quoted,$(MAKECMDGOALS)) $(USED))
  ifneq ($(UNREAD),)
    $(error $(UNREAD))
  endif
endif

# Every value reaches the stages through the environment, as it was typed: no shell and no function of make sees it. The
# goldfold command reads GOLDFOLD_FOLD where it has the option --fold.
unexport $(VARIABLES)
define pass
export GOLDFOLD_$(1) = $$(value $(1))
endef
$(foreach name,$(VARIABLES),$(eval $(call pass,$(name))))
export GOLDFOLD_GOALS := $(MAKECMDGOALS)
BIN_PYTHON := "$$GOLDFOLD_BIN"/python

# A stage that the system ended cannot say so itself: 137 = killed, often for its memory; 139, 134 = crashed. 141 = nobody
# reads its output (make runs | head): no error, unless there is more to do. bash reports the killed process with its whole
# command line, so its own stderr is closed meanwhile.
ENDED = ended() { case $$? in 137) echo "goldfold: the stage was killed, probably because memory ran out: lower train.batch, predict.batch or cache.ram_gigabytes" ;; \
  126|127) echo "goldfold: $$GOLDFOLD_BIN/python cannot be started; remove that folder to install it again"; return 0 ;; \
  134|139) echo "goldfold: the stage crashed in compiled code; the stacks are above" ;; \
  141) $(if $(JOB)$(word 2,$(MAKECMDGOALS)),return,exit) 0 ;; *) return 0 ;; esac >&3; \
  echo "goldfold: complete fold models are kept; the same command continues, and the fold that ended this one comes last" >&3; }; \
  trap ended EXIT; exec 3>&2 2>/dev/null;
# The goldfold command, run from this folder: a `goldfold` script belongs to the folder it was installed from.
GOLDFOLD = $(ENDED) $(if $(value DEBUG),DEBUG=1) $(BIN_PYTHON) -m pipelines $(1) 2>&3 3>&-

# A server takes the place of the shell, so that a signal to make, which make passes on, reaches it.
SERVER = $(if $(value DEBUG),DEBUG=1) exec $(BIN_PYTHON) -m pipelines $(1)

# Targets of the main job that follow each other in one make call run in one process, which starts TensorFlow once; stages
# exchange files only, so their results are the same. DEBUG=1 changes how TensorFlow runs until the process ends.
JOB := $(filter download train predict,$(MAKECMDGOALS))
TOGETHER := $(if $(value DEBUG),,$(and $(word 2,$(JOB)),$(findstring $(JOB),$(MAKECMDGOALS)),$(filter $(words $(JOB)),$(words $(sort $(JOB))))))
space := $() $()

##@ The main job
MAIN_READY := $(BIN)/.ready$(if $(value CLUSTER), $(BIN)/.ready-cluster)
download: $(BIN)/.ready ## download the competition, verify every file, index it, assign folds
train: $(MAIN_READY) ## train every fold model that is not current (MEMBER=cnn FOLD=2: only that one; CLUSTER=auto: on a Ray cluster; HOURS=0.5: the best members for that time)
predict: $(MAIN_READY) ## predict under every view, then choose views, blend and decision rule; write the submission
ifneq ($(TOGETHER),)
main-job: $(MAIN_READY)
	@$(call GOLDFOLD,$(subst $(space), + ,$(JOB)))
$(JOB): main-job
	@:
else
download train predict:
	@$(call GOLDFOLD,$@)
endif

submit: $(BIN)/.ready ## check the submission, submit it once, wait for its score (AGAIN=1: submit the same file again)
	@$(call GOLDFOLD,submit)

##@ Serving
export: $(BIN)/.ready-onnx ## export the blend as SavedModel and ONNX (MEMBER=cnn: one member; FORMAT=onnx)
	@$(call GOLDFOLD,export)

serve: $(BIN)/.ready-serve ## serve the export on 127.0.0.1:8501, with a page to drop photos on (ENGINE=saved_model ADDRESS=127.0.0.1:8080)
	@$(call SERVER,serve)

predict-folder: $(BIN)/.ready ## predict new images by the blend into a CSV file, without a server (FOLDER=new_photos OUT=predictions.csv MEMBER=cnn)
	@$(call GOLDFOLD,predict-folder)

##@ Single stages
prepare resolve budget: $(MAIN_READY)
	@$(call GOLDFOLD,$@)

tune: $(BIN)/.ready$(if $(value CLUSTER), $(BIN)/.ready-cluster) ## search hyperparameters with Optuna (MEMBER=cnn SET="tune.trials=20" WORKERS=4: in four processes; CLUSTER=auto: of a Ray cluster)
	@$(call GOLDFOLD,tune)

blend: $(BIN)/.ready ## choose views, blend and decision rule from cached probabilities, in seconds
	@$(call GOLDFOLD,blend)

folds: $(BIN)/.ready ## export the folds as CSV (id, label, fold, group, file) for models trained elsewhere
	@$(call GOLDFOLD,folds)

grade: $(BIN)/.ready ## score the submission against the private solution of a local competition (each use is counted)
	@$(call GOLDFOLD,grade)

##@ Planning for a TPU
preflight: $(if $(filter kaggle,$(value PAIR)),$(BIN)/.ready .venv/preflight-kaggle/.ready,$(BIN)/.ready$(if $(filter ops,$(value MODE)),,-preflight)) ## compile the members for a TPU: memory, speed, what to change (TOPOLOGY=v5e-8 MEMBER=b6 MODE=quick PAIR=kaggle: with the jax of Kaggle's image)
	@$(call GOLDFOLD,preflight)

plan: $(BIN)/.ready ## estimate hours, sessions and cost (TOPOLOGY=v5e-8; without it: this machine; MACHINES=4: training on a cluster)
	@$(call GOLDFOLD,plan)

test-preflight: $(BIN)/.ready-dev $(BIN)/.ready-preflight ## the tests that need libtpu
	@$(BIN_PYTHON) -m pytest tests/preflight/test_preflight.py

##@ Conversion
convert: $(BIN)/.ready ## images to TFRecord shards in several sizes (SOURCE=folder or gs://... TARGET=...; SET="convert.engine=beam")
	@$(call GOLDFOLD,convert)

beam: .venv/beam/.ready ## install Apache Beam into .venv/beam, an environment of its own (for convert.engine=beam)

test-kaggle-image: $(BIN)/.ready-dev ## a pushed kernel on the packages of Kaggle's TPU image, with older and newer jax (on the CPU; minutes)
	@$(BIN_PYTHON) -m pytest -m long --timeout 7200 tests/pipelines/test_kaggle_image.py

test-cluster: $(BIN)/.ready-dev ## the tests of clusters, with the long ones: real Ray nodes and JAX processes on this machine
	@$(BIN_PYTHON) -m pytest -m "not soak" tests/cluster tests/cluster/acceptance.py

test-beam: .venv/beam/.ready $(BIN)/.ready-dev ## the tests that need Apache Beam
	@.venv/beam/bin/python -m pytest --noconftest -p no:cacheprovider tests/tfrecord_export/test_beam.py
	@$(BIN_PYTHON) -m pytest tests/pipelines/test_convert.py

##@ Kaggle and other machines
kernel: $(BIN)/.ready ## train and predict missing fold models on Kaggle and import them (MEMBER=cnn FOLD=2; HOURS=8: the best members for that time)
	@$(call GOLDFOLD,kernel)

kernel-status: $(BIN)/.ready ## status of the kernel: queued, running or done
	@$(call GOLDFOLD,kernel-status)

kernel-log: $(BIN)/.ready ## the kernel's log, followed while it runs
	@$(call GOLDFOLD,kernel-status --log)

quota: $(BIN)/.ready ## hours of TPU and GPU left this week
	@$(call GOLDFOLD,quota)

bucket: $(BIN)/.ready ## synchronise data, fold models and predictions with storage.bucket
	@$(call GOLDFOLD,bucket)

submissions: $(BIN)/.ready ## list submissions with expected score, Kaggle scores and the 95 % interval of their gap; number left today
	@$(call GOLDFOLD,submissions)

leaderboard: $(BIN)/.ready ## top of the public leaderboard and rank of this team (TOP=50)
	@$(call GOLDFOLD,leaderboard)

compare-submissions: $(BIN)/.ready ## compare two submissions: ids and classes that differ (A=3f8c B=91aa)
	@$(call GOLDFOLD,compare-submissions)

doctor: $(BIN)/.ready ## check this machine and its results, with a fix for each error (EXPLAIN="pasted error": explain it)
	@$(call GOLDFOLD,doctor)

##@ Runs
runs: $(BIN)/.ready ## list all runs: difference from the parameters, folds, scores, time, size, submissions (MEMBER=cnn: only its)
	@$(call GOLDFOLD,runs)

adopt: $(BIN)/.ready ## write the parameters of a run or of a trial into the parameter file, comments kept (RUN=cnn@1a2b3c4d TRIAL=cnn:7)
	@$(call GOLDFOLD,adopt)

prune: $(BIN)/.ready ## list runs that no submission, recipe or parameter uses; FORCE=1 removes them
	@$(call GOLDFOLD,prune)

##@ Analysis
report: $(BIN)/.ready ## write all results to one page: work/<competition>/report.html
	@$(call GOLDFOLD,report)

list-blends: $(BIN)/.ready ## blend methods and choices of views of the current parameters by honest score (make submissions: the stored blends)
	@$(call GOLDFOLD,list-blends)

compare-blends: $(BIN)/.ready ## compare two blends: paired difference and changed rows (A=3f8c B=91aa)
	@$(call GOLDFOLD,compare-blends)

dashboard: $(BIN)/.ready-dashboard ## show the studies of `make tune` in the browser, on 127.0.0.1:8080 only (MEMBER=cnn ADDRESS=127.0.0.1:0)
	@$(call SERVER,dashboard)

bench: $(BIN)/.ready ## images per second of reading, augmentation, the training step and training (MEMBER=cnn)
	@$(call GOLDFOLD,bench)

noise: $(BIN)/.ready ## spread of a member's score over seeds (MEMBER=cnn SEEDS=3)
	@$(call GOLDFOLD,noise)

grad-cam: $(BIN)/.ready ## what the network looks at in confident errors and right rows, for the report (MEMBER=cnn)
	@$(call GOLDFOLD,grad-cam)

label-issues: $(BIN)/.ready-labels ## list labels that are probably wrong, with a contact sheet
	@$(call GOLDFOLD,label-issues)

##@ Development
docs: $(BIN)/.ready-dev ## build the documentation site into site/
	@$(BIN_PYTHON) -m sphinx -q -E -W --keep-going -d .venv/doctrees docs site

# mypy uses one core, so it runs beside the tests. Its messages come last, where they are seen.
test: $(BIN)/.ready-dev ## lint, types, the documentation, tests
	@"$$GOLDFOLD_BIN"/ruff check . && "$$GOLDFOLD_BIN"/ruff format --check .
	@log=$$(mktemp); trap 'rm -f "$$log"' EXIT; "$$GOLDFOLD_BIN"/mypy > "$$log" 2>&1 & types=$$!; failed=0; \
	  $(BIN_PYTHON) -m pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder tests || failed=1; \
	  wait $$types || failed=1; cat "$$log"; exit $$failed

soak: $(BIN)/.ready-dev ## kill stages at random moments; the results must be those of an undisturbed run (KILLS=50; many minutes)
	@KILLS="$${GOLDFOLD_KILLS:-50}" $(BIN_PYTHON) -m pytest -m soak -s tests/faults

fuzz: $(BIN)/.ready-fuzz ## look for inputs that a reader does not refuse clearly (FUZZ_SECONDS=600 for each of the nine readers)
	@for reader in csv external_csv external_npz image npz params tfrecord yaml zip; do echo "fuzz: $$reader"; \
	  $(BIN_PYTHON) tests/fuzz/run.py $$reader "$${GOLDFOLD_FUZZ_SECONDS:-600}" work/fuzz/$$reader 2>&1 | tail -n 20; done

test-secrets: $(BIN)/.ready-dev ## the tests of faults with known secrets; then none may be in any file or output that they left (many minutes)
	@$(BIN_PYTHON) tests/secret_scan.py

benchmarks: $(BIN)/.ready-dev ## measure speed and memory against named references, into docs/speed.md (SOURCE=photos.zip ONLY=memory TORCH=python)
	@$(BIN_PYTHON) -m benchmarks $(if $(value SOURCE),--source="$$GOLDFOLD_SOURCE") $(if $(value TORCH),--torch "$$GOLDFOLD_TORCH") $(if $(value ONLY),--only $$GOLDFOLD_ONLY)

test-long: $(BIN)/.ready-dev ## the tests that take many minutes: kernels, clusters, exports of all kinds of members, random labels, studies, kills
	@$(BIN_PYTHON) -m pytest -m long --timeout 7200 tests

test-oldest: ## the light tests and one training on the oldest packages that pyproject.toml allows (PYTHON=python3.11)
	@"$$GOLDFOLD_PYTHON" -m venv .venv/oldest
	@.venv/oldest/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-oldest.txt -e ".[cpu]" pytest pytest-timeout hypothesis
	@.venv/oldest/bin/python -m pytest tests/ensemble tests/submission tests/prepare tests/input_pipeline tests/test_floors.py tests/config/test_params.py tests/workspace/test_dependencies.py tests/files/test_manifest.py
	@for verb in download train predict; do .venv/oldest/bin/python -m pipelines $$verb --force \
	  --work .venv/oldest/work --submissions .venv/oldest/submissions --set "train.epochs=2 prepare.folds=3 tune.trials=1"; done

.DEFAULT:
	@test -e $(call quoted,$@) || { $(VARIABLE_CHECK) target $(call quoted,$@); exit 2; }

clean: ## remove computed results, keep downloads and submissions
	@for f in work/*/; do if [ -d "$$f" ]; then find "$$f" -mindepth 1 -maxdepth 1 ! -name raw ! -name 'raw.*' -exec rm -rf {} +; fi; done

fresh: ## remove work/; submissions/ and its ledger stay
	@rm -rf work

# make help | head: the shell or awk ends by SIGPIPE, which is no error.
QUIET = trap 'exit 0' PIPE; trap 'test $$? -ne 141 || exit 0' EXIT; exec 2>/dev/null;
# A terminal gets lines that are broken between words; what follows is indented by $(1), to the column of the explanations.
FIT = { test -t 1 || exec cat; exec 3>&1; read -r _ width < <(stty size <&3); awk -v width="$$width" -v indent=$(1) \
  '{ while (length($$0) > width) { for (n = width + 1; n > indent && substr($$0, n, 1) != " "; n--); if (n <= indent) break; \
    print substr($$0, 1, n - 1); $$0 = sprintf("%" indent "s", "") substr($$0, n + 1) } print }'; }
help: ## the usual verbs
	@$(QUIET) printf '%s\n' 'goldfold: from download to a submission that can be trusted' '' 'Own photos (class folders, or a table and images)' \
	  "  printf '%s\n' 'extends: recipes/own-images.yaml' \\" "    'competition: {name: photos, source: /home/me/photos}' > photos.yaml" \
	  '  make download train predict report PARAMS=photos.yaml' '' 'A competition' \
	  '  make download train predict' '' 'Verbs'
	@$(QUIET) printf '  %-15s %s\n' doctor 'check this machine, the credentials and the results' download 'download the competition, verify every file, assign folds' \
	  train 'train every fold model that is not current (MEMBER=cnn FOLD=2: only that one; HOURS=0.5: what is worth the time)' \
	  predict 'predict under every view, blend, write the submission' grade 'score it against the private solution of a local competition' \
	  report 'all results on one page' submit 'submit once, wait for the score' tune 'search hyperparameters' runs 'list what was trained' \
	  kernel "train on Kaggle's TPU" predict-folder 'predict new images into a CSV file (FOLDER=new_photos OUT=predictions.csv)' \
	  'export serve' 'the result as ONNX or SavedModel, and a page to drop photos on' help-all 'every verb and variable' | $(call FIT,18)
	@$(QUIET) printf '\nPARAMS=FILE selects parameters, SET="train.epochs=3" overrides them, FORCE=1 computes again, DEBUG=1 shows tracebacks\n' | $(call FIT,2)

help-all: ## this page
	@$(QUIET) printf 'goldfold: from download to a submission that can be trusted\n\n  make download train predict\n'
	@$(QUIET) awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## / {printf "  %-20s %s\n", $$1, $$2}' $(MAKEFILE_LIST) | $(call FIT,23)
	@$(QUIET) printf '\nVariables\n'
	@$(QUIET) printf '  %-28s %s\n' 'PARAMS=recipes/x.yaml' 'another parameter file' 'SET="train.epochs=3"' 'override parameters, separated by spaces' \
	  'MEMBER=cnn FOLD=2' 'only that fold model' 'WORKERS=4' 'processes that run trials of one study' 'RUN=cnn@1a2b3c4d' 'a run listed by `make runs`' 'TRIAL=cnn:7' 'a trial of a study' \
	  'FORCE=1' 'compute again although the result is current' \
	  'HOURS=0.5 BUDGET=good' 'train, predict: choose and train members within this time (docs/budget.md); quick, good, best: 0.1, 1, 8 hours' 'CLUSTER=auto' 'train, predict, tune: on the machines of this Ray cluster (docs/cluster.md)' 'MACHINES=4' 'plan: training on as many machines' \
	  'AGAIN=1' 'submit the same file, or push a kernel, again' 'FILE=3f8c' 'submit or grade this submission instead of that of the current parameters' \
	  'A=3f8c B=91aa' 'the two submissions of compare-submissions, or blends of compare-blends, by their first digits' \
	  'ALLOW_PARTIAL=1' 'predict although fold models are missing (marked in the submission)' \
	  'TOPOLOGY=v5e-8 MODE=quick' 'the TPU of preflight and plan; compile, quick or ops' 'BACKEND=jax' 'preflight: the backend' 'PAIR=kaggle' 'preflight: compile with the jax and libtpu of Kaggle'"'"'s TPU image' \
	  'SEEDS=3 TOP=50' 'number of seeds of noise; rows of leaderboard' 'EXPLAIN="error text"' 'doctor: explain this error' \
	  'SOURCE=photos TARGET=shards' 'convert: from and to, local or gs://' \
	  'FOLDER=new_photos OUT=out.csv' 'predict-folder: the images, and the file of their predictions' 'FORMAT=onnx ENGINE=onnx' 'format to export, runtime to serve with' 'ADDRESS=127.0.0.1:8501' 'where the server listens' \
	  'KILLS=50 FUZZ_SECONDS=600' 'kills of make soak; time of make fuzz for each reader' 'ONLY=memory TORCH=python' 'benchmarks: one of them; a Python that has torch and timm' 'VERBOSE=1' 'the tables behind the summary: gains, views, what each member is worth; speeds' \
	  'DEBUG=1 DEBUG_ROWS=64' 'eager, few rows, numeric checks, tracebacks, pictures' 'EXTRA=gpu' 'which TensorFlow to install: cpu, gpu, tpu' \
	  'PYTHON=python3.12 BIN=bin' 'the Python that makes .venv; another folder of commands than .venv/bin' | $(call FIT,31)

# pip's list of packages as one line that counts them, where a terminal shows it; its errors are on stderr.
PIP = -u -m pip install --disable-pip-version-check --progress-bar off
COUNTED = { n=0; while read -r what package _; do case $$what in Collecting) n=$$((n + 1)); \
    if [ -t 1 ]; then printf '\r\033[K  package %d: %s' $$n "$${package%%[^A-Za-z0-9._-]*}"; fi ;; \
  Installing) if [ -t 1 ]; then printf '\r\033[K'; fi; if [ $$n -gt 0 ]; then echo "  packages to unpack: $$n"; fi ;; esac; done; }

# pip's own marker is the last line of each recipe, so a killed installation is done again.
$(BIN)/.ready: pyproject.toml constraints.txt
	@test -x $(BIN_PYTHON) || "$$GOLDFOLD_PYTHON" -m venv .venv
	@echo "installing goldfold's packages into .venv (once; a minute or two)"
	@$(BIN_PYTHON) $(PIP) -c constraints.txt -e ".[$$GOLDFOLD_EXTRA]" | $(COUNTED)
	@touch $@

# Apache Beam's pins exclude this project's protobuf, Pillow and dateutil, so it gets an environment without TensorFlow.
.venv/beam/.ready: requirements-beam.txt
	@test -x .venv/beam/bin/python || "$$GOLDFOLD_PYTHON" -m venv .venv/beam
	@echo "installing Apache Beam into .venv/beam (once; a minute or two)"
	@.venv/beam/bin/python $(PIP) -r requirements-beam.txt | $(COUNTED)
	@touch $@

# The jax and libtpu of Kaggle's TPU image, which do not go into one environment with the newest.
.venv/preflight-kaggle/.ready: requirements-kaggle-tpu.txt
	@test -x .venv/preflight-kaggle/bin/python || "$$GOLDFOLD_PYTHON" -m venv .venv/preflight-kaggle
	@echo "installing the packages of Kaggle's TPU image into .venv/preflight-kaggle (once; two minutes)"
	@.venv/preflight-kaggle/bin/python $(PIP) -r requirements-kaggle-tpu.txt filelock ruamel.yaml | $(COUNTED)
	@touch $@

$(BIN)/.ready-fuzz: $(BIN)/.ready-dev
	@$(BIN_PYTHON) $(PIP) -c constraints.txt -e ".[$$GOLDFOLD_EXTRA,dev,fuzz]" | $(COUNTED)
	@touch $@

# An installation takes minutes: a server without an export says so before.
$(patsubst %,$(BIN)/.ready-%,labels preflight onnx serve dashboard cluster): $(BIN)/.ready
	@$(if $(filter %-serve,$@),$(call GOLDFOLD,serve --check))
	@$(BIN_PYTHON) $(PIP) -c constraints.txt -e ".[$$GOLDFOLD_EXTRA,$(patsubst .ready-%,%,$(notdir $@))]" | $(COUNTED)
	@touch $@

$(BIN)/.ready-dev: $(BIN)/.ready
	@$(BIN_PYTHON) $(PIP) -c constraints.txt -e ".[$$GOLDFOLD_EXTRA,labels,onnx,serve,cluster,dashboard,databases,samplers,docs,dev]" | $(COUNTED)
	@touch $@

.PHONY: predict-folder main-job test-secrets test-kaggle-image test-cluster dashboard test-long export serve convert beam test-beam runs adopt prune preflight plan test-preflight download train predict submit kernel kernel-status kernel-log quota leaderboard bucket submissions compare-submissions doctor prepare resolve budget tune blend folds grade list-blends compare-blends bench noise report grad-cam label-issues docs test benchmarks soak fuzz test-oldest clean fresh help help-all
