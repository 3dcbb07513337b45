"""The scripts of `exchanges` played once, on Kafka and on our coordinator, for all tests that look at the result."""

from __future__ import annotations

import pytest

from tests.interop.exchanges import SCRIPTS, Script
from tests.interop.exchanges.played import Played, play_scripts


@pytest.fixture(scope="session")
def played(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Played:
    """Play the scripts of the tests that are to run, or all of them if only tests of the logs are."""
    params = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    wanted = {param["script"] for param in params if isinstance(param.get("script"), Script)} or set(SCRIPTS)
    return play_scripts(wanted, tmp_path_factory.mktemp("played"))
