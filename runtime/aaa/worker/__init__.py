"""What a worker process has beside its engine where something looks after it, such as a cluster."""

from __future__ import annotations
