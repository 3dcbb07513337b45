"""What the files of this folder share: one worker runs a file, and the scripts of `exchanges` are played once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.interop.exchanges import SCRIPTS, Script
from tests.interop.exchanges.played import Played, play_scripts

LONGEST = (
    "test_sparks",
    "test_suites",
    "test_kafka_logs",
    "test_spark_kills",
    "test_report",
    "test_spark_tables",
    "test_spark_cluster",
    "test_connect",
    "test_marshal_log",
    "test_spark_kafka",
    "test_transactions",
    "test_streams",
    "test_packaging",
    "test_site",
    "test_watch",
)
"""Files that take a minute and more, longest first: a worker that began with one at the end would go on alone.

`make clients` keeps this order (``--no-loadscope-reorder``); by itself pytest-xdist begins with the files of most
tests, and those that take longest are of one test or two.
"""


@pytest.fixture(scope="session")
def played(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Played:
    """Play the scripts of the tests that are to run, or all of them if only tests of the logs are."""
    params = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    wanted = {param["script"] for param in params if isinstance(param.get("script"), Script)} or set(SCRIPTS)
    return play_scripts(wanted, tmp_path_factory.mktemp("played"))


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A browser for all tests of a file."""
    from tests.support.browser import start_browser  # selenium is not for every file

    driver = start_browser(tmp_path_factory.mktemp("profile"))
    yield driver
    driver.quit()


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of a file on one worker, for they share brokers and clients; so do all that look at `played`.

    Long tests that share nothing have groups of their own.
    """
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group("played" if "played" in fixtures else item.path.name))
    items.sort(key=lambda item: LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST))
