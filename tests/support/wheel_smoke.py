"""What an installed package has to do with nothing else installed: `python wheel_smoke.py native|python`.

A script, not a module of the tests: its folder is the first on the path, so that it sees the installed package alone.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import kcoord_wire as kw
from kcoord_wire.schema.files import schema_root


def main(backend: str) -> None:
    """Raise AssertionError or ImportError where the package, its schema files or that backend are not right."""
    home = Path(kw.__file__).parent
    assert "site-packages" in home.parts, home
    assert schema_root().is_relative_to(home), schema_root()
    assert kw.backend == backend, kw.backend
    if backend == "native":
        import_module("kcoord_wire._columns")
    request = kw.JoinGroupRequest(group_id="g", protocol_type="consumer", member_id="m" * 300)
    for version in kw.registry["JoinGroupRequest"].valid_versions:
        assert kw.decode(kw.JoinGroupRequest, kw.encode(request, version), version) == request
    frame = kw.encode_request(request, 9, correlation_id=7, client_id="c")
    header, message = kw.decode_request(frame)
    assert (header.correlation_id, message) == (7, request)
    with suppress(kw.DecodeError):
        raise SystemExit(f"a truncated frame was read as {kw.decode_request(frame[:-1])}")
    print(f"kcoord_wire {kw.__version__}: {kw.backend}, Python {sys.version.split()[0]}")


if __name__ == "__main__":
    main(*sys.argv[1:])
