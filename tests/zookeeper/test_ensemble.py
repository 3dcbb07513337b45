"""Real servers: they start, fail over and stop, and say what is missing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kcoord_wire.extras import MissingLibraryError
from kcoord_wire.zookeeper import ensemble as ensemble_module
from kcoord_wire.zookeeper.ensemble import Ensemble, EnsembleError
from tests.support.waiting import eventually

SECONDS = 60.0


def is_running(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@pytest.mark.slow
def test_three_nodes_elect_another_leader_and_stop() -> None:
    with Ensemble(3) as ensemble:
        assert sorted(str(node.mode) for node in ensemble.nodes) == ["follower", "follower", "leader"]
        assert ensemble.connect.count("127.0.0.1:") == 3
        first = ensemble.leader
        assert first is not None
        first.kill()
        eventually(lambda: ensemble.leader)
        assert (first.pid, first.mode) == (None, None)
        first.start()
        eventually(lambda: first.mode == "follower")
        second = ensemble.leader
        assert second is not None
        second.pause()
        eventually(lambda: ensemble.leader not in (None, second))
        pids = [pid for node in ensemble.nodes if (pid := node.pid) is not None]
        folder = Path(f"/proc/{pids[0]}/cwd").resolve().parent
        assert len(pids) == 3
    assert not any(is_running(pid) for pid in pids), "the paused one, too"
    assert not folder.exists()


def test_nodes_that_end_at_once_are_an_error_with_their_log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho no such option >&2\nexit 1\n")
    java.chmod(0o755)
    (tmp_path / "release").write_text('JAVA_VERSION="17"\n')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr(ensemble_module.tempfile, "tempdir", str(tmp_path))
    with pytest.raises(EnsembleError, match="no such option"):
        Ensemble(3).start()
    assert sorted(os.listdir(tmp_path)) == ["bin", "release"]


def test_without_pyspark_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ensemble_module, "find_spec", lambda name: None)
    with pytest.raises(MissingLibraryError, match=r"pyspark's jars, needs pyspark: pip install 'kcoord_wire\[spark\]'"):
        Ensemble().start()


def test_an_even_number_of_nodes_is_refused() -> None:
    with pytest.raises(ValueError, match="an odd number of nodes, not 2"):
        Ensemble(2)
