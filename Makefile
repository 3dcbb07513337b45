# Every target sets up what it needs first; only Python 3.11 or newer, pip and a C compiler have to be there.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
RIVALS := .venv-bench
FUZZER := .venv-fuzz
SPHINX := .venv-docs
JOBS ?= 3
PYTEST_FLAGS ?=
FUZZ_SECONDS ?= 60
FUZZ_TARGETS ?=
FUZZ_FRESH ?=
SEEDS ?= 0:1000
INCIDENTS ?= 60
MUTANTS ?= 200
SEED ?= 1
DEMO := build/demo
SITE := build/site
ROWS ?= 50000000
FREE_THREADED ?=
DEBUGGED ?= tests/codec
TSAN_ROUNDS ?= 20
PYTHONS ?= 3.12 3.13 3.14
DEBIAN ?= bookworm
SPARKS ?= 3.5 4.0 4.1 4.2
ROUNDS ?= 1000
SANITIZED ?= tests/codec tests/fuzz
QUICK ?=
PUBLISH ?=
OLD ?=

# command:packages of Debian
PEERS := tshark:tshark javac:default-jdk-headless mvn:maven node:nodejs npm:npm go:golang-go chromium:chromium+fonts-dejavu-core chromedriver:chromium-driver zsh:zsh fish:fish mandoc:mandoc

# SIGKILL leaves what a step has half made. So each step removes its mark before it begins and makes it last; a step that
# finds no mark makes everything anew.
MADE := $(VENV)/.made
# Of the native modules, those of this Python: `make test PYTHON=... VENV=...` has its own beside them.
FORGET = rm -rf build/cython kcoord_wire/_*"$$($(1) -c 'import sysconfig; print(sysconfig.get_config_var("SOABI"))').so"
SPEEDUPS := $(wildcard _speedups/*.h _speedups/*/*.pyx _speedups/*/*.pxd _speedups/*/*.pxi _speedups/*/*.h)
INSTALLED := $(VENV)/.installed
NATIVE := $(VENV)/.native
PYTEST := $(PY) -m pytest -n $(JOBS) --dist loadgroup $(PYTEST_FLAGS)
# What needs other people's programs, or builds and installs ours.
OUTSIDE := tests/interop tests/bench tests/typing tests/test_packaging.py
SUITE := tests $(addprefix --ignore=,$(OUTSIDE))

# What `make check` leaves out besides the tests marked `slow`: what starts processes, Spark or clients, and what draws
# thousands of inputs. Whole files, so that they are not even collected.
SLOW := tests/assignors/test_assignors.py tests/assignors/test_check.py tests/assignors/test_sticky.py
SLOW += tests/central/test_client.py tests/central/test_delivery.py tests/central/test_ensemble.py
SLOW += tests/central/test_hostile.py tests/central/test_hostile_coordinators.py tests/cli/test_analyze.py
SLOW += tests/cli/test_demo.py tests/cli/test_central.py tests/cli/test_control.py tests/cli/test_marshal.py tests/cli/test_marshal_admin.py
SLOW += tests/cli/test_rolling_bounce.py tests/cli/test_serve.py tests/codec/test_collector.py
SLOW += tests/codec/test_columns.py tests/codec/test_columns_hostile.py tests/codec/test_columns_parity.py
SLOW += tests/codec/test_frames.py tests/codec/test_hostile.py tests/codec/test_parity.py tests/codec/test_lazy.py
SLOW += tests/consumer/test_client.py tests/consumer/test_faults.py tests/consumer/test_hostile.py
SLOW += tests/consumer/test_membership.py tests/consumer/test_virtual_time.py tests/coordinator/test_clients.py
SLOW += tests/coordinator/test_crash.py tests/coordinator/test_security_clients.py
SLOW += tests/coordinator/test_socket_hostile.py tests/coordinator/test_store.py tests/forensics/exchanges
SLOW += tests/forensics/records tests/forensics/sources/test_corrupt.py tests/forensics/test_damage_alone.py
SLOW += tests/forensics/test_incidents.py tests/forensics/wire/test_history.py tests/fuzz tests/incidents
SLOW += tests/kernel/virtual tests/marshal/test_client.py tests/marshal/test_delivery.py
SLOW += tests/marshal/test_file_log.py tests/marshal/test_kafka_log.py tests/marshal/test_log.py
SLOW += tests/marshal/test_admin.py tests/marshal/test_topics.py tests/recorder/test_proxy.py
SLOW += tests/recorder/test_recording.py tests/records/test_compression.py tests/records/test_decoding.py
SLOW += tests/records/test_properties.py tests/report/test_charts.py tests/report/test_data.py
SLOW += tests/report/test_document.py tests/report/test_json_form.py tests/spark tests/test_documents.py tests/truth
SLOW += tests/mutants tests/worlds tests/zookeeper/test_registry.py
SLOW += tests/zookeeper/test_contract.py tests/zookeeper/test_elections.py

# What runs once more with the pure codec: `kw.encode`, `kw.decode` and the registry use one codec per process. The other
# tests of the codec have both in one process; everything else sees messages, never bytes, and cannot tell them apart.
PURE := tests/codec/test_registry.py tests/codec/test_frames.py tests/codec/test_lazy.py tests/coordinator/test_api_codec.py
PURE += tests/recorder/test_recording.py

# What the tests of the codec need on another Python, beside the package.
OTHER_PYTHON := 'cython>=3.1,<4' 'setuptools>=77,<90' pytest pyarrow

# Of `make interop`, what runs dozens of clients at once, with sessions of ten seconds: nothing else runs beside it.
CROWDED := tests/interop/test_explain_situations.py tests/interop/test_incidents.py

# Maven runs for a few seconds, a dozen times in `make interop`: two thirds of the processor time without optimising itself.
export MAVEN_OPTS ?= -XX:TieredStopAtLevel=1 -XX:+UseSerialGC

# pytest rewrites the asserts of every test module; without its cache each worker does so at each start (10 s).
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup native run check test proof lint simulate mutants truth incidents bench bench-assignors bench-peers bench-old bench-scale bench-size bench-central run-central run-rewrite docs fuzz interop clients crowded short peers sanitize pythons release sparks free-threaded thread-sanitizer debug-python pyz image regen clean
.DELETE_ON_ERROR:

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

setup: $(INSTALLED) $(NATIVE) ## create .venv, install the package into it, build the native module
	@$(PY) -c 'import kcoord_wire; print("kcoord_wire is ready:", kcoord_wire.backend, "codec")'

$(MADE):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "kcoord_wire needs Python 3.11 or newer; name one: make PYTHON=...")'
	test -e $(INSTALLED) || { rm -rf $(VENV) && $(call FORGET,$(PYTHON)) && $(PYTHON) -m venv $(VENV); }
	@touch $@

$(INSTALLED): pyproject.toml | $(MADE)
	@rm -f $@ $(NATIVE) $(MADE)
	KCOORD_WIRE_REQUIRE_NATIVE=1 $(PY) -m pip install --quiet --disable-pip-version-check --editable '.[dev]' || { touch $(MADE); false; }
	@touch $(MADE) $(NATIVE) $@

$(NATIVE): setup.py $(SPEEDUPS) | $(INSTALLED)
	@test -e $@ || $(call FORGET,$(PY))
	@rm -f $@
	KCOORD_WIRE_REQUIRE_NATIVE=1 $(PY) setup.py --quiet build_ext --inplace
	@touch $@

native: $(NATIVE) ## build the native module anew where its sources have changed

run: setup ## two groups of real clients on our coordinator, recorded, and why they rebalanced: terminal and report
	$(VENV)/bin/kcoord demo --out $(DEMO)

run-central: setup ## the 0.8 draft on three ZooKeeper nodes: two brokers, three consumers; one coordinator is killed, one cut off
	$(PY) -m tests.demo.central

run-rewrite: setup ## the same with the 0.9 rewrite, whose group is read from ZooKeeper by each next coordinator
	$(PY) -m tests.demo.central rewrite

check: lint ## lint, types, freshness of generated files, and the fast tests: a minute
	KCOORD_WIRE_EXAMPLES=10 $(PYTEST) --dist worksteal $(SUITE) $(addprefix --ignore=,$(SLOW)) -m 'not slow' --quiet

test: lint ## the verdict on a change: lint, the whole suite, and again with the pure codec what can tell the codecs apart
	KCOORD_WIRE_BACKEND=native $(PYTEST) $(SUITE)
	KCOORD_WIRE_BACKEND=python $(PYTEST) $(PURE)

proof: setup ## the long proofs at full size: kills, faults of real clusters, steps and members of simulations, random inputs
	KCOORD_WIRE_DRAWS=random KCOORD_WIRE_EXAMPLES=1000 $(PYTEST) $(SUITE) -m hypothesis -o faulthandler_timeout=7260
	KCOORD_WIRE_DAMAGED=1000000 $(PYTEST) tests/codec/test_leaks.py -o faulthandler_timeout=1860
	$(MAKE) debug-python thread-sanitizer
	KCOORD_WIRE_FAULT_ROUNDS=100 KCOORD_WIRE_KILLS=200 KCOORD_WIRE_STEPS=1000000 KCOORD_WIRE_MEMBERS=10000 KCOORD_WIRE_SEARCH=1 \
	$(PYTEST) tests/central/test_ensemble.py tests/coordinator/test_crash.py tests/coordinator/test_power_loss.py tests/kernel/virtual tests/worlds tests/assignors -o faulthandler_timeout=7260

lint: setup ## ruff, mypy, and whether the generated files are those that the schemas give
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(PY) -m kcoord_wire.schema.generate --check

simulate: setup ## random schedules of faults on the virtual cluster (SEEDS=FIRST:END, without END)
	$(VENV)/bin/kcoord simulate --seeds $(SEEDS)

mutants: setup ## changes of the pure machines, MUTANTS of them drawn by SEED, and what the laws and the tests do not notice
	$(PY) -m tests.mutants --mutants $(MUTANTS) --seed $(SEED)

truth: setup ## how often the causes agree with the coordinator's own account, over hundreds of labelled scenarios
	$(PY) -m tests.truth --write

incidents: setup peers ## incidents on real brokers with real clients and faults, made anew, and what the report says first of each
	$(PY) -m tests.incidents --make
	$(PY) -m tests.incidents --write

drawn: setup peers ## incidents that a seed draws (INCIDENTS, SEED), made on real brokers by root, and what the report says of them
	$(PY) -m tests.incidents --draw $(INCIDENTS) --seed $(SEED) --into build/drawn
	$(PY) -m tests.incidents --drawn build/drawn

bench: setup $(RIVALS)/.installed ## the codec next to other libraries and in kafka-python, the column decoder, the recorder
	$(RIVALS)/bin/python -m tests.bench codec $(QUICK)
	$(RIVALS)/bin/python -m tests.bench frames $(QUICK)
	$(PY) -m tests.bench lazy $(QUICK)
	$(PY) -m tests.bench columns $(QUICK)
	$(PY) -m tests.bench record $(QUICK)
	$(PY) -m tests.bench embedding $(QUICK)
	$(PY) -m tests.bench.page

bench-peers: setup peers ## the codec next to kafka-clients and franz-go, processor time
	$(PY) -m tests.bench compiled $(QUICK)
	$(PY) -m tests.bench.page

bench-old: setup ## this checkout next to another (OLD=PATH, its native modules built): mixes of messages in one process, and other Pythons
	$(PY) -m tests.bench mix $(if $(OLD),--old $(OLD)) $(QUICK)
	$(PY) -m tests.bench pythons $(if $(OLD),--old $(OLD)) $(QUICK)
	$(PY) -m tests.bench.page

bench-size: setup ## ROWS frames (50 million) through Spark to Parquet, and archives of captures analysed; needs 20 GB of disk
	$(PY) -m tests.bench spark --rows $(ROWS) --variants floor flat-nowhere flat files converted plain
	$(PY) -m tests.bench archive
	$(PY) -m tests.bench driver
	$(PY) -m tests.bench live
	$(PY) -m tests.bench flows
	$(PY) -m tests.bench group
	$(PY) -m tests.bench skew
	$(PY) -m tests.bench.page

bench-scale: setup ## the coordinator with thousands of members, next to Kafka's broker and librdkafka's mock cluster
	$(PY) -m tests.bench scale
	$(PY) -m tests.bench many
	$(PY) -m tests.bench.page

bench-central: setup ## the 0.8 draft's coordinator with 500 to 20,000 consumers on sockets and a real ZooKeeper
	$(PY) -m tests.bench central --group-size 500

bench-assignors: setup peers ## the assignors next to kafka-clients and franz-go, processor time
	$(PY) -m tests.bench assignors
	$(PY) -m tests.bench.page

$(RIVALS)/.installed: tests/bench/requirements.txt | $(MADE)
	$(PY) -m venv --clear $(RIVALS)
	$(RIVALS)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	@touch $@

fuzz: setup $(FUZZER)/.installed ## every fuzz target (or FUZZ_TARGETS), FUZZ_SECONDS each (60); FUZZ_FRESH=1 forgets what earlier runs have kept
	$(FUZZER)/bin/python -m fuzz $(FUZZ_TARGETS) --seconds $(FUZZ_SECONDS) $(if $(FUZZ_FRESH),--fresh)

$(FUZZER)/.installed: fuzz/requirements.txt | $(MADE)
	$(PY) -m venv --clear $(FUZZER)
	$(FUZZER)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	@touch $@

docs: setup $(SPHINX)/.installed ## the site: pages, every message, the public names; SITE (build/site), opened by `kcoord docs`
	$(PY) -m docs.website $(SITE).sources
	$(SPHINX)/bin/python -m sphinx -q -W --keep-going -c docs/website -d $(SITE).doctrees $(SITE).sources $(SITE)
	$(PY) -m docs.website.check $(SITE)

# The packages of .venv are behind its own, so that the docstrings of all rooms can be read.
$(SPHINX)/.installed: docs/website/requirements.txt | $(MADE)
	$(PY) -m venv --clear $(SPHINX)
	$(SPHINX)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	$(PY) -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
		> "$$($(SPHINX)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/packages.pth"
	@touch $@

interop: clients crowded short ## other implementations: brokers, clients, dissectors, type checkers, pip; installs what is missing

clients: setup peers
	$(PYTEST) --no-loadscope-reorder $(OUTSIDE) $(addprefix --ignore=,$(CROWDED)) -o faulthandler_timeout=1860

crowded: setup peers
	$(PY) -m pytest $(CROWDED) $(PYTEST_FLAGS) -o faulthandler_timeout=1860

short: setup # what nothing else runs rots: the other targets, each in its shortest form
	$(MAKE) fuzz FUZZ_SECONDS=2
	$(MAKE) bench bench-peers bench-old QUICK='--quick --out build/quick'
	$(MAKE) sanitize SANITIZED=tests/codec/test_native.py
	$(MAKE) free-threaded ROUNDS=10

peers: # installs what is missing of them
	@missing=; for pair in $(PEERS); do command -v $${pair%%:*} >/dev/null || missing="$$missing $$(echo $${pair##*:} | tr + " ")"; done; \
	if [ -n "$$missing" ]; then \
		sudo=; [ "$$(id -u)" = 0 ] || sudo=sudo; \
		$$sudo apt-get -o Acquire::Retries=3 update -qq && DEBIAN_FRONTEND=noninteractive $$sudo apt-get -o Acquire::Retries=3 install -qq -y --no-install-recommends $$missing; fi

pyz: setup ## build/kcoord.pyz: kcoord serve, analyze and watch with all that they need as one file, for this Python
	rm -rf build/pyz
	$(PYTHON) -m venv build/pyz/shiv
	build/pyz/shiv/bin/python -m pip install --quiet --disable-pip-version-check 'shiv>=1,<2'
	KCOORD_WIRE_REQUIRE_NATIVE=1 $(PY) -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir build/pyz .
	build/pyz/shiv/bin/shiv --quiet --compressed --console-script kcoord --python '/usr/bin/env python3' \
		--output-file build/kcoord.pyz "$$(echo build/pyz/*.whl)[serve,analyze,kafka]"
	SHIV_ROOT=build/pyz/root $(PYTHON) -I build/kcoord.pyz --version

# Native modules are for one Python, so it has to be the one of DEBIAN. They are unpacked and compiled beforehand: a
# container would do it at each start, and cannot with a file system that is read only.
image: export SOURCE_DATE_EPOCH = $(shell git log -1 --format=%ct)
image: pyz ## build/kcoord-image.tar: that program and Debian's Python as an OCI image (mmdebstrap, umoci), for PYTHON of DEBIAN
	rm -rf build/image && mkdir -p build/image/local/bin build/image/local/lib/python3
	mv build/pyz/root/*/site-packages build/image/local/lib/python3/dist-packages
	cd build/image/local/lib && rm -rf python3/dist-packages/bin python3/dist-packages/*.dist-info/direct_url.json && \
	mv python3 "python$$($(CURDIR)/$(PY) -c 'import sysconfig; print(sysconfig.get_python_version())')"
	printf '%s\n' '#!/usr/bin/python3 -I' 'from kcoord_wire.cli.main import main' 'raise SystemExit(main())' > build/image/local/bin/kcoord
	chmod 755 build/image/local/bin/kcoord
	mmdebstrap --quiet --variant=essential --include=python3,libstdc++6,ca-certificates,tzdata \
		--dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
		--dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
		--customize-hook='sync-in build/image/local /usr/local' \
		--customize-hook='chroot "$$1" chown -R 0:0 /usr/local' \
		--customize-hook='chroot "$$1" python3 -m compileall -q -f --invalidation-mode unchecked-hash /usr/local/lib' \
		--customize-hook='echo kcoord:x:9092: >> "$$1/etc/group"; echo kcoord:x:9092:9092::/data:/usr/sbin/nologin >> "$$1/etc/passwd"' \
		--customize-hook='install -d -o 9092 -g 9092 "$$1/data"' \
		--customize-hook='HOME=/data KCOORD_WIRE_BACKEND=native chroot --userspec=9092:9092 "$$1" /usr/local/bin/kcoord doctor serve analyze kafka' \
		$(DEBIAN) build/image/layer.tar
	umoci init --layout build/image/layout
	umoci new --image build/image/layout:kcoord
	umoci raw add-layer --image build/image/layout:kcoord --history.created "$$(date -u -d @$$SOURCE_DATE_EPOCH +%FT%TZ)" build/image/layer.tar
	umoci config --image build/image/layout:kcoord --no-history --created "$$(date -u -d @$$SOURCE_DATE_EPOCH +%FT%TZ)" \
		--config.user 9092:9092 --config.workingdir /data --config.volume /data --config.exposedports 9092/tcp \
		--config.env HOME=/data --config.env PATH=/usr/local/bin:/usr/bin:/bin \
		--config.entrypoint kcoord --config.cmd serve --config.cmd --host --config.cmd 0.0.0.0 \
		--config.label org.opencontainers.image.title=kcoord --config.label org.opencontainers.image.licenses=Apache-2.0 \
		--config.label org.opencontainers.image.version="$$($(PY) -c 'import kcoord_wire; print(kcoord_wire.__version__)')" \
		--config.label org.opencontainers.image.revision="$$(git rev-parse HEAD)"
	umoci gc --layout build/image/layout
	tar --sort=name --mtime=@$$SOURCE_DATE_EPOCH --owner=0 --group=0 --numeric-owner -C build/image/layout -cf build/kcoord-image.tar .

sanitize: setup ## the codec's tests on a native module built with the address and undefined-behaviour sanitizers
	KCOORD_WIRE_REQUIRE_NATIVE=1 KCOORD_WIRE_SANITIZE=address $(PY) setup.py --quiet build --build-base build/sanitize --build-lib build/sanitize/lib
	LD_PRELOAD="$$(cc -print-file-name=libasan.so)" ASAN_OPTIONS=detect_leaks=0 PYTHONMALLOC=malloc \
	PYTHONPATH=build/sanitize/lib:. PYTHONSAFEPATH=1 KCOORD_WIRE_BACKEND=native \
	$(PY) -P -m pytest $(SANITIZED)

pythons: setup peers ## the codec's tests on wheels for other versions of CPython (PYTHONS), fetched or compiled once
	KCOORD_WIRE_PYTHONS='$(PYTHONS)' $(PY) -m pytest tests/test_packaging.py -k another_python -o faulthandler_timeout=1860

release: setup ## what a release consists of, built and checked in build/release: sdist, wheels (PYTHONS), extras, licences, sums
	$(PY) -m tests.release $(PYTHONS) $(if $(PUBLISH),--publish)

sparks: setup ## tests/spark with other versions of Spark (SPARKS), each in an environment of its own
	for version in $(SPARKS); do \
		python="$$($(PY) -m tests.support.sparks $$version)" && "$$python" -m pytest tests/spark || exit 1; \
	done

debug-python: setup ## the codec's tests on a CPython that asserts and counts references (DEBUGGED: which tests), compiled once
	python="$$($(PY) -m tests.support.pythons 3.13d)" && "$$python" -m venv build/debug-python
	build/debug-python/bin/python -m pip install --quiet --disable-pip-version-check --only-binary :all: $(OTHER_PYTHON) construct hypothesis kazoo
	KCOORD_WIRE_REQUIRE_NATIVE=1 build/debug-python/bin/python setup.py --quiet build --build-base build/debug-python/build --build-lib build/debug-python/lib
	PYTHONPATH=build/debug-python/lib:. PYTHONSAFEPATH=1 KCOORD_WIRE_BACKEND=native \
	build/debug-python/bin/python -P -m pytest $(DEBUGGED)

free-threaded: setup ## the codec in threads on a Python without a GIL (FREE_THREADED=PATH; else found, or compiled once): a hammer for races, and how it scales
	python='$(FREE_THREADED)'; [ -n "$$python" ] || python="$$($(PY) -m tests.support.pythons 3.14t 3.13t)" && \
	"$$python" -c 'import sys; sys.exit(sys._is_gil_enabled() and "this Python has a GIL; name one: make free-threaded FREE_THREADED=...")' && \
	"$$python" -m venv --clear build/free-threaded
	build/free-threaded/bin/python -m pip install --quiet --disable-pip-version-check --only-binary :all: $(OTHER_PYTHON)
	KCOORD_WIRE_REQUIRE_NATIVE=1 build/free-threaded/bin/python setup.py --quiet build --build-base build/free-threaded/build --build-lib build/free-threaded/lib
	PYTHONPATH=build/free-threaded/lib:. KCOORD_WIRE_BACKEND=native KCOORD_WIRE_ROUNDS=$(ROUNDS) \
	build/free-threaded/bin/python -P -m pytest --confcutdir=tests/codec tests/codec/test_threads.py
	PYTHONPATH=build/free-threaded/lib:. build/free-threaded/bin/python -P -m tests.bench.threads

thread-sanitizer: setup ## the same hammer under ThreadSanitizer, on a Python without a GIL that is compiled for it once
	python="$$($(PY) -m tests.support.pythons 3.13t)" && "$$python" -m venv build/thread-sanitizer
	build/thread-sanitizer/bin/python -m pip install --quiet --disable-pip-version-check --only-binary :all: $(OTHER_PYTHON)
	KCOORD_WIRE_REQUIRE_NATIVE=1 KCOORD_WIRE_SANITIZE=thread build/thread-sanitizer/bin/python setup.py --quiet build --build-base build/thread-sanitizer/build --build-lib build/thread-sanitizer/lib
	python="$$($(PY) -m tests.support.pythons 3.13t+tsan)" && \
	packages="$$(build/thread-sanitizer/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" && \
	{ cat "$${python%/bin/python3}/suppressions.txt"; echo called_from_lib:libarrow.so; } > build/thread-sanitizer/suppressions && \
	TSAN_OPTIONS=suppressions=build/thread-sanitizer/suppressions \
	PYTHONPATH="build/thread-sanitizer/lib:.:$$packages" KCOORD_WIRE_BACKEND=native KCOORD_WIRE_ROUNDS=$(TSAN_ROUNDS) \
	"$$python" -P -m pytest --capture=no --confcutdir=tests/codec tests/codec/test_threads.py

regen: setup ## write the generated files anew from schemas/
	$(PY) -m kcoord_wire.schema.generate

clean: ## remove .venv and everything built
	rm -rf $(VENV) $(RIVALS) $(FUZZER) $(SPHINX) build dist *.egg-info kcoord_wire/_*.so .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find kcoord_wire tests fuzz -name __pycache__ -type d -prune -exec rm -rf {} +
