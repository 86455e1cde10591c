"""The agent frameworks: which packages count as user code, which code only sends telemetry, and which schedulers are
not supported.

A framework creates ids and dates that reach prompts and results, so its clock readings and random numbers belong to the
run. What exporters send, and the threads in which they do it, do not.

PYTEST_DONT_REWRITE: it may be imported before pytest starts.
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
        # Not pydantic_graph: it only draws names of nodes in a graph that is built once per process.
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
        "swarms",
        # Frameworks that work by a shell, or by a program with which they communicate.
        "claude_agent_sdk",
        "minisweagent",
        "aider",
        "gptme",
        "posthog.request",
        # Packages that make ids for the program, and that read its settings.
        "ulid",
        "nanoid",
        "cuid2",
        "ksuid",
        "decouple",
        "environs",
    ),
    ids=("pydantic_ai._uuid:uuid7",),
    # Detectors of calls that block an event loop.
    wrappers=("blockbuster",),
    telemetry=SENDERS,
    ambient=ENDPOINTS,
    schedulers=SCHEDULERS,
    # The queue with which the threads of a graph pass on the items of a stream.
    queues=(QueueClass("langgraph._internal._queue", "SyncQueue", wait="wait"),),
    traceparent=traceparent,
)
