"""No loss of power, and no kill, takes away what was promised, whatever it leaves of writes without an fsync."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from kcoord_wire.coordinator.partitions import journal
from kcoord_wire.coordinator.topics.catalog import Catalog
from kcoord_wire.kernel.virtual.disk import VirtualFile, VirtualFolder
from kcoord_wire.kernel.virtual.power import Image, losses
from kcoord_wire.log.tail import CorruptLogError
from tests.support.power_losses import SCENARIOS, check

IS_PROOF = "KCOORD_WIRE_STEPS" in os.environ  # `make proof`


@pytest.mark.parametrize("name", SCENARIOS)
def test_what_was_promised_outlasts_every_loss_of_power(name: str) -> None:
    scenario = SCENARIOS[name]
    short = (500, None) if name == "topics" else (61, 1_000)
    found = check(scenario, *(scenario.strides if IS_PROOF else short))
    assert found.operations > 10
    assert found.first > 80


def without_names(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(VirtualFolder, "sync_names", lambda folder: None)


def without_bytes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(VirtualFile, "sync", lambda file: None)


def without_gaps(patch: pytest.MonkeyPatch) -> None:
    """Take each whole line behind a gap for a sign of other damage."""
    patch.setattr(journal, "_is_from_crash", lambda lines, position: not any(map(journal._is_whole, lines)))


def without_removal(patch: pytest.MonkeyPatch) -> None:
    """Do not make the removal of a topic's files durable."""
    patch.setattr(Catalog, "_remove", lambda catalog, logs: [log.remove() for log in logs])


@pytest.mark.parametrize(
    ("name", "plant"),
    [
        ("groups", without_names),
        ("groups", without_bytes),
        ("journal", without_names),
        ("journal", without_bytes),
        ("journal", without_gaps),
        ("topics", without_removal),
    ],
)
def test_a_promise_without_fsync_is_found(
    name: str, plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, CorruptLogError)):
        check(SCENARIOS[name], 500)


def test_each_length_of_a_write_and_each_lost_sector_is_tried() -> None:
    def play(disk: VirtualFolder, _: object) -> None:
        disk.sync_names()
        disk.open("a").append(b"x" * 4)

    lengths = {dict(loss.image.files).get("a") for loss in losses(play, Image(), stride=1, kills=False)}
    lost = {filler * size for filler in (b"\0", b"\xa5") for size in range(1, 5)}
    assert lengths == {None, b"", *(b"x" * size for size in range(1, 5)), *lost}


def test_a_kill_leaves_what_was_written_and_a_part_of_more() -> None:
    def play(disk: VirtualFolder, _: object) -> None:
        disk.open("a").append(b"12")
        disk.rename("a", "b")

    start = Image((("kept", b"old"),))
    kills = {loss.image.files for loss in losses(play, start, stride=1) if loss.ledger.is_kill}
    old = ("kept", b"old")
    assert kills == {(old,), (("a", b""), old), (("a", b"1"), old), (("a", b"12"), old), (("b", b"12"), old)}
