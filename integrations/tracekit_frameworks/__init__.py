"""The agent frameworks: which packages count as user code, which code only sends telemetry, and which schedulers no run covers.

A framework makes ids and dates that reach prompts and results, so its clock readings and random numbers belong to the run. What
exporters send, and the threads that they do it in, do not.
"""

from __future__ import annotations

from tracekit.integration import Integration, QueueClass

from ._schedulers import SCHEDULERS
from ._telemetry import ENDPOINTS, SENDERS, traceparent

__all__ = ["integration"]

integration = Integration(
    "frameworks",
    frameworks=(
        "langchain",
        "langchain_core",
        "langchain_classic",
        "langchain_community",
        "langchain_openai",
        "langchain_anthropic",
        "langgraph",
        "agents",
        "pydantic_ai",
        # Not pydantic_graph: all that it draws is names of nodes in a graph that is built once a process.
        "instructor",
        "litellm",
        "crewai",
        "smolagents",
        "autogen_core",
        "autogen_agentchat",
        "autogen_ext",
        "llama_index",
        "dspy",
        "strands",
        "agno",
        "google.adk",
        "haystack",
        "semantic_kernel",
        # Those that work by a shell, or by a program that they speak with.
        "claude_agent_sdk",
        "minisweagent",
        "aider",
        "gptme",
        "posthog.request",
    ),
    # What looks for calls that block an event loop.
    wrappers=("blockbuster",),
    telemetry=SENDERS,
    ambient=ENDPOINTS,
    schedulers=SCHEDULERS,
    # By which the threads of a graph hand on what a stream gives.
    queues=(QueueClass("langgraph._internal._queue", "SyncQueue", wait="wait"),),
    traceparent=traceparent,
)
