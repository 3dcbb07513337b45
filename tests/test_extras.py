"""What is said where the library of an extra is missing, also in a process of a pool."""

from __future__ import annotations

import pickle

import pytest

from kcoord_wire.extras import MissingLibraryError, require


def test_the_missing_library_is_named_in_every_process() -> None:
    """A pool waits for ever for an exception that cannot be read again."""
    with pytest.raises(MissingLibraryError) as raised:
        require("not_installed", "records", "snappy")
    copied = pickle.loads(pickle.dumps(raised.value))
    assert type(copied) is MissingLibraryError
    assert (copied.name, str(copied)) == (
        "not_installed",
        "snappy needs not_installed: pip install 'kcoord_wire[records]'",
    )
    assert str(copied) == str(raised.value)
