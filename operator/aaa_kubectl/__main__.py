"""``python -m aaa_kubectl`` is ``kubectl aaa``."""

from __future__ import annotations

from aaa_kubectl import main

main()
