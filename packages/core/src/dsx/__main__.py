"""``python -m dsx``: the command ``dsx`` of this very interpreter."""

from __future__ import annotations

from dsx.cli.main import main

if __name__ == "__main__":
    main()
