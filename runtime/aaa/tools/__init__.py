"""Tools: what an agent may do, how the model sees it, and how each call may be delivered."""

from aaa.policy.config import Delivery, GuardConfig
from aaa.tools.context import ToolContext
from aaa.tools.decorator import tool
from aaa.tools.definition import Tool
from aaa.tools.handler import ToolHandler
from aaa.tools.registry import ToolRegistry
from aaa.tools.result import encode_result
from aaa.tools.verify import Done, NotDone, Unknown, Verdict

__all__ = [
    "Delivery",
    "Done",
    "GuardConfig",
    "NotDone",
    "Tool",
    "ToolContext",
    "ToolHandler",
    "ToolRegistry",
    "Unknown",
    "Verdict",
    "encode_result",
    "tool",
]
