"""Models: the conversation, the port that asks a model, a fake one and real ones."""

from aaa.llm.client import LLMClient
from aaa.llm.fake import FakeLLMClient
from aaa.llm.handler import LLMHandler
from aaa.llm.messages import (
    Conversation,
    Message,
    ModelReply,
    ModelRequest,
    ToolCall,
    ToolSpec,
    Usage,
    result_text,
)
from aaa.llm.providers import ProviderClient

__all__ = [
    "Conversation",
    "FakeLLMClient",
    "LLMClient",
    "LLMHandler",
    "Message",
    "ModelReply",
    "ModelRequest",
    "ProviderClient",
    "ToolCall",
    "ToolSpec",
    "Usage",
    "result_text",
]
