"""``python -m aaa`` is the ``aaa`` command."""

from __future__ import annotations

from aaa.cli import main

if __name__ == "__main__":
    main()
