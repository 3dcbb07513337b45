"""Fixtures of pytest for tests of Kafka clients: coordinators without Docker, and their accounts in failed reports.

    @pytest.mark.kcoord(topics={"orders": 12})
    def test_a_crash_is_noticed(kcoord_coordinator):
        consumer = Consumer({"bootstrap.servers": kcoord_coordinator.address, "group.id": "billing"})
        ...
        kcoord_coordinator.wait_until_stable("billing", members=2)

Laws:

* pytest loads this module in every run, so it imports nothing of ``kcoord_wire`` before a test asks for a fixture.
* A coordinator listens on a free port of the loopback, so tests may run beside each other (pytest-xdist).
* After its test a coordinator is stopped, whatever happened.
* A traceback ends at the test that has waited in vain, or given a wrong option (``__tracebackhide__``).
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from kcoord_wire.coordinator import Coordinator

__all__ = ["kcoord_coordinator", "kcoord_coordinators", "kcoord_session_coordinator", "kcoord_session_options"]


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers",
        "kcoord(topics={'orders': 12}, config={'group.max.size': 2}, **options): arguments of"
        " kcoord_wire.coordinator.Coordinator for kcoord_coordinator; a test's go before those of its class and module",
    )


@pytest.fixture
def kcoord_coordinators(request: pytest.FixtureRequest) -> Iterator[Callable[..., Coordinator]]:
    """Start as many coordinators as a test needs: a function that takes the arguments of `Coordinator`.

    Those of the test's marker are the defaults. An empty group does not wait for more members
    (``group.initial.rebalance.delay.ms=0``) unless ``config`` says so.
    """
    with _Coordinators(_marked(request.node)) as start:
        request.node.stash[_OWN] = start.started
        yield start


@pytest.fixture
def kcoord_coordinator(kcoord_coordinators: _Coordinators) -> Coordinator:
    """A coordinator for one test, with the options of the marker ``kcoord``."""
    try:
        coordinator = kcoord_coordinators.make()
    except (TypeError, ValueError) as error:
        wrong = f"the marker kcoord: {error}"
    else:
        return kcoord_coordinators.start(coordinator)
    pytest.fail(wrong, pytrace=False)


@pytest.fixture(scope="session")
def kcoord_session_options() -> dict[str, Any]:
    """The options of `kcoord_session_coordinator`; to be overridden in a ``conftest.py``."""
    return {}


@pytest.fixture(scope="session")
def kcoord_session_coordinator(kcoord_session_options: Mapping[str, Any]) -> Iterator[Coordinator]:
    """One coordinator for the whole session: each worker's own, with pytest-xdist."""
    with _Coordinators(kcoord_session_options) as start:
        yield start()


class _Coordinators(ExitStack):
    """Starts coordinators, and stops them at the end of the block.

    :param defaults: options of each
    """

    def __init__(self, defaults: Mapping[str, Any]) -> None:
        super().__init__()
        self.defaults = defaults
        self.started: list[Coordinator] = []

    def __call__(self, **options: Any) -> Coordinator:
        __tracebackhide__ = True  # a wrong option is the caller's
        return self.start(self.make(**options))

    def make(self, **options: Any) -> Coordinator:
        """Return a coordinator that is not started.

        :raises TypeError: there is no such option, or it has the wrong type
        :raises ValueError: an option has a wrong value
        """
        __tracebackhide__ = True
        from kcoord_wire.coordinator import Coordinator
        from kcoord_wire.kernel.settings import suggestion

        options = {**self.defaults, **options}
        known = list(inspect.signature(Coordinator).parameters)
        for name in options:
            if name not in known:
                raise TypeError(f"a coordinator has no option {name!r}; {suggestion(name, known)}")
        config = options.get("config") or {}
        if isinstance(config, Mapping):
            options["config"] = {"group.initial.rebalance.delay.ms": 0, **config}
        return Coordinator(**options)

    def start(self, coordinator: Coordinator) -> Coordinator:
        """Start a coordinator, until the block ends."""
        self.started.append(self.enter_context(coordinator))
        return coordinator


def _marked(node: Any) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for marker in node.iter_markers("kcoord"):  # the closest first
        if marker.args:
            raise pytest.UsageError(f"{node.nodeid}: the marker kcoord takes options by name only")
        options = {**marker.kwargs, **options}
    return options


# ---- reports

_SECTION = "groups and rebalances of kcoord_wire"
_BEGAN = pytest.StashKey[float]()
_OWN = pytest.StashKey["list[Coordinator]"]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Add groups, rebalances and faults of every coordinator among a test's fixtures to the report of its failure."""
    report = yield
    if call.when == "setup":
        item.stash[_BEGAN] = call.start
    if call.when != "teardown" and report.failed:
        texts = [_report(coordinator, item.stash[_BEGAN]) for coordinator in _coordinators(item)]
        if texts:
            report.sections.append((_SECTION, "\n\n".join(texts)))
    return report


def _coordinators(item: pytest.Item) -> list[Coordinator]:
    """Return the coordinators of a test's fixtures, also of fixtures that users wrote."""
    module = sys.modules.get("kcoord_wire.coordinator.coordinator")
    if module is None:
        return []
    of_fixtures = getattr(item, "funcargs", {}).values()
    others = [value for value in of_fixtures if isinstance(value, module.Coordinator)]
    return list(dict.fromkeys([*item.stash.get(_OWN, []), *others]))


def _report(coordinator: Coordinator, began: float) -> str:
    try:
        text = coordinator.report(since=int(began * 1000))
    except RuntimeError as error:  # the test has stopped it
        text = str(error)
    return f"{coordinator.address}\n{text}"
