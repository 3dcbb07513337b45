"""`python -m kcoord_wire`: the command `kcoord`."""

from kcoord_wire.cli.main import main

raise SystemExit(main())
