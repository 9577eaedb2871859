"""Manifests: AgentRun, ToolPolicy and ToolDecision, read the same way everywhere.

The models are the source of the cluster's definitions and of what a laptop accepts.

- :mod:`aaa.manifest.load`: YAML text into models; every error names file, line and field.
- :mod:`aaa.manifest.nodes`: YAML as the API server reads it; what others read differently is
  refused.
- :mod:`aaa.manifest.agentrun`, :mod:`aaa.manifest.toolpolicy`, :mod:`aaa.manifest.tooldecision`:
  one kind each.
"""

from __future__ import annotations

from aaa.manifest.agentrun import AgentRun
from aaa.manifest.base import API_VERSION, Resource, Source
from aaa.manifest.load import KINDS, Manifest, load_manifests, parse_manifest
from aaa.manifest.metadata import LabelSelector, Metadata
from aaa.manifest.problems import ManifestErrors
from aaa.manifest.tooldecision import ToolDecision
from aaa.manifest.toolpolicy import ToolPolicy

__all__ = [
    "API_VERSION",
    "KINDS",
    "AgentRun",
    "LabelSelector",
    "Manifest",
    "ManifestErrors",
    "Metadata",
    "Resource",
    "Source",
    "ToolDecision",
    "ToolPolicy",
    "load_manifests",
    "parse_manifest",
]
